// Pieces of a chat request's JSON, for the protocols that are translated into one.
#pragma once

#include <string>
#include <utility>

#include "text/prompt_json.h"

namespace glm53::server {

inline text::PromptJson text_of(std::string text) { return text::PromptJson::string(std::move(text)); }

/// A content part of text.
inline text::PromptJson text_part(const std::string& text) {
  return text::PromptJson::object({{"type", text_of("text")}, {"text", text_of(text)}});
}

inline text::PromptJson chat_message(const char* role, text::PromptJson content) {
  return text::PromptJson::object({{"role", text_of(role)}, {"content", std::move(content)}});
}

inline text::PromptJson chat_tool_result(const std::string& id, text::PromptJson content) {
  return text::PromptJson::object(
      {{"role", text_of("tool")}, {"tool_call_id", text_of(id)}, {"content", std::move(content)}});
}

/// `arguments`: an object, or its JSON as a string.
inline text::PromptJson chat_tool_call(const std::string& id, const std::string& name, text::PromptJson arguments) {
  text::PromptJson function = text::PromptJson::object({{"name", text_of(name)}, {"arguments", std::move(arguments)}});
  return text::PromptJson::object(
      {{"id", text_of(id)}, {"type", text_of("function")}, {"function", std::move(function)}});
}

inline text::PromptJson chat_tool(text::PromptJson::Object function) {
  return text::PromptJson::object(
      {{"type", text_of("function")}, {"function", text::PromptJson::object(std::move(function))}});
}

}  // namespace glm53::server
