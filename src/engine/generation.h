// A request to the engine and the running reply: the types that the server and the engine share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/ready_signal.h"
#include "glm53/core/sampling.h"
#include "glm53/core/shared_list.h"
#include "text/grammar_matcher.h"
#include "text/reply_parser.h"

namespace glm53::engine {

/// One choice. Lists are shared by its copies: those of a client request, up to n for each of its prompts, hold them
/// once.
struct GenerationRequest {
  std::string id;              ///< for logs
  SharedList<int32_t> prompt;  ///< token ids, at least one
  SamplingParams sampling;
  SharedList<LogitBias> biases;                ///< each id once
  SharedList<int32_t> allowed_ids;             ///< empty: all
  SharedList<std::vector<int32_t>> bad_words;  ///< token sequences of which the last is never drawn after the others
  int logprobs = -1;                           ///< −1 off, else also this many of the largest, up to kMaxTopLogprobs
  int prompt_logprobs = -1;                    ///< the same for the prompt's own tokens
  int64_t max_tokens = 0;                      ///< >= 1; prompt + max_tokens <= context
  int64_t min_tokens = 0;              ///< end and stop ids are banned from these, and stop strings not looked for
  std::vector<int32_t> end_ids;        ///< any of these ends the reply; its text is never output. Empty: ignore_eos
  SharedList<int32_t> stop_token_ids;  ///< request's own, end ids too; output only with reply.include_stop
  text::ReplyOptions reply;
  std::shared_ptr<text::GrammarTables> grammar;  ///< what the reply's content follows; the engine thread's alone
  std::string grammar_field;                     ///< of the client's request, that asked for it
  int64_t reasoning_budget = -1;                 ///< </think> is forced after this many reasoning tokens; −1: never
  bool loop_guard = false;                       ///< ... and where reasoning runs in circles (loop_guard.h)
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
  int64_t cached_tokens = 0;                      ///< prompt tokens whose state was reused
  std::optional<text::ReplyChannel> cut_channel;  ///< kLength: see ReplyParser::cut_channel()
  std::string error;                              ///< kFailed only
  bool no_token = false;  ///< kFailed because the request's own rules or grammar left nothing to draw
};

/// Raw logprobs (SampledToken::logprob) at one token's place.
struct TokenLogprobs {
  int32_t id = -1;
  std::optional<float> logprob;   ///< nothing stands before the prompt's first token
  std::vector<TokenLogprob> top;  ///< the largest, descending
};

/// Either deltas or the result: an event that carries text is never the last one.
struct GenerationEvent {
  std::vector<text::ReplyDelta> deltas;
  std::optional<GenerationResult> result;  ///< the last event
  /// Ids kept since the last event, the ending one included. A token whose text is held back (part of a character, of a
  /// stop string) comes with the next event, so ids and text of one event need not match.
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;         ///< of `tokens`, one each; empty unless asked for
  std::vector<TokenLogprobs> prompt_logprobs;  ///< of the whole prompt, in the first event; empty unless asked for
};

/// A running reply, shared between the engine and one reader. Thread-safe.
class Generation {
 public:
  /// The next event; nullopt when none came within `timeout`. Waiting deltas are merged, so a slow reader costs memory
  /// bounded by the reply's text and never holds the engine up.
  std::optional<GenerationEvent> next(std::chrono::milliseconds timeout);
  /// Sets `signal` whenever next() has something to give; for a reader of several generations, who asks for what there
  /// is, then waits. Before the first next().
  void set_signal(std::shared_ptr<ReadySignal> signal);
  /// Tokens kept whose text is held back: the next event brings them.
  size_t held_tokens() const;
  /// Asks the engine to end the reply at the next step or prompt chunk; idempotent. A kCancelled result follows unless
  /// the reply ended first. A request that still waits leaves the queue at the running one's next step.
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }

  // Engine side.
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  /// `logprobs`: one a token, or none.
  void publish(std::span<const int32_t> tokens, std::vector<text::ReplyDelta> deltas,
               std::vector<TokenLogprobs> logprobs = {});
  /// Before the first publish().
  void set_prompt_logprobs(std::vector<TokenLogprobs> logprobs);
  void finish(GenerationResult result);

 private:
  void notify();

  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::shared_ptr<ReadySignal> signal_;  ///< null: none
  std::vector<text::ReplyDelta> deltas_;
  std::vector<int32_t> tokens_;
  std::vector<TokenLogprobs> logprobs_;
  std::vector<TokenLogprobs> prompt_logprobs_;
  std::optional<GenerationResult> result_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace glm53::engine
