#include "server/chat_reply.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "server/logprobs_json.h"
#include "server/random_id.h"
#include "server/reply_json.h"
#include "server/reply_parts.h"

namespace glm53::server {
namespace {

using nlohmann::ordered_json;
using text::ReplyChannel;
using text::ReplyDelta;

constexpr const char* kWhole = "chat.completion";
constexpr const char* kChunk = "chat.completion.chunk";

void put_reasoning(ordered_json& message, const std::string& text, const ChatReply& chat) {
  const std::string& field = chat.api.rules.settings.api.reasoning_field;
  if (field != "reasoning_content") message["reasoning"] = text;
  if (field != "reasoning") message["reasoning_content"] = text;
}

/// The deltas of one choice with its reasoning where the client wants to see it: apart, within the content, or nowhere.
class ShownReasoning {
 public:
  explicit ShownReasoning(const ChatReply& chat) : chat_(chat) {}

  /// Fed all deltas in their order.
  std::vector<ReplyDelta> apply(std::vector<ReplyDelta> deltas) {
    std::vector<ReplyDelta> shown;
    for (ReplyDelta& delta : deltas) {
      const bool reasoning = delta.channel == ReplyChannel::kReasoning;
      reasoned_ = reasoned_ || reasoning;
      if (reasoning && !chat_.include_reasoning) continue;
      if (!chat_.separate_reasoning && reasoning != in_think_) {
        shown.push_back({ReplyChannel::kContent, reasoning ? "<think>" : "</think>"});
        in_think_ = reasoning;
      }
      if (!chat_.separate_reasoning && reasoning) delta.channel = ReplyChannel::kContent;
      shown.push_back(std::move(delta));
    }
    return shown;
  }
  /// There was reasoning, shown or not.
  bool reasoned() const { return reasoned_; }

 private:
  const ChatReply& chat_;
  bool reasoned_ = false;
  bool in_think_ = false;  ///< a <think> is open in the content
};

const char* finish_reason(const engine::GenerationResult& result, bool called, const ChatReply& chat) {
  const bool for_calls = called && !chat.named_call && result.reason == engine::FinishReason::kStop;
  return for_calls ? "tool_calls" : RunningReply::finish_reason(result);
}

ordered_json shown_logprobs(std::vector<engine::TokenLogprobs>& tokens, const ChatReply& chat) {
  return chat_logprobs(tokens, {chat.api.tokenizer, chat.tokens_as_ids});
}

// ---- whole

struct WholeChoice {
  ReplyParts parts;
  std::vector<engine::TokenLogprobs> tokens;
};

ordered_json whole_choice(const RunningReply& reply, size_t index, WholeChoice& choice, const ChatReply& chat) {
  std::string content = chat.echo;
  std::string reasoning;
  ordered_json calls = ordered_json::array();
  ShownReasoning shown(chat);
  for (const ReplyDelta& part : shown.apply(choice.parts.take(reply, chat.api.rules.settings.api))) {
    if (part.channel == ReplyChannel::kCall) {
      calls.push_back({{"id", call_id("call_")},
                       {"type", "function"},
                       {"function", {{"name", part.tool_name}, {"arguments", part.text}}}});
    } else {
      (part.channel == ReplyChannel::kReasoning ? reasoning : content) += part.text;
    }
  }
  const engine::GenerationResult& result = *reply.result();
  const bool called = !calls.empty();

  ordered_json message = {{"role", "assistant"}};
  message["content"] = content.empty() && (called || shown.reasoned()) ? ordered_json() : ordered_json(content);
  message["refusal"] = nullptr;
  if (!reasoning.empty()) put_reasoning(message, reasoning, chat);
  if (called) message["tool_calls"] = std::move(calls);
  ordered_json body = {{"index", index}, {"message", std::move(message)}};
  body["logprobs"] = chat.logprobs ? shown_logprobs(choice.tokens, chat) : ordered_json();
  body["finish_reason"] = finish_reason(result, called, chat);
  body["stop_reason"] = reply.stop_reason(result);
  if (chat.token_ids) body["token_ids"] = reply.tokens();
  return body;
}

// ---- streamed

/// The chunks of one choice. What is known of its tokens goes with the first chunk after they were drawn, the last ones
/// with the finish.
class ChoiceStream {
 public:
  ChoiceStream(const ChatReply& chat, const RunningReplies& replies, size_t index, SseWriter& out)
      : chat_(chat), replies_(replies), index_(index), out_(out), shown_(chat) {}

  void begin() {
    ordered_json role = chunk({{"role", "assistant"}, {"content", ""}});
    if (chat_.token_ids) role["prompt_token_ids"] = replies_[index_].prompt();
    out_.event(dump(role));
    if (!chat_.echo.empty()) send({{"content", chat_.echo}});
  }

