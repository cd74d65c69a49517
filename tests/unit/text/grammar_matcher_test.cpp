#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "glm53/core/error.h"
#include "grammar_test_util.h"

namespace glm53::test {
namespace {

using namespace glm53::text;

int32_t id_of(std::string_view token) {
  const auto& tokens = grammar_vocabulary().tokens;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id] == token) return static_cast<int32_t>(id);
  }
  throw std::out_of_range("no such token");
}

const std::vector<std::string> kSchemas = {
    "{}",
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":3},"age":{"type":"integer","minimum":3,
        "maximum":345}},"required":["name"],"additionalProperties":{"type":"array","items":{"type":"number"}}})",
    R"({"type":"array","items":{"anyOf":[{"$ref":"#"},{"type":"string","pattern":"^(ab)*c?$"},{"enum":[1,12,[[]]]}]}})",
    R"({"anyOf":[{"type":"array","items":{"type":"array"}},{"type":"array","items":{"$ref":"#"}}]})",
};

TEST(GrammarMatcher, MasksAgreeWithFeedingEachToken) {
  const GrammarVocabulary& v = grammar_vocabulary();
  std::mt19937 rng(7);
  for (const std::string& schema : kSchemas) {
    const auto tables = grammar_tables(compile_json_schema(schema));
    for (int walk = 0; walk < 30; ++walk) {
      GrammarMatcher matcher(tables);
      for (int step = 0; step < 40 && !matcher.ended(); ++step) {
        const std::vector<int32_t> allowed = allowed_ids(matcher);
        std::vector<int32_t> fed;
        for (int32_t id = 0; id < v.vocab; ++id) {
          GrammarMatcher copy = matcher;
          const bool taken = copy.accept(id);
          EXPECT_EQ(matcher.allows(id), taken);
          if (taken) fed.push_back(id);
        }
        ASSERT_EQ(allowed, fed) << schema << " step " << step;
        ASSERT_FALSE(allowed.empty()) << schema << " step " << step;
        ASSERT_TRUE(matcher.accept(allowed[rng() % allowed.size()]));
      }
    }
  }
}

TEST(GrammarMatcher, AllowsIsWhatBytesSay) {
  // Independent of the trie: a token is allowed iff its bytes are, one by one.
  const GrammarVocabulary& v = grammar_vocabulary();
  std::mt19937 rng(3);
  for (const std::string& schema : kSchemas) {
    const auto tables = grammar_tables(compile_json_schema(schema));
    GrammarMatcher matcher(tables);
    for (int step = 0; step < 100 && !matcher.ended(); ++step) {
      const std::vector<int32_t> allowed = allowed_ids(matcher);
      for (size_t id = 0; id < v.tokens.size(); ++id) {
        GrammarMatcher copy = matcher;
        bool every = true;
        for (const char c : v.tokens[id]) every = every && copy.accept(static_cast<uint8_t>(c));
        EXPECT_EQ(every, std::ranges::binary_search(allowed, static_cast<int32_t>(id))) << v.tokens[id];
      }
      ASSERT_TRUE(matcher.accept(allowed[rng() % allowed.size()]));
    }
  }
}

TEST(GrammarMatcher, RollbackEqualsFresh) {
  std::mt19937 rng(11);
  for (const std::string& schema : kSchemas) {
    const auto tables = grammar_tables(compile_json_schema(schema));
    GrammarMatcher matcher(tables);
    std::vector<int32_t> ids;
    for (int round = 0; round < 60; ++round) {
      for (int i = 0; i < 7 && !matcher.ended(); ++i) {
        const std::vector<int32_t> allowed = allowed_ids(matcher);
        ids.push_back(allowed[rng() % allowed.size()]);
        ASSERT_TRUE(matcher.accept(ids.back()));
      }
      const size_t back = std::min<size_t>(rng() % 8, ids.size());
      matcher.rollback(static_cast<int>(back));
      ids.resize(ids.size() - back);
      GrammarMatcher fresh(grammar_tables(compile_json_schema(schema)));
      for (const int32_t id : ids) ASSERT_TRUE(fresh.accept(id));
      ASSERT_EQ(allowed_ids(matcher), allowed_ids(fresh));
      ASSERT_EQ(matcher.can_end(), fresh.can_end());
      ASSERT_EQ(matcher.must_end(), fresh.must_end());
      ASSERT_EQ(matcher.ended(), fresh.ended());
    }
  }
}

