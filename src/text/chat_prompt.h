// The chat prompt of the GLM-5 family, rendered natively (spec 40 §2, 00-decisions §5): messages and tools in, prompt
// segments out. Pure.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "text/prompt_json.h"
#include "text/prompt_text.h"
#include "text/tokenizer.h"

namespace glm53::text {

enum class EffortPlacement : uint8_t { kHead, kBeforeLastUser, kTail };

/// Everything the template can see. Messages and tools keep the client's form; the renderer reads what spec 40 §2.3
/// names.
struct ChatPromptInput {
  std::vector<PromptJson> messages;  ///< objects with at least `role`
  std::vector<PromptJson> tools;     ///< function tools, nested or flat
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool thinking = true;
  std::string effort;  ///< "low", "high", anything else renders Max
  bool clear_thinking = false;
  /// Where the effort line goes; without a generation prompt, and for kBeforeLastUser without a user message, the head.
  EffortPlacement effort_at = EffortPlacement::kHead;
};

/// A message or part that cannot be rendered. `param` is the request path at fault ("messages[2].content[0].type").
struct ChatPromptError : std::runtime_error {
  ChatPromptError(std::string param_path, const std::string& message)
      : std::runtime_error(message), param(std::move(param_path)) {}
  std::string param;
};

struct ChatPrompt {
  /// The template's own text and the picture markers it writes are kTemplate, all that comes from the request kContent.
  std::vector<TextSegment> segments;
  std::vector<MediaPart> media;  ///< pictures and clips in the order of their places
  /// Paths of tool calls in the history whose arguments are not a JSON object; each is rendered without arguments,
  /// since a refusal would block the conversation for ever. For the log.
  std::vector<std::string> ignored_arguments;

  std::string text() const;  ///< the segments joined: what golden/chat_template.json holds
};

/// Throws ChatPromptError for every case spec 40 §2 answers with 400. Linear in the size of the input, except that
/// ids and names are looked up by comparison; tool_reference results may add at most 16 MiB.
ChatPrompt render_chat_prompt(const ChatPromptInput& input);

}  // namespace glm53::text