  void take(engine::GenerationEvent& event) {
    move_logprobs(tokens_, event.logprobs);
    for (const ReplyDelta& delta : shown_.apply(std::move(event.deltas))) send(piece(delta));
    if (event.result) finish(*event.result);
  }

  /// Tokens came and showed nothing: those of a call, say.
  void at_work() { send(ordered_json::object()); }

 private:
  ordered_json piece(const ReplyDelta& delta) {
    ordered_json piece;
    if (delta.channel == ReplyChannel::kContent) piece["content"] = delta.text;
    if (delta.channel == ReplyChannel::kReasoning) put_reasoning(piece, delta.text, chat_);
    if (delta.channel == ReplyChannel::kCall) {
      ordered_json call = {{"index", delta.call}};
      if (delta.call != last_call_) {
        call["id"] = call_id("call_");
        call["type"] = "function";
        call["function"]["name"] = delta.tool_name;
      }
      call["function"]["arguments"] = delta.text;
      last_call_ = delta.call;
      piece["tool_calls"] = ordered_json::array({std::move(call)});
    }
    return piece;
  }

  void finish(const engine::GenerationResult& result) {
    ordered_json last = chunk(ordered_json::object());
    last["choices"][0]["finish_reason"] = finish_reason(result, last_call_ >= 0, chat_);
    last["choices"][0]["stop_reason"] = replies_[index_].stop_reason(result);
    out_.event(dump(last));
  }

  void send(ordered_json delta) { out_.event(dump(chunk(std::move(delta)))); }

  ordered_json chunk(ordered_json delta) {
    ordered_json choice = {{"index", index_}, {"delta", std::move(delta)}, {"logprobs", nullptr}};
    if (chat_.logprobs && !tokens_.empty()) choice["logprobs"] = shown_logprobs(tokens_, chat_);
    tokens_.clear();
    choice["finish_reason"] = nullptr;
    if (chat_.token_ids) choice["token_ids"] = ids_.take(replies_[index_]);
    return chat_.head.chunk(kChunk, std::move(choice), replies_);
  }

  const ChatReply& chat_;
  const RunningReplies& replies_;
  const size_t index_;
  SseWriter& out_;
  ShownReasoning shown_;
  std::vector<engine::TokenLogprobs> tokens_;  ///< not sent yet
  UnsentIds ids_;
  int last_call_ = -1;
};

}  // namespace

ChatReply::ChatReply(const ChatRequest& request, const ApiContext& context)
    : head("chatcmpl-", request.common),
      api(context),
      include_reasoning(request.include_reasoning),
      separate_reasoning(request.separate_reasoning),
      named_call(request.tool_choice.mode == ToolChoice::Mode::kNamed),
      has_tools(request.tool_choice.mode != ToolChoice::Mode::kNone),
      logprobs(request.common.logprobs >= 0),
      prompt_logprobs(request.common.prompt_logprobs),
      token_ids(request.common.return_token_ids),
      tokens_as_ids(request.common.tokens_as_ids),
      echo(request.echo) {}

ordered_json ChatReply::whole(RunningReplies& replies, const HttpRequest& http) const {
  std::vector<WholeChoice> choices(replies.size());
  std::vector<engine::TokenLogprobs> prompt;
  replies.collect(http.client_gone, [&](size_t index, engine::GenerationEvent& event) {
    move_logprobs(prompt, event.prompt_logprobs);
    move_logprobs(choices[index].tokens, event.logprobs);
    choices[index].parts.add(std::move(event.deltas));
  });
  ordered_json body = head.object(kWhole);
  body["choices"] = ordered_json::array();
  for (size_t i = 0; i < choices.size(); ++i) body["choices"].push_back(whole_choice(replies[i], i, choices[i], *this));
  body["system_fingerprint"] = nullptr;
  body["usage"] = head.usage(replies);
  if (prompt_logprobs >= 0) {
    body["prompt_logprobs"] = prompt_logprobs_json(prompt, prompt_logprobs, {api.tokenizer});
  }
  if (token_ids) body["prompt_token_ids"] = replies[0].prompt();
  return body;
}

void ChatReply::stream(RunningReplies& replies, SseWriter& out) const {
  std::vector<ChoiceStream> choices;
  for (size_t i = 0; i < replies.size(); ++i) choices.emplace_back(*this, replies, i, out);
  for (ChoiceStream& choice : choices) choice.begin();
  RunningReplies::AtWork at_work;
  if (has_tools) at_work = [&](size_t index) { choices[index].at_work(); };
  replies.stream(out, at_work, [&](size_t index, engine::GenerationEvent& event) { choices[index].take(event); });
  head.end_stream(kChunk, replies, out);
}

}  // namespace glm53::server
