#include "checkpoint/config_reader.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "glm53/core/contains.h"
#include "glm53/core/error.h"
#include "glm53/core/printable.h"

namespace glm53 {
namespace {

/// `value` as JSON text for a message.
std::string shown(const nlohmann::json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  return printable(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

std::string range_text(int64_t low, int64_t high) {
  return "an integer from " + std::to_string(low) + " to " + std::to_string(high);
}

std::optional<int64_t> integer_in(const nlohmann::json& value, int64_t low, int64_t high) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  const auto number = value.get<int64_t>();
  if (number < low || number > high) return std::nullopt;
  return number;
}

}  // namespace

ConfigReader::ConfigReader(const nlohmann::json& object, std::string file, std::string path)
    : object_(&object), file_(std::move(file)), path_(std::move(path)) {}

const nlohmann::json* ConfigReader::find(std::string_view key) const {
  const auto found = object_->find(std::string(key));
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

void ConfigReader::fail(std::string_view key, const std::string& what) const {
  throw Error(file_ + ": " + path_ + std::string(key) + " " + what);
}

bool ConfigReader::has(std::string_view key) const { return find(key) != nullptr; }

std::optional<ConfigReader> ConfigReader::object(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) fail(key, "is " + shown(*value) + "; expected an object");
  return ConfigReader(*value, file_, path_ + std::string(key) + ".");
}

std::optional<int64_t> ConfigReader::integer(std::string_view key, int64_t low, int64_t high) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = integer_in(*value, low, high);
  if (!number) fail(key, "is " + shown(*value) + "; expected " + range_text(low, high));
  return number;
}

int ConfigReader::require_int(std::string_view key, int low, int high) const {
  const std::optional<int64_t> number = integer(key, low, high);
  if (!number) fail(key, "is missing");
  return static_cast<int>(*number);
}

int ConfigReader::int_or(std::string_view key, int fallback, int low, int high) const {
  return static_cast<int>(integer(key, low, high).value_or(fallback));
}

std::optional<double> ConfigReader::number(std::string_view key, double low, double high) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || value->get<double>() < low || value->get<double>() > high) {
    fail(key, "is " + shown(*value) + "; expected a number from " + shown(low) + " to " + shown(high));
  }
  return value->get<double>();
}

float ConfigReader::float_or(std::string_view key, float fallback, double low, double high) const {
  const std::optional<double> value = number(key, low, high);
  return value ? static_cast<float>(*value) : fallback;
}

std::optional<bool> ConfigReader::boolean(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) fail(key, "is " + shown(*value) + "; expected true or false");
  return value->get<bool>();
}

std::optional<std::string> ConfigReader::string(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail(key, "is " + shown(*value) + "; expected a string");
  return value->get<std::string>();
}

std::optional<std::vector<int64_t>> ConfigReader::integers(std::string_view key, int64_t low, int64_t high) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) fail(key, "is " + shown(*value) + "; expected a list of integers");
  std::vector<int64_t> numbers;
  for (const nlohmann::json& element : *value) {
    const std::optional<int64_t> number = integer_in(element, low, high);
    if (!number) fail(key, "holds " + shown(element) + "; expected " + range_text(low, high));
    numbers.push_back(*number);
  }
  return numbers;
}

std::optional<std::vector<std::string>> ConfigReader::strings(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) fail(key, "is " + shown(*value) + "; expected a list of strings");
  std::vector<std::string> texts;
  for (const nlohmann::json& element : *value) {
    if (!element.is_string()) fail(key, "holds " + shown(element) + "; expected strings");
    texts.push_back(element.get<std::string>());
  }
  return texts;
}

std::optional<std::vector<int>> ConfigReader::token_ids(std::string_view key, int vocab) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) return std::vector{require_int(key, 0, vocab - 1)};
  const std::vector<int64_t> listed = integers(key, 0, vocab - 1).value();
  std::vector<int> ids;
  for (const int64_t id : listed) {
    if (!contains(ids, id)) ids.push_back(static_cast<int>(id));
  }
  if (ids.empty()) fail(key, "is an empty list");
  return ids;
}

void ConfigReader::only(std::string_view key, bool value) const {
  if (boolean(key).value_or(value) != value) fail(key, std::string("must be ") + (value ? "true" : "false"));
}

void ConfigReader::only(std::string_view key, int64_t value) const {
  const std::optional<int64_t> actual = integer(key, INT64_MIN, INT64_MAX);
  if (actual.value_or(value) != value) {
    fail(key, "is " + std::to_string(*actual) + "; only " + std::to_string(value) + " is supported");
  }
}

void ConfigReader::only(std::string_view key, std::string_view value) const {
  const std::optional<std::string> actual = string(key);
  if (actual && *actual != value) {
    fail(key, "is " + in_quotes(*actual) + "; only \"" + std::string(value) + "\" is supported");
  }
}

}  // namespace glm53
