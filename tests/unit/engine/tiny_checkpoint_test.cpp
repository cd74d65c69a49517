// The engine over the real forward pass: replies of the tiny checkpoint against tests/data/golden/text.json.
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "checkpoint/config_json.h"
#include "checkpoint/safetensors.h"
#include "comm/local_communicator.h"
#include "engine/engine.h"
#include "model/glm53_model.h"
#include "text/grammar.h"
#include "text/load_tokenizer.h"

namespace glm53::engine {
namespace {

constexpr const char* kModel = GLM53_TEST_DATA "/models/glm53-tiny";

std::unique_ptr<ModelRunner> load_runner(int64_t context, int prefill_rows) {
  const Geometry geometry = load_geometry(kModel);
  auto backend = make_cpu_backend(geometry, {});
  const Checkpoint checkpoint = Checkpoint::open(kModel);
  ModelWeights weights = load_weights(CheckpointInventory(checkpoint, geometry), geometry, {}, *backend, {});
  const CachePlan plan{.sequences = 1, .pages = pages_for(context), .max_rows = prefill_rows, .max_logit_rows = 16};
  return make_model_runner(std::make_unique<Glm53Model>(
      geometry, std::move(backend), std::make_unique<LocalCommunicator>(), std::move(weights), plan));
}

class TinyCheckpoint : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    tokenizer_ = std::make_unique<text::Tokenizer>(test::load_tokenizer(std::string(kModel) + "/tokenizer.json"));
    std::ifstream file(GLM53_TEST_DATA "/golden/text.json");
    golden_ = std::make_unique<nlohmann::json>(nlohmann::json::parse(file));
  }
  static void TearDownTestSuite() {
    golden_.reset();
    tokenizer_.reset();
  }

  static std::unique_ptr<Engine> start(int prefill_rows) {
    return std::make_unique<Engine>(load_runner(1024, prefill_rows), *tokenizer_,
                                    EngineLimits{.context = 1024, .max_queued = -1, .prefill_rows = prefill_rows});
  }

  static GenerationRequest request(const nlohmann::json& golden) {
    GenerationRequest r;
    r.id = golden.at("name");
    r.prompt = golden.at("ids").get<std::vector<int32_t>>();
    r.sampling.temperature = 0;
    r.max_tokens = 40;
    r.end_ids = {4060, 4067, 4069};
    r.reply.split_reasoning = false;
    r.reply.skip_special_tokens = false;
    return r;
  }

  struct Reply {
    std::vector<int32_t> tokens;
    std::string text;
    std::size_t reasoning_bytes = 0;  ///< of the text, which begins with them
    std::vector<TokenLogprobs> logprobs;
    std::vector<TokenLogprobs> prompt_logprobs;
    GenerationResult result;
  };

  static Reply read_all(Generation& generation) {
    Reply reply;
    for (;;) {
      std::optional<GenerationEvent> event = generation.next(std::chrono::minutes(2));
      if (!event) {
        ADD_FAILURE() << "no event came";
        return reply;
      }
      reply.tokens.insert(reply.tokens.end(), event->tokens.begin(), event->tokens.end());
      EXPECT_TRUE(event->logprobs.empty() || event->logprobs.size() == event->tokens.size());
      for (TokenLogprobs& entry : event->logprobs) reply.logprobs.push_back(std::move(entry));
      for (TokenLogprobs& entry : event->prompt_logprobs) reply.prompt_logprobs.push_back(std::move(entry));
      for (const text::ReplyDelta& delta : event->deltas) {
        reply.text += delta.text;
        if (delta.channel == text::ReplyChannel::kReasoning) reply.reasoning_bytes += delta.text.size();
      }
      if (event->result) {
        reply.result = *event->result;
        return reply;
      }
    }
  }

  static std::unique_ptr<text::Tokenizer> tokenizer_;
  static std::unique_ptr<nlohmann::json> golden_;
};

