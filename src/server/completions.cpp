#include "server/completions.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/api_error.h"
#include "server/completion_reply.h"
#include "server/json_get.h"
#include "server/logprobs_json.h"
#include "server/reply_grammar.h"
#include "server/reply_json.h"

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
  CompletionReply(const CompletionRequest& request, const ApiContext& api)
      : head("cmpl-", request.common),
        logprobs(request.common.logprobs),
        prompt_logprobs(request.common.prompt_logprobs),
        token_ids(request.common.return_token_ids),
        skip_special_tokens(request.common.skip_special_tokens),
        names{api.tokenizer, request.common.tokens_as_ids} {}

  ReplyHead head;
  int logprobs;  ///< −1: none
  int prompt_logprobs;
  bool token_ids;  ///< return_token_ids
  bool skip_special_tokens;
  std::vector<std::string> echo;  ///< text of each prompt; empty without echo
  TokenNames names;

  bool ids_alone() const { return !names.tokenizer.has_vocabulary(); }
  CompletionLogprobs logprobs_of(const RunningReply& reply) const {
    return {names, echo.empty() ? 0 : reply.prompt_tokens(), skip_special_tokens};
  }

  const std::string& echo_of(size_t index) const {
    static const std::string kNone;
    return echo.empty() ? kNone : echo[index / head.choices];
  }
};

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
std::vector<engine::GenerationRequest> generations_of(CompletionRequest& request, CompletionReply& reply,
                                                      const HttpRequest& http, const ApiContext& api) {
  engine::GenerationRequest generation = generation_of(request.common, api);
  generation.id = reply.head.id;
  if (!request.common.ignore_eos) generation.end_ids = api.rules.defaults.eos_ids;
  generation.reply.split_reasoning = false;
  generation.prompt_logprobs = request.common.prompt_logprobs;
  if (request.echo) generation.prompt_logprobs = std::max(generation.prompt_logprobs, request.common.logprobs);
  size_t prompt_tokens = 0;
  std::vector<engine::GenerationRequest> choices;
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    CompletionPrompt& prompt = request.prompts[i];
    const auto* text = std::get_if<std::string>(&prompt);
    const std::string field = request.prompts.size() == 1 ? "prompt" : "prompt[" + std::to_string(i) + ']';
    if (text != nullptr) check_text_fits(request.common, least_tokens(text->size(), api), field, api);
    set_prompt(generation, request.common,
               text != nullptr ? api.tokenizer.encode(*text) : std::move(std::get<std::vector<int32_t>>(prompt)), field,
               kDefaultMaxTokens, api);
    prompt_tokens += generation.prompt.size();
    check_prompt_logprobs(prompt_tokens, request.common.choices, generation.prompt_logprobs);
    if (request.echo) {
      const bool whole = text != nullptr && !request.common.truncate_prompt;
      reply.echo.push_back(whole ? *text : api.tokenizer.decode(generation.prompt, false));
    }
    if (!request.common.seeded) generation.sampling.seed = fresh_seed();  // equal prompts get replies of their own
    add_choices(generation, request.common.choices, choices);
  }
  http.body_paused();
  const ReplyGrammar grammar = content_grammar(request.common.constraint, api);
  for (engine::GenerationRequest& choice : choices) {
    choice.grammar = grammar.tables;
    choice.grammar_field = grammar.field;
  }
  return choices;
}

ordered_json choice(size_t index, const std::string& text, ordered_json logprobs) {
  return {{"index", index},
          {"text", text},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", nullptr},
          {"stop_reason", nullptr}};
}

void close(ordered_json& choice, const RunningReply& reply) {
  choice["finish_reason"] = RunningReply::finish_reason(*reply.result());
  choice["stop_reason"] = reply.stop_reason(*reply.result());
}

/// A prompt's logprobs as far as echo shows them: prompt_logprobs may ask for more.
void move_echoed(std::vector<engine::TokenLogprobs>& to, std::vector<engine::TokenLogprobs>& prompt,
                 const CompletionReply& completion) {
  if (completion.echo.empty()) return;
  if (completion.prompt_logprobs > completion.logprobs) {
    for (engine::TokenLogprobs& token : prompt) {
      token.top.resize(std::min(token.top.size(), static_cast<size_t>(std::max(completion.logprobs, 0))));
    }
  }
  move_logprobs(to, prompt);
}

// ---- whole

struct WholeChoice {
  std::string text;
  std::vector<engine::TokenLogprobs> tokens;
  ordered_json prompt_logprobs;
};

