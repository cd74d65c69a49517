#include "server/chat_completions.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/api_error.h"
#include "server/chat_request.h"
#include "server/completion_reply.h"
#include "server/logprobs_json.h"

namespace glm53::server {
namespace {

using nlohmann::ordered_json;

constexpr const char* kWhole = "chat.completion";
constexpr const char* kChunk = "chat.completion.chunk";

struct ChatReply {
  ReplyHead head;
  std::string reasoning_field;  ///< api.reasoning_field
  bool include_reasoning;
  bool logprobs;
  std::string echo;  ///< ChatRequest::echo
  const text::Tokenizer& tokenizer;

  void put_reasoning(ordered_json& message, const std::string& text) const {
    if (reasoning_field != "reasoning_content") message["reasoning"] = text;
    if (reasoning_field != "reasoning") message["reasoning_content"] = text;
  }
};

ordered_json whole_choice(RunningReply& reply, size_t index, const ChatReply& chat, const HttpRequest& http,
                          Usage& usage) {
  std::string content = chat.echo;
  std::string reasoning;
  std::vector<engine::TokenLogprobs> tokens;
  const engine::GenerationResult result = reply.collect(http.client_gone, [&](engine::GenerationEvent& event) {
    move_logprobs(tokens, event.logprobs);
    for (const text::ReplyDelta& delta : event.deltas) {
      (delta.channel == text::ReplyChannel::kReasoning ? reasoning : content) += delta.text;
    }
  });
  usage.add(result, index == 0);

  ordered_json message = {{"role", "assistant"}};
  message["content"] = content.empty() && !reasoning.empty() ? ordered_json() : ordered_json(content);
  message["refusal"] = nullptr;
  if (chat.include_reasoning && !reasoning.empty()) chat.put_reasoning(message, reasoning);
  ordered_json logprobs;
  if (chat.logprobs) logprobs = chat_logprobs(tokens, chat.tokenizer);
  return {{"index", index},
          {"message", std::move(message)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", RunningReply::finish_reason(result)},
          {"stop_reason", reply.stop_reason(result)}};
}

ordered_json whole_reply(RunningReplies& replies, const ChatReply& chat, const HttpRequest& http) {
  ordered_json choices = ordered_json::array();
  Usage usage;
  for (size_t i = 0; i < replies.size(); ++i) choices.push_back(whole_choice(*replies[i], i, chat, http, usage));
  ordered_json body = chat.head.object(kWhole);
  body["choices"] = std::move(choices);
  body["system_fingerprint"] = nullptr;
  body["usage"] = usage.json();
  return body;
}

/// One choice's chunks after its role: reasoning and content deltas, finish. A token's logprobs go with the first chunk
/// after it was drawn, the last ones with the finish.
engine::GenerationResult stream_choice(RunningReply& reply, size_t index, const ChatReply& chat, const Usage& usage,
                                       std::chrono::seconds keepalive, SseWriter& out) {
  std::vector<engine::TokenLogprobs> tokens;  // not sent yet
  const auto chunk = [&](ordered_json delta, ordered_json finish_reason) {
    ordered_json logprobs;
    if (chat.logprobs && !tokens.empty()) logprobs = chat_logprobs(tokens, chat.tokenizer);
    tokens.clear();
    return chat.head.chunk(kChunk,
                           {{"index", index},
                            {"delta", std::move(delta)},
                            {"logprobs", std::move(logprobs)},
                            {"finish_reason", std::move(finish_reason)}},
                           usage.with_running(reply, index == 0));
  };
  if (!chat.echo.empty()) out.event(dump(chunk({{"content", chat.echo}}, nullptr)));
  const engine::GenerationResult result = reply.stream(out, keepalive, [&](engine::GenerationEvent& event) {
    move_logprobs(tokens, event.logprobs);
    for (const text::ReplyDelta& delta : event.deltas) {
      ordered_json piece = ordered_json::object();
      if (delta.channel == text::ReplyChannel::kContent) {
        piece["content"] = delta.text;
      } else if (chat.include_reasoning) {
        chat.put_reasoning(piece, delta.text);
      } else {
        continue;
      }
      out.event(dump(chunk(std::move(piece), nullptr)));
    }
  });
  ordered_json last = chunk(ordered_json::object(), RunningReply::finish_reason(result));
  last["choices"][0]["stop_reason"] = reply.stop_reason(result);
  out.event(dump(last));
  return result;
}

/// Chunks in the order of spec 40 §6.3: the roles of all choices, each choice, usage, [DONE].
void stream_reply(RunningReplies& replies, const ChatReply& chat, std::chrono::seconds keepalive, SseWriter& out) {
  Usage usage;
  for (size_t i = 0; i < replies.size(); ++i) {
    out.event(dump(chat.head.chunk(kChunk,
                                   {{"index", i},
                                    {"delta", {{"role", "assistant"}, {"content", ""}}},
                                    {"logprobs", nullptr},
                                    {"finish_reason", nullptr}},
                                   usage.with_running(*replies[i], true))));
  }
  for (size_t i = 0; i < replies.size(); ++i) {
    usage.add(stream_choice(*replies[i], i, chat, usage, keepalive, out), i == 0);
  }
  chat.head.end_stream(kChunk, usage, out);
}

}  // namespace

std::vector<int32_t> chat_prompt_ids(const text::ChatPromptInput& input, const ApiContext& api) {
  if (!api.tokenizer.has_vocabulary()) {
    throw bad_field("messages", "the model has no tokenizer; only /v1/completions with a prompt of token ids works");
  }
  text::ChatPrompt prompt;
  try {
    prompt = text::render_chat_prompt(input);
  } catch (const text::ChatPromptError& error) {
    throw bad_field(error.param, error.what());
  }
  if (api.rules.settings.api.content_markers == "text") {
    for (text::TextSegment& segment : prompt.segments) {
      if (segment.kind == text::TextSegment::Kind::kContent) segment.kind = text::TextSegment::Kind::kPlain;
    }
  }
  return api.tokenizer.encode(prompt.segments);
}

engine::GenerationRequest chat_generation(const ChatRequest& request, std::vector<int32_t> prompt,
                                          const std::string& id, const ApiContext& api) {
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
  const ToolChoice::Mode mode = request.tool_choice.mode;
  if (mode == ToolChoice::Mode::kRequired || mode == ToolChoice::Mode::kNamed) {
    throw bad_field("tool_choice", "tool_choice other than auto and none is not supported by this version");
  }
  generation.reply.tools = offered_tools(request.prompt.tools, request.tool_choice);
  generation.reply.parallel_calls = request.parallel_tool_calls;
  generation.reply.incremental_calls = settings.api.tool_stream == "incremental";
  return generation;
}

HttpResponse chat_completions(const HttpRequest& http, const ApiContext& api) {
  const ChatRequest request = parse_chat_request(http.body, api.rules);
  const ApiSettings& settings = api.rules.settings.api;
  const ChatReply chat{{"chatcmpl-", api, request.common},
                       settings.reasoning_field,
                       request.include_reasoning,
                       request.common.logprobs >= 0,
                       request.echo,
                       api.tokenizer};
  const std::chrono::seconds keepalive(settings.sse_keepalive_s);
  const ReplyShapes shapes{
      [&](RunningReplies& replies) { return whole_reply(replies, chat, http); },
      [chat, keepalive](RunningReplies& replies, SseWriter& out) { stream_reply(replies, chat, keepalive, out); }};
  std::vector<engine::GenerationRequest> choices;
  add_choices(chat_generation(request, chat_prompt_ids(request.prompt, api), chat.head.id, api), request.common.choices,
              choices);
  return answer(std::move(choices), api, request.common.stream, shapes);
}

}  // namespace glm53::server
