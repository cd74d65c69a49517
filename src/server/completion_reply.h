// What the routes do alike once a request is prepared: submit its choices, then answer in one piece or as events
// (answer, for all of them); and what the replies of /v1/chat/completions and /v1/completions share.
#pragma once

#include <ctime>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "server/request_fields.h"
#include "server/running_reply.h"

namespace glm53::server {

/// What every chunk and the whole reply repeat.
struct ReplyHead {
  std::string id;
  std::string model;
  std::time_t created = 0;
  size_t choices = 1;  ///< of each prompt
  bool include_usage = false;
  bool continuous_usage = false;

  /// A fresh id that begins with `prefix`.
  ReplyHead(const char* prefix, const CommonFields& fields);

  nlohmann::ordered_json object(const char* kind) const;
  /// object() with one choice, as a stream sends it.
  nlohmann::ordered_json chunk(const char* kind, nlohmann::ordered_json choice, const RunningReplies& replies) const;
  /// Ends a stream: a chunk of usage where the request asked for it, then [DONE].
  void end_stream(const char* kind, const RunningReplies& replies, SseWriter& out) const;
  /// Tokens of all choices once they have ended (spec 40 §6.2): completions summed, each prompt once.
  nlohmann::ordered_json usage(const RunningReplies& replies) const;

 private:
  nlohmann::ordered_json usage_so_far(const RunningReplies& replies) const;
};

/// Ids of one choice, as a stream shows them with return_token_ids.
class UnsentIds {
 public:
  /// Those of `reply` that the last call did not give.
  std::vector<int32_t> take(const RunningReply& reply);

 private:
  size_t sent_ = 0;
};

/// The two shapes of a route's reply.
struct ReplyShapes {
  std::function<std::string(RunningReplies&)> whole;        ///< its JSON
  std::function<void(RunningReplies&, SseWriter&)> stream;  ///< runs after the route's handler has returned
};

/// A request that is ready for the engine. What was parsed of its body, which may take twenty times the body's memory,
/// must be gone by now: a reply may wait and run for hours.
struct PreparedReply {
  std::vector<engine::GenerationRequest> choices;
  bool stream = false;
  ReplyShapes shapes;
  size_t kept = 0;  ///< bytes of the body that the reply repeats, where the prompt does not bound them
};

/// Lets go of the request's body, submits the choices and answers in one shape; X-Request-Id is the first one's id.
/// Throws ApiError, ClientGone.
HttpResponse answer(PreparedReply prepared, const HttpRequest& http, const ApiContext& api);

}  // namespace glm53::server
