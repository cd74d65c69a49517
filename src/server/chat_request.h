// The body of POST /v1/chat/completions, checked (spec 40 §2.2, §6.1). Needs neither model nor tokenizer.
#pragma once

#include <string>
#include <string_view>

#include "server/request_fields.h"
#include "text/chat_prompt.h"

namespace glm53::server {

inline constexpr size_t kMaxTools = 1024;

struct ChatRequest {
  CommonFields common;
  text::ChatPromptInput prompt;
  std::string prompt_field = "messages";  ///< that the conversation came in
  bool include_reasoning = true;
  std::string echo;  ///< text of the final assistant message, which the reply repeats; empty without echo
};

/// Throws ApiError naming the field.
ChatRequest parse_chat_request(std::string_view body, const RequestRules& rules);

/// The template's variables: the server's defaults, then `chat_template_kwargs`, then the body's own fields. Leaves
/// messages and tools alone. Throws ApiError naming the field.
void read_template(const text::PromptJson& body, const RequestRules& rules, text::ChatPromptInput& prompt);

/// `tool_choice` and `parallel_tool_calls`. Throws ApiError naming the field.
void check_tool_choice(const text::PromptJson& body, bool has_tools);

}  // namespace glm53::server
