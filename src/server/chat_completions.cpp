#include "server/chat_completions.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/api_error.h"
#include "server/chat_request.h"
#include "server/completion_reply.h"

namespace glm53::server {
namespace {

using nlohmann::ordered_json;

constexpr const char* kWhole = "chat.completion";
constexpr const char* kChunk = "chat.completion.chunk";

struct ChatReply {
  ReplyHead head;
  std::string reasoning_field;  ///< api.reasoning_field
  bool include_reasoning;

  void put_reasoning(ordered_json& message, const std::string& text) const {
    if (reasoning_field != "reasoning_content") message["reasoning"] = text;
    if (reasoning_field != "reasoning") message["reasoning_content"] = text;
  }
};

std::vector<int32_t> prompt_ids(const text::ChatPromptInput& input, const ApiContext& api) {
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

engine::GenerationRequest prepare(const ChatRequest& request, const std::string& id, const ApiContext& api) {
  const Settings& settings = api.rules.settings;
  engine::GenerationRequest generation =
      make_generation(request.common, prompt_ids(request.prompt, api), settings.defaults.max_tokens, api);
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
  return generation;
}

ordered_json whole_reply(RunningReply& reply, const ChatReply& chat, const HttpRequest& http) {
  std::string content;
  std::string reasoning;
  const engine::GenerationResult result = reply.collect(http.client_gone, [&](const text::ReplyDelta& delta) {
    (delta.channel == text::ReplyChannel::kReasoning ? reasoning : content) += delta.text;
  });

  ordered_json message = {{"role", "assistant"}};
  message["content"] = content.empty() && !reasoning.empty() ? ordered_json() : ordered_json(content);
  message["refusal"] = nullptr;
  if (chat.include_reasoning && !reasoning.empty()) chat.put_reasoning(message, reasoning);
  ordered_json body = chat.head.object(kWhole);
  body["choices"] = ordered_json::array({{{"index", 0},
                                          {"message", std::move(message)},
                                          {"logprobs", nullptr},
                                          {"finish_reason", RunningReply::finish_reason(result)},
                                          {"stop_reason", reply.stop_reason(result)}}});
  body["system_fingerprint"] = nullptr;
  body["usage"] = RunningReply::usage(result);
  return body;
}

/// Chunks in the order of spec 40 §6.3: role, reasoning and content deltas, finish, usage, [DONE].
void stream_reply(RunningReply& reply, const ChatReply& chat, std::chrono::seconds keepalive, SseWriter& out) {
  const auto chunk = [&](ordered_json delta, ordered_json finish_reason) {
    return chat.head.chunk(kChunk, {{"index", 0},
                                    {"delta", std::move(delta)},
                                    {"logprobs", nullptr},
                                    {"finish_reason", std::move(finish_reason)}});
  };

  out.event(dump(chunk({{"role", "assistant"}, {"content", ""}}, nullptr)));
  const engine::GenerationResult result = reply.stream(out, keepalive, [&](const text::ReplyDelta& delta) {
    ordered_json piece = ordered_json::object();
    if (delta.channel == text::ReplyChannel::kContent) {
      piece["content"] = delta.text;
    } else if (chat.include_reasoning) {
      chat.put_reasoning(piece, delta.text);
    } else {
      return;
    }
    out.event(dump(chunk(std::move(piece), nullptr)));
  });
  ordered_json last = chunk(ordered_json::object(), RunningReply::finish_reason(result));
  last["choices"][0]["stop_reason"] = reply.stop_reason(result);
  out.event(dump(last));
  chat.head.end_stream(kChunk, result, out);
}

}  // namespace

HttpResponse chat_completions(const HttpRequest& http, const ApiContext& api) {
  const ChatRequest request = parse_chat_request(http.body, api.rules);
  if (!api.tokenizer.has_vocabulary()) {
    throw bad_field("messages", "the model has no tokenizer; only /v1/completions with a prompt of token ids works");
  }
  const ApiSettings& settings = api.rules.settings.api;
  const ChatReply chat{
      {"chatcmpl-", api, request.common.include_usage}, settings.reasoning_field, request.include_reasoning};
  const std::chrono::seconds keepalive(settings.sse_keepalive_s);
  const ReplyShapes shapes{
      [&](RunningReply& reply) { return whole_reply(reply, chat, http); },
      [chat, keepalive](RunningReply& reply, SseWriter& out) { stream_reply(reply, chat, keepalive, out); }};
  return answer(prepare(request, chat.head.id, api), api, request.common.stream, shapes);
}

}  // namespace glm53::server
