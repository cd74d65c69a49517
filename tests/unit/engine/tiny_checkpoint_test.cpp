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
#include "text/load_tokenizer.h"

namespace glm53::engine {
namespace {

constexpr const char* kModel = GLM53_TEST_DATA "/models/glm53-tiny";

std::unique_ptr<ModelRunner> load_runner(int64_t context, int prefill_rows) {
  const Geometry geometry = load_geometry(kModel);
  auto backend = make_cpu_backend(geometry, {});
  const Checkpoint checkpoint = Checkpoint::open(kModel);
  ModelWeights weights = load_weights(CheckpointInventory(checkpoint, geometry), geometry, {}, *backend, {});
  const CachePlan plan{.sequences = 1, .pages = pages_for(context), .max_rows = prefill_rows, .max_logit_rows = 1};
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
    GenerationResult result;
  };

  static Reply read_all(Generation& generation) {
    Reply reply;
    for (;;) {
      const std::optional<GenerationEvent> event = generation.next(std::chrono::minutes(2));
      if (!event) {
        ADD_FAILURE() << "no event came";
        return reply;
      }
      reply.tokens.insert(reply.tokens.end(), event->tokens.begin(), event->tokens.end());
      for (const text::ReplyDelta& delta : event->deltas) reply.text += delta.text;
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

}  // namespace
}  // namespace glm53::engine
