#include "engine/engine.h"

#include <array>
#include <limits>
#include <numeric>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_test_util.h"
#include "engine/fake_model.h"

namespace glm53::engine {
namespace {

using std::chrono::milliseconds;
using Kind = SubmitError::Kind;

constexpr int32_t kStopId = 260;  // " a"

template <typename Requests>
SubmitError::Kind refusal(Engine& engine, Requests requests) {
  try {
    engine.submit(std::move(requests));
  } catch (const SubmitError& error) {
    return error.kind;
  }
  ADD_FAILURE() << "submit did not refuse";
  return Kind::kBadRequest;
}

class EngineTest : public ::testing::Test {
 protected:
  Engine& start(EngineLimits limits = {.context = 500, .max_queued = 256, .prefill_rows = 64}) {
    engine_ = std::make_unique<Engine>(model_.runner(), tokenizer(), limits);
    return *engine_;
  }

  /// From now on every forward call waits for a go().
  void hold_forward() {
    model_.on_forward = [this](const Batch&) {
      entered_.release();
      go_.acquire();
    };
  }
  void wait_entered() { entered_.acquire(); }
  void go(int calls = 1) { go_.release(calls); }
  /// Lets everything still held, and all that follows, pass.
  void go_forever() { go_.release(1 << 20); }
  /// Until nothing runs or waits.
  void wait_idle() const {
    for (EngineStatus now = engine_->status(); now.running + now.waiting > 0; now = engine_->status()) {
      std::this_thread::yield();
    }
  }

