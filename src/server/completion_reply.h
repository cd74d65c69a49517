// What /v1/chat/completions and /v1/completions do alike once a request is prepared: submit it, then answer in one
// piece or as events.
#pragma once

#include <ctime>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "server/running_reply.h"

namespace glm53::server {

/// What every chunk and the whole reply repeat.
struct ReplyHead {
  std::string id;
  std::string model;
  std::time_t created = 0;
  bool include_usage = false;

  /// A fresh id that begins with `prefix`.
  ReplyHead(const char* prefix, const ApiContext& api, bool usage);

  nlohmann::ordered_json object(const char* kind) const;
  /// object() with one choice, as a stream sends it.
  nlohmann::ordered_json chunk(const char* kind, nlohmann::ordered_json choice) const;
  /// Ends a stream: a chunk of usage where the request asked for it, then [DONE].
  void end_stream(const char* kind, const engine::GenerationResult& result, SseWriter& out) const;
};

/// The two shapes of a route's reply.
struct ReplyShapes {
  std::function<nlohmann::ordered_json(RunningReply&)> whole;
  std::function<void(RunningReply&, SseWriter&)> stream;  ///< runs after the route's handler has returned
};

/// Submits `generation` and answers in one shape; X-Request-Id is the generation's id. Throws ApiError, ClientGone.
HttpResponse answer(engine::GenerationRequest generation, const ApiContext& api, bool stream,
                    const ReplyShapes& shapes);

}  // namespace glm53::server
