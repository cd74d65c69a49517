#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "glm53/core/error.h"
#include "grammar_test_util.h"
#include "text/tool_call_parser.h"

namespace glm53::test {
namespace {

using namespace glm53::text;

/// Ids of a text in which <c> </c> <k> </k> <v> </v> stand for the tags.
std::vector<int32_t> ids_of(std::string_view text) {
  const ToolTags& t = grammar_vocabulary().tags;
  const std::map<std::string_view, int32_t> tags = {{"<c>", t.call_open},  {"</c>", t.call_close},
                                                    {"<k>", t.key_open},   {"</k>", t.key_close},
                                                    {"<v>", t.value_open}, {"</v>", t.value_close}};
  std::vector<int32_t> ids;
  while (!text.empty()) {
    size_t taken = 0;
    for (const auto& [tag, id] : tags) {
      if (!text.starts_with(tag)) continue;
      ids.push_back(id);
      taken = tag.size();
    }
    if (taken == 0) {
      ids.push_back(static_cast<uint8_t>(text[0]));
      taken = 1;
    }
    text.remove_prefix(taken);
  }
  return ids;
}

bool takes(const std::shared_ptr<GrammarTables>& tables, std::string_view text) {
  GrammarMatcher matcher(tables);
  for (const int32_t id : ids_of(text)) {
    if (!matcher.accept(id)) return false;
  }
  return matcher.can_end();
}

std::shared_ptr<GrammarTables> tables_of(const std::vector<std::pair<std::string, std::string>>& functions,
                                         ToolGrammarOptions options = {}) {
  OfferedTools list;
  for (const auto& [name, schema] : functions) list.push_back({name, PromptJson::parse(schema)});
  return grammar_tables(compile_tool_calls(list, grammar_vocabulary().tags, options));
}

const std::pair<std::string, std::string> kWeather = {
    "weather",
    R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":9},
        "unit":{"enum":["C","F"]},"tags":{"type":"array","items":{"type":"string"}}},"required":["city"]})"};

TEST(ToolGrammar, ArgumentsFollowTheirSchemas) {
  const auto tables = tables_of({kWeather, {"get_time", "{}"}});
  EXPECT_TRUE(takes(tables, "<c>get_time</c>"));
  EXPECT_TRUE(takes(tables, "<c>weather<k>city</k><v>Oslo \"x\" </arg_value>\n</v></c>"));
  EXPECT_TRUE(takes(tables, "<c>weather\n<k>city</k>\n<v></v>\n<k>days</k><v>3</v></c>"));
  EXPECT_TRUE(takes(tables, "<c>weather<k>unit</k><v>C</v><k>city</k><v>x</v></c>"));
  EXPECT_TRUE(takes(tables, "<c>weather<k>city</k><v>x</v><k>tags</k><v>[\"a\", \"b\"]</v></c>"));
  EXPECT_TRUE(takes(tables, "<c>get_time</c><c>get_time</c>"));
  for (const char* text :
       {"", "x", "get_time", "<c>get_time", "<c>other</c>", "<c>weather</c>", " <c>get_time</c>",
        "<c>get_time<k>city</k><v>x</v></c>", "<c>weather<k>days</k><v>3</v></c>",
        "<c>weather<k>city</k><v>x</v><k>city</k><v>y</v></c>", "<c>weather<k>city</k><v>x</v><k>days</k><v>10</v></c>",
        "<c>weather<k>city</k><v>x</v><k>days</k><v>\"3\"</v></c>",
        "<c>weather<k>city</k><v>x</v><k>unit</k><v>K</v></c>",
        "<c>weather<k>city</k><v>x</v><k>unit</k><v>\"C\"</v></c>", "<c>weather<k>town</k><v>x</v></c>",
        "<c>weather<k>city</k><v>x</v><k>tags</k><v>[1]</v></c>", "<c>weather<k>city</k><v><c></v></c>",
        "<c>get_time</c>x"}) {
    EXPECT_FALSE(takes(tables, text)) << text;
  }
}

TEST(ToolGrammar, NothingButACallBegins) {
  GrammarMatcher matcher(tables_of({kWeather}));
  EXPECT_EQ(allowed_ids(matcher), std::vector<int32_t>{grammar_vocabulary().tags.call_open});
}

TEST(ToolGrammar, TagsOnlyWhereTheGrammarNamesThem) {
  const ToolTags& tags = grammar_vocabulary().tags;
  GrammarMatcher matcher(tables_of({kWeather}));
  for (const int32_t id : ids_of("<c>weather<k>city</k><v>ab")) ASSERT_TRUE(matcher.accept(id));
  const auto mask = matcher.next_mask();
  EXPECT_TRUE(mask_bit(mask, tags.value_close));
  for (const int32_t id : {tags.call_open, tags.call_close, tags.key_open, tags.key_close, tags.value_open}) {
    EXPECT_FALSE(mask_bit(mask, id));
  }
  EXPECT_TRUE(mask_bit(mask, '<'));
  EXPECT_FALSE(mask_bit(mask, grammar_vocabulary().end_ids[0]));
}

