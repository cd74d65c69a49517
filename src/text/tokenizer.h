// Byte-level BPE from a checkpoint's tokenizer.json (spec 40 §1). Pure and immutable after loading: any number of
// threads may encode and decode at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace glm53::text {

/// A piece of text to encode. Prompts are lists of these: a template's own text, a message's content, a picture's
/// place.
struct TextSegment {
  enum class Kind : uint8_t {
    kTemplate,  ///< added-token markers in it become their ids
    kContent,   ///< markers become ids except the picture and video markers, which stay text (spec 40 §1.5)
    kPlain,     ///< no marker is recognised (api.content_markers: text)
  };
  Kind kind = Kind::kTemplate;
  std::string text;  ///< UTF-8; each maximal invalid subpart is encoded as U+FFFD
};

class Tokenizer {
 public:
  /// Parses the text of a tokenizer.json. `file` names it in messages. Throws Error naming the part that is missing,
  /// malformed or not implemented by this server.
  static Tokenizer from_json(std::string_view json, const std::string& file);

  /// For a checkpoint that has no tokenizer: ids below `ids` are tokens without text, no text has ids.
  static Tokenizer without_vocabulary(int32_t ids);
  /// False for the one above: only prompts of ids can be served, and replies have no text.
  bool has_vocabulary() const { return impl_ != nullptr; }

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Text → ids, added-token markers recognised; nothing added at either end. Both forms throw std::runtime_error when
  /// the split pattern gives up on the text (spec 80 §5), or without a vocabulary. About 0.1 s a megabyte, 0.5 s where
  /// it is a single piece.
  std::vector<int32_t> encode(std::string_view text) const;
  /// Adjacent non-marker text is tokenised as one string across segment borders. A marker may span segments of one
  /// kind, as in a prompt rendered to one string, but not of two.
  std::vector<int32_t> encode(std::span<const TextSegment> segments) const;

  /// ids → UTF-8; each maximal invalid subpart becomes U+FFFD, unknown ids nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  /// Raw bytes of one token (an added token's UTF-8 text); empty for ids without a token.
  std::string_view token_bytes(int32_t id) const;
  /// The vocabulary piece in the byte alphabet ("ĠHigh"), as /tokenize shows it.
  std::string token_piece(int32_t id) const;

  /// One past the largest id with a token; config.vocab_size may be larger (padding rows).
  int32_t id_count() const;
  bool has_token(int32_t id) const;
  bool is_added(int32_t id) const;
  /// Added tokens with "special": true, the ones skip_special drops.
  bool is_special(int32_t id) const;
  /// Id of an added token by its text ("<think>").
  std::optional<int32_t> added_id(std::string_view text) const;
  /// As added_id, but a missing token is an Error naming it and the file.
  int32_t require_added(std::string_view text) const;

 private:
  struct Impl;
  Tokenizer(std::unique_ptr<Impl> impl, int32_t ids);
  std::unique_ptr<Impl> impl_;  ///< null without a vocabulary
  int32_t ids_;
};

/// Turns token bytes into text as they arrive; never emits part of a character and never looks back (spec 40 §1.6).
class IncrementalDecoder {
 public:
  /// Appends bytes; returns the text that became complete. An impossible byte becomes U+FFFD at once.
  std::string push(std::string_view bytes);
  /// The end: an incomplete character is dropped, or with `flush` becomes U+FFFD.
  std::string finish(bool flush);

 private:
  std::string pending_;  ///< at most 3 bytes: an incomplete, so far valid character
};

}  // namespace glm53::text
