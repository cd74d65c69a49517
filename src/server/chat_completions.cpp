#include "server/chat_completions.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "server/chat_generation.h"
#include "server/chat_reply.h"

namespace glm53::server {

HttpResponse chat_completions(const HttpRequest& http, const ApiContext& api) {
  const ChatRequest request = parse_chat_request(http.body, api.rules);
  const ChatReply chat(request, api);
  const ReplyShapes shapes{[&](RunningReplies& replies) { return chat.whole(replies, http); },
                           [chat](RunningReplies& replies, SseWriter& out) { chat.stream(replies, out); }};
  std::vector<engine::GenerationRequest> choices;
  add_choices(chat_generation(request, chat_prompt_ids(request.prompt, api), chat.head.id, api), request.common.choices,
              choices);
  choices.front().prompt_logprobs = request.common.prompt_logprobs;
  check_prompt_logprobs(choices.front().prompt.size(), 1, request.common.prompt_logprobs);
  return answer(std::move(choices), http, api, request.common.stream, shapes);
}

}  // namespace glm53::server
