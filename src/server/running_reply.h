// The choices of one client request in the engine, from their submission to their end, and what the routes say about
// that end.
#pragma once

#include <chrono>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/api_context.h"
#include "server/http_types.h"
#include "server/sse.h"

namespace glm53::server {

/// One choice. Owns it: leaving a handler in any way before the result has been read cancels it.
class RunningReply {
 public:
  /// `request` is the one that `generation` answers.
  RunningReply(std::shared_ptr<engine::Generation> generation, const engine::GenerationRequest& request,
               const ApiContext& api);
  ~RunningReply();
  RunningReply(const RunningReply&) = delete;
  RunningReply& operator=(const RunningReply&) = delete;

  /// The next event where there is one.
  std::optional<engine::GenerationEvent> poll();

  const std::vector<int32_t>& prompt() const { return prompt_; }
  int64_t prompt_tokens() const { return static_cast<int64_t>(prompt_.size()); }
  /// Of the reply so far; at its end what usage shows.
  int64_t completion_tokens() const { return result_ ? result_->completion_tokens : std::ssize(tokens_); }
  bool first_of_its_prompt() const { return first_of_its_prompt_; }
  /// Ids of the reply so far, the ending one included.
  const std::vector<int32_t>& tokens() const { return tokens_; }
  /// Tokens beyond those, whose text is held back.
  size_t held_tokens() const { return generation_->held_tokens(); }
  /// Once the last event has been read.
  const std::optional<engine::GenerationResult>& result() const { return result_; }

  // Parts of the final answer (spec 40 §6.2).
  static const char* finish_reason(const engine::GenerationResult& result);
  /// The stop string, the id for a request's own stop ids and secondary end-of-sequence ids, else null.
  nlohmann::ordered_json stop_reason(const engine::GenerationResult& result) const;
  /// The model ended a reply of which nothing but reasoning has come.
  bool unclosed_reasoning() const;

 private:
  std::shared_ptr<engine::Generation> generation_;
  std::optional<engine::GenerationResult> result_;
  SharedList<int32_t> prompt_;
  bool first_of_its_prompt_;
  std::vector<int32_t> tokens_;
  bool starts_in_reasoning_;
  int32_t think_close_;
  // Ids that stop_reason shows as numbers: the request's own, and secondary end-of-sequence ids.
  SharedList<int32_t> stop_ids_;
  std::vector<int32_t> end_ids_;
  std::vector<std::pair<int32_t, std::string>> marker_stops_;  ///< stop strings that are one token
};

/// All choices, in the order of their index.
class RunningReplies {
 public:
  /// Submits all or none. Throws ApiError: 429 when the queue is full, 503 when nothing is accepted, 400.
  RunningReplies(std::vector<engine::GenerationRequest> requests, const ApiContext& api);

  size_t size() const { return replies_.size(); }
  const RunningReply& operator[](size_t choice) const { return *replies_[choice]; }
  /// Of all choices so far, each prompt once.
  TokenCounts tokens() const;

  /// What takes the events of the choices, the last one of each included.
  using Take = std::function<void(size_t choice, engine::GenerationEvent&)>;
  /// Reads all to their ends, in the order in which events come. Looks at the client every kClientLook and with each
  /// event; throws ClientGone, and ApiError when the engine did not finish a choice, naming the field whose rules it
  /// could not follow.
  void collect(const std::function<bool()>& client_gone, const Take& take);

  /// Shows that a choice is being worked on.
  using AtWork = std::function<void(size_t choice)>;
  /// The same for a stream: `take` sends each event. A choice that gets tokens, although nothing has been sent for 2 s
  /// (they belong to a call that is held back, or to reasoning that is not shown), is `at_work`; where that is empty, a
  /// comment says so. A comment is also sent after api.sse_keepalive_s of any silence (0: never).
  void stream(SseWriter& out, const AtWork& at_work, const Take& take);

 private:
  /// One event of each choice that has one, else waits for one, kClientLook at most. False once all have ended.
  bool step(const std::function<bool()>& client_gone, const Take& take);

  const std::chrono::seconds keepalive_;
  const std::string rules_field_;  ///< to name where the request's own rules end a reply
  std::shared_ptr<engine::ReadySignal> signal_;
  std::vector<std::unique_ptr<RunningReply>> replies_;
};

}  // namespace glm53::server
