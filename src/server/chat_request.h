// The body of POST /v1/chat/completions, checked (spec 40 §2.2, §6.1). Needs neither model nor tokenizer.
#pragma once

#include <string>
#include <string_view>

#include "server/request_fields.h"
#include "text/chat_prompt.h"

namespace glm53::server {

struct ChatRequest {
  CommonFields common;
  text::ChatPromptInput prompt;
  bool include_reasoning = true;
  std::string echo;  ///< text of the final assistant message, which the reply repeats; empty without echo
};

/// Throws ApiError naming the field.
ChatRequest parse_chat_request(std::string_view body, const RequestRules& rules);

}  // namespace glm53::server
