#include "glm53/core/printable.h"

#include <cstdio>

#include "glm53/core/utf8.h"

namespace glm53 {
namespace {

/// `prefix`, of four characters at most, and the byte in hexadecimal.
void append_hex(const char* prefix, char byte, std::string& out) {
  char text[8];
  std::snprintf(text, sizeof text, "%s%02x", prefix, static_cast<unsigned>(static_cast<unsigned char>(byte)));
  out += text;
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

}  // namespace

std::string printable(std::string_view text, size_t longest) {
  const bool is_cut = text.size() > longest;
  if (is_cut) {
    size_t end = longest;
    // A character has three such bytes at most; more are no text, and are cut anywhere.
    while (end > 0 && longest - end < 3 && is_continuation(text[end])) --end;
    text = text.substr(0, end);
  }
  const bool utf8 = is_utf8(text);
  std::string out;
  for (const char c : text) {
    if (is_control(c) || (static_cast<unsigned char>(c) >= 0x80 && !utf8)) {
      append_hex("\\x", c, out);
    } else {
      out += c;
    }
  }
  return is_cut ? out + "…" : out;
}

std::string in_quotes(std::string_view text, size_t longest) { return '"' + printable(text, longest) + '"'; }

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : to_valid_utf8(text)) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (is_control(c)) {
      append_hex("\\u00", c, out);
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace glm53
