// ASCII, whatever the locale.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace glm53 {

/// Letters in lower case; all other bytes stay as they are.
inline char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

inline std::string ascii_lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = ascii_lower(c);
  return lower;
}

/// A character that shows: neither a blank nor a control character, and no byte of a longer one.
inline bool is_visible_ascii(char c) { return c > 0x20 && c < 0x7F; }

inline bool is_visible_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return is_visible_ascii(c); });
}

}  // namespace glm53
