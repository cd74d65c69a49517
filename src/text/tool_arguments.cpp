#include "text/tool_arguments.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <set>

#include "glm53/core/ascii.h"
#include "glm53/core/contains.h"
#include "text/json_pointer.h"
#include "text/prompt_text.h"

namespace glm53::text {

namespace {

constexpr size_t kMaxIntegerDigits = 4300;  // of Python's int()
constexpr int kMaxDepth = 127;              // of a value: its object is one deeper and must still parse

std::string_view trim(std::string_view text) { return strip_back(strip_front(text)); }

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Without the underscores that Python allows between digits; nullopt where one stands elsewhere.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) {
      return std::nullopt;
    }
  }
  return out;
}

struct Signed {
  bool negative = false;
  std::string_view digits;
};

Signed split_sign(std::string_view text) {
  const bool sign = !text.empty() && (text.front() == '-' || text.front() == '+');
  return {sign && text.front() == '-', text.substr(sign ? 1 : 0)};
}

/// The JSON literal of what Python's int() takes.
std::optional<std::string> integer_literal(std::string_view text) {
  const auto [negative, rest] = split_sign(trim(text));
  const auto digits = without_underscores(rest);
  if (!digits || digits->empty() || digits->size() > kMaxIntegerDigits ||
      !std::all_of(digits->begin(), digits->end(), is_digit)) {
    return std::nullopt;
  }
  const size_t first = digits->find_first_not_of('0');
  if (first == std::string::npos) return "0";
  return (negative ? "-" : "") + digits->substr(first);
}

/// The double of an unsigned decimal literal; nullopt for other text.
std::optional<double> to_double(const std::string& digits) {
  if (digits.find_first_not_of("0123456789.eE+-") != std::string::npos || digits.empty() || digits.front() == '-') {
    return std::nullopt;
  }
  double value = 0;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (stop != digits.data() + digits.size() || error == std::errc::invalid_argument) return std::nullopt;
  // from_chars tells underflow and overflow alike; strtod gives the limit of either.
  return error == std::errc() ? value : std::strtod(digits.c_str(), nullptr);
}

/// The JSON literal of what Python's float() takes and is finite; without a fraction where there is none.
std::optional<std::string> number_literal(std::string_view text) {
  const auto [negative, rest] = split_sign(trim(text));
  const auto digits = without_underscores(rest);
  const auto value = digits ? to_double(*digits) : std::nullopt;
  if (!value || !std::isfinite(*value)) return std::nullopt;
  if (auto integer = integer_literal(text)) return integer;  // all its digits, not those of the nearest double
  std::array<char, 400> buffer{};
  char* const end = buffer.data() + buffer.size();
  const bool whole = *value == std::floor(*value);
  const char* const stop = whole ? std::to_chars(buffer.data(), end, *value, std::chars_format::fixed, 0).ptr
                                 : std::to_chars(buffer.data(), end, *value).ptr;
  return (negative ? "-" : "") + std::string(buffer.data(), static_cast<size_t>(stop - buffer.data()));
}

std::optional<bool> boolean(std::string_view text) {
  const std::string word = ascii_lower(trim(text));
  if (word == "true" || word == "1") return true;
  if (word == "false" || word == "0") return false;
  return std::nullopt;
}

std::optional<PromptJson> parsed(std::string_view text, int depth) {
  try {
    return PromptJson::parse(text, kMaxDepth - depth);
  } catch (const PromptJson::ParseError&) {
    return std::nullopt;  // not JSON: the caller goes on with the text
  }
}

}  // namespace

bool ArgumentTyper::only_text(std::string_view key) {
  const PromptJson* const schema = schema_of(summary_of(document_), key);
  return schema != nullptr && types_of(*schema) == kString;
}

bool ArgumentTyper::admits_text(std::string_view key) {
  const PromptJson* const schema = schema_of(summary_of(document_), key);
  return schema == nullptr || (types_of(*schema) & kString) != 0;
}

PromptJson ArgumentTyper::value(std::string_view key, std::string_view text) {
  if (const PromptJson* const schema = schema_of(summary_of(document_), key)) return typed(*schema, text, 0);
  auto json = parsed(text, 0);
  return json && !json->is_string() ? *std::move(json) : PromptJson::string(std::string(text));
}

/// The order of spec 40 §4.2.
PromptJson ArgumentTyper::typed(const PromptJson& schema, std::string_view text, int depth) {
  const unsigned types = types_of(schema);
  if ((types & kNull) != 0 && ascii_lower(text) == "null") return {};
  if ((types & kInteger) != 0) {
    if (auto literal = integer_literal(text)) return PromptJson::number(*std::move(literal));
  }
  if ((types & kNumber) != 0) {
    if (auto literal = number_literal(text)) return PromptJson::number(*std::move(literal));
  }
  if ((types & kBoolean) != 0) {
    if (const auto value = boolean(text)) return PromptJson::boolean(*value);
  }
  if ((types & (kObject | kArray)) != 0) {
    if (const auto json = parsed(text, depth); json && (types & (kObject | kArray) & type_of(*json)) != 0) {
      return nested(schema, *json, depth);
    }
  }
  if ((types & kString) == 0) {
    if (const auto json = parsed(text, depth)) return nested(schema, *json, depth);
  }
  return PromptJson::string(std::string(text));
}

