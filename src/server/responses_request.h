// The body of POST /v1/responses (spec 40 §8) as the chat request it stands for. Needs neither model nor tokenizer.
#pragma once

#include <string_view>

#include "server/chat_request.h"

namespace glm53::server {

struct ResponsesRequest {
  ChatRequest chat;
  text::PromptJson echo;  ///< object: the fields that a response repeats, with the values they took effect with
};

/// Throws ApiError naming the field.
ResponsesRequest parse_responses_request(std::string_view body, const RequestRules& rules);

}  // namespace glm53::server
