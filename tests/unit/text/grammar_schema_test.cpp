// Every keyword of the subset: texts that it admits and texts that it refuses.
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "glm53/core/error.h"
#include "grammar_test_util.h"

namespace glm53::test {
namespace {

using namespace glm53::text;

struct Case {
  const char* name;
  const char* schema;
  std::vector<std::string> accepted;
  std::vector<std::string> refused;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class SchemaKeyword : public testing::TestWithParam<Case> {};

TEST_P(SchemaKeyword, AdmitsAndRefuses) {
  const auto tables = grammar_tables(compile_json_schema(GetParam().schema));
  for (const std::string& text : GetParam().accepted) EXPECT_TRUE(accepts(tables, text)) << text;
  for (const std::string& text : GetParam().refused) EXPECT_FALSE(accepts(tables, text)) << text;
}

const std::vector<Case> kCases = {
    {"type_string",
     R"({"type":"string"})",
     {R"("")", R"("a b")", "\"\xC3\xA9\"", "\"\xF0\x9F\x98\x80\"", R"("\n\"\\\/")", R"("\u00e9")", R"("\uD83D\uDE00")"},
     {"", "1", "\"", "\"a", "\"\n\"", "\"\x01\"", R"("\x")", R"("\uD83D")", R"("\uD83Da")", R"("\uDE00")", "\"\xC3\"",
      "\"\xED\xA0\x80\"", "\"\xC0\x80\"", "\"\xF4\x90\x80\x80\"", " \"a\"", "\"a\" ", R"("\u12g4")"}},
    {"type_integer",
     R"({"type":"integer"})",
     {"0", "-1", "120", "9223372036854775807"},
     {"01", "1.0", "-", "+1", "1e3", "-0", ""}},
    {"type_number",
     R"({"type":"number"})",
     {"0", "-0.5", "1.25e10", "3E-2", "12"},
     {".5", "1.", "1e", "00", "0x1", "1e1000", "NaN"}},
    {"type_boolean", R"({"type":"boolean"})", {"true", "false"}, {"True", "null", "tru", "1"}},
    {"type_null", R"({"type":"null"})", {"null"}, {"", "nul", "0"}},
    {"type_list", R"({"type":["string","null"]})", {"null", R"("x")"}, {"1", "true"}},
    {"nullable", R"({"type":"integer","nullable":true})", {"null", "5"}, {"\"x\""}},
    {"no_type", "{}", {"1", "null", "[1, {\"a\": []}]", R"({"x":{}})"}, {"", "{a:1}", "[1,]", "{,}"}},
    {"true_schema", "true", {"1", "[]", "{}"}, {"nope"}},
    {"object_any",
     R"({"type":"object"})",
     {"{}", R"({"a":1})", "{ \"a\" :\n  [1] , \"b\":{}\n}"},
     {"[]", R"({"a"})", R"({"a":1,})", R"({a:1})", "{\n\n\"a\":1}"}},
    {"properties",
     R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}}})",
     {"{}", R"({"a":1})", R"({"b":"x"})", R"({"a":1,"b":"x"})", "{\"a\": 1, \"b\": \"x\"}"},
     {R"({"b":"x","a":1})", R"({"a":"1"})", R"({"c":1})", R"({"a":1,"a":2})", R"({,"a":1})"}},
    {"properties_without_type", R"({"properties":{"a":{}},"required":["a"]})", {R"({"a":[]})"}, {"{}", "1"}},
    {"required",
     R"({"type":"object","properties":{"a":{"type":"integer"},"b":{},"c":{"type":"null"}},"required":["b"]})",
     {R"({"b":1})", R"({"a":1,"b":2})", R"({"b":2,"c":null})"},
     {"{}", R"({"a":1})", R"({"a":1,"c":null})"}},
    {"required_undeclared",
     R"({"type":"object","required":["z"]})",
     {R"({"z":1})", R"({"z":1,"y":2})"},
     {"{}", R"({"y":2})"}},
    {"additional_true",
     R"({"type":"object","properties":{"ab":{"type":"integer"}},"additionalProperties":true})",
     {R"({"ab":1,"x":[]})", R"({"a":1})", R"({"abc":1})", R"({"":1})", "{\"\xC3\xA9\":1}", R"({"x":1,"y":2})"},
     {R"({"ab":"s"})", R"({"x":1,"ab":1})", R"({"x":1,"\u0061b":"s"})", R"({"a\u0062":"s"})"}},
    {"additional_schema",
     R"({"type":"object","additionalProperties":{"type":"integer"}})",
     {"{}", R"({"q":1,"r":2})"},
     {R"({"q":"1"})"}},
    {"additional_false",
     R"({"type":"object","properties":{"a":{}},"additionalProperties":false})",
     {R"({"a":1})"},
     {R"({"b":1})"}},
    {"property_false",
     R"({"properties":{"a":{},"b":false},"additionalProperties":true})",
     {R"({"a":1})", R"({"c":1})"},
     {R"({"b":1})"}},
    {"items",
     R"({"type":"array","items":{"type":"integer"}})",
     {"[]", "[1]", "[1, 2,3]", "[\n 1\n]"},
     {"[\"a\"]", "[1,]", "[", "[1 2]"}},
    {"prefix_items",
     R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"null"}})",
     {"[]", "[1]", R"([1,"a"])", R"([1,"a",null,null])"},
     {R"(["a"])", R"([1,"a",1])", "[1,1]"}},
    {"prefix_only", R"({"type":"array","prefixItems":[{"type":"integer"}],"items":false})", {"[]", "[1]"}, {"[1,2]"}},
    {"min_max_items",
     R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})",
     {"[1,2]", "[1,2,3]"},
     {"[]", "[1]", "[1,2,3,4]"}},
    {"max_items_zero", R"({"type":"array","maxItems":0})", {"[]", "[ ]"}, {"[1]"}},
    {"enum",
     R"({"enum":["red","gr\"een",1,null,true,{"a":[1,2]}]})",
     {R"("red")", R"("gr\"een")", "1", "null", "true", R"({"a":[1,2]})", R"({ "a" : [ 1, 2 ] })"},
     {"red", "2", "false", R"("re")", R"({"a":[1]})"}},
    {"enum_with_type", R"({"type":"string","enum":["x",1]})", {R"("x")"}, {"1"}},
    {"enum_with_length", R"({"enum":["x","xyz","é"],"maxLength":1})", {R"("x")", "\"\xC3\xA9\""}, {R"("xyz")"}},
    {"const", R"({"const":"x"})", {R"("x")"}, {R"("y")"}},
    {"const_null", R"({"const":null})", {"null"}, {"1"}},
    {"any_of",
     R"({"anyOf":[{"type":"integer"},{"type":"string","maxLength":1},false]})",
     {"1", R"("a")"},
     {R"("ab")", "null"}},
    {"one_of", R"({"oneOf":[{"type":"integer"},{"type":"null"}]})", {"1", "null"}, {"true"}},
    {"any_of_beside_keywords",
     R"({"type":"object","properties":{"k":{}},"required":["k"],
         "anyOf":[{"properties":{"k":{"type":"integer"}}},{"properties":{"k":{"const":"s"}}}]})",
     {R"({"k":1})", R"({"k":"s"})"},
     {R"({"k":"t"})", "{}"}},
    {"all_of",
     R"({"allOf":[{"type":"object","properties":{"a":{"type":"number"}},"required":["a"]},
                  {"properties":{"a":{"type":"integer","minimum":3},"b":{}}}]})",
     {R"({"a":3})", R"({"a":4,"b":[]})"},
     {R"({"a":2})", R"({"a":3.5})", R"({"b":1})"}},
    {"ref", R"({"$ref":"#/$defs/x","$defs":{"x":{"type":"integer"}}})", {"1"}, {"\"a\""}},
    {"ref_escaped", R"({"$ref":"#/definitions/a~1b%20c","definitions":{"a/b c":{"type":"null"}}})", {"null"}, {"1"}},
    {"ref_beside_keywords",
     R"({"$ref":"#/$defs/x","maximum":5,"$defs":{"x":{"type":"integer","minimum":3}}})",
     {"3", "5"},
     {"2", "6"}},
    {"ref_recursive",
     R"({"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["v","next"]})",
     {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"},
     {R"({"v":1})", R"({"v":1,"next":{}})"}},
    {"ref_recursive_array",
     R"({"$defs":{"t":{"type":"array","items":{"$ref":"#/$defs/t"}}},"$ref":"#/$defs/t"})",
     {"[]", "[[],[[]]]"},
     {"[1]", "[[]"}},
    {"length",
     R"({"type":"string","minLength":2,"maxLength":3})",
     {R"("ab")", R"("abc")", "\"\xC3\xA9\xC3\xA9\"", R"("\u00e9\n")",
      "\"\xF0\x9F\x98\x80\xF0\x9F\x98\x80\xF0\x9F\x98\x80\""},
     {R"("a")", R"("abcd")", R"("\u00e9")"}},
    {"min_length", R"({"type":"string","minLength":1})", {R"("a")", R"("abcdef")"}, {R"("")"}},
    {"pattern",
     R"({"type":"string","pattern":"^[a-c]+\\d$"})",
     {R"("a1")", R"("abcabc9")"},
     {R"("1")", R"("ab")", R"("xa1")", R"("a12")"}},
    {"pattern_anywhere",
     R"({"type":"string","pattern":"b\"c"})",
     {R"("b\"c")", R"("xxb\"cyy")"},
     {R"("bc")", R"("b\u0022c")"}},
    {"pattern_and_length",
     R"({"type":"string","pattern":"^a*$","minLength":2,"maxLength":4})",
     {R"("aa")", R"("aaaa")"},
     {R"("a")", R"("aaaaa")", R"("ab")"}},
    {"minimum",
     R"({"type":"integer","minimum":-12,"maximum":105})",
     {"-12", "-9", "-1", "0", "7", "99", "100", "105"},
     {"-13", "-20", "106", "110", "1000", "-0", "-100"}},
    {"exclusive",
     R"({"type":"integer","exclusiveMinimum":0,"exclusiveMaximum":10})",
     {"1", "9"},
     {"0", "10", "-1", "11"}},
    {"exclusive_draft4", R"({"type":"integer","minimum":5,"exclusiveMinimum":true})", {"6", "1000"}, {"5", "4"}},
    {"number_bounds",
     R"({"type":"number","minimum":0.25,"exclusiveMaximum":1.5})",
     {"0.25", "0.3", "1", "1.49", "1.499999", "0.250"},
     {"0.2", "0.2499", "1.5", "1.50", "2", "0", "-1", "1e0"}},
    {"number_negative_bounds",
     R"({"type":"number","minimum":-2.5,"maximum":-1})",
     {"-1", "-2.5", "-1.0", "-2.49"},
     {"-2.51", "-0.9", "1", "-3"}},
    {"bounds_of_large_integers",
     R"({"type":"integer","minimum":9007199254740993})",
     {"9007199254740993", "10000000000000000"},
     {"9007199254740992"}},
    {"bound_with_exponent", R"({"type":"integer","maximum":1.5e2,"minimum":1e1})", {"10", "150"}, {"9", "151"}},
    {"format_date",
     R"({"type":"string","format":"date"})",
     {R"("2024-02-28")", R"("1999-12-31")"},
     {R"("2024-02-30")", R"("24-01-01")"}},
    {"format_date_time",
     R"({"type":"string","format":"date-time"})",
     {R"("2024-01-02T03:04:05Z")", R"("2024-01-02T03:04:05.123+01:00")"},
     {R"("2024-01-02 03:04:05")"}},
    {"format_time", R"({"type":"string","format":"time"})", {R"("23:59:59Z")"}, {R"("24:00:00Z")"}},
    {"format_duration",
     R"({"type":"string","format":"duration"})",
     {R"("P1Y2M3DT4H")", R"("PT5S")", R"("P2W")"},
     {R"("P")", R"("PT")"}},
    {"format_email", R"({"type":"string","format":"email"})", {R"("a.b@example.org")"}, {R"("a@b")", R"("@b.de")"}},
    {"format_uri",
     R"({"type":"string","format":"uri"})",
     {R"("https://a.org/b?c=d#e")"},
     {R"("a.org")", R"("https://")"}},
    {"format_uuid",
     R"({"type":"string","format":"uuid"})",
     {R"("123e4567-e89b-12d3-a456-426614174000")"},
     {R"("123e4567")"}},
    {"format_ipv4", R"({"type":"string","format":"ipv4"})", {R"("192.168.0.255")"}, {R"("256.1.1.1")", R"("1.1.1")"}},
    {"format_ipv6",
     R"({"type":"string","format":"ipv6"})",
     {R"("2001:db8::1")", R"("::")", R"("::1")"},
     {R"("1:2:3")", R"(":")"}},
    {"format_hostname", R"({"type":"string","format":"hostname"})", {R"("a-b.example")"}, {R"("-a")", R"("a..b")"}},
    {"format_unknown", R"({"type":"string","format":"colour"})", {R"("anything")"}, {"1"}},
    {"annotations",
     R"({"title":"t","description":"d","default":1,"examples":[1],"x-y":1,"$schema":"s","type":"null"})",
     {"null"},
     {"1"}},
    {"whitespace_bound",
     R"({"type":"array","items":{"type":"integer"}})",
     {"[\n                                1]", "[\t1]"},
     {"[\n                                 1]", "[\n\n1]", "[ \n1]", " []", "[] "}},
};

INSTANTIATE_TEST_SUITE_P(Keywords, SchemaKeyword, testing::ValuesIn(kCases),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(SchemaOptions, CompactHasExactlyOneBlank) {
  const auto grammar = compile_json_schema(R"({"type":"object","additionalProperties":{"type":"array"}})",
                                           JsonGrammarOptions{.any_whitespace = false});
  EXPECT_TRUE(accepts(grammar, R"({"a": [1, 2], "b": []})"));
  EXPECT_FALSE(accepts(grammar, R"({"a":[1, 2]})"));
  EXPECT_FALSE(accepts(grammar, R"({"a": [1,2]})"));
  EXPECT_FALSE(accepts(grammar, R"({ "a": []})"));
}

TEST(SchemaOptions, NoAdditionalProperties) {
  const JsonGrammarOptions options{.no_additional_properties = true};
  const auto grammar = compile_json_schema(R"({"properties":{"a":{}},"additionalProperties":true})", options);
  EXPECT_TRUE(accepts(grammar, R"({"a":1})"));
  EXPECT_FALSE(accepts(grammar, R"({"b":1})"));
}

TEST(JsonObject, AnyObjectAndNothingElse) {
  const auto tables = grammar_tables(compile_json_object());
  EXPECT_TRUE(accepts(tables, R"({"a": [true, {"b": null}], "c": -1.5e3})"));
  EXPECT_TRUE(accepts(tables, "{}"));
  for (const char* text : {"[]", "1", " {}", "{} ", "", "{", R"({"a":1}{})"})
    EXPECT_FALSE(accepts(tables, text)) << text;
}

TEST(Schema, NumbersOfProperties) {
  const std::string three = R"("properties":{"a":{"type":"null"},"b":{"type":"null"},"c":{"type":"null"}})";
  const std::map<std::string, std::pair<int, int>> counted = {
      {R"("minProperties":1)", {1, 3}},
      {R"("minProperties":2)", {2, 3}},
      {R"("minProperties":3,"maxProperties":7)", {3, 3}},
      {R"("maxProperties":1)", {0, 1}},
      {R"("maxProperties":0)", {0, 0}},
      {R"("minProperties":1,"maxProperties":2)", {1, 2}},
      {R"("allOf":[{"minProperties":1},{"minProperties":2,"maxProperties":4},{"maxProperties":2}])", {2, 2}},
  };
  for (const auto& [keywords, bounds] : counted) {
    const auto declared = grammar_tables(compile_json_schema("{" + three + "," + keywords + "}"));
    for (int set = 0; set < 8; ++set) {
      std::string text;
      int members = 0;
      for (int i = 0; i < 3; ++i) {
        if ((set >> i & 1) == 0) continue;
        text += (members++ == 0 ? "\"" : ", \"") + std::string(1, static_cast<char>('a' + i)) + "\":null";
      }
      const bool within = bounds.first <= members && members <= bounds.second;
      EXPECT_EQ(accepts(declared, "{" + text + "}"), within) << keywords << " {" << text << "}";
    }
  }
  const auto map = grammar_tables(
      compile_json_schema(R"({"additionalProperties":{"type":"null"},"minProperties":2,"maxProperties":3})"));
  const auto open = grammar_tables(compile_json_schema(
      R"({"properties":{"a":{"type":"null"}},"additionalProperties":{"type":"null"},"minProperties":2})"));
  const std::vector<std::string> texts = {"{}",
                                          R"({"a":null})",
                                          R"({"a":null,"b":null})",
                                          R"({"b":null,"c":null})",
                                          R"({"a":null, "b":null, "c":null})",
                                          R"({"b":null,"c":null,"d":null,"e":null})"};
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(accepts(map, texts[i]), i >= 2 && i != 5) << texts[i];
    EXPECT_EQ(accepts(open, texts[i]), i >= 2) << texts[i];
  }
}

std::string error_of(const std::string& schema) {
  try {
    compile_json_schema(schema);
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

/// {"$defs":{"d0":LINK to d1, ...}} whose last says `end`; `link` is text around the reference.
std::string chain(int links, const std::string& before, const std::string& after, const std::string& end) {
  const auto reference = [](int i) { return "{\"$ref\":\"#/$defs/d" + std::to_string(i) + "\"}"; };
  std::string defs;
  for (int i = 0; i < links; ++i) {
    defs += "\"d" + std::to_string(i) + "\":" + before + reference(i + 1) + after + ",";
  }
  return "{\"$defs\":{" + defs + "\"d" + std::to_string(links) + "\":" + end + "},\"$ref\":\"#/$defs/d0\"}";
}

TEST(Schema, ReferencesAndChoicesAreNoNesting) {
  for (const auto& [before, after] :
       {std::pair("", ""), std::pair("{\"anyOf\":[", "]}"), std::pair("{\"oneOf\":[{\"type\":\"null\"},", "]}")}) {
    const auto grammar = grammar_tables(compile_json_schema(chain(300, before, after, "{\"const\":7}")));
    EXPECT_TRUE(accepts(grammar, "7")) << before;
    EXPECT_FALSE(accepts(grammar, "8")) << before;
    EXPECT_EQ(accepts(grammar, "null"), std::string(before).find("null") != std::string::npos) << before;
  }
  // Beside other keywords they are merged with them.
  const std::string merged = chain(300, "{\"anyOf\":[", "]}", "{\"type\":\"integer\"}");
  const auto positive = grammar_tables(compile_json_schema("{\"minimum\":5," + merged.substr(1)));
  EXPECT_TRUE(accepts(positive, "7"));
  EXPECT_FALSE(accepts(positive, "4"));
  // Two ways to one schema are no circle.
  EXPECT_TRUE(accepts(grammar_tables(compile_json_schema(
                          R"({"$defs":{"a":{"const":1}},"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/a"}]})")),
                      "1"));
}

TEST(Schema, BoundsBeyondTheDigitsAreFineWhereNumbersRemain) {
  EXPECT_TRUE(accepts(grammar_tables(compile_json_schema(R"({"type":"number","maximum":1e300})")), "5.5"));
  EXPECT_TRUE(
      accepts(grammar_tables(compile_json_schema(R"({"type":"integer","minimum":-1e20,"maximum":1e20})")), "-5"));
  EXPECT_TRUE(
      accepts(grammar_tables(compile_json_schema(R"({"type":"integer","minimum":1e18})")), "1000000000000000000"));
  EXPECT_TRUE(accepts(grammar_tables(compile_json_schema(R"({"type":"number","minimum":0,"maximum":1e-30})")), "0"));
  EXPECT_TRUE(
      accepts(grammar_tables(compile_json_schema(R"({"type":"number","minimum":-1e-30,"maximum":1e-30})")), "0"));
}

TEST(SchemaErrors, BoundsThatTheDigitsCannotWriteAreNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"type":"integer","minimum":1e20})", "'minimum' is beyond what 19 digits before the point can write"},
      {R"({"type":"number","minimum":1e20})", "'minimum' is beyond what 19 digits"},
      {R"({"type":"integer","exclusiveMinimum":9999999999999999999})", "'exclusiveMinimum' is beyond"},
      {R"({"type":"integer","maximum":-1e20})", "'maximum' is beyond"},
      {R"({"type":"number","exclusiveMaximum":-1e200})", "'exclusiveMaximum' is beyond"},
      {R"({"type":"number","minimum":1e-25,"maximum":2e-25})", "'minimum' and 'maximum' differ beyond the 20 digits"},
      {R"({"type":"number","exclusiveMinimum":0,"maximum":1e-30})", "'exclusiveMinimum' and 'maximum' differ"},
      {R"({"type":"number","minimum":-1e-30,"exclusiveMaximum":0})", "'minimum' and 'exclusiveMaximum' differ"}};
  for (const auto& [schema, message] : cases) EXPECT_THAT(error_of(schema), testing::HasSubstr(message)) << schema;
}

TEST(SchemaErrors, UnsupportedKeywordsAreNamed) {
  for (const char* keyword :
       {"multipleOf", "uniqueItems", "contains", "patternProperties", "propertyNames", "if", "then", "else", "not",
        "dependentRequired", "dependentSchemas", "unevaluatedProperties"}) {
    const std::string name(keyword);
    EXPECT_THAT(error_of("{\"" + name + "\":1}"), testing::HasSubstr("'" + name + "' is not supported"));
    EXPECT_THAT(error_of("{\"properties\":{\"a\":{\"items\":{\"" + name + "\":1}}}}"), testing::HasSubstr(name));
  }
}

TEST(SchemaErrors, WhatCannotBeIsRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"false", "false admits no value"},
      {"[]", "object or a boolean"},
      {"{", "schema"},
      {R"({"type":"text"})", "'type'"},
      {R"({"enum":[]})", "'enum'"},
      {R"({"type":"string","enum":[1]})", "no text satisfies"},
      {R"({"$ref":"#/nowhere"})", "'$ref'"},
      {R"({"$ref":"http://x/y"})", "'$ref'"},
      {R"({"$ref":"#"})", "refers to itself"},
      {R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "refers to itself"},
      {R"({"allOf":[{"$ref":"#"}]})", "more than 64 deep"},
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "no text satisfies"},
      {R"({"type":"string","minLength":2,"maxLength":1})", "'minLength'"},
      {R"({"type":"array","minItems":2,"maxItems":1})", "'minItems'"},
      {R"({"type":"array","prefixItems":[{}],"items":false,"minItems":2})", "'minItems'"},
      {R"({"type":"integer","minimum":2,"maximum":1})", "no text satisfies"},
      {R"({"type":"integer","minimum":1.2,"maximum":1.8})", "no text satisfies"},
      {R"({"allOf":[{"type":"string"},{"type":"null"}]})", "no text satisfies"},
      {R"({"properties":{"a":{}},"required":["b"],"additionalProperties":false})", "'required'"},
      {R"({"allOf":[{"properties":{"a":{}}},{"additionalProperties":false}]})", "'allOf'"},
      {R"x({"type":"string","pattern":"(?=a)"})x", "look-ahead"},
      {R"({"minLength":1.5})", "'minLength'"},
      {R"({"minLength":-1})", "'minLength'"},
      {R"({"maxLength":20000})", "beyond 10000"},
      {R"({"minimum":"1"})", "'minimum'"},
      {R"({"minProperties":2,"maxProperties":1})", "'minProperties'"},
      {R"({"properties":{"a":{}},"minProperties":2})", "'minProperties'"},
      {R"({"properties":{"a":{},"b":{}},"required":["a","b"],"maxProperties":1})", "no text satisfies"},
      {R"({"enum":[{}],"minProperties":1})", "'enum'"},
  };
  for (const auto& [schema, message] : cases) EXPECT_THAT(error_of(schema), testing::HasSubstr(message)) << schema;
}

}  // namespace
}  // namespace glm53::test