/// `depth` levels lie around `value`; those of JSON within a string of it are counted too, so that recursion is
/// bounded.
PromptJson ArgumentTyper::nested(const PromptJson& schema, const PromptJson& value, int depth) {
  const auto member_value = [&](const PromptJson& of, const PromptJson& member) {
    const bool anew = member.is_string() && (types_of(of) & kString) == 0;
    return anew ? typed(of, member.as_string(), depth + 1) : nested(of, member, depth + 1);
  };
  if (value.is_array()) {
    const PromptJson* const items = summary_of(schema).items;
    if (items == nullptr) return value;
    PromptJson::Array array;
    for (const PromptJson& item : value.items()) array.push_back(member_value(*items, item));
    return PromptJson::array(std::move(array));
  }
  if (value.is_object()) {
    PromptJson::Object object;
    for (const auto& [name, member] : value.members()) {
      const PromptJson* const of = schema_of(summary_of(schema), name);
      object.emplace_back(name, of != nullptr ? member_value(*of, member) : member);
    }
    return PromptJson::object(std::move(object));
  }
  return value;
}

/// Schema of a property by its name, else of all that have none; nullptr where nothing is said.
const PromptJson* ArgumentTyper::schema_of(const Summary& object, std::string_view key) {
  const auto& list = object.properties;
  const auto found =
      std::lower_bound(list.begin(), list.end(), key, [](const auto& a, std::string_view b) { return a.first < b; });
  if (found != list.end() && found->first == key) return found->second;
  const bool typed_rest = object.additional != nullptr && summary_of(*object.additional).types != 0;
  return typed_rest ? object.additional : nullptr;
}

unsigned ArgumentTyper::types_of(const PromptJson& schema) {
  const unsigned types = summary_of(schema).types;
  return types != 0 ? types : unsigned{kString};
}

unsigned ArgumentTyper::type_of(std::string_view name) {
  using Names = std::pair<unsigned, std::vector<std::string_view>>;
  static const std::vector<Names> kNames = {
      {kString, {"string", "str", "text", "varchar", "char", "enum"}},
      {kInteger, {"integer", "int", "int8", "int16", "int32", "int64", "int128", "long", "short"}},
      {kNumber, {"number", "float", "float32", "float64", "double"}},
      {kBoolean, {"boolean", "bool"}},
      {kObject, {"object", "dict"}},
      {kArray, {"array", "arr", "list", "sequence"}},
      {kNull, {"null"}}};
  const std::string word = ascii_lower(name);
  if (word.starts_with("uint")) return kInteger;
  for (const auto& [type, names] : kNames) {
    if (contains(names, word)) return type;
  }
  return kUnknown;
}

unsigned ArgumentTyper::type_of(const PromptJson& value) {
  switch (value.kind()) {
    case PromptJson::Kind::kNull:
      return kNull;
    case PromptJson::Kind::kBool:
      return kBoolean;
    case PromptJson::Kind::kNumber:
      return value.number_literal().find_first_of(".eE") == std::string::npos ? kInteger : kNumber;
    case PromptJson::Kind::kString:
      return kString;
    case PromptJson::Kind::kArray:
      return kArray;
    case PromptJson::Kind::kObject:
      return kObject;
  }
  return 0;
}

const ArgumentTyper::Summary& ArgumentTyper::summary_of(const PromptJson& schema) {
  const auto [place, added] = summaries_.try_emplace(&schema);
  Summary& summary = place->second;
  if (!added) return summary;
  std::vector<const PromptJson*> todo = {&schema};  // the next one last
  std::set<const PromptJson*> seen;
  while (!todo.empty() && work_ <= kWork) {
    const PromptJson& part = *todo.back();
    todo.pop_back();
    ++work_;
    if (!part.is_object() || !seen.insert(&part).second) continue;
    std::vector<const PromptJson*> further;
    for (const auto& [keyword, value] : part.members()) read_keyword(keyword, value, summary, further);
    work_ += part.members().size() + further.size();
    todo.insert(todo.end(), further.rbegin(), further.rend());
  }
  std::stable_sort(summary.properties.begin(), summary.properties.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return summary;
}

void ArgumentTyper::read_keyword(const std::string& keyword, const PromptJson& value, Summary& summary,
                                 std::vector<const PromptJson*>& further) {
  if (keyword == "type") {
    if (value.is_string()) summary.types |= type_of(value.as_string());
    if (value.is_array()) {
      for (const PromptJson& name : value.items()) {
        if (name.is_string()) summary.types |= type_of(name.as_string());
      }
      work_ += value.items().size();
    }
  } else if (keyword == "enum" && value.is_array()) {
    for (const PromptJson& item : value.items()) summary.types |= type_of(item);
    work_ += value.items().size();
  } else if (keyword == "const") {
    summary.types |= type_of(value);
  } else if (keyword == "nullable") {
    summary.types |= value.is_bool() && value.as_bool() ? unsigned{kNull} : 0;
  } else if (keyword == "$ref" && value.is_string()) {
    work_ += value.as_string().size();
    const PromptJson* const target = find_reference(document_, value.as_string(), &work_);
    if (target != nullptr) further.push_back(target);
  } else if ((keyword == "anyOf" || keyword == "oneOf" || keyword == "allOf") && value.is_array()) {
    for (const PromptJson& branch : value.items()) further.push_back(&branch);
  } else if (keyword == "properties" && value.is_object()) {
    for (const auto& [name, property] : value.members()) summary.properties.emplace_back(name, &property);
    work_ += value.members().size();
  } else if (keyword == "items" && value.is_object() && summary.items == nullptr) {
    summary.items = &value;
  } else if (keyword == "additionalProperties" && value.is_object() && summary.additional == nullptr) {
    summary.additional = &value;
  }
}

}  // namespace glm53::text
