#include "server/chat_completions.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/chat_generation.h"
#include "server/chat_reply.h"
#include "server/reply_json.h"

namespace glm53::server {
namespace {

PreparedReply prepare(const HttpRequest& http, const ApiContext& api) {
  const ChatRequest request = parse_chat_request(http.body, api.rules);
  const auto chat = std::make_shared<const ChatReply>(request, api);
  PreparedReply prepared;
  prepared.stream = request.common.stream;
  prepared.shapes = {[chat, &http](RunningReplies& replies) { return dump(chat->whole(replies, http)); },
                     [chat](RunningReplies& replies, SseWriter& out) { chat->stream(replies, out); }};
  std::vector<int32_t> prompt = chat_prompt_ids(
      request.prompt, api, [&](int64_t least) { check_text_fits(request.common, least, request.prompt_field, api); });
  add_choices(chat_generation(request, std::move(prompt), chat->head.id, http, api), request.common.choices,
              prepared.choices);
  prepared.choices.front().prompt_logprobs = request.common.prompt_logprobs;
  check_prompt_logprobs(prepared.choices.front().prompt.size(), 1, request.common.prompt_logprobs);
  return prepared;
}

}  // namespace

HttpResponse chat_completions(const HttpRequest& http, const ApiContext& api) {
  return answer(prepare(http, api), http, api);
}

}  // namespace glm53::server