  FakeModel model_;
  std::counting_semaphore<(1 << 21)> entered_{0};
  std::counting_semaphore<(1 << 21)> go_{0};
  std::unique_ptr<Engine> engine_;  // destroyed first
};

TEST_F(EngineTest, ServesAReply) {
  model_.reply = ids_of("Once upon a time");
  const std::size_t tokens = model_.reply.size();
  model_.reply.push_back(kEnd);
  Engine& engine = start();
  const Reply reply = read_all(*engine.submit(request(5, 40)));
  EXPECT_EQ(reply.content, "Once upon a time");
  EXPECT_EQ(reply.tokens, model_.reply);
  EXPECT_EQ(reply.result.reason, FinishReason::kStop);
  EXPECT_EQ(reply.result.stop_id, kEnd);
  EXPECT_FALSE(reply.result.stop_string);
  EXPECT_EQ(reply.result.prompt_tokens, 5);
  EXPECT_EQ(reply.result.completion_tokens, static_cast<int64_t>(tokens) + 1);
  EXPECT_EQ(reply.result.reasoning_tokens, 0);
  EXPECT_EQ(reply.result.error, "");
  // Each drawn token is the next position, and each but the last was forwarded.
  ASSERT_EQ(model_.positions.size(), tokens + 1);
  for (std::size_t i = 0; i <= tokens; ++i) EXPECT_EQ(model_.positions[i], 5 + static_cast<int64_t>(i));
  EXPECT_EQ(model_.sequence.size(), 5 + tokens);
}

TEST_F(EngineTest, SplitsReasoning) {
  model_.reply = ids_of("think</think>answer");
  model_.reply.push_back(kEnd);
  GenerationRequest r = request(3, 40);
  r.reply.start = text::ReplyChannel::kReasoning;
  const Reply reply = read_all(*start().submit(r));
  EXPECT_EQ(reply.reasoning, "think");
  EXPECT_EQ(reply.content, "answer");
  EXPECT_EQ(reply.result.reasoning_tokens, static_cast<int64_t>(ids_of("think").size()));
}

TEST_F(EngineTest, CutsThePromptOnAGridFromPositionZero) {
  model_.reply = {70, kEnd};
  Engine& engine = start();
  using Call = FakeModel::Call;
  const auto p = SegmentKind::kPrompt;
  const auto w = SegmentKind::kWindow;

  read_all(*engine.submit(request(150)));
  EXPECT_EQ(model_.calls,
            (std::vector<Call>{{p, 0, 64, false}, {p, 64, 64, false}, {p, 128, 22, true}, {w, 150, 1, true}}));
  EXPECT_EQ(model_.prompts.back(), std::vector<int32_t>(150, 65));
  read_all(*engine.submit(request(128)));
  EXPECT_EQ(model_.calls, (std::vector<Call>{{p, 0, 64, false}, {p, 64, 64, true}, {w, 128, 1, true}}));
  read_all(*engine.submit(request(1)));
  EXPECT_EQ(model_.calls, (std::vector<Call>{{p, 0, 1, true}, {w, 1, 1, true}}));
}

TEST_F(EngineTest, StopsAtItsLimits) {
  Engine& engine = start({.context = 20, .max_queued = 256, .prefill_rows = 64});
  Reply reply = read_all(*engine.submit(request(4, 3)));
  EXPECT_EQ(reply.result.reason, FinishReason::kLength);
  EXPECT_EQ(reply.result.completion_tokens, 3);
  EXPECT_EQ(reply.content, "aaa");
  EXPECT_FALSE(reply.result.stop_id);
  EXPECT_EQ(reply.result.cut_channel, text::ReplyChannel::kContent);
  EXPECT_EQ(model_.sequence.size(), 6U);  // the last token is never forwarded

  reply = read_all(*engine.submit(request(4, 16)));
  EXPECT_EQ(reply.result.reason, FinishReason::kLength);
  EXPECT_EQ(reply.result.completion_tokens, 16);

  // An end id as the last allowed token is a stop, not a length.
  model_.reply = {64, 64, kEnd};
  reply = read_all(*engine.submit(request(4, 3)));
  EXPECT_EQ(reply.result.cut_channel, std::nullopt);
  EXPECT_EQ(reply.result.reason, FinishReason::kStop);
  EXPECT_EQ(reply.content, "aa");
}

TEST_F(EngineTest, StopIds) {
  model_.reply = {64, kStopId, 65};
  Engine& engine = start();
  GenerationRequest r = request();
  r.stop_token_ids = {kStopId};
  Reply reply = read_all(*engine.submit(r));
  EXPECT_EQ(reply.result.reason, FinishReason::kStop);
  EXPECT_EQ(reply.result.stop_id, kStopId);
  EXPECT_EQ(reply.result.completion_tokens, 2);
  EXPECT_EQ(reply.content, "a");

  r.reply.include_stop = true;
  reply = read_all(*engine.submit(r));
  EXPECT_EQ(reply.result.stop_id, kStopId);
  EXPECT_EQ(reply.content, "a a");

  r.end_ids = {kEnd, kStopId};  // what the request names is a stop id
  reply = read_all(*engine.submit(r));
  EXPECT_EQ(reply.result.stop_id, kStopId);
  EXPECT_EQ(reply.content, "a a");

  r.stop_token_ids = {};  // the text of an end id is never output
  reply = read_all(*engine.submit(r));
  EXPECT_EQ(reply.result.stop_id, kStopId);
  EXPECT_EQ(reply.content, "a");
}

TEST_F(EngineTest, EndIdsAreOrdinaryWhenIgnored) {
  model_.reply = {64, kEnd, 65};
  GenerationRequest r = request(3, 4);
  r.end_ids.clear();
  const Reply reply = read_all(*start().submit(r));
  EXPECT_EQ(reply.result.reason, FinishReason::kLength);
  EXPECT_EQ(reply.tokens, (std::vector<int32_t>{64, kEnd, 65, 64}));
  EXPECT_EQ(reply.content, "aba");  // special tokens have no text
}

TEST_F(EngineTest, StopStringsCutTheText) {
  model_.reply = ids_of("one two three four");
  Engine& engine = start();
  GenerationRequest r = request(3, 40);
  r.reply.stop = {"o thr"};
  Reply reply = read_all(*engine.submit(r));
  EXPECT_EQ(reply.content, "one tw");
  EXPECT_EQ(reply.result.reason, FinishReason::kStop);
  EXPECT_EQ(reply.result.stop_string, "o thr");
  EXPECT_FALSE(reply.result.stop_id);
  EXPECT_EQ(reply.result.completion_tokens, static_cast<int64_t>(reply.tokens.size()));
  EXPECT_LT(reply.tokens.size(), model_.reply.size());

  r.reply.include_stop = true;
  reply = read_all(*engine.submit(r));
  EXPECT_EQ(reply.content, "one two thr");

  // The beginning of a stop string that never comes is released at the end.
  r.reply.stop = {"four score"};
  r.max_tokens = static_cast<int64_t>(model_.reply.size());
  reply = read_all(*engine.submit(r));
  EXPECT_EQ(reply.content, "one two three four");
  EXPECT_EQ(reply.result.reason, FinishReason::kLength);
}

TEST_F(EngineTest, AStopStringWinsOverTheTokenLimit) {
  model_.reply = {64, 65};
  GenerationRequest r = request(3, 2);
  r.reply.stop = {"b"};
  const Reply reply = read_all(*start().submit(r));
  EXPECT_EQ(reply.result.reason, FinishReason::kStop);
  EXPECT_EQ(reply.result.stop_string, "b");
}

GenerationRequest request_with_tools(int64_t max_tokens) {
  GenerationRequest r = request(3, max_tokens);
  r.reply.tools = std::make_shared<text::OfferedTools>(text::OfferedTools{{"get_time", {}}});
  return r;
}

TEST_F(EngineTest, CallsEndTheReplyOrAreCutWithIt) {
  model_.reply = ids_of("a <tool_call>get_time</tool_call>");
  const auto length = static_cast<int64_t>(model_.reply.size());
  model_.reply.push_back(kEnd);
  Engine& engine = start();

  Reply reply = read_all(*engine.submit(request_with_tools(50)));
  EXPECT_EQ(reply.calls, std::vector<std::string>{"get_time({})"});
  EXPECT_EQ(reply.content, "a");
  EXPECT_EQ(reply.result.stop_id, kEnd);

  // The end id closes a call that is still open; a limit drops it.
  GenerationRequest r = request_with_tools(length - 1);
  reply = read_all(*engine.submit(r));
  EXPECT_EQ(reply.calls, std::vector<std::string>{});
  EXPECT_EQ(reply.content, "a ");
  EXPECT_EQ(reply.result.reason, FinishReason::kLength);
  r.stop_token_ids = {model_.reply[static_cast<std::size_t>(length) - 1]};
  reply = read_all(*engine.submit(r));
  EXPECT_EQ(reply.calls, std::vector<std::string>{}) << "the stop id comes after the limit";
  r.max_tokens = 50;
  reply = read_all(*engine.submit(r));
  EXPECT_EQ(reply.calls, std::vector<std::string>{"get_time({})"});

  r = request_with_tools(50);
  r.reply.parallel_calls = false;
  reply = read_all(*engine.submit(r));
  EXPECT_EQ(reply.calls, std::vector<std::string>{"get_time({})"});
  EXPECT_EQ(reply.result.reason, FinishReason::kStop);
  EXPECT_EQ(reply.result.stop_id, std::nullopt);
  EXPECT_EQ(reply.result.stop_string, std::nullopt);
  EXPECT_EQ(reply.result.completion_tokens, length);
}

TEST_F(EngineTest, AStopStringInWhatWasNoCallAfterAll) {
  model_.reply = ids_of("a<tool_call>nope<arg_key>x");
  model_.reply.push_back(kEnd);
  GenerationRequest r = request_with_tools(50);
  r.reply.stop = {"op"};
  const Reply reply = read_all(*start().submit(r));
  EXPECT_EQ(reply.content, "a<tool_call>n");
  EXPECT_EQ(reply.result.reason, FinishReason::kStop);
  EXPECT_EQ(reply.result.stop_string, "op");
  EXPECT_EQ(reply.result.stop_id, std::nullopt);
}

TEST_F(EngineTest, MinTokensAreNotSearchedForStopStrings) {
  model_.reply = ids_of("stop and stop");
  GenerationRequest r = request(3, 50);
  r.reply.stop = {"stop"};
  EXPECT_EQ(read_all(*start().submit(r)).content, "");
  r.min_tokens = 1;
  EXPECT_EQ(read_all(*engine_->submit(r)).content, "stop and ");
}

TEST_F(EngineTest, RulesThatLeaveNoTokenAreRefused) {
  Engine& engine = start();
  GenerationRequest r = request();
  r.allowed_ids = {5};
  r.stop_token_ids = {5};
  r.min_tokens = 2;
  EXPECT_EQ(refusal(engine, r), Kind::kNoToken);
  r.min_tokens = 0;
  engine.submit(r)->cancel();
  r.stop_token_ids = {};
  r.bad_words = {{5}};
  EXPECT_EQ(refusal(engine, r), Kind::kNoToken);
  r = request();
  std::vector<int32_t> all(4096);
  std::iota(all.begin(), all.end(), 0);
  r.stop_token_ids = all;
  r.min_tokens = 1;
  EXPECT_EQ(refusal(engine, r), Kind::kNoToken);
}

TEST_F(EngineTest, MinTokensBansEndAndStopIds) {
  model_.reply = {kEnd, kStopId, kEnd, kEnd};
  GenerationRequest r = request();
  r.min_tokens = 3;
  r.stop_token_ids = {kStopId, 1 << 20};  // an id that no logits row has cannot be banned nor drawn
  const Reply reply = read_all(*start().submit(r));
  EXPECT_EQ(reply.tokens, (std::vector<int32_t>{64, 64, 64, kEnd}));
  EXPECT_EQ(reply.result.completion_tokens, 4);
  EXPECT_EQ(reply.result.stop_id, kEnd);
}

TEST_F(EngineTest, PaddingIdsAreNeverDrawn) {
  model_.capacity.vocab = 4100;
  model_.reply = {4096, 4099, kEnd};
  const Reply reply = read_all(*start().submit(request()));
  EXPECT_EQ(reply.tokens, (std::vector<int32_t>{64, 64, kEnd}));
}

TEST_F(EngineTest, HandsOverTheSamplingParameters) {
  SamplingParams seen;
  model_.on_sample = [&](const SampleRow& row) { seen = *row.params; };
  model_.reply = {kEnd};
  GenerationRequest r = request();
  r.sampling.temperature = 0.25F;
  r.sampling.seed = 77;
  r.sampling.choice = 3;
  read_all(*start().submit(r));
  EXPECT_EQ(seen.temperature, 0.25F);
  EXPECT_EQ(seen.seed, 77U);
  EXPECT_EQ(seen.choice, 3U);
}

TEST_F(EngineTest, TheChoicesOfARequestAreTakenTogetherOrNotAtAll) {
  model_.reply = {64, kEnd};
  Engine& engine = start({.context = 60, .max_queued = 2, .prefill_rows = 64});
  std::vector<GenerationRequest> choices(3, request());
  const auto generations = engine.submit(choices);
  ASSERT_EQ(generations.size(), 3U);
  for (const auto& generation : generations) EXPECT_EQ(read_all(*generation).tokens, (std::vector<int32_t>{64, kEnd}));
  choices[2].max_tokens = 0;
  EXPECT_THROW(engine.submit(choices), SubmitError);
  EXPECT_EQ(engine.status().waiting, 0);
}

TEST_F(EngineTest, EveryChoiceTakesAPlaceInTheQueue) {
  hold_forward();
  model_.reply = {kEnd};
  Engine& engine = start({.context = 60, .max_queued = 3, .prefill_rows = 64});
  auto generations = engine.submit(std::vector<GenerationRequest>(3, request()));
  wait_entered();
  EXPECT_EQ(refusal(engine, std::vector<GenerationRequest>(2, request())), Kind::kQueueFull);
  EXPECT_EQ(engine.status().waiting, 2);
  EXPECT_EQ(refusal(engine, std::vector<GenerationRequest>(5, request())), Kind::kTooManyChoices);
  generations.push_back(engine.submit(request()));
  EXPECT_EQ(refusal(engine, request()), Kind::kQueueFull);
  go_forever();
  for (auto& generation : generations) read_all(*generation);
  EXPECT_EQ(engine.metrics().refused, 2U);
  EXPECT_EQ(engine.submit(std::vector<GenerationRequest>(4, request())).size(), 4U);
}

TEST(GenerationRequests, CopiesShareTheirLists) {
  GenerationRequest r = request();
  r.biases = {{1, 1.0F}};
  r.allowed_ids = {1};
  r.bad_words = {{1, 2}};
  r.stop_token_ids = {3};
  r.reply.stop = {"x"};
  const GenerationRequest copy = r;
  EXPECT_EQ(copy.prompt.data(), r.prompt.data());
  EXPECT_EQ(copy.biases.data(), r.biases.data());
  EXPECT_EQ(copy.allowed_ids.data(), r.allowed_ids.data());
  EXPECT_EQ(copy.bad_words.data(), r.bad_words.data());
  EXPECT_EQ(copy.stop_token_ids.data(), r.stop_token_ids.data());
  EXPECT_EQ(copy.reply.stop.data(), r.reply.stop.data());
}

TEST_F(EngineTest, RefusesBadRequests) {
  Engine& engine = start({.context = 20, .max_queued = 256, .prefill_rows = 64});
  const auto bad = [&](auto&& change) {
    GenerationRequest r = request();
    change(r);
    EXPECT_EQ(refusal(engine, r), Kind::kBadRequest);
  };
  bad([](GenerationRequest& r) { r.prompt = {}; });
  bad([](GenerationRequest& r) { r.biases = {{4096, 1.0F}}; });
  bad([](GenerationRequest& r) { r.biases = {{1, 1.0F}, {1, 2.0F}}; });
  bad([](GenerationRequest& r) { r.biases = {{1, std::numeric_limits<float>::infinity()}}; });
  bad([](GenerationRequest& r) { r.allowed_ids = {-1}; });
  bad([](GenerationRequest& r) { r.bad_words = {{}}; });
  bad([](GenerationRequest& r) { r.bad_words = {{1, 4096}}; });
  bad([](GenerationRequest& r) { r.logprobs = kMaxTopLogprobs + 1; });
  bad([](GenerationRequest& r) { r.prompt_logprobs = kMaxTopLogprobs + 1; });
  bad([](GenerationRequest& r) { r.sampling.repetition = 0; });
  bad([](GenerationRequest& r) { r.sampling.frequency = std::numeric_limits<float>::quiet_NaN(); });
  bad([](GenerationRequest& r) { r.prompt = {65, -1}; });
  bad([](GenerationRequest& r) { r.prompt = {65, 4096}; });
  bad([](GenerationRequest& r) { r.max_tokens = 0; });
  bad([](GenerationRequest& r) { r.max_tokens = 18; });
  bad([](GenerationRequest& r) { r.max_tokens = std::numeric_limits<int64_t>::max(); });
  bad([](GenerationRequest& r) { r.sampling.temperature = std::numeric_limits<float>::quiet_NaN(); });
  bad([](GenerationRequest& r) { r.sampling.temperature = -1; });
  bad([](GenerationRequest& r) { r.sampling.top_p = 0; });
  bad([](GenerationRequest& r) { r.sampling.min_p = 1.5F; });
  bad([](GenerationRequest& r) { r.sampling.top_k = -1; });
  bad([](GenerationRequest& r) { r.reply.stop = {"x", ""}; });
  EXPECT_TRUE(engine.status().ready);
}

TEST_F(EngineTest, RefusesLimitsThatTheModelCannotHold) {
  EXPECT_THROW(start({.context = 16 * 64 + 1, .max_queued = 0, .prefill_rows = 64}), std::invalid_argument);
  EXPECT_THROW(start({.context = 100, .max_queued = 0, .prefill_rows = 65}), std::invalid_argument);
  EXPECT_THROW(start({.context = 100, .max_queued = 0, .prefill_rows = 0}), std::invalid_argument);
  EXPECT_NO_THROW(start({.context = 16 * 64, .max_queued = 0, .prefill_rows = 64}));
}

TEST_F(EngineTest, ServesInOrder) {
  hold_forward();
  model_.reply = {kEnd};
  Engine& engine = start();
  std::vector<std::shared_ptr<Generation>> generations;
  for (int i = 0; i < 4; ++i) generations.push_back(engine.submit(request(1 + i)));
  wait_entered();
  EXPECT_EQ(engine.status().running, 1);
  EXPECT_EQ(engine.status().waiting, 3);
  go_forever();
  for (auto& generation : generations) read_all(*generation);
  ASSERT_EQ(model_.prompts.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(model_.prompts[i].size(), i + 1);
  EXPECT_EQ(engine.status().running, 0);
  EXPECT_EQ(engine.status().waiting, 0);
}

TEST_F(EngineTest, QueueOfNoneRefusesWhileBusy) {
  hold_forward();
  Engine& engine = start({.context = 500, .max_queued = 0, .prefill_rows = 64});
  auto first = engine.submit(request());
  EXPECT_EQ(refusal(engine, request()), Kind::kQueueFull);
  wait_entered();
  EXPECT_EQ(refusal(engine, request()), Kind::kQueueFull);
  go_forever();
  read_all(*first);
  // Whoever saw the result finds the engine free.
  read_all(*engine.submit(request()));
}

TEST_F(EngineTest, QueueHoldsAsManyAsAllowed) {
  hold_forward();
  Engine& engine = start({.context = 500, .max_queued = 2, .prefill_rows = 64});
  std::vector<std::shared_ptr<Generation>> generations;
  for (int i = 0; i < 3; ++i) generations.push_back(engine.submit(request()));
  EXPECT_EQ(refusal(engine, request()), Kind::kQueueFull);
  generations[1]->cancel();  // makes room at once
  generations.push_back(engine.submit(request()));
  EXPECT_EQ(refusal(engine, request()), Kind::kQueueFull);
  go_forever();
  for (auto& generation : generations) read_all(*generation);
}

TEST_F(EngineTest, QueueWithoutLimit) {
  hold_forward();
  model_.reply = {kEnd};
  Engine& engine = start({.context = 500, .max_queued = -1, .prefill_rows = 64});
  std::vector<std::shared_ptr<Generation>> generations;
  for (int i = 0; i < 1000; ++i) generations.push_back(engine.submit(request()));
  go_forever();
  for (auto& generation : generations) EXPECT_EQ(read_all(*generation).result.reason, FinishReason::kStop);
}

TEST_F(EngineTest, CountsItsWork) {
  Engine& engine = start({.context = 500, .max_queued = 1, .prefill_rows = 64});
  GenerationRequest choice = request(100, 4);
  std::vector<GenerationRequest> choices(2, choice);
  choices[1].sampling.choice = 1;
  for (auto& generation : engine.submit(choices)) read_all(*generation);
  EngineMetrics counted = engine.metrics();
  EXPECT_EQ(counted.prompt_tokens, 200U);
  EXPECT_EQ(counted.generation_tokens, 8U);
  EXPECT_EQ(counted.finished, (std::array<uint64_t, 4>{0, 2, 0, 0}));
  EXPECT_EQ(counted.request_choices.counts, (std::vector<uint64_t>{0, 1, 0, 0, 0, 0}));  // one request of 2
  EXPECT_EQ(counted.iteration_tokens.sum, 2 * (64 + 36 + 3));  // two prompt chunks, three tokens fed back
  EXPECT_EQ(counted.request_prompt_tokens.sum, 200);
  EXPECT_EQ(counted.request_generation_tokens.sum, 8);
  EXPECT_EQ(counted.request_max_tokens.sum, 8);
  const auto observed = [](const Histogram& values) {
    return std::accumulate(values.counts.begin(), values.counts.end(), uint64_t{0});
  };
  EXPECT_EQ(observed(counted.time_to_first_token), 2U);
  EXPECT_EQ(observed(counted.inter_token), 6U);
  EXPECT_EQ(observed(counted.time_per_output_token), 2U);
  for (const Histogram* times : {&counted.e2e, &counted.queue, &counted.inference, &counted.prefill, &counted.decode}) {
    EXPECT_EQ(observed(*times), 2U);
  }
  EXPECT_GE(counted.e2e.sum, counted.queue.sum + counted.prefill.sum + counted.decode.sum);

  hold_forward();
  auto running = engine.submit(request());
  wait_entered();
  auto waiting = engine.submit(request());
  EXPECT_EQ(refusal(engine, request()), Kind::kQueueFull);
  waiting->cancel();
  running->cancel();
  go_forever();
  read_all(*waiting);
  read_all(*running);
  counted = engine.metrics();
  EXPECT_EQ(counted.refused, 1U);
  EXPECT_EQ(counted.finished, (std::array<uint64_t, 4>{0, 2, 2, 0}));
}

TEST_F(EngineTest, CancelWhileWaiting) {
  hold_forward();
  Engine& engine = start();
  auto running = engine.submit(request(3, 20));
  auto waiting = engine.submit(request());
  wait_entered();
  waiting->cancel();
  go();  // one step of the other request is enough
  const Reply reply = read_all(*waiting);
  EXPECT_EQ(reply.result.reason, FinishReason::kCancelled);
  EXPECT_EQ(reply.result.prompt_tokens, 3);
  EXPECT_EQ(reply.result.completion_tokens, 0);
  wait_entered();
  EXPECT_EQ(engine.status().running, 1);
  EXPECT_EQ(engine.status().waiting, 0);
  go_forever();
  EXPECT_EQ(read_all(*running).result.reason, FinishReason::kLength);
}

TEST_F(EngineTest, CancelBetweenPromptChunks) {
  hold_forward();
  Engine& engine = start();
  auto generation = engine.submit(request(300));
  wait_entered();
  go();
  wait_entered();  // in the second chunk
  EXPECT_EQ(engine.status().pages_used, 1);
  generation->cancel();
  generation->cancel();
  go();
  const Reply reply = read_all(*generation);
  EXPECT_EQ(reply.result.reason, FinishReason::kCancelled);
  EXPECT_EQ(reply.result.completion_tokens, 0);
  EXPECT_EQ(model_.calls.size(), 2U);
  EXPECT_EQ(engine.status().pages_used, 0);
}

TEST_F(EngineTest, CancelWhileDecoding) {
  hold_forward();
  Engine& engine = start();
  auto generation = engine.submit(request(3, 400));
  for (int call = 0; call < 3; ++call) {
    wait_entered();
    if (call == 2) generation->cancel();
    go();
  }
  const Reply reply = read_all(*generation);
  EXPECT_EQ(reply.result.reason, FinishReason::kCancelled);
  EXPECT_EQ(reply.content, "aaa");
  EXPECT_EQ(reply.result.completion_tokens, 3);
  EXPECT_EQ(engine.status().pages_used, 0);
  go_forever();
  EXPECT_EQ(read_all(*engine.submit(request())).result.reason, FinishReason::kLength);
}

TEST_F(EngineTest, CancelReleasesHeldText) {
  hold_forward();
  Engine& engine = start();
  GenerationRequest r = request(3, 400);
  r.reply.stop = {"aaaaaa"};
  auto generation = engine.submit(r);
  wait_entered();
  go();
  wait_entered();
  generation->cancel();
  go();
  EXPECT_EQ(read_all(*generation).content, "aa");
}

TEST_F(EngineTest, StopCancelsAndRefuses) {
  hold_forward();
  Engine& engine = start();
  auto running = engine.submit(request(3, 400));
  auto waiting = engine.submit(request());
  wait_entered();
  engine.stop();
  EXPECT_EQ(read_all(*waiting).result.reason, FinishReason::kCancelled);  // without a step of the other
  try {
    engine.submit(request());
    FAIL() << "taken";
  } catch (const SubmitError& error) {
    EXPECT_EQ(error.kind, SubmitError::Kind::kStopping);
  }
  EXPECT_FALSE(engine.status().ready);
  go();
  EXPECT_EQ(read_all(*running).result.reason, FinishReason::kCancelled);
  engine.stop();
}

TEST_F(EngineTest, DestructionCancels) {
  hold_forward();
  auto running = start().submit(request(3, 400));
  auto waiting = engine_->submit(request());
  wait_entered();
  std::thread destroyer([&] { engine_.reset(); });
  while (!running->cancelled()) std::this_thread::yield();
  go();
  destroyer.join();
  EXPECT_EQ(read_all(*running).result.reason, FinishReason::kCancelled);
  EXPECT_EQ(read_all(*waiting).result.reason, FinishReason::kCancelled);
}

TEST_F(EngineTest, AFailedModelFailsEverything) {
  model_.on_forward = [this](const Batch& batch) {
    entered_.release();
    go_.acquire();
    if (batch.segments[0].first_position == 4) throw std::runtime_error("device lost");
  };
  Engine& engine = start();
  auto running = engine.submit(request());
  auto waiting = engine.submit(request());
  wait_entered();
  go_forever();
  const Reply reply = read_all(*running);
  EXPECT_EQ(reply.result.reason, FinishReason::kFailed);
  EXPECT_EQ(reply.result.error, "device lost");
  EXPECT_EQ(reply.content, "aa");
  EXPECT_EQ(refusal(engine, request()), Kind::kEngineFailed);
  EXPECT_EQ(read_all(*waiting).result.reason, FinishReason::kFailed);
  EXPECT_TRUE(engine.status().failed);
  EXPECT_FALSE(engine.status().ready);
  EXPECT_EQ(engine.status().pages_used, 0);
}

TEST_F(EngineTest, ARowWithoutTokensFailsOnlyItsRequest) {
  model_.status = SampleStatus::kNothingAllowed;
  Engine& engine = start();
  const Reply reply = read_all(*engine.submit(request()));
  EXPECT_EQ(reply.result.reason, FinishReason::kFailed);
  EXPECT_TRUE(reply.result.no_token);
  model_.status = SampleStatus::kPicked;
  EXPECT_EQ(read_all(*engine.submit(request())).result.reason, FinishReason::kLength);
  EXPECT_TRUE(engine.status().ready);
}

TEST_F(EngineTest, PromptLogprobsOfLogitsThatAreNotFiniteFailOnlyTheirRequest) {
  model_.prompt_status = SampleStatus::kNotFinite;
  Engine& engine = start();
  GenerationRequest r = request(5);
  r.prompt_logprobs = 0;
  const Reply reply = read_all(*engine.submit(r));
  EXPECT_EQ(reply.result.reason, FinishReason::kFailed);
  EXPECT_EQ(reply.result.error, "the model's logits are not finite");
  EXPECT_TRUE(reply.tokens.empty());
  EXPECT_TRUE(reply.prompt_logprobs.empty());
  model_.prompt_status = SampleStatus::kPicked;
  const Reply next = read_all(*engine.submit(r));
  EXPECT_EQ(next.result.reason, FinishReason::kLength);
  ASSERT_EQ(next.prompt_logprobs.size(), 5U);
  EXPECT_EQ(next.prompt_logprobs[4].id, 65);
  EXPECT_EQ(next.prompt_logprobs[4].logprob, -1.0F);
}

TEST_F(EngineTest, ASlowReaderGetsMergedDeltas) {
  model_.reply = ids_of("thinking</think>done");
  model_.reply.push_back(kEnd);
  Engine& engine = start();
  GenerationRequest r = request(3, 50);
  r.reply.start = text::ReplyChannel::kReasoning;
  auto generation = engine.submit(r);
  wait_idle();
  std::optional<GenerationEvent> event = generation->next(milliseconds(0));
  ASSERT_TRUE(event);
  ASSERT_EQ(event->deltas.size(), 2U);
  EXPECT_EQ(event->deltas[0].text, "thinking");
  EXPECT_EQ(event->deltas[1].text, "done");
  EXPECT_EQ(event->tokens, model_.reply);
  EXPECT_FALSE(event->result);
  event = generation->next(milliseconds(0));
  ASSERT_TRUE(event && event->result);
  EXPECT_TRUE(event->deltas.empty());
  EXPECT_FALSE(generation->next(milliseconds(0)));
}

TEST_F(EngineTest, ReadersTimeOut) {
  hold_forward();
  auto generation = start().submit(request());
  EXPECT_FALSE(generation->next(milliseconds(0)));
  EXPECT_FALSE(generation->next(milliseconds(5)));
  go_forever();
  read_all(*generation);
}

TEST_F(EngineTest, PagesGrowWithTheSequenceAndComeBack) {
  hold_forward();
  Engine& engine = start();
  EXPECT_EQ(engine.status().pages_total, 16);
  auto generation = engine.submit(request(127, 10));
  wait_entered();
  go();
  wait_entered();
  EXPECT_EQ(engine.status().pages_used, 1);
  go();
  wait_entered();  // position 127: the last of the second page
  EXPECT_EQ(engine.status().pages_used, 2);
  go();
  wait_entered();  // position 128
  go();
  wait_entered();
  EXPECT_EQ(engine.status().pages_used, 3);
  go_forever();
  read_all(*generation);
  EXPECT_EQ(engine.status().pages_used, 0);
  // A request as long as the context fits afterwards: nothing leaked.
  EXPECT_EQ(read_all(*engine.submit(request(490, 10))).result.completion_tokens, 10);
  EXPECT_EQ(engine.status().pages_used, 0);
}

TEST_F(EngineTest, ManyClientsAtOnce) {
  Engine& engine = start({.context = 500, .max_queued = 4, .prefill_rows = 64});
  std::atomic<int> ended{0};
  std::atomic<int> refused{0};
  std::vector<std::thread> clients;
  for (int client = 0; client < 6; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 40; ++i) {
        try {
          auto generation = engine.submit(request(1 + (client * 40 + i) % 130, 1 + i % 7));
          if ((client + i) % 3 == 0) generation->cancel();
          const Reply reply = read_all(*generation);
          EXPECT_EQ(static_cast<int64_t>(reply.tokens.size()), reply.result.completion_tokens);
          ++ended;
        } catch (const SubmitError& error) {
          EXPECT_EQ(error.kind, Kind::kQueueFull);
          ++refused;
        }
        static_cast<void>(engine.status());
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(ended + refused, 240);
  EXPECT_GE(ended, 40);
  wait_idle();
  EXPECT_EQ(engine.status().pages_used, 0);
}

}  // namespace
}  // namespace glm53::engine
