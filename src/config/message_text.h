// Text that comes from outside and goes into one-line messages.
#pragma once

#include <string>
#include <string_view>

namespace glm53::config {

/// Well-formed UTF-8 (RFC 3629: no surrogates, no overlong forms).
bool is_utf8(std::string_view text);

/// Any control character (below U+0020, or U+007F).
bool has_control_character(std::string_view text);

/// `text` on one line: control characters and, unless the whole is UTF-8, bytes above 0x7f become \xNN.
std::string printable(std::string_view text);

/// `printable` in double quotes, long text cut.
std::string in_quotes(std::string_view text);

}  // namespace glm53::config
