#include "server/completions.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/api_error.h"
#include "server/completion_reply.h"
#include "server/json_get.h"

namespace glm53::server {
namespace {

using nlohmann::ordered_json;
using text::PromptJson;

constexpr int64_t kDefaultMaxTokens = 16;
constexpr const char* kKind = "text_completion";

constexpr UnsupportedField kUnsupported[] = {{"logprobs", Neutral::kNothing}, {"prompt_embeds", Neutral::kNothing}};

std::vector<int32_t> read_ids(const PromptJson::Array& items, const std::string& path, int32_t vocab) {
  std::vector<int32_t> ids;
  ids.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    ids.push_back(static_cast<int32_t>(require_int(items[i], path + '[' + std::to_string(i) + ']', 0, vocab - 1)));
  }
  return ids;
}

/// A string, a list of token ids, or a list holding one of these.
std::variant<std::string, std::vector<int32_t>> read_prompt(const PromptJson& body, int32_t vocab) {
  const PromptJson* prompt = body.find("prompt");
  if (prompt == nullptr) throw bad_field("prompt", "prompt is required");
  std::string path = "prompt";
  if (prompt->is_array() && !prompt->items().empty() && !prompt->items().front().is_number()) {
    if (prompt->items().size() > 1) {
      throw bad_field("prompt", "several prompts in one request are not supported by this version");
    }
    prompt = &prompt->items().front();
    path = "prompt[0]";
  }
  if (prompt->is_string()) {
    if (prompt->as_string().empty()) throw bad_field("prompt", "prompt must not be empty");
    return prompt->as_string();
  }
  if (!prompt->is_array()) throw bad_field("prompt", "prompt must be a string or a list of token ids");
  if (prompt->items().empty()) throw bad_field("prompt", "prompt must not be empty");
  return read_ids(prompt->items(), path, vocab);
}

ordered_json choice(const std::string& text, ordered_json finish_reason, ordered_json stop_reason) {
  return {{"index", 0},
          {"text", text},
          {"logprobs", nullptr},
          {"finish_reason", std::move(finish_reason)},
          {"stop_reason", std::move(stop_reason)}};
}

engine::GenerationRequest prepare(const CompletionRequest& request, const std::string& id, const ApiContext& api) {
  if (!api.tokenizer.has_vocabulary() && !request.common.stop.empty()) {
    throw bad_field("stop", "the model has no tokenizer, so that replies have no text; use stop_token_ids");
  }
  std::vector<int32_t> prompt;
  if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    if (!api.tokenizer.has_vocabulary()) {
      throw bad_field("prompt", "the model has no tokenizer; prompt must be a list of token ids");
    }
    prompt = api.tokenizer.encode(*text);
  } else {
    prompt = std::get<std::vector<int32_t>>(request.prompt);
  }
  engine::GenerationRequest generation = make_generation(request.common, std::move(prompt), kDefaultMaxTokens, api);
  generation.id = id;
  if (!request.common.ignore_eos) generation.end_ids = api.rules.defaults.eos_ids;
  generation.reply.split_reasoning = false;
  return generation;
}

/// The closing choice. Where there is no text the ids are the reply.
ordered_json last_choice(const std::string& text, const engine::GenerationResult& result, const RunningReply& reply,
                         const ApiContext& api) {
  ordered_json last = choice(text, RunningReply::finish_reason(result), reply.stop_reason(result));
  if (!api.tokenizer.has_vocabulary()) last["token_ids"] = reply.tokens();
  return last;
}

ordered_json whole_reply(RunningReply& reply, const ReplyHead& head, const HttpRequest& http, const ApiContext& api) {
  std::string text;
  const engine::GenerationResult result =
      reply.collect(http.client_gone, [&](const text::ReplyDelta& delta) { text += delta.text; });
  ordered_json body = head.object(kKind);
  body["choices"] = ordered_json::array({last_choice(text, result, reply, api)});
  body["usage"] = RunningReply::usage(result);
  return body;
}

void stream_reply(RunningReply& reply, const ReplyHead& head, std::chrono::seconds keepalive, SseWriter& out,
                  const ApiContext& api) {
  const auto send = [&](ordered_json item) { out.event(dump(head.chunk(kKind, std::move(item)))); };
  const engine::GenerationResult result =
      reply.stream(out, keepalive, [&](const text::ReplyDelta& delta) { send(choice(delta.text, nullptr, nullptr)); });
  send(last_choice("", result, reply, api));
  head.end_stream(kKind, result, out);
}

}  // namespace

CompletionRequest parse_completion_request(std::string_view body, const RequestRules& rules) {
  const PromptJson json = parse_body(body);
  CompletionRequest request;
  request.common = read_common_fields(json, rules);
  refuse_unsupported(json, kUnsupported);
  if (const std::string* suffix = opt_string(json, "suffix"); suffix != nullptr && !suffix->empty()) {
    throw bad_field("suffix", "suffix is not currently supported");
  }
  request.prompt = read_prompt(json, rules.defaults.vocab);
  return request;
}

HttpResponse completions(const HttpRequest& http, const ApiContext& api) {
  const CompletionRequest request = parse_completion_request(http.body, api.rules);
  const ReplyHead head("cmpl-", api, request.common.include_usage);
  const std::chrono::seconds keepalive(api.rules.settings.api.sse_keepalive_s);
  const ReplyShapes shapes{
      [&](RunningReply& reply) { return whole_reply(reply, head, http, api); },
      [head, keepalive, &api](RunningReply& reply, SseWriter& out) { stream_reply(reply, head, keepalive, out, api); }};
  return answer(prepare(request, head.id, api), api, request.common.stream, shapes);
}

}  // namespace glm53::server
