#include "config/message_text.h"

#include <algorithm>

#include <fmt/format.h>

namespace glm53::config {

namespace {

constexpr size_t kLongestQuote = 80;

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U; }

}  // namespace

bool is_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || text.size() - i < length) return false;
    const auto second = static_cast<unsigned char>(text[i + 1]);
    const unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (second < low || second > high) return false;
    for (size_t k = 2; k < length; ++k) {
      if (!is_continuation(text[i + k])) return false;
    }
    i += length;
  }
  return true;
}

bool has_control_character(std::string_view text) { return std::any_of(text.begin(), text.end(), is_control); }

std::string printable(std::string_view text) {
  const bool utf8 = is_utf8(text);
  std::string out;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (is_control(c) || (byte >= 0x80 && !utf8)) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

std::string in_quotes(std::string_view text) {
  if (text.size() <= kLongestQuote) return '"' + printable(text) + '"';
  size_t end = kLongestQuote;
  while (end > 0 && is_continuation(text[end])) --end;
  return '"' + printable(text.substr(0, end)) + "…\"";
}

}  // namespace glm53::config
