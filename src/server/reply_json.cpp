#include "server/reply_json.h"

#include <charconv>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace glm53::server {
namespace {

using nlohmann::ordered_json;
using text::PromptJson;

ordered_json number_json(const std::string& literal) {
  const char* begin = literal.data();
  const char* end = begin + literal.size();
  int64_t integer = 0;
  if (const auto read = std::from_chars(begin, end, integer); read.ec == std::errc() && read.ptr == end) return integer;
  double value = 0;
  const bool fits = std::from_chars(begin, end, value).ec == std::errc();
  // Only an integer of hundreds of digits does not fit, and a number too small to matter.
  if (!fits) value = literal.find_first_of("eE.") != std::string::npos ? 0 : std::numeric_limits<double>::max();
  return value;
}

}  // namespace

std::string dump(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json to_json(const PromptJson& value) {
  switch (value.kind()) {
    case PromptJson::Kind::kNull:
      return nullptr;
    case PromptJson::Kind::kBool:
      return value.as_bool();
    case PromptJson::Kind::kNumber:
      return number_json(value.number_literal());
    case PromptJson::Kind::kString:
      return value.as_string();
    case PromptJson::Kind::kArray: {
      ordered_json::array_t items;
      for (const PromptJson& item : value.items()) items.push_back(to_json(item));
      return items;
    }
    case PromptJson::Kind::kObject: {
      ordered_json::object_t members;
      members.reserve(value.members().size());
      // Keys differ already; operator[] would compare each with all before it.
      for (const auto& [key, member] : value.members()) members.emplace_back(key, to_json(member));
      return members;
    }
  }
  return nullptr;
}

}  // namespace glm53::server
