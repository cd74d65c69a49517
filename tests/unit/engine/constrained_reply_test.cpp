// Replies under a grammar, a reasoning budget or the loop guard, over the scripted model: it says what it likes
// wherever the mask lets it.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/engine_test_util.h"
#include "engine/fake_model.h"
#include "text/grammar.h"

namespace glm53::engine {
namespace {

constexpr int32_t kUser = 4067;  // <|user|>, an end id too

int32_t marker(const char* text) { return tokenizer().require_added(text); }

std::shared_ptr<text::GrammarTables> tables(const std::shared_ptr<const text::Grammar>& grammar) {
  static const auto trie =
      std::make_shared<const text::TokenTrie>(tokenizer(), 4096, std::vector<int32_t>{kEnd, kUser});
  return std::make_shared<text::GrammarTables>(grammar, trie);
}
std::shared_ptr<text::GrammarTables> one_of(const std::vector<std::string>& choices) {
  return tables(text::compile_choice(choices));
}

class ConstrainedReply : public ::testing::Test {
 protected:
  Reply ask(const GenerationRequest& request) {
    if (engine_ == nullptr) {
      engine_ = std::make_unique<Engine>(model_.runner(), tokenizer(),
                                         EngineLimits{.context = 1000, .max_queued = 8, .prefill_rows = 64});
    }
    return read_all(*engine_->submit(request));
  }
  /// A request whose reply begins inside reasoning.
  static GenerationRequest thinking(int64_t max_tokens = 40) {
    GenerationRequest r = request(3, max_tokens);
    r.end_ids = {kEnd, kUser};
    r.reply.start = text::ReplyChannel::kReasoning;
    return r;
  }
  static GenerationRequest plain(int64_t max_tokens = 40) {
    GenerationRequest r = request(3, max_tokens);
    r.end_ids = {kEnd, kUser};
    return r;
  }

