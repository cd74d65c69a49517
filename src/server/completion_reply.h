// What /v1/chat/completions and /v1/completions do alike once a request is prepared: submit its choices, then answer in
// one piece or as events, with usage over all of them.
#pragma once

#include <ctime>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "server/request_fields.h"
#include "server/running_reply.h"

namespace glm53::server {

/// Tokens of all choices (spec 40 §6.2): completions summed, each prompt once.
class Usage {
 public:
  /// `first_of_prompt`: no other choice of this prompt has been added.
  void add(const engine::GenerationResult& result, bool first_of_prompt);
  nlohmann::ordered_json json() const;
  /// With a reply that still runs.
  nlohmann::ordered_json with_running(const RunningReply& reply, bool first_of_prompt) const;

 private:
  int64_t prompt_ = 0, completion_ = 0, reasoning_ = 0, cached_ = 0;
};

/// What every chunk and the whole reply repeat.
struct ReplyHead {
  std::string id;
  std::string model;
  std::time_t created = 0;
  bool include_usage = false;
  bool continuous_usage = false;

  /// A fresh id that begins with `prefix`.
  ReplyHead(const char* prefix, const ApiContext& api, const CommonFields& fields);

  nlohmann::ordered_json object(const char* kind) const;
  /// object() with one choice, as a stream sends it.
  nlohmann::ordered_json chunk(const char* kind, nlohmann::ordered_json choice,
                               const nlohmann::ordered_json& usage_so_far) const;
  /// Ends a stream: a chunk of usage where the request asked for it, then [DONE].
  void end_stream(const char* kind, const Usage& usage, SseWriter& out) const;
};

/// The two shapes of a route's reply.
struct ReplyShapes {
  std::function<nlohmann::ordered_json(RunningReplies&)> whole;
  std::function<void(RunningReplies&, SseWriter&)> stream;  ///< runs after the route's handler has returned
};

/// Submits the choices and answers in one shape; X-Request-Id is the first one's id. Throws ApiError, ClientGone.
HttpResponse answer(std::vector<engine::GenerationRequest> choices, const ApiContext& api, bool stream,
                    const ReplyShapes& shapes);

}  // namespace glm53::server
