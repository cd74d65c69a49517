#include "server/messages.h"

#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "server/api_error.h"
#include "server/chat_generation.h"
#include "server/completion_reply.h"
#include "server/messages_request.h"
#include "server/random_id.h"
#include "server/reply_json.h"
#include "server/reply_parts.h"

namespace glm53::server {
namespace {

using nlohmann::ordered_json;
using text::ReplyChannel;

struct MessageReply {
  std::string id;
  std::string model;
  bool show_thinking;
  const ApiSettings& settings;
};

/// Clients send it back with the thinking and want it not empty; nothing reads it.
std::string signature(const MessageReply& message) { return "unsigned-" + message.id; }

ordered_json empty_message(const MessageReply& message, ordered_json usage) {
  return {{"id", message.id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", message.model},
          {"content", ordered_json::array()},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr},
          {"usage", std::move(usage)}};
}

/// Input that came from a cache counts apart from the rest.
ordered_json usage_json(int64_t prompt, int64_t cached, int64_t output) {
  return {{"input_tokens", prompt - cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", cached},
          {"output_tokens", output}};
}

ordered_json usage_json(const engine::GenerationResult& result) {
  return usage_json(result.prompt_tokens, result.cached_tokens, result.completion_tokens);
}

/// {"stop_reason", "stop_sequence"}
ordered_json ending(const RunningReply& reply, bool called) {
  const engine::GenerationResult& result = *reply.result();
  ordered_json sequence = reply.stop_reason(result);
  if (!sequence.is_string() || called) sequence = nullptr;
  const char* reason = result.reason == engine::FinishReason::kLength ? "max_tokens"
                       : called                                       ? "tool_use"
                       : sequence.is_string()                         ? "stop_sequence"
                                                                      : "end_turn";
  return {{"stop_reason", reason}, {"stop_sequence", std::move(sequence)}};
}

/// As a stream opens it.
ordered_json empty_block(const text::ReplyDelta& first) {
  switch (first.channel) {
    case ReplyChannel::kReasoning:
      return {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
    case ReplyChannel::kContent:
      return {{"type", "text"}, {"text", ""}};
    case ReplyChannel::kCall:
      break;
  }
  return {
      {"type", "tool_use"}, {"id", call_id("toolu_")}, {"name", first.tool_name}, {"input", ordered_json::object()}};
}

// ---- whole

ordered_json whole_block(text::ReplyDelta part, const MessageReply& message) {
  ordered_json block = empty_block(part);
  if (part.channel == ReplyChannel::kContent) block["text"] = std::move(part.text);
  if (part.channel == ReplyChannel::kCall) block["input"] = to_json(text::PromptJson::parse(part.text));
  if (part.channel == ReplyChannel::kReasoning) {
    block["thinking"] = std::move(part.text);
    block["signature"] = signature(message);
  }
  return block;
}

ordered_json whole_reply(RunningReplies& replies, const MessageReply& message, const HttpRequest& http) {
  ReplyParts parts;
  replies.collect(http.client_gone,
                  [&](size_t, engine::GenerationEvent& event) { parts.add(std::move(event.deltas)); });
  const RunningReply& reply = replies[0];
  ordered_json body = empty_message(message, usage_json(*reply.result()));
  bool called = false;
  for (text::ReplyDelta& part : parts.take(reply, message.settings, message.show_thinking)) {
    called = called || part.channel == ReplyChannel::kCall;
    body["content"].push_back(whole_block(std::move(part), message));
  }
  body.update(ending(reply, called));
  return body;
}

// ---- streamed

void send(SseWriter& out, const ordered_json& event) { out.event(event["type"].get<std::string>(), dump(event)); }

void ping(SseWriter& out) { send(out, {{"type", "ping"}}); }

/// Content blocks one after the other: one opens with the first text of its channel, or with a call, and closes before
/// the next opens.
class BlockStream {
 public:
  BlockStream(SseWriter& out, const MessageReply& message) : out_(out), message_(message) {}

  void add(const text::ReplyDelta& delta) {
    if (delta.channel == ReplyChannel::kReasoning && !message_.show_thinking) return;
    if (!open_ || !open_->continued_by(delta)) {
      close();
      open_ = {delta.channel, {}, delta.call, {}};
      input_sent_ = false;
      called_ = called_ || delta.channel == ReplyChannel::kCall;
      send(out_, {{"type", "content_block_start"}, {"index", index_}, {"content_block", empty_block(delta)}});
    }
    if (delta.text.empty()) return;
    if (delta.channel == ReplyChannel::kReasoning) {
      send_delta({{"type", "thinking_delta"}, {"thinking", delta.text}});
    } else if (delta.channel == ReplyChannel::kContent) {
      send_delta({{"type", "text_delta"}, {"text", delta.text}});
    } else {
      send_delta({{"type", "input_json_delta"}, {"partial_json", delta.text}});
      input_sent_ = true;
    }
  }

  void close() {
    if (!open_) return;
    if (open_->channel == ReplyChannel::kReasoning) {
      send_delta({{"type", "signature_delta"}, {"signature", signature(message_)}});
    }
    // Clients wait for one.
    if (open_->channel == ReplyChannel::kCall && !input_sent_) {
      send_delta({{"type", "input_json_delta"}, {"partial_json", "{}"}});
    }
    send(out_, {{"type", "content_block_stop"}, {"index", index_}});
    ++index_;
    open_.reset();
  }

  bool called() const { return called_; }

 private:
  void send_delta(ordered_json delta) {
    send(out_, {{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(delta)}});
  }

  SseWriter& out_;
  const MessageReply& message_;
  int index_ = 0;                         ///< of the block that is open, else of the next
  std::optional<text::ReplyDelta> open_;  ///< what the open block is of; without its text
  bool input_sent_ = false;
  bool called_ = false;
};

void stream_reply(RunningReplies& replies, const MessageReply& message, SseWriter& out) {
  const RunningReply& reply = replies[0];
  send(out, {{"type", "message_start"}, {"message", empty_message(message, usage_json(reply.prompt_tokens(), 0, 0))}});
  ping(out);
  BlockStream blocks(out, message);
  try {
    replies.stream(
        out, [&](size_t) { ping(out); },
        [&](size_t, engine::GenerationEvent& event) {
          for (const text::ReplyDelta& delta : event.deltas) blocks.add(delta);
        });
  } catch (const ApiError& error) {
    out.event("error", messages_error_json(error));
    return;
  }
  blocks.close();
  send(out,
       {{"type", "message_delta"}, {"delta", ending(reply, blocks.called())}, {"usage", usage_json(*reply.result())}});
  send(out, {{"type", "message_stop"}});
}

/// Clients of this API shorten the conversation, or ask for less, by the numbers in these two messages.
void check_room(int64_t prompt, int64_t wanted, int64_t context) {
  if (prompt >= context) {
    throw ApiError(
        400, "prompt is too long: " + std::to_string(prompt) + " tokens > " + std::to_string(context) + " maximum");
  }
  if (prompt + wanted > context) {
    throw ApiError(400, "input length and `max_tokens` exceed context limit: " + std::to_string(prompt) + " + " +
                            std::to_string(wanted) + " > " + std::to_string(context) +
                            ", decrease input length or `max_tokens` and try again");
  }
}

PreparedReply prepare(const HttpRequest& http, const ApiContext& api) {
  const ChatRequest request = parse_messages_request(http.body, api.rules, MessagesPurpose::kReply);
  const MessageReply message{"msg_" + random_id(), request.common.model, request.include_reasoning,
                             api.rules.settings.api};
  const auto check = [&](int64_t tokens, int64_t wanted) {
    if (!request.common.truncate_prompt) check_room(tokens, wanted, api.generator.context());
  };
  std::vector<int32_t> prompt = chat_prompt_ids(request.prompt, api, [&](int64_t least) { check(least, 1); });
  check(std::ssize(prompt), *request.common.max_tokens);
  PreparedReply prepared;
  prepared.stream = request.common.stream;
  prepared.shapes = {[message, &http](RunningReplies& replies) { return dump(whole_reply(replies, message, http)); },
                     [message](RunningReplies& replies, SseWriter& out) { stream_reply(replies, message, out); }};
  prepared.choices.push_back(chat_generation(request, std::move(prompt), message.id, http, api));
  return prepared;
}

}  // namespace

HttpResponse messages(const HttpRequest& http, const ApiContext& api) { return answer(prepare(http, api), http, api); }

HttpResponse count_message_tokens(const HttpRequest& http, const ApiContext& api) {
  const ChatRequest request = parse_messages_request(http.body, api.rules, MessagesPurpose::kCount);
  HttpResponse response;
  response.body = dump(ordered_json{{"input_tokens", chat_prompt_ids(request.prompt, api).size()}});
  return response;
}

}  // namespace glm53::server
