#include "server/completion_reply.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/random_id.h"
#include "server/reply_json.h"

namespace glm53::server {

using nlohmann::ordered_json;

ReplyHead::ReplyHead(const char* prefix, const CommonFields& fields)
    : id(prefix + random_id()),
      model(fields.model),
      created(std::time(nullptr)),
      choices(static_cast<size_t>(fields.choices)),
      include_usage(fields.include_usage),
      continuous_usage(fields.continuous_usage) {}

ordered_json ReplyHead::object(const char* kind) const {
  return {{"id", id}, {"object", kind}, {"created", created}, {"model", model}};
}

ordered_json ReplyHead::usage(const RunningReplies& replies) const {
  const auto [prompt, completion] = replies.tokens();
  int64_t cached = 0, reasoning = 0;
  for (size_t i = 0; i < replies.size(); ++i) {
    const engine::GenerationResult& result = *replies[i].result();
    cached += replies[i].first_of_its_prompt() ? result.cached_tokens : 0;
    reasoning += result.reasoning_tokens;
  }
  return {{"prompt_tokens", prompt},
          {"total_tokens", prompt + completion},
          {"completion_tokens", completion},
          {"prompt_tokens_details", {{"cached_tokens", cached}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning}}}};
}

ordered_json ReplyHead::usage_so_far(const RunningReplies& replies) const {
  const auto [prompt, completion] = replies.tokens();
  return {{"prompt_tokens", prompt}, {"total_tokens", prompt + completion}, {"completion_tokens", completion}};
}

ordered_json ReplyHead::chunk(const char* kind, ordered_json choice, const RunningReplies& replies) const {
  ordered_json body = object(kind);
  body["choices"] = ordered_json::array({std::move(choice)});
  if (continuous_usage) {
    body["usage"] = usage_so_far(replies);
  } else if (include_usage) {
    body["usage"] = nullptr;
  }
  return body;
}

void ReplyHead::end_stream(const char* kind, const RunningReplies& replies, SseWriter& out) const {
  if (include_usage) {
    ordered_json last = object(kind);
    last["choices"] = ordered_json::array();
    last["usage"] = usage(replies);
    out.event(dump(last));
  }
  out.done();
}

std::vector<int32_t> UnsentIds::take(const RunningReply& reply) {
  const std::vector<int32_t>& all = reply.tokens();
  const auto first = static_cast<std::ptrdiff_t>(std::exchange(sent_, all.size()));
  return {all.begin() + first, all.end()};
}

HttpResponse answer(PreparedReply prepared, const HttpRequest& http, const ApiContext& api) {
  http.body_done(prepared.kept);
  const std::string id = prepared.choices.front().id;
  auto replies = std::make_shared<RunningReplies>(std::move(prepared.choices), api);
  HttpResponse response;
  if (prepared.stream) {
    response =
        sse_response([replies, send = std::move(prepared.shapes.stream)](SseWriter& out) { send(*replies, out); });
  } else {
    response.body = prepared.shapes.whole(*replies);
  }
  response.headers.push_back({kRequestId, id});
  response.tokens = [replies] { return replies->tokens(); };
  return response;
}

}  // namespace glm53::server
