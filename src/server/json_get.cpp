#include "server/json_get.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "glm53/core/contains.h"
#include "server/api_error.h"

namespace glm53::server {
namespace {

using text::PromptJson;

std::string field_name(std::string_view path, std::string_view key) { return std::string(path) + std::string(key); }

/// The member when it has the wanted kind, nullptr when absent or null.
const PromptJson* typed(const PromptJson& object, std::string_view key, PromptJson::Kind kind, const char* what,
                        std::string_view path) {
  const PromptJson* value = object.find(key);
  if (value != nullptr && value->kind() != kind) {
    const std::string field = field_name(path, key);
    throw bad_field(field, field + " must be " + what);
  }
  return value;
}

std::string plain(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

}  // namespace

int64_t require_int(const PromptJson& value, const std::string& field, int64_t low, int64_t high) {
  const auto refuse = [&]() {
    std::string range;
    if (low != std::numeric_limits<int64_t>::min()) range += " of at least " + std::to_string(low);
    if (high != std::numeric_limits<int64_t>::max()) {
      range += (range.empty() ? " of" : " and") + std::string(" at most ") + std::to_string(high);
    }
    return bad_field(field, field + " must be an integer" + range);
  };
  if (!value.is_number()) throw refuse();
  std::string_view literal = value.number_literal();
  const size_t point = literal.find('.');  // some clients write every number as a float
  if (literal.find_first_not_of(".0", point) == std::string_view::npos) literal = literal.substr(0, point);
  int64_t parsed = 0;
  const auto end = literal.data() + literal.size();
  const auto result = std::from_chars(literal.data(), end, parsed);
  if (result.ec != std::errc() || result.ptr != end || parsed < low || parsed > high) throw refuse();
  return parsed;
}

std::optional<int64_t> opt_int(const PromptJson& object, std::string_view key, int64_t low, int64_t high,
                               std::string_view path) {
  const PromptJson* value = object.find(key);
  if (value == nullptr) return std::nullopt;
  return require_int(*value, field_name(path, key), low, high);
}

std::optional<double> opt_number(const PromptJson& object, std::string_view key, double low, double high,
                                 std::string_view path) {
  const PromptJson* value = typed(object, key, PromptJson::Kind::kNumber, "a number", path);
  if (value == nullptr) return std::nullopt;
  const std::string& literal = value->number_literal();
  double parsed = 0;
  const auto end = literal.data() + literal.size();
  const auto result = std::from_chars(literal.data(), end, parsed);
  // Out of range is also a literal too small for a double, 1e-999 or 0.000…1, which counts as 0. Only strtod tells both
  // ends of the range apart; this program never sets a locale.
  const bool underflow =
      result.ec == std::errc::result_out_of_range && std::abs(std::strtod(literal.c_str(), nullptr)) < 1;
  if (!underflow && (result.ec != std::errc() || result.ptr != end || !std::isfinite(parsed))) {
    throw bad_field(field_name(path, key), field_name(path, key) + " must be a finite number");
  }
  if (parsed < low || parsed > high) {
    const std::string field = field_name(path, key);
    std::string range = "at least " + plain(low);
    // What a float or a double can hold is no bound to tell somebody who kept to it.
    if (parsed > high || high < std::numeric_limits<float>::max()) {
      range = "between " + plain(low) + " and " + plain(high);
    }
    throw bad_field(field, field + " must be " + range);
  }
  return parsed;
}

std::optional<bool> opt_bool(const PromptJson& object, std::string_view key, std::string_view path) {
  const PromptJson* value = typed(object, key, PromptJson::Kind::kBool, "true or false", path);
  if (value == nullptr) return std::nullopt;
  return value->as_bool();
}

const std::string* opt_string(const PromptJson& object, std::string_view key, std::string_view path) {
  const PromptJson* value = typed(object, key, PromptJson::Kind::kString, "a string", path);
  return value == nullptr ? nullptr : &value->as_string();
}

const PromptJson::Array* opt_array(const PromptJson& object, std::string_view key, std::string_view path) {
  const PromptJson* value = typed(object, key, PromptJson::Kind::kArray, "a list", path);
  return value == nullptr ? nullptr : &value->items();
}

const PromptJson* opt_object(const PromptJson& object, std::string_view key, std::string_view path) {
  return typed(object, key, PromptJson::Kind::kObject, "an object", path);
}

const std::string& require_string(const PromptJson& object, std::string_view key, std::string_view path) {
  const std::string* value = opt_string(object, key, path);
  if (value == nullptr) throw bad_field(field_name(path, key), field_name(path, key) + " is required");
  return *value;
}

void require_one_of(std::string_view word, std::span<const std::string_view> words, const std::string& field) {
  if (contains(words, word)) return;
  std::string list;
  for (const std::string_view known : words) list += (list.empty() ? "" : ", ") + std::string(known);
  throw bad_field(field, field + " must be one of " + list);
}

void require_object(const PromptJson& value, const std::string& field) {
  if (!value.is_object()) throw bad_field(field, field + " must be an object");
}

std::vector<int32_t> require_ids(const PromptJson::Array& items, const std::string& field, int32_t vocab) {
  std::vector<int32_t> ids;
  ids.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    ids.push_back(static_cast<int32_t>(require_int(items[i], field + '[' + std::to_string(i) + ']', 0, vocab - 1)));
  }
  return ids;
}

PromptJson parse_body(std::string_view body) {
  if (body.empty()) throw ApiError(400, "the request body is empty: a JSON object is expected");
  try {
    PromptJson parsed = PromptJson::parse(body);
    if (!parsed.is_object()) throw ApiError(400, "the request body must be a JSON object");
    return parsed;
  } catch (const PromptJson::LimitError& error) {
    throw ApiError(400, std::string("the request body has ") + error.what());
  } catch (const PromptJson::ParseError& error) {
    throw ApiError(400, std::string("the request body is not valid JSON: ") + error.what());
  }
}

}  // namespace glm53::server
