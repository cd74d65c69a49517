// Hostile schemas and patterns end in an Error or a bounded grammar, soon.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "glm53/core/error.h"
#include "grammar_test_util.h"

namespace glm53::test {
namespace {

using namespace glm53::text;

std::string repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(GrammarLimits, LargePatternsAreRefused) {
  for (const std::string& pattern :
       {std::string("((a{1000}){1000}){1000}"), std::string("((((){10000}){10000}){10000}){10000}"),
        repeat("(", 100) + "a" + repeat(")", 100), std::string(70000, 'a'), std::string("(\\w{10000}){100}"),
        std::string("(((((a*)*b)*c){5000})d){5000}")}) {
    EXPECT_THROW(compile_regex(pattern), Error) << pattern.substr(0, 40);
  }
}

TEST(GrammarLimits, LargeSchemasAreRefused) {
  std::string doubling = "{\"$defs\":{\"a0\":{\"properties\":{\"x\":{}}}";
  for (int i = 1; i < 60; ++i) {
    const std::string before = "{\"$ref\":\"#/$defs/a" + std::to_string(i - 1) + "\"}";
    doubling += ",\"a" + std::to_string(i) + "\":{\"allOf\":[" + before + "," + before + "]}";
  }
  doubling += "},\"$ref\":\"#/$defs/a59\",\"type\":\"object\"}";
  const std::string either = R"({"anyOf":[{"type":"null"},{"const":1},{"const":2},{"const":3}]})";
  const std::vector<std::string> schemas = {
      doubling,
      "{\"allOf\":[" + either + repeat("," + either, 8) + "]}",
      "{\"allOf\":[{\"pattern\":\"[^x]{9000}\"},{\"pattern\":\"[^y]{9000}\"}]}",
      R"({"type":"array","items":{"type":"array","items":{"type":"string","pattern":"(a{9999}){99}"}}})",
      "{\"enum\":[\"" + std::string(500'000, 'x') + "\"]}",
      repeat("{\"items\":", 200) + "{}" + repeat("}", 200),
  };
  for (const std::string& schema : schemas) EXPECT_THROW(compile_json_schema(schema), Error) << schema.substr(0, 60);
}

TEST(GrammarLimits, LargeButPlainSchemasCompile) {
  std::string chain = "{\"$defs\":{\"a0\":{\"type\":\"integer\"}";
  for (int i = 1; i < 50; ++i) {
    chain += ",\"a" + std::to_string(i) + "\":{\"$ref\":\"#/$defs/a" + std::to_string(i - 1) + "\"}";
  }
  EXPECT_TRUE(accepts(compile_json_schema(chain + "},\"$ref\":\"#/$defs/a49\"}"), "12"));

  std::string properties;
  for (int i = 0; i < 2000; ++i)
    properties += (i == 0 ? "" : ",") + ("\"p" + std::to_string(i)) + "\":{\"type\":\"integer\"}";
  const auto wide = compile_json_schema("{\"type\":\"object\",\"properties\":{" + properties + "}}");
  EXPECT_TRUE(accepts(wide, R"({"p3":1,"p1999":2})"));
  EXPECT_FALSE(accepts(wide, R"({"p2000":1})"));

  const auto lengths = grammar_tables(compile_json_schema(R"({"type":"string","minLength":5000,"maxLength":10000})"));
  EXPECT_TRUE(accepts(lengths, "\"" + std::string(10000, 'a') + "\""));
  EXPECT_FALSE(accepts(lengths, "\"" + std::string(10001, 'a') + "\""));
  EXPECT_FALSE(accepts(lengths, "\"" + std::string(4999, 'a') + "\""));
  EXPECT_TRUE(accepts(compile_json_schema(R"({"type":"array","items":{"type":"integer"},"minItems":10000})"),
                      "[1" + repeat(",1", 9999) + "]"));
}

// Masks of strings far from their bounds are worked out once; near them they must still be exact.
TEST(GrammarLimits, CountedStringsHaveExactMasks) {
  const auto tables = grammar_tables(compile_json_schema(R"({"type":"string","minLength":300,"maxLength":900})"));
  GrammarMatcher matcher(tables);
  ASSERT_TRUE(matcher.accept('"'));
  for (int i = 0; i < 900; ++i) {
    if (i % 37 == 0 || (i > 295 && i < 305) || i > 890) {
      std::vector<int32_t> fed;
      for (int32_t id = 0; id < grammar_vocabulary().vocab; ++id) {
        GrammarMatcher copy = matcher;
        if (copy.accept(id)) fed.push_back(id);
      }
      ASSERT_EQ(allowed_ids(matcher), fed) << i;
    }
    ASSERT_TRUE(matcher.accept('x'));
  }
  EXPECT_EQ(allowed_ids(matcher), std::vector<int32_t>{'"'});
}

// Every mask of such a grammar is bounded work, or an Error that ends the request.
TEST(GrammarLimits, AmbiguousPatternsAreBounded) {
  for (const char* pattern : {"(a|b)*a(a|b){200}", "(.*a){50}", "(a?){3000}a{3000}", "((a*)*)*b", "(x+x+)+y"}) {
    try {
      GrammarMatcher matcher(grammar_tables(compile_regex(pattern)));
      for (int i = 0; i < 200; ++i) {
        matcher.next_mask();
        if (!matcher.accept(i % 3 == 0 ? 'b' : 'a') && !matcher.accept('a') && !matcher.accept('x')) break;
      }
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr("to follow")) << pattern;
    }
  }
}

}  // namespace
}  // namespace glm53::test