TEST(GrammarMatcher, RollbackHasBounds) {
  GrammarMatcher matcher(grammar_tables(compile_regex("a*")));
  EXPECT_THROW(matcher.rollback(1), std::out_of_range);
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(matcher.accept('a'));
  EXPECT_THROW(matcher.rollback(-1), std::out_of_range);
  EXPECT_THROW(matcher.rollback(GrammarMatcher::kMaxRollback + 1), std::out_of_range);
  matcher.rollback(GrammarMatcher::kMaxRollback);
  EXPECT_TRUE(matcher.accept('a'));
}

TEST(GrammarMatcher, ARefusedTokenChangesNothing) {
  GrammarMatcher matcher(grammar_tables(compile_json_object()));
  ASSERT_TRUE(matcher.accept(id_of("{\"")));
  const std::vector<int32_t> before = allowed_ids(matcher);
  EXPECT_FALSE(matcher.accept('\n'));
  EXPECT_FALSE(matcher.accept(grammar_vocabulary().end_ids[0]));
  EXPECT_FALSE(matcher.accept(-1));
  EXPECT_FALSE(matcher.accept(1 << 30));
  EXPECT_EQ(allowed_ids(matcher), before);
}

TEST(GrammarMatcher, TokensCrossSymbols) {
  const auto tables = grammar_tables(compile_json_schema(R"({"type":"object","properties":{"a":{"const":1}}})"));
  GrammarMatcher matcher(tables);
  ASSERT_TRUE(matcher.accept('{'));
  EXPECT_TRUE(mask_bit(matcher.next_mask(), id_of("\"a\": 1}")));
  EXPECT_FALSE(mask_bit(matcher.next_mask(), id_of("\"\"")));
  ASSERT_TRUE(matcher.accept(id_of("\"a\": 1}")));
  EXPECT_TRUE(matcher.must_end());

  GrammarMatcher nested(grammar_tables(compile_json_schema("{}")));
  ASSERT_TRUE(nested.accept(id_of("[1, [2")));
  ASSERT_TRUE(nested.accept(id_of("]]")));
  EXPECT_TRUE(nested.must_end());
}

TEST(GrammarMatcher, CharactersSplitOverTokens) {
  const auto tables = grammar_tables(compile_json_schema(R"({"type":"string","maxLength":1})"));
  GrammarMatcher matcher(tables);
  ASSERT_TRUE(matcher.accept('"'));
  ASSERT_TRUE(matcher.accept(id_of("\xF0\x9F")));
  for (const int32_t id : allowed_ids(matcher)) {
    EXPECT_EQ(static_cast<uint8_t>(grammar_vocabulary().tokens[static_cast<size_t>(id)][0]) & 0xC0, 0x80);
  }
  EXPECT_FALSE(matcher.accept('"'));
  ASSERT_TRUE(matcher.accept(id_of("\x98\x80")));
  EXPECT_EQ(allowed_ids(matcher), std::vector<int32_t>{'"'});
  ASSERT_TRUE(matcher.accept('"'));
  EXPECT_TRUE(matcher.must_end());
}

TEST(GrammarMatcher, EndIdsExactlyWhereTheGrammarMayEnd) {
  const GrammarVocabulary& v = grammar_vocabulary();
  GrammarMatcher matcher(grammar_tables(compile_regex("ab?")));
  EXPECT_FALSE(matcher.can_end());
  EXPECT_FALSE(mask_bit(matcher.next_mask(), v.end_ids[0]));
  ASSERT_TRUE(matcher.accept('a'));
  EXPECT_TRUE(matcher.can_end());
  EXPECT_FALSE(matcher.must_end());
  EXPECT_EQ(allowed_ids(matcher), (std::vector<int32_t>{'b', v.end_ids[0], v.end_ids[1]}));
  ASSERT_TRUE(matcher.accept('b'));
  EXPECT_TRUE(matcher.must_end());
  EXPECT_EQ(allowed_ids(matcher), v.end_ids);
  ASSERT_TRUE(matcher.accept(v.end_ids[1]));
  EXPECT_TRUE(matcher.ended());
  EXPECT_TRUE(allowed_ids(matcher).empty());
  EXPECT_FALSE(matcher.accept('b'));
  matcher.rollback(1);
  EXPECT_TRUE(matcher.must_end());
}

TEST(GrammarMatcher, TagsAndPaddingNeverStandInText) {
  const GrammarVocabulary& v = grammar_vocabulary();
  GrammarMatcher matcher(grammar_tables(compile_regex("[^]*")));
  const auto mask = matcher.next_mask();
  ASSERT_EQ(mask.size(), (static_cast<size_t>(v.vocab) + 31) / 32);
  for (const int32_t id : v.tag_ids) EXPECT_FALSE(mask_bit(mask, id));
  for (int32_t id = v.end_ids[1] + 1; id < static_cast<int32_t>(mask.size()) * 32; ++id)
    EXPECT_FALSE(mask_bit(mask, id));
}