TEST(ToolGrammar, OneCallAlone) {
  ToolGrammarOptions one;
  one.parallel = false;
  const auto tables = tables_of({{"f", "{}"}}, one);
  EXPECT_TRUE(takes(tables, "<c>f</c>"));
  EXPECT_FALSE(takes(tables, "<c>f</c><c>f</c>"));
}

TEST(ToolGrammar, CallsAreCapped) {
  const auto tables = tables_of({{"f", "{}"}});
  std::string text;
  for (int i = 0; i < 128; ++i) text += "<c>f</c>";
  EXPECT_TRUE(takes(tables, text));
  EXPECT_FALSE(takes(tables, text + "<c>f</c>"));
}

TEST(ToolGrammar, ManyPropertiesComeInDeclaredOrder) {
  std::string properties;
  for (char c = 'a'; c <= 'l'; ++c) properties += std::string(c == 'a' ? "\"" : ",\"") + c + "\":{\"type\":\"null\"}";
  const auto tables = tables_of({{"f", "{\"properties\":{" + properties + "},\"required\":[\"b\"]}"}});
  EXPECT_TRUE(takes(tables, "<c>f<k>b</k><v>null</v><k>k</k><v>null</v></c>"));
  EXPECT_FALSE(takes(tables, "<c>f<k>k</k><v>null</v><k>b</k><v>null</v></c>"));
  EXPECT_FALSE(takes(tables, "<c>f<k>k</k><v>null</v></c>"));
}

TEST(ToolGrammar, MixedTypes) {
  const auto tables =
      tables_of({{"f", R"({"properties":{"a":{"type":["integer","null"]},"b":{},"c":{"$ref":"#/$defs/x"},
      "d":{"enum":["on",1]},"e":{"const":"x y"}},"$defs":{"x":{"type":"boolean"}}})"}});
  EXPECT_TRUE(takes(tables, "<c>f<k>a</k><v>null</v><k>b</k><v>any {text</v><k>c</k><v>true</v></c>"));
  EXPECT_TRUE(takes(tables, "<c>f<k>d</k><v>on</v></c>"));
  EXPECT_TRUE(takes(tables, "<c>f<k>d</k><v>1</v><k>e</k><v>x y</v></c>"));
  EXPECT_FALSE(takes(tables, "<c>f<k>d</k><v>\"on\"</v></c>"));
  EXPECT_FALSE(takes(tables, "<c>f<k>c</k><v>yes</v></c>"));
  EXPECT_FALSE(takes(tables, "<c>f<k>a</k><v>x</v></c>"));
}

TEST(ToolGrammar, UnsupportedKeywordsLeaveTheTypes) {
  const auto tables = tables_of({{"f", R"({"properties":{"a":{"type":"integer","multipleOf":2},
      "b":{"type":"object","patternProperties":{}},"c":{"not":{}}}})"}});
  EXPECT_TRUE(takes(tables, "<c>f<k>a</k><v>3</v><k>b</k><v>{\"x\":1}</v><k>c</k><v>text</v></c>"));
  EXPECT_FALSE(takes(tables, "<c>f<k>a</k><v>x</v></c>"));
}

TEST(ToolGrammar, ContentOrCalls) {
  const PromptJson content = PromptJson::parse(R"({"type":"object","properties":{"ok":{"type":"boolean"}}})");
  ToolGrammarOptions options;
  options.content = &content;
  const auto tables = tables_of({{"f", "{}"}}, options);
  EXPECT_TRUE(takes(tables, "{\"ok\":true}"));
  EXPECT_TRUE(takes(tables, "<c>f</c>"));
  EXPECT_FALSE(takes(tables, "{\"ok\":1}"));
  EXPECT_FALSE(takes(tables, "{\"ok\":true}<c>f</c>"));
}

/// What is wrong with a function, as "index: message"; of one that compiles, what of it goes unheeded, as
/// "function.argument: message" each.
std::string refusal(const OfferedTools& functions) {
  std::string all;
  ToolGrammarOptions options;
  options.unheeded = [&](const OfferedTool& function, std::string_view argument, const std::string& why) {
    all += (all.empty() ? "" : "; ") + function.name + "." + std::string(argument) + ": " + why;
  };
  try {
    compile_tool_calls(functions, grammar_vocabulary().tags, options);
  } catch (const FunctionError& error) {
    return std::to_string(error.function()) + ": " + error.what();
  }
  return all.empty() ? "compiled" : all;
}

