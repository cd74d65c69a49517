// The body of POST /v1/chat/completions, checked (spec 40 §2.2, §6.1). Needs neither model nor tokenizer.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "server/request_fields.h"
#include "server/tool_choice.h"
#include "text/chat_prompt.h"

namespace glm53::server {

struct ChatRequest {
  CommonFields common;
  text::ChatPromptInput prompt;
  std::string prompt_field = "messages";  ///< that the conversation came in
  bool include_reasoning = true;
  bool separate_reasoning = true;           ///< false: reasoning is part of the content, within <think> and </think>
  std::optional<int64_t> reasoning_budget;  ///< −1: none, whatever the server's default is
  /// By a function's name the body's field of its schema: "tools[2].function.parameters". Of several of one name that
  /// of the last.
  std::map<std::string, std::string> parameters_fields;
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;
  std::string echo;  ///< text of the final assistant message, which the reply repeats; empty without echo
};

/// What a request may say about the effort of reasoning, least first.
inline constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                             "high", "xhigh",   "max"};

/// Throws ApiError naming the field.
ChatRequest parse_chat_request(std::string_view body, const RequestRules& rules);

/// `thinking_token_budget` of a body. Throws ApiError naming it.
std::optional<int64_t> opt_reasoning_budget(const text::PromptJson& body);

/// The template's variables: the server's defaults, then `chat_template_kwargs`, then the body's own fields. Leaves
/// messages and tools alone. Throws ApiError naming the field.
void read_template(const text::PromptJson& body, const RequestRules& rules, text::ChatPromptInput& prompt);

}  // namespace glm53::server
