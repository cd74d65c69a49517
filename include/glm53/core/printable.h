// Text that comes from outside (files, requests, the command line) on its way into one-line messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace glm53 {

/// Below U+0020, or U+007F.
inline bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

/// `text` on one line and in UTF-8: control characters and, unless the whole is UTF-8, bytes above 0x7f become \xNN.
/// What is longer than `longest` bytes is cut between characters and ends in "…".
std::string printable(std::string_view text, size_t longest = 200);

/// `printable` in double quotes.
std::string in_quotes(std::string_view text, size_t longest = 80);

/// `text` as a JSON string, valid whatever it holds: bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

}  // namespace glm53
