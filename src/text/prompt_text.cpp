#include "text/prompt_text.h"

#include <algorithm>
#include <utility>

#include "glm53/core/utf8.h"

namespace glm53::text {

namespace {

bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

// Bytes of the space that `text` begins with, else 0.
size_t space_bytes(std::string_view text) {
  std::string_view rest = text;
  return !text.empty() && is_python_space(take_code_point(rest)) ? text.size() - rest.size() : 0;
}

}  // namespace

void PromptText::add(TextSegment::Kind kind, std::string_view text) {
  if (text.empty()) {
    return;
  }
  if (segments_.empty() || segments_.back().kind != kind) {
    segments_.push_back({kind, {}});
  }
  segments_.back().text += text;
  size_ += text.size();
}

void PromptText::add_media(MediaPart::Kind kind, std::string param) {
  media_.push_back({kind, std::move(param), size_});
  add_template(kind == MediaPart::Kind::kImage ? "<|begin_of_image|><|image|><|end_of_image|>"
                                               : "<|begin_of_video|><|video|><|end_of_video|>");
}

void PromptText::append(const PromptText& other) {
  for (const MediaPart& part : other.media_) {
    media_.push_back({part.kind, part.param, size_ + part.offset});
  }
  for (const TextSegment& segment : other.segments_) {
    add(segment.kind, segment.text);
  }
}

PromptText PromptText::slice(size_t begin, size_t end) const {
  PromptText out;
  for (const MediaPart& part : media_) {
    if (part.offset >= begin && part.offset < end) {
      out.media_.push_back({part.kind, part.param, part.offset - begin});
    }
  }
  size_t at = 0;
  for (const TextSegment& segment : segments_) {
    const size_t first = std::max(begin, at);
    const size_t last = std::min(end, at + segment.text.size());
    if (first < last) {
      out.add(segment.kind, std::string_view(segment.text).substr(first - at, last - first));
    }
    at += segment.text.size();
  }
  return out;
}

std::string PromptText::text() const {
  std::string out;
  out.reserve(size_);
  for (const TextSegment& segment : segments_) {
    out += segment.text;
  }
  return out;
}

std::string_view strip_front(std::string_view text) {
  while (const size_t bytes = space_bytes(text)) {
    text.remove_prefix(bytes);
  }
  return text;
}

std::string_view strip_back(std::string_view text) {
  while (!text.empty()) {
    size_t bytes = 1;
    while (bytes < text.size() && (static_cast<unsigned char>(text[text.size() - bytes]) & 0xc0) == 0x80) {
      ++bytes;
    }
    if (space_bytes(text.substr(text.size() - bytes)) != bytes) {
      break;
    }
    text.remove_suffix(bytes);
  }
  return text;
}

}  // namespace glm53::text
