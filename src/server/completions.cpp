#include "server/completions.h"

#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/api_error.h"
#include "server/completion_reply.h"
#include "server/json_get.h"
#include "server/logprobs_json.h"

namespace glm53::server {
namespace {

using nlohmann::ordered_json;
using text::PromptJson;

constexpr int64_t kDefaultMaxTokens = 16;
constexpr const char* kKind = "text_completion";

constexpr size_t kMaxPrompts = 128;

constexpr UnsupportedField kUnsupported[] = {{"prompt_embeds", Neutral::kNothing}};

/// A string, or a list of token ids.
CompletionPrompt read_prompt(const PromptJson& prompt, const std::string& path, int32_t vocab) {
  if (prompt.is_string()) {
    if (prompt.as_string().empty()) throw bad_field(path, path + " must not be empty");
    return prompt.as_string();
  }
  if (!prompt.is_array()) throw bad_field(path, path + " must be a string or a list of token ids");
  if (prompt.items().empty()) throw bad_field(path, path + " must not be empty");
  return require_ids(prompt.items(), path, vocab);
}

/// One prompt, or a list of them.
std::vector<CompletionPrompt> read_prompts(const PromptJson& body, int32_t vocab) {
  const PromptJson* prompt = body.find("prompt");
  if (prompt == nullptr) throw bad_field("prompt", "prompt is required");
  const bool several = prompt->is_array() && !prompt->items().empty() && !prompt->items().front().is_number();
  if (!several) return {read_prompt(*prompt, "prompt", vocab)};
  if (prompt->items().size() > kMaxPrompts) throw bad_field("prompt", "prompt must hold at most 128 prompts");
  std::vector<CompletionPrompt> prompts;
  for (size_t i = 0; i < prompt->items().size(); ++i) {
    prompts.push_back(read_prompt(prompt->items()[i], "prompt[" + std::to_string(i) + ']', vocab));
  }
  return prompts;
}

/// What the shapes of a reply need to know of its request.
struct CompletionReply {
  ReplyHead head;
  size_t choices;  ///< of each prompt
  bool logprobs;
  bool skip_special_tokens;
  std::vector<std::string> echo;  ///< text of each prompt; empty without echo
  const text::Tokenizer& tokenizer;

  CompletionLogprobs logprobs_of(const RunningReply& reply) const {
    return {tokenizer, echo.empty() ? 0 : reply.prompt_tokens(), skip_special_tokens};
  }

