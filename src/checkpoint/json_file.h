// Reading JSON files that nobody has vouched for: bounded size and depth, no duplicate keys, one-line errors.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace glm53 {

/// `text` fit for a one-line message: control characters replaced by '?', long text cut.
std::string printable(std::string_view text);

/// The whole of a regular file. Throws Error naming `path` when it cannot be read or is larger than `max_bytes`.
std::string read_text_file(const std::string& path, size_t max_bytes);

/// Parses a JSON object. Throws Error naming `file` for malformed text, nesting beyond `max_depth`, a key that occurs
/// twice in one object (readers differ in which one they believe), and for anything but an object at the top.
nlohmann::json parse_json_object(std::string_view text, const std::string& file, int max_depth);

}  // namespace glm53
