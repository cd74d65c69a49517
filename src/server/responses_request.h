// The body of POST /v1/responses (spec 40 §8) as the chat request it stands for. Needs neither model nor tokenizer.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "server/chat_request.h"

namespace glm53::server {

/// What the client calls a tool that the model knows by one name.
struct ResponseTool {
  std::string space;  ///< namespace; empty: none
  std::string name;
  bool custom = false;  ///< takes free text, which the model gives as the argument `input`
};
using ResponseTools = std::map<std::string, ResponseTool>;  ///< by the model's name

struct ResponsesRequest {
  ChatRequest chat;
  ResponseTools tools;
  text::PromptJson echo;  ///< object: the fields that a response repeats, with the values they took effect with
};

/// Throws ApiError naming the field.
ResponsesRequest parse_responses_request(std::string_view body, const RequestRules& rules);

}  // namespace glm53::server
