// The reply of POST /v1/chat/completions in both of its shapes (spec 40 §4.6, §6.2, §6.3).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "server/chat_request.h"
#include "server/completion_reply.h"

namespace glm53::server {

/// What the shapes need to know of the request; outlives its handler.
struct ChatReply {
  ChatReply(const ChatRequest& request, const ApiContext& context);

  ReplyHead head;
  const ApiContext& api;
  bool include_reasoning;
  bool separate_reasoning;
  bool named_call;  ///< tool_choice names a function
  bool has_tools;   ///< calls are looked for
  bool logprobs;
  int prompt_logprobs;
  bool token_ids;      ///< return_token_ids
  bool tokens_as_ids;  ///< return_tokens_as_token_ids
  std::string echo;    ///< ChatRequest::echo

  nlohmann::ordered_json whole(RunningReplies& replies, const HttpRequest& http) const;
  /// The roles of all choices, their chunks as they come, usage, [DONE].
  void stream(RunningReplies& replies, SseWriter& out) const;
};

}  // namespace glm53::server
