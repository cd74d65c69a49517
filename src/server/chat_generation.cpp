#include "server/chat_generation.h"

#include <utility>

#include "server/api_error.h"
#include "server/reply_grammar.h"

namespace glm53::server {

std::vector<int32_t> chat_prompt_ids(const text::ChatPromptInput& input, const ApiContext& api,
                                     const std::function<void(int64_t least)>& check) {
  if (!api.tokenizer.has_vocabulary()) {
    throw bad_field("messages", "the model has no tokenizer; only /v1/completions with a prompt of token ids works");
  }
  text::ChatPrompt prompt;
  try {
    prompt = text::render_chat_prompt(input);
  } catch (const text::ChatPromptError& error) {
    throw bad_field(error.param, error.what());
  }
  size_t bytes = 0;
  for (const text::TextSegment& segment : prompt.segments) bytes += segment.text.size();
  check(least_tokens(bytes, api));
  if (api.rules.settings.api.content_markers == "text") {
    for (text::TextSegment& segment : prompt.segments) {
      if (segment.kind == text::TextSegment::Kind::kContent) segment.kind = text::TextSegment::Kind::kPlain;
    }
  }
  return api.tokenizer.encode(prompt.segments);
}

engine::GenerationRequest chat_generation(const ChatRequest& request, std::vector<int32_t> prompt,
                                          const std::string& id, const HttpRequest& http, const ApiContext& api) {
  const Settings& settings = api.rules.settings;
  engine::GenerationRequest generation =
      make_generation(request.common, std::move(prompt), request.prompt_field, settings.defaults.max_tokens, api);
  generation.id = id;
  if (!request.common.ignore_eos) {
    generation.end_ids = api.rules.defaults.eos_ids;
    // At high effort the model sometimes opens a second turn of its own instead of ending (spec 40 §3).
    const auto assistant = api.tokenizer.added_id("<|assistant|>");
    if (settings.guards.assistant_ends && assistant) generation.end_ids.push_back(*assistant);
  }
  generation.reply.split_reasoning = true;
  generation.reply.thinking = request.prompt.thinking;
  generation.reply.start = text::start_channel(generation.prompt, api.tokenizer);
  generation.reply.tools = offered_tools(request.prompt.tools, request.tool_choice);
  generation.reply.unknown_tools = !request.tool_choice.restricts();
  generation.reply.parallel_calls = request.parallel_tool_calls;
  generation.reply.incremental_calls = request.common.stream && settings.api.tool_stream == "incremental";
  http.body_paused();
  ReplyGrammar grammar = reply_grammar(request, generation.reply.tools.get(), api);
  generation.grammar = std::move(grammar.tables);
  generation.grammar_field = std::move(grammar.field);
  // A grammar's calls have tags that are tokens; what is spelled in its free text and values was not held to it.
  generation.reply.spelled_tags = settings.api.tool_tags == "text-too" && generation.grammar == nullptr;
  const int budget = settings.defaults.reasoning_budget;  // 0: none; a request's 0 means no reasoning at all
  generation.reasoning_budget = request.reasoning_budget.value_or(budget > 0 ? budget : -1);
  generation.loop_guard = settings.guards.loop;
  return generation;
}

}  // namespace glm53::server
