// Parsing JSON that nobody has vouched for: bounded depth, no duplicate keys, one-line errors.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace glm53 {

/// Parses a JSON object. Throws Error naming `file` for malformed text, nesting beyond `max_depth`, a key that occurs
/// twice in one object (readers differ in which one they believe), and for anything but an object at the top.
nlohmann::json parse_json_object(std::string_view text, const std::string& file, int max_depth);

}  // namespace glm53
