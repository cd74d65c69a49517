// Hostile schemas and patterns end in an Error or a bounded grammar, soon.
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "glm53/core/error.h"
#include "grammar_test_util.h"
#include "hostile_schemas.h"
#include "text/compile_budget.h"

namespace glm53::test {
namespace {

using namespace glm53::text;

TEST(GrammarLimits, LargePatternsAreRefused) {
  for (const std::string& pattern :
       {std::string("((a{1000}){1000}){1000}"), std::string("((((){10000}){10000}){10000}){10000}"),
        repeated("(", 100) + "a" + repeated(")", 100), std::string(70000, 'a'), std::string("(\\w{10000}){100}"),
        std::string("(((((a*)*b)*c){5000})d){5000}")}) {
    EXPECT_THROW(compile_regex(pattern), Error) << pattern.substr(0, 40);
  }
}

TEST(GrammarLimits, HostileSchemasAreRefused) {
  for (const auto& [name, schema] : hostile_schemas()) {
    try {
      compile_json_schema(schema);
      ADD_FAILURE() << "compiled: " << name;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::AnyOf(testing::HasSubstr("too large"), testing::HasSubstr("256"))) << name;
    }
  }
}

TEST(GrammarLimits, LargeSchemasAreRefused) {
  for (const std::string& schema :
       {std::string("{\"allOf\":[{\"pattern\":\"[^x]{9000}\"},{\"pattern\":\"[^y]{9000}\"}]}"),
        std::string(R"({"type":"array","items":{"type":"array","items":{"type":"string","pattern":"(a{9999}){99}"}}})"),
        repeated("{\"items\":", 200) + "{}" + repeated("}", 200)}) {
    EXPECT_THROW(compile_json_schema(schema), Error) << schema.substr(0, 60);
  }
}

TEST(GrammarLimits, ManyLargeFunctionsAreRefused) {
  OfferedTools functions;
  for (const std::string& text : hostile_parameters()) {
    functions.push_back({"f" + std::to_string(functions.size()), PromptJson::parse(text)});
  }
  EXPECT_THROW(compile_tool_calls(functions, grammar_vocabulary().tags), GrammarTooLarge);
  functions.resize(10);
  EXPECT_NE(compile_tool_calls(functions, grammar_vocabulary().tags), nullptr);
}

// Values of an enum and choices share states as far as they begin alike: a text in many thousands is followed as easily
// as one in two.
TEST(GrammarLimits, LargeEnumsAreFollowed) {
  std::vector<std::string> words;
  std::string values;
  for (int i = 0; i < 30'000; ++i) {
    words.push_back(std::to_string(i * 7919 % 1'000'003) + (i % 3 == 0 ? "" : " word"));
    values += (i == 0 ? "\"" : ",\"") + words.back() + "\"";
  }
  const auto schema = grammar_tables(compile_json_schema("{\"enum\":[" + values + "]}"));
  GrammarMatcher matcher(schema);
  EXPECT_EQ(allowed_ids(matcher), (std::vector<int32_t>{'"'}));
  for (const size_t i : {size_t{0}, size_t{1}, size_t{29'998}}) {
    EXPECT_TRUE(accepts(schema, "\"" + words[i] + "\"")) << words[i];
    EXPECT_FALSE(accepts(schema, "\"" + words[i] + "x\"")) << words[i];
  }
  const auto choice = grammar_tables(compile_choice(words));
  GrammarMatcher chooser(choice);
  EXPECT_EQ(allowed_ids(chooser).front(), '0');
  for (const std::string& word : {words[7], words[29'999]}) EXPECT_TRUE(accepts(choice, word)) << word;
  EXPECT_FALSE(accepts(choice, "7918"));

  const OfferedTools functions = {{"f", PromptJson::parse("{\"properties\":{\"p\":{\"enum\":[" + values + "]}}}")}};
  EXPECT_NE(compile_tool_calls(functions, grammar_vocabulary().tags), nullptr);
}

TEST(GrammarLimits, ChoicesBeyondTheLimitsAreRefused) {
  std::vector<std::string> choices;
  for (int i = 0; i < 100'000; ++i) choices.push_back(std::to_string(i) + std::string(50, 'x'));
  EXPECT_THROW(compile_choice(choices), GrammarTooLarge);
}

TEST(GrammarLimits, ValuesThatBeginAlike) {
  const auto grammar = grammar_tables(compile_json_schema(
      R"({"enum":["a","ab","",1,12,-1,true,null,[],{},[1],[1,2],[1,[2]],{"k":1},{"k":1,"l":[]},{"k":12}]})"));
  for (const char* text : {"\"a\"", "\"ab\"", "\"\"", "1", "12", "-1", "true", "null", "[]", "{}", "[1]", "[1, 2]",
                           "[ 1,[2 ] ]", R"({"k":1})", R"({ "k": 1, "l": [] })", R"({"k":12})"}) {
    EXPECT_TRUE(accepts(grammar, text)) << text;
  }
  for (const char* text : {"\"b\"", "2", "-", "[2]", "[1,3]", "[ ]", R"({"k":2})", R"({"k":1,"l":[1]})", "nul"}) {
    EXPECT_FALSE(accepts(grammar, text)) << text;
  }
  const std::vector<std::string> choices = {"no", "not", "no", "nothing"};
  for (const char* text : {"no", "not", "nothing"}) EXPECT_TRUE(accepts(compile_choice(choices), text)) << text;
  EXPECT_FALSE(accepts(compile_choice(choices), "noth"));
}

TEST(CompileBudget, EndsByWorkOrByTime) {
  CompileBudget work(1000);
  work.spend(1000);
  EXPECT_THROW(work.spend(1), GrammarTooLarge);
  EXPECT_THROW(work.spend(0), GrammarTooLarge);  // for good
  CompileBudget huge;
  EXPECT_THROW(huge.spend(~uint64_t{0}), GrammarTooLarge);
  CompileBudget late(CompileBudget::kWork, std::chrono::seconds(0));
  EXPECT_THROW(late.spend(1), GrammarTooLarge);
  EXPECT_THROW(late.spend(1), GrammarTooLarge);
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
                      "[1" + repeated(",1", 9999) + "]"));
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

// Steps each of which is within its bound add up; another reply begins anew.
TEST(GrammarLimits, TheWorkOfAReplyIsBounded) {
  constexpr int64_t kStep = 4000;
  const auto tables =
      std::make_shared<GrammarTables>(compile_regex("(a|b)*a(a|b){200}"), grammar_vocabulary().trie, kStep);
  for (int reply = 0; reply < 2; ++reply) {
    GrammarMatcher matcher(tables);
    std::mt19937 rng(static_cast<unsigned>(reply));
    int steps = 0;
    try {
      for (; steps < 10'000; ++steps) {
        matcher.next_mask();
        ASSERT_TRUE(matcher.accept(rng() % 2 == 0 ? 'a' : 'b'));
      }
      ADD_FAILURE() << "no bound";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "grammar: more work than a reply may cost");
    }
    EXPECT_GT(steps, GrammarMatcher::kCostlySteps);
  }
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