std::unique_ptr<text::Tokenizer> TinyCheckpoint::tokenizer_;
std::unique_ptr<nlohmann::json> TinyCheckpoint::golden_;

TEST_F(TinyCheckpoint, GreedyRepliesEqualGolden) {
  const auto engine = start(256);
  std::vector<std::shared_ptr<Generation>> generations;
  for (const auto& golden : *golden_) generations.push_back(engine->submit(request(golden)));
  ASSERT_FALSE(generations.empty());
  for (std::size_t i = 0; i < generations.size(); ++i) {
    const auto& golden = (*golden_)[i];
    SCOPED_TRACE(golden.at("name").get<std::string>());
    const Reply reply = read_all(*generations[i]);
    const auto expected = golden.at("greedy").get<std::vector<int32_t>>();
    EXPECT_EQ(reply.tokens, expected);
    EXPECT_EQ(reply.result.completion_tokens, static_cast<int64_t>(expected.size()));
    EXPECT_EQ(reply.result.prompt_tokens, static_cast<int64_t>(golden.at("ids").size()));
    const bool ends = reply.result.reason == FinishReason::kStop;
    EXPECT_EQ(ends, expected.size() < 40);
    std::string text = golden.at("greedy_text");
    if (ends) text.resize(text.size() - tokenizer_->token_bytes(expected.back()).size());
    EXPECT_EQ(reply.text, text);
  }
}

// Seeded replies depend neither on how the prompt was cut nor on what ran before in the slot.
TEST_F(TinyCheckpoint, SeededRepliesDoNotDependOnChunks) {
  const auto whole = start(1024);
  const auto cut = start(48);
  for (const auto& golden : *golden_) {
    SCOPED_TRACE(golden.at("name").get<std::string>());
    GenerationRequest r = request(golden);
    r.max_tokens = 16;
    r.end_ids.clear();
    r.sampling.temperature = 1;
    r.sampling.top_p = 0.95F;
    r.sampling.seed = 5;
    const Reply first = read_all(*whole->submit(r));
    EXPECT_EQ(first.tokens.size(), 16U);
    EXPECT_EQ(read_all(*cut->submit(r)).tokens, first.tokens);
    EXPECT_EQ(read_all(*whole->submit(r)).tokens, first.tokens);
  }
}

// A reply read as a prompt has the logprobs that it had as a reply, wherever the chunks of the prompt end.
TEST_F(TinyCheckpoint, PromptLogprobsAreThoseOfTheReply) {
  const auto engine = start(256);
  const auto& golden = golden_->front();
  GenerationRequest r = request(golden);
  r.max_tokens = 20;
  r.logprobs = 5;
  const Reply reply = read_all(*engine->submit(r));
  ASSERT_EQ(reply.logprobs.size(), reply.tokens.size());
  EXPECT_TRUE(reply.prompt_logprobs.empty());
  for (std::size_t i = 0; i < reply.tokens.size(); ++i) {
    const TokenLogprobs& entry = reply.logprobs[i];
    EXPECT_EQ(entry.id, reply.tokens[i]);
    ASSERT_EQ(entry.top.size(), 5U);
    EXPECT_EQ(entry.top[0].id, entry.id);  // greedy
    EXPECT_EQ(entry.top[0].logprob, entry.logprob);
    EXPECT_GE(entry.top[3].logprob, entry.top[4].logprob);
  }

  const std::size_t asked = r.prompt.size();
  std::vector<int32_t> longer = r.prompt;
  longer.insert(longer.end(), reply.tokens.begin(), reply.tokens.end() - 1);
  r.prompt = std::move(longer);
  r.max_tokens = 1;
  r.end_ids.clear();
  r.prompt_logprobs = 5;
  const Reply again = read_all(*engine->submit(r));
  ASSERT_EQ(again.tokens.size(), 1U);
  EXPECT_EQ(again.tokens.front(), reply.tokens.back());
  ASSERT_EQ(again.prompt_logprobs.size(), r.prompt.size());
  EXPECT_FALSE(again.prompt_logprobs.front().logprob);
  EXPECT_EQ(again.prompt_logprobs.front().id, r.prompt.front());
  for (std::size_t i = 1; i < r.prompt.size(); ++i) {
    const TokenLogprobs& entry = again.prompt_logprobs[i];
    EXPECT_EQ(entry.id, r.prompt[i]);
    ASSERT_TRUE(entry.logprob);
    if (i < asked) continue;
    // A window and a prompt sum in different orders, hence not the same bits.
    const TokenLogprobs& drawn = reply.logprobs[i - asked];
    EXPECT_NEAR(*entry.logprob, *drawn.logprob, 1e-3);
    EXPECT_EQ(entry.top[0].id, drawn.top[0].id);
  }
}