  FakeModel model_;
  std::unique_ptr<Engine> engine_;  // destroyed first
};

TEST_F(ConstrainedReply, FollowsTheGrammarAndEndsWithItsLastToken) {
  model_.reply = ids_of("nonsense, and more of it than the grammar has room for");
  model_.filler = ids_of("y").front();
  GenerationRequest r = plain();
  r.grammar = one_of({"yes", "maybe"});
  const Reply reply = ask(r);
  EXPECT_EQ(reply.content, "yes");
  EXPECT_EQ(reply.result.reason, FinishReason::kStop);
  EXPECT_FALSE(reply.result.stop_id);
  // The last token was never forwarded: nothing but an end could follow.
  EXPECT_EQ(model_.sequence.size(), 3 + reply.tokens.size() - 1);
}

TEST_F(ConstrainedReply, AnEndIdIsAllowedWhereTheGrammarMayEnd) {
  model_.reply = {kUser, 64, kUser};
  GenerationRequest r = plain();
  r.grammar = tables(text::compile_regex("a+"));
  const Reply reply = ask(r);
  EXPECT_EQ(reply.content, "aa");  // no end before the first, and the filler for it
  EXPECT_EQ(reply.result.stop_id, kUser);
}

TEST_F(ConstrainedReply, AnEmptyTextNeedsNoToken) {
  GenerationRequest r = plain();
  r.grammar = tables(text::compile_regex(""));
  const Reply reply = ask(r);
  EXPECT_EQ(reply.result.reason, FinishReason::kStop);
  EXPECT_EQ(reply.result.completion_tokens, 0);
  EXPECT_EQ(reply.content, "");
}

TEST_F(ConstrainedReply, ReasoningIsFreeAndTheGrammarHoldsAfterIt) {
  model_.reply = ids_of("{} no");
  model_.reply.push_back(marker("</think>"));
  model_.filler = ids_of("y").front();
  GenerationRequest r = thinking();
  r.grammar = one_of({"yes"});
  const Reply reply = ask(r);
  EXPECT_EQ(reply.reasoning, "{} no");
  EXPECT_EQ(reply.content, "yes");
  EXPECT_EQ(reply.result.reason, FinishReason::kStop);
}

// Otherwise the reply would end, or turn into a call, without the content that was asked for.
TEST_F(ConstrainedReply, ReasoningBeforeAGrammarNeitherEndsNorCalls) {
  model_.reply = {kEnd, marker("<tool_call>"), kUser, marker("</think>"), kEnd};
  GenerationRequest r = thinking();
  r.grammar = one_of({"b"});
  const Reply reply = ask(r);
  EXPECT_EQ(reply.reasoning, "aaa");
  EXPECT_EQ(reply.content, "b");
}

TEST_F(ConstrainedReply, LengthCutsIt) {
  GenerationRequest r = plain(4);
  r.grammar = tables(text::compile_regex("a+b"));
  const Reply reply = ask(r);
  EXPECT_EQ(reply.content, "aaaa");
  EXPECT_EQ(reply.result.reason, FinishReason::kLength);
}

TEST_F(ConstrainedReply, TheLastAllowedTokenMayCompleteIt) {
  GenerationRequest r = plain(1);
  r.grammar = one_of({"a"});
  EXPECT_EQ(ask(r).result.reason, FinishReason::kStop);
}

TEST_F(ConstrainedReply, MinTokensAndIgnoreEosEndWithTheGrammar) {
  model_.reply = {64, kEnd, 64, kEnd, kEnd};
  GenerationRequest r = plain();
  r.grammar = tables(text::compile_regex("a{1,4}"));
  r.min_tokens = 20;
  Reply reply = ask(r);
  EXPECT_EQ(reply.content, "aaaa");
  EXPECT_EQ(reply.result.reason, FinishReason::kStop);

  r.min_tokens = 0;
  r.end_ids.clear();
  reply = ask(r);
  EXPECT_EQ(reply.content, "aaaa");
  EXPECT_EQ(reply.result.reason, FinishReason::kStop);
  EXPECT_FALSE(reply.result.stop_id);

  // An end id that the request itself names still stops it.
  r.stop_token_ids = {kEnd};
  EXPECT_EQ(ask(r).result.stop_id, kEnd);
}

TEST_F(ConstrainedReply, BansThatLeaveNothingEndACompleteReplyAndFailAnother) {
  GenerationRequest r = plain();
  r.grammar = tables(text::compile_regex("a{2,9}"));
  r.min_tokens = 20;
  r.bad_words = {{64, 64, 64}};
  r.allowed_ids = {64};
  Reply reply = ask(r);
  EXPECT_EQ(reply.content, "aa");
  EXPECT_EQ(reply.result.reason, FinishReason::kStop);

  r.grammar = tables(text::compile_regex("a{3,9}"));
  reply = ask(r);
  EXPECT_EQ(reply.result.reason, FinishReason::kFailed);
  EXPECT_TRUE(reply.result.no_token);
  EXPECT_EQ(ask(plain(2)).content, "aa");  // the engine goes on
}

TEST_F(ConstrainedReply, StopStringsAndIdsWinOverTheGrammar) {
  model_.filler = ids_of("y").front();
  GenerationRequest r = plain();
  r.grammar = one_of({"yes"});
  r.reply.stop = {"e"};
  const Reply reply = ask(r);
  EXPECT_EQ(reply.content, "y");
  EXPECT_EQ(reply.result.stop_string, "e");
}

// Every way to read 20,000 letters stays open: more states than the library follows.
TEST_F(ConstrainedReply, AGrammarTooAmbiguousToFollowFailsItsRequestAlone) {
  std::string pattern;
  for (int i = 0; i < 12; ++i) pattern += "(a?){2000}";
  GenerationRequest r = plain();
  r.grammar = tables(text::compile_regex(pattern));
  const Reply reply = ask(r);
  EXPECT_EQ(reply.result.reason, FinishReason::kFailed);
  EXPECT_TRUE(reply.result.no_token);
  EXPECT_NE(reply.result.error.find("ambiguous"), std::string::npos) << reply.result.error;
  EXPECT_EQ(ask(plain(2)).content, "aa");
}

TEST_F(ConstrainedReply, ATokenThatTheGrammarDoesNotAllowFailsItsRequestAlone) {
  model_.heeds_masks = false;
  GenerationRequest r = plain();
  r.grammar = one_of({"yes"});
  const Reply reply = ask(r);
  EXPECT_EQ(reply.result.reason, FinishReason::kFailed);
  EXPECT_FALSE(reply.result.no_token);  // not the request's fault
  EXPECT_EQ(ask(plain(2)).content, "aa");
}

TEST_F(ConstrainedReply, RefusesAGrammarOfAnotherVocabulary) {
  ask(plain(1));
  GenerationRequest r = plain();
  const auto trie = std::make_shared<const text::TokenTrie>(tokenizer(), 5000, std::vector<int32_t>{kEnd});
  r.grammar = std::make_shared<text::GrammarTables>(text::compile_json_object(), trie);
  EXPECT_THROW(engine_->submit(r), SubmitError);
}

// ---- reasoning budget

TEST_F(ConstrainedReply, ABudgetClosesReasoning) {
  for (const int64_t budget : {0, 1, 5}) {
    model_.reply.clear();
    GenerationRequest r = thinking(12);
    r.reasoning_budget = budget;
    const Reply reply = ask(r);
    EXPECT_EQ(reply.reasoning, std::string(static_cast<std::size_t>(budget), 'a'));
    EXPECT_EQ(reply.result.reasoning_tokens, budget);
    EXPECT_EQ(reply.tokens[static_cast<std::size_t>(budget)], marker("</think>"));
    EXPECT_EQ(reply.content, std::string(static_cast<std::size_t>(12 - 1 - budget), 'a'));
  }
}

TEST_F(ConstrainedReply, ABudgetThatIsNotReachedChangesNothing) {
  model_.reply = ids_of("aa</think>b");
  model_.reply.push_back(kEnd);
  GenerationRequest r = thinking();
  r.reasoning_budget = 5;
  const Reply reply = ask(r);
  EXPECT_EQ(reply.tokens, model_.reply);
}

TEST_F(ConstrainedReply, SpentReasoningIsNotReopened) {
  model_.reply = {64, 64, 64, marker("<think>"), marker("<think>"), kEnd};
  GenerationRequest r = thinking();
  r.reasoning_budget = 2;
  Reply reply = ask(r);
  EXPECT_EQ(reply.reasoning, "aa");
  EXPECT_EQ(reply.content, "aa");

  // Without being spent it is, and both stretches count.
  model_.reply = ids_of("a</think>b<think>aaaaa");
  reply = ask(r);
  EXPECT_EQ(reply.reasoning, "aa");
  EXPECT_EQ(reply.result.reasoning_tokens, 2);
}

// To the parser it is text of the argument: no </think> may be forced into it.
TEST_F(ConstrainedReply, AThinkTagInACallOpensNoReasoning) {
  model_.reply = ids_of("<tool_call>get_time<arg_key>q</arg_key><arg_value>a<think>bcdefghi</arg_value></tool_call>");
  model_.reply.push_back(kEnd);
  GenerationRequest r = plain();
  r.reply.tools = std::make_shared<text::OfferedTools>(text::OfferedTools{{"get_time", {}}});
  r.reasoning_budget = 1;
  const Reply reply = ask(r);
  EXPECT_EQ(reply.tokens, model_.reply);
  EXPECT_EQ(reply.calls, std::vector<std::string>{R"(get_time({"q": "a<think>bcdefghi"}))"});
}

TEST_F(ConstrainedReply, ABudgetLeadsToTheGrammar) {
  model_.filler = ids_of("y").front();
  GenerationRequest r = thinking();
  r.reasoning_budget = 3;
  r.grammar = one_of({"yes"});
  const Reply reply = ask(r);
  EXPECT_EQ(reply.reasoning, "yyy");
  EXPECT_EQ(reply.content, "yes");
}

TEST_F(ConstrainedReply, ABudgetYieldsToARequestThatBansTheEndOfReasoning) {
  GenerationRequest r = thinking(8);
  r.reasoning_budget = 2;
  r.allowed_ids = {64};
  const Reply reply = ask(r);
  EXPECT_EQ(reply.reasoning, "aaaaaaaa");
  EXPECT_EQ(reply.result.reason, FinishReason::kLength);
}

TEST_F(ConstrainedReply, RawTextHasNoReasoningToBudget) {
  GenerationRequest r = plain(6);
  r.reply.split_reasoning = false;
  r.reply.start = text::ReplyChannel::kReasoning;
  r.reasoning_budget = 0;
  r.loop_guard = true;
  EXPECT_EQ(ask(r).content, "aaaaaa");
}

// ---- loop guard

TEST_F(ConstrainedReply, TheLoopGuardClosesReasoningInCircles) {
  GenerationRequest r = thinking(400);
  Reply reply = ask(r);
  EXPECT_EQ(reply.result.reasoning_tokens, 400);
  r.loop_guard = true;
  reply = ask(r);
  EXPECT_EQ(reply.result.reasoning_tokens, LoopGuard::kWindow);
  EXPECT_EQ(reply.content.size(), 400U - LoopGuard::kWindow - 1);  // content may repeat itself
}

/// Tokens until the guard speaks; −1: never within `most`.
template <typename Next>
int looping_after(Next&& next, int most = 2000) {
  LoopGuard guard;
  for (int i = 0; i < most; ++i) {
    guard.push(next(i));
    if (guard.looping()) return i + 1;
  }
  return -1;
}

TEST(LoopGuard, KnowsShortCycles) {
  EXPECT_EQ(looping_after([](int) { return 7; }), 256);
  EXPECT_EQ(looping_after([](int i) { return i % 16; }), 256);
  EXPECT_EQ(looping_after([](int i) { return i % 17; }), -1);
  EXPECT_EQ(looping_after([](int i) { return i < 100 ? i : i % 5; }), 100 + 256);
  EXPECT_EQ(looping_after([](int i) { return i % 255 == 254 ? 99 : i % 3; }), -1);  // never held for 256
}

TEST(LoopGuard, KnowsATokenThatFillsHalfTheWindow) {
  EXPECT_EQ(looping_after([](int i) { return i % 2 == 0 ? 1 : 1000 + i; }), 256);
  EXPECT_EQ(looping_after([](int i) { return i < 128 ? 1 : 1000 + i; }), 256);
  EXPECT_EQ(looping_after([](int i) { return i < 127 ? 1 : 1000 + i; }), -1);
  EXPECT_EQ(looping_after([](int i) { return i % 3 == 0 ? 1 : 1000 + i; }), -1);
  EXPECT_EQ(looping_after([](int i) { return i < 300 ? i : i % 2 == 0 ? -1 : i; }), 300 + 255);
}

}  // namespace
}  // namespace glm53::engine
