// UTF-8: checking it, and repairing bytes that model vocabularies, files or clients produce, the way Unicode 14.0 §3.9
// recommends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace glm53 {

/// U+FFFD in UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// Well-formed UTF-8 (RFC 3629: no surrogates, no overlong forms).
bool is_utf8(std::string_view text);

/// Characters (code points) of valid UTF-8.
int64_t count_characters(std::string_view text);

/// Appends `bytes` to `out`, each maximal invalid subpart as U+FFFD. An incomplete but so far valid character at the
/// end is not appended: its length, 0 to 3 bytes, is returned.
size_t append_utf8(std::string_view bytes, std::string& out);

/// `bytes` with each maximal invalid subpart, one cut off by the end included, replaced by U+FFFD.
std::string to_valid_utf8(std::string_view bytes);

/// Decodes the first character of `text`, which must be valid UTF-8 and not empty, and removes it from `text`.
char32_t take_code_point(std::string_view& text);

/// Appends `code_point`, a Unicode scalar value, in UTF-8.
void append_code_point(char32_t code_point, std::string& out);

}  // namespace glm53