TEST(GrammarMatcher, StartsAfterReasoning) {
  const int32_t close = grammar_vocabulary().tag_ids[0];
  GrammarMatcher matcher(grammar_tables(compile_regex("ab")), close);
  EXPECT_FALSE(matcher.active());
  EXPECT_TRUE(matcher.next_mask().empty());
  ASSERT_TRUE(matcher.accept('z'));
  ASSERT_TRUE(matcher.accept(grammar_vocabulary().end_ids[0]));
  EXPECT_FALSE(matcher.ended());
  EXPECT_FALSE(matcher.can_end());
  ASSERT_TRUE(matcher.accept(close));
  EXPECT_TRUE(matcher.active());
  EXPECT_FALSE(matcher.accept('z'));
  ASSERT_TRUE(matcher.accept('a'));
  matcher.rollback(2);
  EXPECT_FALSE(matcher.active());
  ASSERT_TRUE(matcher.accept('z'));
  ASSERT_TRUE(matcher.accept(close));
  EXPECT_EQ(allowed_ids(matcher), (std::vector<int32_t>{'a', id_of("ab")}));
}

TEST(GrammarMatcher, CopiesAreIndependent) {
  GrammarMatcher one(grammar_tables(compile_regex("ab|cd")));
  GrammarMatcher two = one;
  ASSERT_TRUE(one.accept('a'));
  ASSERT_TRUE(two.accept('c'));
  EXPECT_TRUE(one.accept('b'));
  EXPECT_TRUE(two.accept('d'));
}

TEST(GrammarMatcher, NestingIsBoundedAndNeverStuck) {
  GrammarMatcher matcher(grammar_tables(compile_json_schema("{}")));
  int depth = 0;
  while (matcher.accept('[')) ++depth;
  EXPECT_GT(depth, 100);
  EXPECT_LE(depth, GrammarLimits::kDepth);
  ASSERT_FALSE(allowed_ids(matcher).empty());
  for (; depth > 0; --depth) ASSERT_TRUE(matcher.accept(']'));
  EXPECT_TRUE(matcher.must_end());
}

// States are thrown away when they fill their memory; replies under way carry on, those taken back too.
TEST(GrammarMatcher, SurvivesANewAutomaton) {
  const auto tables = grammar_tables(compile_json_schema("{}"));
  GrammarMatcher kept(tables);
  for (const char c : std::string("{\"a\":[[[1")) ASSERT_TRUE(kept.accept(static_cast<uint8_t>(c)));
  const std::vector<int32_t> before = allowed_ids(kept);
  std::mt19937 rng(1);
  bool renewed = false;
  for (int walk = 0; walk < 100'000 && !renewed; ++walk) {
    const size_t bytes = tables->bytes();
    GrammarMatcher other(tables);
    for (int i = 0; i < 60; ++i) {
      const bool array = rng() % 2 == 0;
      ASSERT_TRUE(other.accept(array ? '[' : id_of("{\"")));
      ASSERT_TRUE(array || other.accept(id_of("\":")));
    }
    renewed = tables->bytes() < bytes;
  }
  EXPECT_TRUE(renewed);
  EXPECT_EQ(allowed_ids(kept), before);
  kept.rollback(1);
  for (const char c : std::string("2]]]}")) ASSERT_TRUE(kept.accept(static_cast<uint8_t>(c)));
  EXPECT_TRUE(kept.must_end());
}

TEST(TokenTrie, LeavesOutAddedAndEndTokens) {
  const std::vector<std::string_view> bytes = {"a", "ab", "", "b", "ab", "x"};
  const std::vector<int32_t> ends = {3};
  const TokenTrie trie(bytes, 70, ends);
  EXPECT_EQ(trie.mask_words(), 3U);
  EXPECT_EQ(trie.token_order(), (std::vector<int32_t>{0, 1, 4, 5}));
  EXPECT_EQ(trie.bytes(4), "ab");
  EXPECT_EQ(trie.bytes(3), "");
  EXPECT_EQ(trie.bytes(69), "");
  EXPECT_EQ(trie.bytes(70), "");
  EXPECT_EQ(trie.max_depth(), 2);
  EXPECT_THROW(TokenTrie(bytes, 5, ends), std::invalid_argument);
}

}  // namespace
}  // namespace glm53::test