ordered_json whole_reply(RunningReplies& replies, const CompletionReply& completion, const HttpRequest& http) {
  std::vector<WholeChoice> choices(replies.size());
  replies.collect(http.client_gone, [&](size_t index, engine::GenerationEvent& event) {
    WholeChoice& whole = choices[index];
    if (completion.prompt_logprobs >= 0 && !event.prompt_logprobs.empty()) {
      whole.prompt_logprobs =
          prompt_logprobs_json(event.prompt_logprobs, completion.prompt_logprobs, {completion.names.tokenizer});
    }
    move_echoed(whole.tokens, event.prompt_logprobs, completion);
    move_logprobs(whole.tokens, event.logprobs);
    for (const text::ReplyDelta& delta : event.deltas) whole.text += delta.text;
  });
  ordered_json body = completion.head.object(kKind);
  body["choices"] = ordered_json::array();
  for (size_t i = 0; i < replies.size(); ++i) {
    ordered_json logprobs;
    if (completion.logprobs >= 0) logprobs = completion.logprobs_of(replies[i]).next(choices[i].tokens);
    ordered_json item = choice(i, completion.echo_of(i) + choices[i].text, std::move(logprobs));
    close(item, replies[i]);
    if (completion.prompt_logprobs >= 0) item["prompt_logprobs"] = std::move(choices[i].prompt_logprobs);
    if (completion.token_ids) item["prompt_token_ids"] = replies[i].prompt();
    if (completion.token_ids || completion.ids_alone()) item["token_ids"] = replies[i].tokens();
    body["choices"].push_back(std::move(item));
  }
  body["usage"] = completion.head.usage(replies);
  return body;
}

// ---- streamed

/// The chunks of one choice.
class ChoiceStream {
 public:
  ChoiceStream(const CompletionReply& completion, const RunningReplies& replies, size_t index, SseWriter& out)
      : completion_(completion),
        replies_(replies),
        index_(index),
        out_(out),
        echo_(completion.echo_of(index)),
        logprobs_(completion.logprobs_of(replies[index])) {}

  void take(engine::GenerationEvent& event) {
    move_echoed(tokens_, event.prompt_logprobs, completion_);
    if (!echo_.empty()) send(next(std::exchange(echo_, {})));
    move_logprobs(tokens_, event.logprobs);
    for (const text::ReplyDelta& delta : event.deltas) send(next(delta.text));
    if (!event.result) return;
    ordered_json last = next("");
    close(last, replies_[index_]);
    // Where there is no text the ids are the reply.
    if (completion_.ids_alone()) last["token_ids"] = replies_[index_].tokens();
    send(std::move(last));
  }

 private:
  ordered_json next(const std::string& text) {
    ordered_json logprobs;
    if (completion_.logprobs >= 0) logprobs = logprobs_.next(tokens_);
    tokens_.clear();
    ordered_json item = choice(index_, text, std::move(logprobs));
    if (!completion_.token_ids) return item;
    if (std::exchange(first_, false)) item["prompt_token_ids"] = replies_[index_].prompt();
    item["token_ids"] = ids_.take(replies_[index_]);
    return item;
  }
  void send(ordered_json item) { out_.event(dump(completion_.head.chunk(kKind, std::move(item), replies_))); }

  const CompletionReply& completion_;
  const RunningReplies& replies_;
  const size_t index_;
  SseWriter& out_;
  std::string echo_;  ///< not sent yet
  CompletionLogprobs logprobs_;
  std::vector<engine::TokenLogprobs> tokens_;  ///< not sent yet
  UnsentIds ids_;
  bool first_ = true;
};

void stream_reply(RunningReplies& replies, const CompletionReply& completion, SseWriter& out) {
  std::vector<ChoiceStream> choices;
  for (size_t i = 0; i < replies.size(); ++i) choices.emplace_back(completion, replies, i, out);
  replies.stream(out, {}, [&](size_t index, engine::GenerationEvent& event) { choices[index].take(event); });
  completion.head.end_stream(kKind, replies, out);
}

PreparedReply prepare(const HttpRequest& http, const ApiContext& api) {
  CompletionRequest request = parse_completion_request(http.body, api.rules);
  if (!api.tokenizer.has_vocabulary()) refuse_text(request);
  const auto completion = std::make_shared<CompletionReply>(request, api);
  PreparedReply prepared;
  prepared.choices = generations_of(request, *completion, http, api);
  prepared.stream = request.common.stream;
  prepared.shapes = {
      [completion, &http](RunningReplies& replies) { return dump(whole_reply(replies, *completion, http)); },
      [completion](RunningReplies& replies, SseWriter& out) { stream_reply(replies, *completion, out); }};
  return prepared;
}

/// What a chat alone can do: a completion has neither calls nor reasoning, whatever its text looks like. No tools and
/// no calls are what it does.
void refuse_chat_fields(const PromptJson& body) {
  const PromptJson* tools = body.find("tools");
  const PromptJson* choice = body.find("tool_choice");
  const bool none = choice != nullptr && choice->is_string() && choice->as_string() == "none";
  const char* field = tools != nullptr && tools->truthy()             ? "tools"
                      : choice != nullptr && !none                    ? "tool_choice"
                      : body.find("thinking_token_budget") != nullptr ? "thinking_token_budget"
                                                                      : nullptr;
  if (field != nullptr) throw bad_field(field, std::string(field) + " needs a chat: use /v1/chat/completions");
}

}  // namespace

CompletionRequest parse_completion_request(std::string_view body, const RequestRules& rules) {
  const PromptJson json = parse_body(body);
  CompletionRequest request;
  request.common = read_common_fields(json, rules);
  refuse_unsupported(json, kUnsupported);
  refuse_chat_fields(json);
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
  return answer(prepare(http, api), http, api);
}

}  // namespace glm53::server