  const std::string& echo_of(size_t index) const {
    static const std::string kNone;
    return echo.empty() ? kNone : echo[index / choices];
  }
  bool first_of_prompt(size_t index) const { return index % choices == 0; }
};

ordered_json choice(size_t index, const std::string& text, ordered_json logprobs, ordered_json finish_reason,
                    ordered_json stop_reason) {
  return {{"index", index},
          {"text", text},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", std::move(finish_reason)},
          {"stop_reason", std::move(stop_reason)}};
}

/// What needs text, where the model has no tokenizer.
void refuse_text(const CompletionRequest& request) {
  if (!request.common.stop.empty()) {
    throw bad_field("stop", "the model has no tokenizer, so that replies have no text; use stop_token_ids");
  }
  if (!request.common.bad_words.empty()) throw bad_field("bad_words", "the model has no tokenizer");
  for (const CompletionPrompt& prompt : request.prompts) {
    if (std::holds_alternative<std::string>(prompt)) {
      throw bad_field("prompt", "the model has no tokenizer; prompt must be a list of token ids");
    }
  }
}

/// The choices of all prompts, side by side for each; takes the prompts' ids.
std::vector<engine::GenerationRequest> prepare(CompletionRequest& request, CompletionReply& reply,
                                               const ApiContext& api) {
  engine::GenerationRequest generation = generation_of(request.common, api);
  generation.id = reply.head.id;
  if (!request.common.ignore_eos) generation.end_ids = api.rules.defaults.eos_ids;
  generation.reply.split_reasoning = false;
  if (request.echo) generation.prompt_logprobs = request.common.logprobs;
  std::vector<engine::GenerationRequest> choices;
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    CompletionPrompt& prompt = request.prompts[i];
    const auto* text = std::get_if<std::string>(&prompt);
    set_prompt(generation, request.common,
               text != nullptr ? api.tokenizer.encode(*text) : std::move(std::get<std::vector<int32_t>>(prompt)),
               request.prompts.size() == 1 ? "prompt" : "prompt[" + std::to_string(i) + ']', kDefaultMaxTokens, api);
    if (request.echo) {
      const bool whole = text != nullptr && !request.common.truncate_prompt;
      reply.echo.push_back(whole ? *text : api.tokenizer.decode(generation.prompt, false));
    }
    if (!request.common.seeded) generation.sampling.seed = fresh_seed();  // equal prompts get replies of their own
    add_choices(generation, request.common.choices, choices);
  }
  return choices;
}

/// The closing choice. Where there is no text the ids are the reply.
ordered_json last_choice(size_t index, const std::string& text, ordered_json logprobs,
                         const engine::GenerationResult& result, const RunningReply& reply,
                         const CompletionReply& completion) {
  ordered_json last =
      choice(index, text, std::move(logprobs), RunningReply::finish_reason(result), reply.stop_reason(result));
  if (!completion.tokenizer.has_vocabulary()) last["token_ids"] = reply.tokens();
  return last;
}

ordered_json whole_reply(RunningReplies& replies, const CompletionReply& completion, const HttpRequest& http) {
  ordered_json choices = ordered_json::array();
  Usage usage;
  for (size_t i = 0; i < replies.size(); ++i) {
    std::string text = completion.echo_of(i);
    std::vector<engine::TokenLogprobs> tokens;
    const engine::GenerationResult result = replies[i]->collect(http.client_gone, [&](engine::GenerationEvent& event) {
      move_logprobs(tokens, event.prompt_logprobs);
      move_logprobs(tokens, event.logprobs);
      for (const text::ReplyDelta& delta : event.deltas) text += delta.text;
    });
    usage.add(result, completion.first_of_prompt(i));
    ordered_json logprobs;
    if (completion.logprobs) logprobs = completion.logprobs_of(*replies[i]).next(tokens);
    choices.push_back(last_choice(i, text, std::move(logprobs), result, *replies[i], completion));
  }
  ordered_json body = completion.head.object(kKind);
  body["choices"] = std::move(choices);
  body["usage"] = usage.json();
  return body;
}

/// The chunks of one choice.
engine::GenerationResult stream_choice(RunningReply& reply, size_t index, const CompletionReply& completion,
                                       const Usage& usage, std::chrono::seconds keepalive, SseWriter& out) {
  CompletionLogprobs logprobs = completion.logprobs_of(reply);
  std::vector<engine::TokenLogprobs> tokens;  // not sent yet
  const auto shown = [&] {
    ordered_json json;
    if (completion.logprobs) json = logprobs.next(tokens);
    tokens.clear();
    return json;
  };
  const auto send = [&](ordered_json item) {
    out.event(dump(
        completion.head.chunk(kKind, std::move(item), usage.with_running(reply, completion.first_of_prompt(index)))));
  };
  std::string echo = completion.echo_of(index);
  const engine::GenerationResult result = reply.stream(out, keepalive, [&](engine::GenerationEvent& event) {
    move_logprobs(tokens, event.prompt_logprobs);
    if (!echo.empty()) send(choice(index, std::exchange(echo, {}), shown(), nullptr, nullptr));
    move_logprobs(tokens, event.logprobs);
    for (const text::ReplyDelta& delta : event.deltas) send(choice(index, delta.text, shown(), nullptr, nullptr));
  });
  send(last_choice(index, "", shown(), result, reply, completion));
  return result;
}

void stream_reply(RunningReplies& replies, const CompletionReply& completion, std::chrono::seconds keepalive,
                  SseWriter& out) {
  Usage usage;
  for (size_t i = 0; i < replies.size(); ++i) {
    usage.add(stream_choice(*replies[i], i, completion, usage, keepalive, out), completion.first_of_prompt(i));
  }
  completion.head.end_stream(kKind, usage, out);
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
  request.echo = opt_bool(json, "echo").value_or(false);
  const auto logprobs = opt_int(json, "logprobs", 0, std::numeric_limits<int32_t>::max());
  if (logprobs && *logprobs > kMaxTopLogprobs) throw too_many_logprobs("logprobs", *logprobs);
  request.common.logprobs = static_cast<int>(logprobs.value_or(-1));
  request.prompts = read_prompts(json, rules.defaults.vocab);
  return request;
}

HttpResponse completions(const HttpRequest& http, const ApiContext& api) {
  CompletionRequest request = parse_completion_request(http.body, api.rules);
  if (!api.tokenizer.has_vocabulary()) refuse_text(request);
  CompletionReply completion{{"cmpl-", api, request.common},
                             static_cast<size_t>(request.common.choices),
                             request.common.logprobs >= 0,
                             request.common.skip_special_tokens,
                             {},
                             api.tokenizer};
  std::vector<engine::GenerationRequest> choices = prepare(request, completion, api);
  const std::chrono::seconds keepalive(api.rules.settings.api.sse_keepalive_s);
  const ReplyShapes shapes{[&](RunningReplies& replies) { return whole_reply(replies, completion, http); },
                           [completion, keepalive](RunningReplies& replies, SseWriter& out) {
                             stream_reply(replies, completion, keepalive, out);
                           }};
  return answer(std::move(choices), api, request.common.stream, shapes);
}

}  // namespace glm53::server
