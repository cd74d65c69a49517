#include "server/completion_reply.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace glm53::server {

using nlohmann::ordered_json;

ReplyHead::ReplyHead(const char* prefix, const ApiContext& api, bool usage)
    : id(prefix + random_id()),
      model(api.rules.settings.model.served_name),
      created(std::time(nullptr)),
      include_usage(usage) {}

ordered_json ReplyHead::object(const char* kind) const {
  return {{"id", id}, {"object", kind}, {"created", created}, {"model", model}};
}

ordered_json ReplyHead::chunk(const char* kind, ordered_json choice) const {
  ordered_json body = object(kind);
  body["choices"] = ordered_json::array({std::move(choice)});
  if (include_usage) body["usage"] = nullptr;
  return body;
}

void ReplyHead::end_stream(const char* kind, const engine::GenerationResult& result, SseWriter& out) const {
  if (include_usage) {
    ordered_json usage = object(kind);
    usage["choices"] = ordered_json::array();
    usage["usage"] = RunningReply::usage(result);
    out.event(dump(usage));
  }
  out.done();
}

HttpResponse answer(engine::GenerationRequest generation, const ApiContext& api, bool stream,
                    const ReplyShapes& shapes) {
  const std::string id = generation.id;
  auto reply = std::make_shared<RunningReply>(std::move(generation), api);
  HttpResponse response;
  if (stream) {
    response = sse_response([reply, send = shapes.stream](SseWriter& out) { send(*reply, out); });
  } else {
    response.body = dump(shapes.whole(*reply));
  }
  response.headers.push_back({kRequestId, id});
  return response;
}

}  // namespace glm53::server
