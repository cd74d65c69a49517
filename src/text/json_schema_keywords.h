// The vocabulary of JSON schemas: what is refused, what asserts something, what formats look like.
#pragma once

#include <string_view>

namespace glm53::text {

/// A keyword whose meaning this server does not enforce, so that a schema with it is refused.
bool is_unsupported(std::string_view keyword);
/// False for annotations and definitions, which say nothing about a value.
bool is_assertion(std::string_view keyword);
/// The whole texts of a format, as a regex; empty for a format that is not checked.
std::string_view format_pattern(std::string_view format);

}  // namespace glm53::text
