#include "server/completion_reply.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace glm53::server {

using nlohmann::ordered_json;

void Usage::add(const engine::GenerationResult& result, bool first_of_prompt) {
  prompt_ += first_of_prompt ? result.prompt_tokens : 0;
  cached_ += first_of_prompt ? result.cached_tokens : 0;
  completion_ += result.completion_tokens;
  reasoning_ += result.reasoning_tokens;
}

ordered_json Usage::json() const {
  return {{"prompt_tokens", prompt_},
          {"total_tokens", prompt_ + completion_},
          {"completion_tokens", completion_},
          {"prompt_tokens_details", {{"cached_tokens", cached_}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning_}}}};
}

ordered_json Usage::with_running(const RunningReply& reply, bool first_of_prompt) const {
  const int64_t prompt = prompt_ + (first_of_prompt ? reply.prompt_tokens() : 0);
  const int64_t completion = completion_ + static_cast<int64_t>(reply.tokens().size());
  return {{"prompt_tokens", prompt}, {"total_tokens", prompt + completion}, {"completion_tokens", completion}};
}

ReplyHead::ReplyHead(const char* prefix, const ApiContext& api, const CommonFields& fields)
    : id(prefix + random_id()),
      model(api.rules.settings.model.served_name),
      created(std::time(nullptr)),
      include_usage(fields.include_usage),
      continuous_usage(fields.continuous_usage) {}

ordered_json ReplyHead::object(const char* kind) const {
  return {{"id", id}, {"object", kind}, {"created", created}, {"model", model}};
}

ordered_json ReplyHead::chunk(const char* kind, ordered_json choice, const ordered_json& usage_so_far) const {
  ordered_json body = object(kind);
  body["choices"] = ordered_json::array({std::move(choice)});
  if (continuous_usage) {
    body["usage"] = usage_so_far;
  } else if (include_usage) {
    body["usage"] = nullptr;
  }
  return body;
}

void ReplyHead::end_stream(const char* kind, const Usage& usage, SseWriter& out) const {
  if (include_usage) {
    ordered_json last = object(kind);
    last["choices"] = ordered_json::array();
    last["usage"] = usage.json();
    out.event(dump(last));
  }
  out.done();
}

HttpResponse answer(std::vector<engine::GenerationRequest> choices, const ApiContext& api, bool stream,
                    const ReplyShapes& shapes) {
  const std::string id = choices.front().id;
  auto replies = std::make_shared<RunningReplies>(submit_choices(std::move(choices), api));
  HttpResponse response;
  if (stream) {
    response = sse_response([replies, send = shapes.stream](SseWriter& out) { send(*replies, out); });
  } else {
    response.body = dump(shapes.whole(*replies));
  }
  response.headers.push_back({kRequestId, id});
  return response;
}

}  // namespace glm53::server
