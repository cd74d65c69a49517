#include "glm53/core/utf8.h"

#include <algorithm>
#include <cstdint>

namespace glm53 {
namespace {

struct Sequence {
  enum class Kind : uint8_t { kValid, kInvalid, kIncomplete };
  Kind kind;
  size_t length;  ///< bytes of the character, of the maximal invalid subpart, or of the tail
};

// Table 3-7 of the Unicode standard: only the second byte's range depends on the lead byte.
Sequence first_sequence(std::string_view bytes) {
  const auto lead = static_cast<uint8_t>(bytes[0]);
  if (lead < 0x80) return {Sequence::Kind::kValid, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Sequence::Kind::kInvalid, 1};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Sequence::Kind::kIncomplete, i};
    const auto byte = static_cast<uint8_t>(bytes[i]);
    if (byte < low || byte > high) return {Sequence::Kind::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Sequence::Kind::kValid, length};
}

size_t ascii_length(std::string_view bytes) {
  const auto end = std::find_if(bytes.begin(), bytes.end(), [](char c) { return (c & 0x80) != 0; });
  return static_cast<size_t>(end - bytes.begin());
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (true) {
    text.remove_prefix(ascii_length(text));
    if (text.empty()) return true;
    const Sequence sequence = first_sequence(text);
    if (sequence.kind != Sequence::Kind::kValid) return false;
    text.remove_prefix(sequence.length);
  }
}

size_t append_utf8(std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    const size_t ascii = ascii_length(bytes);
    out += bytes.substr(0, ascii);
    bytes.remove_prefix(ascii);
    if (bytes.empty()) break;
    const Sequence sequence = first_sequence(bytes);
    if (sequence.kind == Sequence::Kind::kIncomplete) return sequence.length;
    out += sequence.kind == Sequence::Kind::kValid ? bytes.substr(0, sequence.length) : kReplacementCharacter;
    bytes.remove_prefix(sequence.length);
  }
  return 0;
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; });
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  if (append_utf8(bytes, out) > 0) out += kReplacementCharacter;
  return out;
}

char32_t take_code_point(std::string_view& text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t code_point = length == 1 ? lead : lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) code_point = code_point << 6 | (static_cast<uint8_t>(text[i]) & 0x3Fu);
  text.remove_prefix(length);
  return code_point;
}

void append_code_point(char32_t code_point, std::string& out) {
  const int tail = code_point < 0x80 ? 0 : code_point < 0x800 ? 1 : code_point < 0x10000 ? 2 : 3;
  constexpr uint8_t kLead[] = {0x00, 0xC0, 0xE0, 0xF0};
  out += static_cast<char>(kLead[tail] | code_point >> (6 * tail));
  for (int shift = 6 * (tail - 1); shift >= 0; shift -= 6)
    out += static_cast<char>(0x80 | (code_point >> shift & 0x3F));
}

}  // namespace glm53
