// The engine: one thread that owns the model and turns requests into token streams. Callers submit from any thread and
// read events from a Generation; nothing here blocks on a client, and nothing knows JSON or sockets.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "glm53/core/sampling.h"
#include "text/reply_parser.h"

namespace glm53 {
class Glm53Model;
}

namespace glm53::engine {

struct GenerationRequest {
  std::string id;               ///< for logs
  std::vector<int32_t> prompt;  ///< token ids, at least one
  SamplingParams sampling;
  int64_t max_tokens = 0;               ///< >= 1; prompt + max_tokens <= context
  int64_t min_tokens = 0;               ///< end ids are banned before this many tokens
  std::vector<int32_t> end_ids;         ///< any of these ends the reply; its text is not output
  std::vector<int32_t> stop_token_ids;  ///< request's own stop ids; reported as stop_reason
  text::ReplyOptions reply;
};

enum class FinishReason : uint8_t {
  kStop,       ///< end id, stop id or stop string
  kLength,     ///< max_tokens or context
  kCancelled,  ///< cancel(), or the engine was told to stop
  kFailed,     ///< see GenerationResult::error
};

struct GenerationResult {
  FinishReason reason = FinishReason::kStop;
  std::optional<std::string> stop_string;  ///< that ended the reply
  std::optional<int32_t> stop_id;          ///< end or stop id that ended the reply
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;  ///< kept tokens, the ending id included
  int64_t reasoning_tokens = 0;
  int64_t cached_tokens = 0;  ///< prompt tokens whose state was reused
  std::string error;          ///< kFailed only
};

/// Exactly one of the two is set.
struct GenerationEvent {
  std::vector<text::ReplyDelta> deltas;
  std::optional<GenerationResult> result;  ///< the last event
};

/// A running reply, shared between the engine and one reader. Thread-safe.
class Generation {
 public:
  /// The next event; nullopt when none came within `timeout`. Waiting deltas are merged, so a slow reader costs memory
  /// bounded by the reply's text and never holds the engine up.
  std::optional<GenerationEvent> next(std::chrono::milliseconds timeout);
  /// Asks the engine to end the reply at the next step or prompt chunk; idempotent. A kCancelled result follows.
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }

  // Engine side.
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  void publish(std::vector<text::ReplyDelta> deltas);
  void finish(GenerationResult result);

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<text::ReplyDelta> deltas_;
  std::optional<GenerationResult> result_;
  std::atomic<bool> cancelled_{false};
};

/// submit() refused: nothing was queued.
struct SubmitError : std::runtime_error {
  enum class Kind : uint8_t { kQueueFull, kStopping, kEngineFailed, kBadRequest };
  SubmitError(Kind why, const std::string& message) : std::runtime_error(message), kind(why) {}
  Kind kind;
};

struct EngineLimits {
  int64_t context = 0;      ///< prompt and reply together
  int max_queued = 256;     ///< waiting requests; -1 = no limit
  int prefill_rows = 2048;  ///< rows of a prompt chunk
};

struct EngineStatus {
  bool ready = false;  ///< accepts requests
  bool failed = false;
  int running = 0;
  int waiting = 0;
};

class Engine {
 public:
  /// Starts the engine thread. The model's caches must hold `limits.context` tokens. `tokenizer` outlives the engine.
  Engine(std::unique_ptr<Glm53Model> model, const text::Tokenizer& tokenizer, EngineLimits limits);
  /// Cancels what runs and joins.
  ~Engine();

  /// Queues a request. Throws SubmitError.
  std::shared_ptr<Generation> submit(GenerationRequest request);

  /// Refuses new requests from now on and waits up to `patience` for running and queued ones; the rest is cancelled.
  void drain(std::chrono::milliseconds patience);

  EngineStatus status() const;
  const EngineLimits& limits() const { return limits_; }

 private:
  struct Job;
  void run();
  void serve(Job& job);

  std::unique_ptr<Glm53Model> model_;
  const text::Tokenizer& tokenizer_;
  EngineLimits limits_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Job>> waiting_;
  std::shared_ptr<Generation> running_;
  bool draining_ = false;
  bool stop_ = false;
  bool failed_ = false;
  std::thread thread_;
};

}  // namespace glm53::engine
