#include "engine/token_rules.h"

#include <map>

#include <gtest/gtest.h>

namespace glm53::engine {
namespace {

constexpr int kVocab = 10;

std::vector<int32_t> banned(TokenRules& rules) {
  const SampleRow row = rules.next_row(0);
  return {row.banned.begin(), row.banned.end()};
}

std::map<int32_t, int32_t> counts(TokenRules& rules) {
  std::map<int32_t, int32_t> found;
  for (const TokenCount& count : rules.next_row(0).counts) {
    EXPECT_TRUE(found.emplace(count.id, count.output).second) << "id " << count.id << " twice";
  }
  return found;
}

TEST(TokenRules, HandsOverWhatTheRequestSays) {
  GenerationRequest request;
  request.sampling.seed = 9;
  request.logprobs = 4;
  request.biases = {{3, 1.5F}};
  const std::vector<uint32_t> mask = {0x1FF};
  TokenRules rules(request, mask, kVocab);
  const SampleRow row = rules.next_row(77);
  EXPECT_EQ(row.position, 77);
  EXPECT_EQ(row.params, &request.sampling);
  EXPECT_EQ(row.logprobs, 4);
  EXPECT_EQ(row.mask.data(), mask.data());
  ASSERT_EQ(row.biases.size(), 1U);
  EXPECT_TRUE(row.banned.empty());
  EXPECT_TRUE(row.counts.empty());
}

TEST(TokenRules, EndsAreBannedUntilMinTokens) {
  GenerationRequest request;
  request.min_tokens = 2;
  request.end_ids = {4, 5};
  request.stop_token_ids = {5, 6, 1 << 20};
  TokenRules rules(request, {}, kVocab);
  EXPECT_EQ(banned(rules), (std::vector<int32_t>{4, 5, 6}));
  rules.take(1);
  EXPECT_EQ(banned(rules), (std::vector<int32_t>{4, 5, 6}));
  rules.take(1);
  EXPECT_TRUE(banned(rules).empty());
}

TEST(TokenRules, OnlyAllowedIdsAreLeft) {
  GenerationRequest request;
  request.allowed_ids = {2, 7, 2};
  request.min_tokens = 1;
  request.end_ids = {4, 7};
  TokenRules rules(request, {}, kVocab);
  EXPECT_EQ(banned(rules), (std::vector<int32_t>{0, 1, 3, 4, 5, 6, 7, 8, 9}));
  rules.take(2);
  EXPECT_EQ(banned(rules), (std::vector<int32_t>{0, 1, 3, 4, 5, 6, 8, 9}));
}

TEST(TokenRules, AListIsCopiedOnlyWhereARowBansMore) {
  GenerationRequest request;
  request.allowed_ids = {2, 7};
  request.bad_words = {{2, 7}};
  TokenRules rules(request, {}, kVocab);
  const int32_t* list = rules.next_row(0).banned.data();
  rules.take(2);
  EXPECT_EQ(banned(rules), (std::vector<int32_t>{0, 1, 3, 4, 5, 6, 8, 9, 7}));
  rules.take(7);
  EXPECT_EQ(rules.next_row(2).banned.data(), list);
}

TEST(TokenRules, ABadWordLosesItsLastTokenAfterTheOthers) {
  GenerationRequest request;
  request.prompt = {1, 2};
  request.bad_words = {{8}, {1, 2, 3}, {2, 3}, {2, 9}};
  TokenRules rules(request, {}, kVocab);
  EXPECT_EQ(banned(rules), (std::vector<int32_t>{8}));  // the prompt is no output
  rules.take(1);
  EXPECT_EQ(banned(rules), (std::vector<int32_t>{8}));
  rules.take(2);
  EXPECT_EQ(banned(rules), (std::vector<int32_t>{8, 3, 9}));
  rules.take(4);
  EXPECT_EQ(banned(rules), (std::vector<int32_t>{8}));
}

TEST(TokenRules, RepetitionCountsPromptAndOutput) {
  GenerationRequest request;
  request.prompt = {1, 2, 1};
  request.sampling.repetition = 1.1F;
  TokenRules rules(request, {}, kVocab);
  EXPECT_EQ(counts(rules), (std::map<int32_t, int32_t>{{1, 0}, {2, 0}}));
  for (const int32_t id : {2, 5, 5}) rules.take(id);
  EXPECT_EQ(counts(rules), (std::map<int32_t, int32_t>{{1, 0}, {2, 1}, {5, 2}}));
}

TEST(TokenRules, FrequencyAndPresenceCountTheOutputAlone) {
  GenerationRequest request;
  request.prompt = {1, 2, 1};
  request.sampling.presence = 0.5F;
  TokenRules rules(request, {}, kVocab);
  EXPECT_TRUE(counts(rules).empty());
  for (const int32_t id : {2, 5, 5}) rules.take(id);
  EXPECT_EQ(counts(rules), (std::map<int32_t, int32_t>{{2, 1}, {5, 2}}));
}

}  // namespace
}  // namespace glm53::engine