TEST(ToolGrammar, Errors) {
  EXPECT_THROW(tables_of({}), Error);
  for (const char* name : {"", "\xFF", "get time", " f", "f\n", "{f", "f<x>"}) {
    EXPECT_THROW(tables_of({{"f", "{}"}, {name, "{}"}}), Error) << name;
  }
  for (const char* name : {"f{}", "a.b-c_d", "\xC3\xA9"}) {
    EXPECT_EQ(refusal({{name, {}}}), "compiled") << name;
  }
}

std::string refusal_of(const std::string& parameters, bool strict) {
  return refusal({{"f", {}}, {"g", PromptJson::parse(parameters), strict}});
}

TEST(ToolGrammar, WhatIsNotSupportedIsNamedAndTheRestHolds) {
  for (const bool strict : {false, true}) {
    const auto told = [&](const std::string& parameters) { return refusal_of(parameters, strict); };
    EXPECT_EQ(told(R"({"type":"object","properties":{"a":{"type":"integer","multipleOf":2},"b":{"type":"null"}}})"),
              "g.a: schema: 'multipleOf' is not supported");
    EXPECT_EQ(told(R"({"properties":{"a":{"items":{"$ref":"#/$defs/x"}}},"$defs":{"x":{"not":{}}}})"),
              "g.a: schema: 'not' is not supported");
    EXPECT_EQ(
        told(
            R"({"properties":{"a":{"items":{"pattern":"x(?=y)z"}},"b":{"maxLength":10001},"c":{"$ref":"http://x/"}}})"),
        "g.a: pattern: look-ahead is not supported (at character 3); g.b: schema: 'maxLength' is beyond 10000; "
        "g.c: schema: '$ref' is supported within the schema only (\"#/...\")");
    for (const std::string key : {"anyOf", "allOf", "minProperties", "if"}) {
      EXPECT_EQ(told("{\"" + key + "\":[]}"),
                "g.: schema: '" + key + "' is not supported at the top of a function's parameters");
    }
    EXPECT_EQ(told(R"({"$ref":"#/$defs/x","$defs":{"x":{"properties":{"a":{"not":{}}}}}})"),
              "g.a: schema: 'not' is not supported");
    EXPECT_EQ(told(R"({"$ref":"#/$defs/x","$defs":{"x":{"properties":{"a":{"type":"null"}}}}})"), "compiled");
    EXPECT_EQ(told(R"({"title":"x","type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"required":["a"],
                       "additionalProperties":false,"$defs":{"x":{"type":"integer"}}})"),
              "compiled");
  }
  const auto tables = grammar_tables(
      compile_tool_calls(OfferedTools{{"f", PromptJson::parse(R"({"properties":{"a":{"type":"integer","multipleOf":2},
          "b":{"enum":["x","y",[1]],"not":{}},"c":{"const":"z","not":{}}},"required":["a"]})"),
                                       true}},
                         grammar_vocabulary().tags));
  for (const char* text : {"<c>f<k>a</k><v>3</v></c>", "<c>f<k>b</k><v>x</v><k>a</k><v>3</v></c>",
                           "<c>f<k>b</k><v>[1]</v><k>a</k><v>3</v><k>c</k><v>z</v></c>"}) {
    EXPECT_TRUE(takes(tables, text)) << text;
  }
  for (const char* text : {"<c>f</c>", "<c>f<k>a</k><v>x</v></c>", "<c>f<k>a</k><v>3</v><k>a</k><v>3</v></c>",
                           "<c>f<k>b</k><v>w</v><k>a</k><v>3</v></c>", "<c>f<k>c</k><v>w</v><k>a</k><v>3</v></c>"}) {
    EXPECT_FALSE(takes(tables, text)) << text;
  }
}

TEST(ToolGrammar, StrictFunctionsThatAreWrongAreRefused) {
  for (const auto& [parameters, fault] : std::vector<std::pair<const char*, const char*>>{
           {R"({"$ref":"#/nowhere"})", "schema: '$ref' points to nothing"},
           {R"({"allOf":[{"$ref":"#/nowhere"}]})", "schema: '$ref' points to nothing"},
           {R"({"$ref":"http://x/"})", "schema: '$ref' is supported within the schema only (\"#/...\")"},
           {R"({"$ref":1})", "schema: '$ref' must be a string"},
           {R"({"properties":[]})", "schema: 'properties' must be an object"},
           {R"({"required":"a"})", "schema: 'required' must be a list"},
           {R"({"anyOf":{}})", "schema: 'anyOf' must be a list"},
           {R"({"properties":{"a":{"$ref":"#/nowhere"}}})", "schema: '$ref' points to nothing"},
           {R"({"properties":{"a":{"type":"strung"}}})", "schema: 'type' must name JSON types"},
           {R"({"properties":{"a":{"minLength":2,"maxLength":1,"type":"array","items":{"type":"string","minLength":2,
               "maxLength":1}}}})",
            "schema: 'minLength' is greater than maxLength"},
       }) {
    EXPECT_EQ(refusal_of(parameters, true), std::string("1: ") + fault);
    EXPECT_FALSE(refusal_of(parameters, false).starts_with("1: ")) << parameters;
  }
}

TEST(ToolGrammar, ArgumentsOnceOrAsTheyCome) {
  OfferedTools functions = {{"f", PromptJson::parse(R"({"properties":{"a":{"type":"null"}},"required":["a"]})")}};
  const std::string unit = "<k>a</k><v>null</v>";
  ToolGrammarOptions loose;
  loose.arguments_once = false;
  const auto tags = grammar_vocabulary().tags;
  const auto once = grammar_tables(compile_tool_calls(functions, tags));
  const auto any = grammar_tables(compile_tool_calls(functions, tags, loose));
  functions[0].strict = true;
  const auto strict = grammar_tables(compile_tool_calls(functions, tags, loose));
  for (const auto& tables : {once, any, strict}) EXPECT_TRUE(takes(tables, "<c>f" + unit + "</c>"));
  for (const std::string& text : {std::string("<c>f</c>"), "<c>f" + unit + unit + "</c>"}) {
    EXPECT_FALSE(takes(once, text)) << text;
    EXPECT_FALSE(takes(strict, text)) << text;
    EXPECT_TRUE(takes(any, text)) << text;
  }
}

// As schema generators write them: all of a schema below a reference, and unions of objects.
TEST(ToolGrammar, PropertiesBelowTheTop) {
  const auto referred = tables_of({{"f", R"({"$ref":"#/definitions/x","definitions":{"x":{"type":"object",
      "properties":{"a":{"type":"integer"}},"required":["a"]}}})"}});
  EXPECT_TRUE(takes(referred, "<c>f<k>a</k><v>1</v></c>"));
  EXPECT_FALSE(takes(referred, "<c>f</c>"));
  const auto merged = tables_of({{"f", R"({"allOf":[{"properties":{"a":{"type":"null"}},"required":["a"]},
      {"properties":{"b":{"type":"null"}}},{"$ref":"#"}]})"}});
  EXPECT_TRUE(takes(merged, "<c>f<k>a</k><v>null</v></c>"));
  EXPECT_TRUE(takes(merged, "<c>f<k>b</k><v>null</v><k>a</k><v>null</v></c>"));
  EXPECT_FALSE(takes(merged, "<c>f<k>b</k><v>null</v></c>"));
  const auto either = tables_of({{"f", R"({"oneOf":[{"properties":{"kind":{"const":"x"},"n":{"type":"integer"}},
      "required":["kind","n"]},{"properties":{"kind":{"const":"y"}}}]})"}});
  for (const char* text : {"<c>f</c>", "<c>f<k>kind</k><v>x</v><k>n</k><v>1</v></c>", "<c>f<k>kind</k><v>y</v></c>"}) {
    EXPECT_TRUE(takes(either, text)) << text;
  }
  EXPECT_FALSE(takes(either, "<c>f<k>kind</k><v>z</v></c>"));
  for (const char* nothing : {R"({"$ref":"#/nowhere"})", R"({"$ref":"#"})"}) {
    EXPECT_TRUE(takes(tables_of({{"f", nothing}}), "<c>f</c>")) << nothing;
  }
}

