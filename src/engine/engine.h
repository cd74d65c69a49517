// The engine: one thread that owns the model and turns requests into token streams. Callers submit from any thread and
// read events from a Generation; nothing here blocks on a client, and nothing knows JSON or sockets.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine_metrics.h"
#include "engine/generation.h"
#include "engine/model_runner.h"
#include "engine/page_pool.h"
#include "engine/reply_guide.h"
#include "text/reply_parser.h"
#include "text/tokenizer.h"

namespace glm53::engine {

/// submit() refused: nothing was queued.
struct SubmitError : std::runtime_error {
  enum class Kind : uint8_t {
    kQueueFull,
    kTooManyChoices,  ///< more than the queue could ever take
    kStopping,
    kEngineFailed,
    kNoToken,  ///< the rules of a request ban every token
    kBadRequest
  };
  SubmitError(Kind why, const std::string& message) : std::runtime_error(message), kind(why) {}
  Kind kind;
};

struct EngineLimits {
  int64_t context = 0;      ///< prompt and reply together
  int max_queued = 256;     ///< waiting choices; 0 = refuse while one runs, -1 = no limit
  int prefill_rows = 2048;  ///< rows of a prompt chunk
};

struct EngineStatus {
  bool ready = false;   ///< accepts requests
  bool failed = false;  ///< the model threw; only a new process helps
  int running = 0;
  int waiting = 0;
  int64_t pages_used = 0;  ///< as of the last step
  int64_t pages_total = 0;
};

class Engine {
 public:
  /// Starts the engine thread. Throws std::invalid_argument when the model's caches cannot hold `limits.context` tokens
  /// or its calls `limits.prefill_rows` rows, and Error when the tokenizer lacks a reply marker. `tokenizer` outlives
  /// the engine. Ids without a token below the model's vocabulary (padding rows of the head) are never drawn.
  Engine(std::unique_ptr<ModelRunner> model, const text::Tokenizer& tokenizer, EngineLimits limits);
  /// Cancels what runs or waits and joins.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Queues a request; requests run in this order. Throws SubmitError.
  std::shared_ptr<Generation> submit(GenerationRequest request);
  /// Queues the choices of one client request, all or none. Each takes a place of its own.
  std::vector<std::shared_ptr<Generation>> submit(std::vector<GenerationRequest> requests);

  /// Cancels what runs or waits, at the next step; submit() refuses from now on. Idempotent, does not wait.
  void stop();

  EngineStatus status() const;
  EngineMetrics metrics() const;
  const EngineLimits& limits() const { return limits_; }

 private:
  struct Job {
    GenerationRequest request;
    std::shared_ptr<Generation> generation;
    RequestTimes times;
  };
  struct Stream;

  void check(const GenerationRequest& request) const;
  void finish_cancelled_waiters();

  // Engine thread only.
  void run();
  std::optional<Job> next_job();
  void retire(Job job, GenerationResult result, bool failed);
  GenerationResult serve(Job& job);
  void after_step(Stream& stream);
  void prefill_chunk(Stream& stream);
  void decode_step(Stream& stream);
  void forward(Stream& stream, std::span<const int32_t> tokens, SegmentKind kind, std::span<const int32_t> logit_rows);
  void read_prompt_logprobs(Stream& stream, int64_t first);
  void draw(Stream& stream, int logits_row);
  void deliver(Stream& stream, const SampledToken& token);
  void fail(Stream& stream, SampleStatus why);
  void fail(Stream& stream, std::string error, bool no_token);
  void end(Stream& stream, FinishReason reason);

  const std::unique_ptr<ModelRunner> model_;
  const ModelRunner::Capacity capacity_;
  const text::Tokenizer& tokenizer_;
  const EngineLimits limits_;
  text::ReplyMarkers markers_;
  std::vector<uint32_t> tokens_mask_;  ///< SampleRow::mask without padding ids; empty where there are none
  PagePool pages_;

  mutable std::mutex mutex_;         ///< guards what follows; taken before a Generation's own
  std::condition_variable changed_;  ///< a job came, or stop_
  std::deque<Job> waiting_;
  std::shared_ptr<Generation> running_;
  int64_t pages_used_ = 0;
  EngineMetrics metrics_;
  bool stop_ = false;
  bool failed_ = false;

  std::thread thread_;  ///< last: everything above exists before it starts
};

}  // namespace glm53::engine
