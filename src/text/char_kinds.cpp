#include "text/char_kinds.h"

#include <algorithm>

namespace glm53::text {
namespace {

constexpr CharBytes one(CharKind kind, uint8_t low, uint8_t high) { return {kind, 1, {low}, {high}}; }
constexpr CharBytes two(uint8_t low, uint8_t high) { return {CharKind::kBeyondAscii, 2, {low, 0x80}, {high, 0xBF}}; }
/// `low2` to `high2`: the second byte's bounds, which exclude overlong forms, surrogates and what is past U+10FFFF.
constexpr CharBytes three(uint8_t low, uint8_t high, uint8_t low2, uint8_t high2) {
  return {CharKind::kBeyondAscii, 3, {low, low2, 0x80}, {high, high2, 0xBF}};
}
constexpr CharBytes four(uint8_t low, uint8_t high, uint8_t low2, uint8_t high2) {
  return {CharKind::kBeyondAscii, 4, {low, low2, 0x80, 0x80}, {high, high2, 0xBF, 0xBF}};
}

constexpr std::array kRows = {
    one(CharKind::kControl, 0x00, 0x09),
    one(CharKind::kLineEnd, '\n', '\n'),
    one(CharKind::kControl, 0x0B, 0x0C),
    one(CharKind::kLineEnd, '\r', '\r'),
    one(CharKind::kControl, 0x0E, 0x1F),
    one(CharKind::kSpace, ' ', ' '),
    one(CharKind::kOther, '!', '!'),
    one(CharKind::kQuote, '"', '"'),
    one(CharKind::kOther, '#', ','),
    one(CharKind::kHyphen, '-', '-'),
    one(CharKind::kPoint, '.', '.'),
    one(CharKind::kOther, '/', '/'),
    one(CharKind::kDigit, '0', '9'),
    one(CharKind::kOther, ':', '@'),
    one(CharKind::kHexUpper, 'A', 'F'),
    one(CharKind::kUpper, 'G', 'Z'),
    one(CharKind::kOther, '[', '['),
    one(CharKind::kBackslash, '\\', '\\'),
    one(CharKind::kOther, ']', '^'),
    one(CharKind::kUnderscore, '_', '_'),
    one(CharKind::kOther, '`', '`'),
    one(CharKind::kHexLower, 'a', 'f'),
    one(CharKind::kLower, 'g', 'z'),
    one(CharKind::kOther, '{', 0x7F),
    two(0xC2, 0xDF),
    three(0xE0, 0xE0, 0xA0, 0xBF),
    three(0xE1, 0xE1, 0x80, 0xBF),
    CharBytes{CharKind::kBeyondAscii, 3, {0xE2, 0x80, 0x80}, {0xE2, 0x80, 0xA7}},
    CharBytes{CharKind::kLineEnd, 3, {0xE2, 0x80, 0xA8}, {0xE2, 0x80, 0xA9}},
    CharBytes{CharKind::kBeyondAscii, 3, {0xE2, 0x80, 0xAA}, {0xE2, 0x80, 0xBF}},
    three(0xE2, 0xE2, 0x81, 0xBF),
    three(0xE3, 0xEC, 0x80, 0xBF),
    three(0xED, 0xED, 0x80, 0x9F),
    three(0xEE, 0xEF, 0x80, 0xBF),
    four(0xF0, 0xF0, 0x90, 0xBF),
    four(0xF1, 0xF3, 0x80, 0xBF),
    four(0xF4, 0xF4, 0x80, 0x8F),
};

}  // namespace

std::span<const CharBytes> char_bytes() { return kRows; }

FirstChar first_char(std::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  FirstChar found;
  CharKindSet kinds = 0;
  for (auto row = std::ranges::partition_point(kRows, [&](const CharBytes& r) { return r.high[0] < first; });
       row != kRows.end() && row->low[0] <= first; ++row) {
    const size_t given = std::min<size_t>(row->length, text.size());
    bool matches = true;
    for (size_t i = 1; i < given; ++i) {
      const auto byte = static_cast<uint8_t>(text[i]);
      matches &= row->low[i] <= byte && byte <= row->high[i];
    }
    if (!matches) continue;
    kinds |= static_cast<CharKindSet>(1U << static_cast<unsigned>(row->kind));
    found.bytes = given;
  }
  if (kinds == 0 || (kinds & (kinds - 1)) != 0) return {};
  found.kind = kinds;
  return found;
}

}  // namespace glm53::text
