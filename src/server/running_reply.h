// One request in the engine, from its submission to its end, and what both completion routes say about that end.
#pragma once

#include <chrono>
#include <functional>
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

/// Owns the request: leaving a handler in any way before the result has been read cancels it.
class RunningReply {
 public:
  /// `request` is the one that `generation` answers.
  RunningReply(std::shared_ptr<engine::Generation> generation, const engine::GenerationRequest& request,
               const ApiContext& api);
  ~RunningReply();
  RunningReply(const RunningReply&) = delete;
  RunningReply& operator=(const RunningReply&) = delete;

  /// The next event, or nullopt after `patience`. Looks at the client every 50 ms; throws ClientGone.
  std::optional<engine::GenerationEvent> next(const std::function<bool()>& client_gone,
                                              std::chrono::milliseconds patience);

  /// What takes the events of a reply, the last one included.
  using Take = std::function<void(engine::GenerationEvent&)>;
  /// Reads a whole reply. Throws ClientGone, and ApiError when the engine did not finish it.
  engine::GenerationResult collect(const std::function<bool()>& client_gone, const Take& take);
  /// Streams a whole reply: `take` sends each event; comments keep a silent connection open.
  engine::GenerationResult stream(SseWriter& out, std::chrono::seconds keepalive, const Take& take);

  int64_t prompt_tokens() const { return prompt_tokens_; }

  /// Ids of the reply so far, the ending one included.
  const std::vector<int32_t>& tokens() const { return tokens_; }

  // Parts of the final answer (spec 40 §6.2).
  static const char* finish_reason(const engine::GenerationResult& result);
  /// The stop string, the id for a request's own stop ids and secondary end-of-sequence ids, else null.
  nlohmann::ordered_json stop_reason(const engine::GenerationResult& result) const;

 private:
  std::shared_ptr<engine::Generation> generation_;
  bool finished_ = false;
  int64_t prompt_tokens_ = 0;
  std::vector<int32_t> tokens_;
  // Ids that stop_reason shows as numbers: the request's own, and secondary end-of-sequence ids.
  SharedList<int32_t> stop_ids_;
  std::vector<int32_t> end_ids_;
  std::vector<std::pair<int32_t, std::string>> marker_stops_;  ///< stop strings that are one token
};

/// The choices of one client request, in the order of their index.
using RunningReplies = std::vector<std::unique_ptr<RunningReply>>;
/// Submits all or none. Throws ApiError: 429 when the queue is full, 503 when nothing is accepted, 400.
RunningReplies submit_choices(std::vector<engine::GenerationRequest> requests, const ApiContext& api);

/// Header that names a request in replies and logs.
inline constexpr const char* kRequestId = "X-Request-Id";

/// 32 hexadecimal digits from OS entropy.
std::string random_id();
/// JSON text with anything that is not UTF-8 replaced.
std::string dump(const nlohmann::ordered_json& value);

}  // namespace glm53::server