TEST_F(TinyCheckpoint, ABadWordAndABiasChangeTheGreedyReply) {
  const auto engine = start(256);
  GenerationRequest r = request(golden_->front());
  const Reply plain = read_all(*engine->submit(r));
  ASSERT_GE(plain.tokens.size(), 3U);
  r.bad_words = {{plain.tokens[0], plain.tokens[1]}};
  const Reply without = read_all(*engine->submit(r));
  EXPECT_EQ(without.tokens[0], plain.tokens[0]);
  EXPECT_NE(without.tokens[1], plain.tokens[1]);
  r.bad_words = {};
  r.biases = {{77, 100.0F}};
  r.max_tokens = 4;
  r.end_ids.clear();
  EXPECT_EQ(read_all(*engine->submit(r)).tokens, (std::vector<int32_t>{77, 77, 77, 77}));
}

// However hot the draws, with reasoning before it and without.
TEST_F(TinyCheckpoint, ConstrainedRepliesAreTextsOfTheirGrammars) {
  const auto engine = start(256);
  const auto trie = std::make_shared<const text::TokenTrie>(*tokenizer_, 4096, std::vector<int32_t>{4060, 4067, 4069});
  const std::shared_ptr<const text::Grammar> grammars[] = {
      text::compile_json_schema(R"({"type":"object","properties":{"name":{"type":"string","maxLength":9},
          "tags":{"type":"array","items":{"enum":["x","yy",7]},"maxItems":3},"next":{"anyOf":[{"type":"null"},
          {"const":{"a":1}}]}},"required":["name","next"]})"),
      text::compile_regex("(Once|Twice)( [a-z]{1,8}){2,5}[.]"),
      text::compile_choice(std::vector<std::string>{"yes", "no", "yes and no", "\xE2\x82\xAC 7"}),
  };
  int endings = 0;
  for (const auto& grammar : grammars) {
    const auto tables = std::make_shared<text::GrammarTables>(grammar, trie);
    for (const char* name : {"count", "json"}) {
      const auto golden =
          std::find_if(golden_->begin(), golden_->end(), [&](const auto& g) { return g["name"] == name; });
      for (uint64_t seed = 1; seed <= 5; ++seed) {
        GenerationRequest r = request(*golden);
        r.grammar = tables;
        r.max_tokens = 300;
        r.sampling.temperature = seed == 1 ? 0 : 1.5F;
        r.sampling.seed = seed;
        r.reply.split_reasoning = true;
        r.reply.start = text::start_channel(r.prompt, *tokenizer_);
        r.reasoning_budget = 20;
        const Reply reply = read_all(*engine->submit(r));
        EXPECT_EQ(reply.result.reason, FinishReason::kStop);
        text::GrammarMatcher matcher(tables);
        const std::string content = reply.text.substr(reply.reasoning_bytes);
        for (const int32_t id : tokenizer_->encode(content)) EXPECT_TRUE(matcher.accept(id)) << content;
        EXPECT_TRUE(matcher.can_end()) << content;
        EXPECT_LE(reply.result.reasoning_tokens, 20);
        endings += reply.result.stop_id ? 0 : 1;
      }
    }
  }
  EXPECT_GT(endings, 20);  // by their last token, without an end id
}

}  // namespace
}  // namespace glm53::engine
