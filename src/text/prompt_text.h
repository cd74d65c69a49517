// Text put together from the template's own words, message content and picture places, each kept apart because each
// is tokenised differently (spec 40 §1.5). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace glm53::text {

/// One picture or clip of a prompt.
struct MediaPart {
  enum class Kind : uint8_t { kImage, kVideo };
  Kind kind = Kind::kImage;
  std::string param;  ///< request path of the part: "messages[0].content[1]"
  size_t offset = 0;  ///< byte offset of its begin marker in the whole text
};

class PromptText {
 public:
  void add_template(std::string_view text) { add(TextSegment::Kind::kTemplate, text); }
  void add_content(std::string_view text) { add(TextSegment::Kind::kContent, text); }
  /// Begin marker, place, end marker; template text, so that they become ids.
  void add_media(MediaPart::Kind kind, std::string param);
  void append(const PromptText& other);

  /// Bytes [begin, end) of text(). Neither may lie inside a character or inside a picture's markers.
  PromptText slice(size_t begin, size_t end) const;

  size_t size() const { return size_; }
  std::string text() const;
  const std::vector<TextSegment>& segments() const { return segments_; }  ///< none empty; neighbours differ in kind
  const std::vector<MediaPart>& media() const { return media_; }          ///< by offset

 private:
  void add(TextSegment::Kind kind, std::string_view text);

  std::vector<TextSegment> segments_;
  std::vector<MediaPart> media_;
  size_t size_ = 0;
};

/// `text`, valid UTF-8, without the characters that Python's str.strip() takes away: White_Space and U+001C..U+001F.
std::string_view strip_front(std::string_view text);
std::string_view strip_back(std::string_view text);

}  // namespace glm53::text
