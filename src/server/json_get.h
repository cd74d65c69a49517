// Strict readers for fields of a request (spec 80 §3). Null counts as absent; a value of another type, outside its
// range or not representable is an ApiError 400 naming the field. Nothing is wrapped, truncated or converted: "0.5" and
// true are not numbers, 1.9 and 1e2 are not integers. 1.0 is one, as clients write it that know floats alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/prompt_json.h"

namespace glm53::server {

// `path` is the prefix of the field's name in messages: "stream_options." for a member of that object.

std::optional<int64_t> opt_int(const text::PromptJson& object, std::string_view key, int64_t low, int64_t high,
                               std::string_view path = {});
/// Finite, within [low, high].
std::optional<double> opt_number(const text::PromptJson& object, std::string_view key, double low, double high,
                                 std::string_view path = {});
std::optional<bool> opt_bool(const text::PromptJson& object, std::string_view key, std::string_view path = {});
/// The pointers stay valid as long as `object`; nullptr when absent.
const std::string* opt_string(const text::PromptJson& object, std::string_view key, std::string_view path = {});
const text::PromptJson::Array* opt_array(const text::PromptJson& object, std::string_view key,
                                         std::string_view path = {});
const text::PromptJson* opt_object(const text::PromptJson& object, std::string_view key, std::string_view path = {});

/// The name of a list's member: "messages[2]".
inline std::string indexed(const std::string& path, size_t i) { return path + '[' + std::to_string(i) + ']'; }

/// A string that must be there.
const std::string& require_string(const text::PromptJson& object, std::string_view key, std::string_view path = {});
/// A word that must be one of `words`; `field` names it.
void require_one_of(std::string_view word, std::span<const std::string_view> words, const std::string& field);
/// A value that must be an object; `field` names it.
void require_object(const text::PromptJson& value, const std::string& field);

/// A value that must be an integer in [low, high]; `field` names it.
int64_t require_int(const text::PromptJson& value, const std::string& field, int64_t low, int64_t high);

/// A list of token ids below `vocab`; `field` names it.
std::vector<int32_t> require_ids(const text::PromptJson::Array& items, const std::string& field, int32_t vocab);

/// Parses a request body; anything but a JSON object is a 400.
text::PromptJson parse_body(std::string_view body);

}  // namespace glm53::server
