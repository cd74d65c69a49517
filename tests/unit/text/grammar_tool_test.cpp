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

/// What is wrong with a function, as "index: message".
std::string refusal(const OfferedTools& functions) {
  try {
    compile_tool_calls(functions, grammar_vocabulary().tags);
  } catch (const FunctionError& error) {
    return std::to_string(error.function()) + ": " + error.what();
  }
  return "compiled";
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

TEST(ToolGrammar, StrictFunctionsNameWhatIsNotSupported) {
  const auto strict = [](const char* parameters) {
    return refusal({{"f", {}}, {"g", PromptJson::parse(parameters), /*strict=*/true}});
  };
  EXPECT_EQ(strict(R"({"type":"object","properties":{"a":{"type":"integer","multipleOf":2}}})"),
            "1: schema: 'multipleOf' is not supported");
  EXPECT_EQ(strict(R"({"properties":{"a":{"items":{"$ref":"#/$defs/x"}}},"$defs":{"x":{"not":{}}}})"),
            "1: schema: 'not' is not supported");
  for (const char* key : {"anyOf", "allOf", "minProperties", "if"}) {
    EXPECT_EQ(strict(("{\"" + std::string(key) + "\":[]}").c_str()),
              "1: schema: '" + std::string(key) + "' is not supported at the top of a strict function's parameters");
  }
  EXPECT_EQ(strict(R"({"$ref":"#/$defs/x","$defs":{"x":{"properties":{"a":{"not":{}}}}}})"),
            "1: schema: 'not' is not supported");
  EXPECT_EQ(strict(R"({"$ref":"#/$defs/x","$defs":{"x":{"properties":{"a":{"type":"null"}}}}})"), "compiled");
  EXPECT_EQ(strict(R"({"title":"x","type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"required":["a"],
                       "additionalProperties":false,"$defs":{"x":{"type":"integer"}}})"),
            "compiled");
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
