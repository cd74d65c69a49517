// Characters sorted into a few kinds, so that a grammar can admit or refuse all tokens that consist of certain kinds at
// once. The kinds are those that character classes of schemas and patterns are usually made of; a class that splits one
// costs time, never exactness.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace glm53::text {

enum class CharKind : uint8_t {
  kDigit,
  kHexLower,  ///< a-f
  kLower,     ///< g-z
  kHexUpper,
  kUpper,
  kUnderscore,
  kHyphen,
  kSpace,
  kPoint,
  kQuote,
  kBackslash,
  kLineEnd,  ///< what "." leaves out: U+000A, U+000D, U+2028, U+2029
  kControl,  ///< others below U+0020
  kOther,    ///< the rest of ASCII
  kBeyondAscii,
};
inline constexpr int kCharKinds = 15;

/// A set of kinds: bit i for kind i.
using CharKindSet = uint16_t;
/// Instead of a kind, for texts that are not characters of known kinds one after the other.
inline constexpr CharKindSet kIrregular = CharKindSet{1} << kCharKinds;

/// Characters of one kind that are `length` bytes of UTF-8, each between its bounds.
struct CharBytes {
  CharKind kind = CharKind::kOther;
  uint8_t length = 1;
  std::array<uint8_t, 4> low{};
  std::array<uint8_t, 4> high{};
};
/// All Unicode scalar values, ordered by first byte.
std::span<const CharBytes> char_bytes();

/// The kind of the first character of `text` and the number of its bytes. A character that `text` cuts short has a kind
/// if all that it may become have the same. kIrregular, 1 byte: not the beginning of a character, or of several kinds.
struct FirstChar {
  CharKindSet kind = kIrregular;
  size_t bytes = 1;
};
FirstChar first_char(std::string_view text);

}  // namespace glm53::text