// The parser of replies strips names and has no word for an empty one.
TEST(ToolGrammar, PropertiesThatCannotBeReadBackAreLeftOut) {
  const auto tables = tables_of({{"f", R"({"properties":{"":{"type":"null"}," a":{"type":"null"},"b ":{"type":"null"},
      "c d":{"type":"null"}},"required":[""," a"]})"}});
  EXPECT_TRUE(takes(tables, "<c>f</c>"));
  EXPECT_TRUE(takes(tables, "<c>f<k>c d</k><v>null</v></c>"));
  for (const char* name : {"", " a", "a", "b ", "b"}) {
    EXPECT_FALSE(takes(tables, "<c>f<k>" + std::string(name) + "</k><v>null</v></c>")) << name;
  }
}

TEST(ToolGrammar, NamesOfArgumentsAsLongAsTheParserReads) {
  for (const size_t length : {kMaxArgumentName, kMaxArgumentName + 1}) {
    const std::string key(length, 'k');
    const auto tables = tables_of({{"f", R"({"properties":{")" + key + R"(":{"type":"null"}}})"}});
    EXPECT_EQ(takes(tables, "<c>f<k>" + key + "</k><v>null</v></c>"), length == kMaxArgumentName);
  }
}

}  // namespace
}  // namespace glm53::test
