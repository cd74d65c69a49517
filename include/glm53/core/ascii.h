// Letters of ASCII, whatever the locale; all other bytes stay as they are.
#pragma once

#include <string>
#include <string_view>

namespace glm53 {

inline char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

inline std::string ascii_lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = ascii_lower(c);
  return lower;
}

}  // namespace glm53
