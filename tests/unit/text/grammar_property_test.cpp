// Random schemas, random walks over allowed tokens: every finished text is JSON that the schema validates, and no walk
// gets stuck.
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "glm53/core/error.h"
#include "grammar_test_util.h"

namespace glm53::test {
namespace {

using namespace glm53::text;
using Json = nlohmann::ordered_json;

size_t characters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

bool has_type(const Json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "integer") return value.is_number_integer();
  return type == "number" && value.is_number();
}

/// A validator by the letter of JSON schema.
bool valid(const Json& schema, const Json& value, const Json& document) {
  if (schema.is_boolean()) return schema.get<bool>();
  const auto holds = [&](const Json& s) { return valid(s, value, document); };
  if (schema.contains("$ref")) {
    const std::string reference = schema["$ref"].get<std::string>().substr(1);
    if (!holds(document.at(Json::json_pointer(reference)))) return false;
  }
  if (schema.contains("type")) {
    const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
    if (std::none_of(types.begin(), types.end(), [&](const Json& t) { return has_type(value, t); })) return false;
  }
  if (schema.contains("enum")) {
    const Json& all = schema["enum"];
    if (std::find(all.begin(), all.end(), value) == all.end()) return false;
  }
  if (schema.contains("const") && schema["const"] != value) return false;
  if (schema.contains("anyOf") && std::none_of(schema["anyOf"].begin(), schema["anyOf"].end(), holds)) return false;
  if (schema.contains("allOf") && !std::all_of(schema["allOf"].begin(), schema["allOf"].end(), holds)) return false;
  if (value.is_number()) {
    const double number = value.get<double>();
    if (schema.contains("minimum") && number < schema["minimum"].get<double>()) return false;
    if (schema.contains("maximum") && number > schema["maximum"].get<double>()) return false;
    if (schema.contains("exclusiveMinimum") && number <= schema["exclusiveMinimum"].get<double>()) return false;
    if (schema.contains("exclusiveMaximum") && number >= schema["exclusiveMaximum"].get<double>()) return false;
  }
  if (value.is_string()) {
    const std::string text = value.get<std::string>();
    if (schema.contains("minLength") && characters(text) < schema["minLength"].get<size_t>()) return false;
    if (schema.contains("maxLength") && characters(text) > schema["maxLength"].get<size_t>()) return false;
    if (schema.contains("pattern")) {
      if (!std::regex_search(text, std::regex(schema["pattern"].get<std::string>()))) return false;
    }
  }
  if (value.is_array()) {
    if (schema.contains("minItems") && value.size() < schema["minItems"].get<size_t>()) return false;
    if (schema.contains("maxItems") && value.size() > schema["maxItems"].get<size_t>()) return false;
    const size_t prefix = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
    for (size_t i = 0; i < value.size(); ++i) {
      if (i < prefix && !valid(schema["prefixItems"][i], value[i], document)) return false;
      if (i >= prefix && schema.contains("items") && !valid(schema["items"], value[i], document)) return false;
    }
  }
  if (value.is_object()) {
    if (schema.contains("minProperties") && value.size() < schema["minProperties"].get<size_t>()) return false;
    if (schema.contains("maxProperties") && value.size() > schema["maxProperties"].get<size_t>()) return false;
    for (const Json& name : schema.value("required", Json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    const Json properties = schema.value("properties", Json::object());
    for (const auto& [name, member] : value.items()) {
      if (properties.contains(name)) {
        if (!valid(properties[name], member, document)) return false;
      } else if (schema.contains("additionalProperties")) {
        if (!valid(schema["additionalProperties"], member, document)) return false;
      }
    }
  }
  return true;
}

class RandomSchema {
 public:
  explicit RandomSchema(unsigned seed) : rng_(seed) {}

  Json document() {
    Json root = schema(0);
    if (!root.is_object()) root = Json::object({{"type", "object"}});
    root["$defs"]["leaf"] = leaf();
    root["$defs"]["tree"] = {{"type", "object"},
                             {"properties",
                              {{"value", leaf()},
                               {"left", {{"$ref", "#/$defs/tree"}}},
                               {"kids", {{"type", "array"}, {"items", {{"$ref", "#/$defs/tree"}}}, {"maxItems", 2}}}}},
                             {"required", {"value"}}};
    return root;
  }

 private:
  size_t below(size_t n) { return rng_() % n; }

  Json leaf() {
    switch (below(12)) {
      case 0:
        return {{"type", "string"}};
      case 1:
        return {{"type", "string"}, {"minLength", below(3)}, {"maxLength", 3 + below(6)}};
      case 2:
        return {{"type", "string"}, {"pattern", below(2) == 0 ? "^[ab]+c?$" : "a.?b"}};
      case 3: {
        const int low = static_cast<int>(below(2000)) - 1000;
        return {{"type", "integer"}, {"minimum", low}, {"maximum", low + static_cast<int>(below(1500))}};
      }
      case 4: {
        const double low = (static_cast<double>(below(2000)) - 1000) / 64;
        return {
            {"type", "number"}, {"minimum", low}, {"exclusiveMaximum", low + static_cast<double>(1 + below(300)) / 8}};
      }
      case 5:
        return {{"type", "integer"}};
      case 6:
        return {{"type", {"boolean", "null"}}};
      case 7:
        return {{"enum", {"ab", 12, nullptr, "\n\"", Json::array({1, "a"})}}};
      case 8:
        return {{"const", Json::object({{"name", "abc"}, {"n", 345}})}};
      case 9:
        return {{"type", "number"}};
      case 10:
        return {{"type", "string"}, {"pattern", "^a*$"}, {"minLength", 2}, {"maxLength", 5}};
      default:
        return Json::object();
    }
  }

  Json schema(int depth) {
    if (depth >= 3) return leaf();
    switch (below(9)) {
      case 0:
      case 1:
      case 2: {
        Json object = {{"type", "object"}};
        for (const char* name : {"name", "age", "a", "ab", "\xC3\xA9\"\n"}) {
          if (below(2) == 0) continue;
          object["properties"][name] = schema(depth + 1);
          if (below(2) == 0) object["required"].push_back(name);
        }
        if (below(3) == 0) {
          object["additionalProperties"] = below(2) == 0 ? Json(true) : schema(depth + 1);
        } else if (object.contains("properties")) {  // further keys may be alike, and count
          const size_t least = below(object["properties"].size() + 1);
          if (below(2) == 0) object["minProperties"] = least;
          if (below(2) == 0) {
            object["maxProperties"] = std::max(least, object.value("required", Json::array()).size()) + below(2);
          }
        }
        return object;
      }
      case 3:
        return {{"type", "array"}, {"items", schema(depth + 1)}, {"minItems", below(3)}, {"maxItems", 2 + below(3)}};
      case 4:
        return {{"type", "array"}, {"prefixItems", {schema(depth + 1), leaf()}}, {"items", leaf()}};
      case 5:
        return {{"anyOf", {schema(depth + 1), schema(depth + 1), leaf()}}};
      case 6:
        return {{"allOf",
                 {{{"type", "object"}, {"properties", {{"a", leaf()}}}},
                  {{"properties", {{"b", schema(depth + 1)}}}, {"required", {"b"}}}}}};
      case 7:
        return {{"$ref", below(2) == 0 ? "#/$defs/leaf" : "#/$defs/tree"}};
      default:
        return leaf();
    }
  }

  std::mt19937 rng_;
};

/// A walk that closes what it opened once it is long.
std::string random_text(const std::shared_ptr<GrammarTables>& tables, std::mt19937& rng) {
  const GrammarVocabulary& v = grammar_vocabulary();
  GrammarMatcher matcher(tables);
  std::string text;
  for (int step = 0; step < 4000; ++step) {
    if (matcher.can_end() && (matcher.must_end() || step > 40 || rng() % 8 == 0)) return text;
    std::vector<int32_t> allowed = allowed_ids(matcher);
    if (allowed.empty()) {
      ADD_FAILURE() << "stuck after " << text;
      return text;
    }
    std::erase_if(allowed, [&](int32_t id) { return id >= static_cast<int32_t>(v.tokens.size()); });
    if (step > 40 && rng() % 4 != 0) {
      const std::vector<int32_t> all = allowed;
      std::erase_if(allowed, [](int32_t id) {
        return std::string_view("\"]}0:n").find(static_cast<char>(id)) == std::string_view::npos || id > 127;
      });
      if (allowed.empty()) allowed = all;
    }
    const int32_t id = allowed[rng() % allowed.size()];
    EXPECT_TRUE(matcher.accept(id));
    text += v.tokens[static_cast<size_t>(id)];
  }
  return "unfinished";
}

TEST(GrammarProperty, FinishedTextsValidate) {
  int finished = 0;
  int compiled = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    const Json document = RandomSchema(seed).document();
    std::shared_ptr<GrammarTables> tables;
    try {
      tables = grammar_tables(compile_json_schema(document.dump()));
    } catch (const Error& e) {
      // Contradictions of random allOf and bounds.
      EXPECT_TRUE(std::string(e.what()).find("no text satisfies") != std::string::npos) << e.what() << document;
      continue;
    }
    ++compiled;
    std::mt19937 rng(seed);
    for (int walk = 0; walk < 8; ++walk) {
      const std::string text = random_text(tables, rng);
      if (text == "unfinished") continue;
      ++finished;
      const Json value = Json::parse(text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << text << "\n" << document;
      ASSERT_TRUE(valid(document, value, document)) << text << "\n" << document;
    }
  }
  EXPECT_GT(compiled, 380);
  EXPECT_GT(finished, compiled * 7);
}

TEST(GrammarProperty, IntegerRangesAreExact) {
  std::mt19937 rng(5);
  for (int round = 0; round < 60; ++round) {
    const int span = round % 2 == 0 ? 30 : 3000;
    const int low = static_cast<int>(rng() % static_cast<unsigned>(2 * span)) - span;
    const int high = low + static_cast<int>(rng() % static_cast<unsigned>(span));
    const Json schema = {{"type", "integer"}, {"minimum", low}, {"maximum", high}};
    const auto tables = grammar_tables(compile_json_schema(schema.dump()));
    for (int n = low - 25; n <= high + 25; ++n) {
      ASSERT_EQ(accepts(tables, std::to_string(n)), low <= n && n <= high) << n << " in " << schema;
    }
    for (int n : {-100000, 100000, low * 10 - 5, high * 10 + 5}) {
      ASSERT_EQ(accepts(tables, std::to_string(n)), low <= n && n <= high) << n << " in " << schema;
    }
  }
}

TEST(GrammarProperty, NumberRangesAreExact) {
  std::mt19937 rng(6);
  for (int round = 0; round < 40; ++round) {
    const double low = (static_cast<double>(rng() % 4000) - 2000) / 100;
    const double high = low + static_cast<double>(rng() % 1000) / 100;
    const Json schema = {{"type", "number"}, {"minimum", low}, {"exclusiveMaximum", high}};
    std::shared_ptr<GrammarTables> tables;
    try {
      tables = grammar_tables(compile_json_schema(schema.dump()));
    } catch (const Error&) {
      ASSERT_GE(low, high);
      continue;
    }
    for (int i = 0; i < 400; ++i) {
      char text[32];
      const double number = low + (static_cast<double>(rng() % 3000) - 1000) / 1000 * (high - low + 0.1);
      std::snprintf(text, sizeof(text), "%.*f", static_cast<int>(rng() % 4), number);
      const double written = std::stod(text);
      if (written == 0 && text[0] == '-') continue;  // "-0.0" is never written
      ASSERT_EQ(accepts(tables, text), low <= written && written < high) << text << " in " << schema;
    }
  }
}

}  // namespace
}  // namespace glm53::test
