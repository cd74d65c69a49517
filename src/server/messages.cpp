#include "server/messages.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "server/api_error.h"
#include "server/chat_completions.h"
#include "server/completion_reply.h"
#include "server/messages_request.h"

namespace glm53::server {
namespace {

using nlohmann::ordered_json;
using text::ReplyChannel;

struct MessageReply {
  std::string id;
  std::string model;
  bool show_thinking;
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
ordered_json ending(const RunningReply& reply, const engine::GenerationResult& result) {
  ordered_json sequence = reply.stop_reason(result);
  if (!sequence.is_string()) sequence = nullptr;
  const char* reason = result.reason == engine::FinishReason::kLength ? "max_tokens"
                       : sequence.is_string()                         ? "stop_sequence"
                                                                      : "end_turn";
  return {{"stop_reason", reason}, {"stop_sequence", std::move(sequence)}};
}

ordered_json empty_block(ReplyChannel channel) {
  if (channel == ReplyChannel::kReasoning) return {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
  return {{"type", "text"}, {"text", ""}};
}

// ---- whole

ordered_json whole_reply(RunningReply& reply, const MessageReply& message, const HttpRequest& http) {
  std::vector<text::ReplyDelta> blocks;
  const engine::GenerationResult result = reply.collect(http.client_gone, [&](engine::GenerationEvent& event) {
    for (text::ReplyDelta& delta : event.deltas) {
      if (delta.channel == ReplyChannel::kReasoning && !message.show_thinking) continue;
      if (blocks.empty() || blocks.back().channel != delta.channel) {
        blocks.push_back(std::move(delta));
      } else {
        blocks.back().text += delta.text;
      }
    }
  });
  ordered_json body = empty_message(message, usage_json(result));
  for (text::ReplyDelta& block : blocks) {
    ordered_json item = empty_block(block.channel);
    const bool thinking = block.channel == ReplyChannel::kReasoning;
    item[thinking ? "thinking" : "text"] = std::move(block.text);
    if (thinking) item["signature"] = signature(message);
    body["content"].push_back(std::move(item));
  }
  body.update(ending(reply, result));
  return body;
}

// ---- streamed

void send(SseWriter& out, const ordered_json& event) { out.event(event["type"].get<std::string>(), dump(event)); }

/// Content blocks one after the other: one opens with the first text of its channel and closes before the next opens.
class BlockStream {
 public:
  BlockStream(SseWriter& out, const MessageReply& message) : out_(out), message_(message) {}

  void add(const text::ReplyDelta& delta) {
    if (delta.channel == ReplyChannel::kReasoning && !message_.show_thinking) return;
    if (open_ != delta.channel) {
      close();
      open_ = delta.channel;
      send(out_, {{"type", "content_block_start"}, {"index", index_}, {"content_block", empty_block(delta.channel)}});
    }
    if (delta.channel == ReplyChannel::kReasoning) {
      send_delta({{"type", "thinking_delta"}, {"thinking", delta.text}});
    } else {
      send_delta({{"type", "text_delta"}, {"text", delta.text}});
    }
  }

  void close() {
    if (!open_) return;
    if (open_ == ReplyChannel::kReasoning) {
      send_delta({{"type", "signature_delta"}, {"signature", signature(message_)}});
    }
    send(out_, {{"type", "content_block_stop"}, {"index", index_}});
    ++index_;
    open_.reset();
  }

 private:
  void send_delta(ordered_json delta) {
    send(out_, {{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(delta)}});
  }

  SseWriter& out_;
  const MessageReply& message_;
  int index_ = 0;  ///< of the block that is open, else of the next
  std::optional<ReplyChannel> open_;
};

void stream_reply(RunningReply& reply, const MessageReply& message, std::chrono::seconds keepalive, SseWriter& out) {
  send(out, {{"type", "message_start"}, {"message", empty_message(message, usage_json(reply.prompt_tokens(), 0, 0))}});
  send(out, {{"type", "ping"}});
  BlockStream blocks(out, message);
  engine::GenerationResult result;
  try {
    result = reply.stream(out, keepalive, [&](engine::GenerationEvent& event) {
      for (const text::ReplyDelta& delta : event.deltas) blocks.add(delta);
    });
  } catch (const ApiError& error) {
    out.event("error", messages_error_json(error));
    return;
  }
  blocks.close();
  send(out, {{"type", "message_delta"}, {"delta", ending(reply, result)}, {"usage", usage_json(result)}});
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

}  // namespace

HttpResponse messages(const HttpRequest& http, const ApiContext& api) {
  const ChatRequest request = parse_messages_request(http.body, api.rules, MessagesPurpose::kReply);
  const MessageReply message{"msg_" + random_id(), api.rules.settings.model.served_name, request.include_reasoning};
  std::vector<int32_t> prompt = chat_prompt_ids(request.prompt, api);
  if (!request.common.truncate_prompt) {
    check_room(static_cast<int64_t>(prompt.size()), *request.common.max_tokens, api.generator.context());
  }
  const std::chrono::seconds keepalive(api.rules.settings.api.sse_keepalive_s);
  const ReplyShapes shapes{[&](RunningReplies& replies) { return whole_reply(*replies.front(), message, http); },
                           [message, keepalive](RunningReplies& replies, SseWriter& out) {
                             stream_reply(*replies.front(), message, keepalive, out);
                           }};
  return answer({chat_generation(request, std::move(prompt), message.id, api)}, api, request.common.stream, shapes);
}

HttpResponse count_message_tokens(const HttpRequest& http, const ApiContext& api) {
  const ChatRequest request = parse_messages_request(http.body, api.rules, MessagesPurpose::kCount);
  HttpResponse response;
  response.body = dump(ordered_json{{"input_tokens", chat_prompt_ids(request.prompt, api).size()}});
  return response;
}

}  // namespace glm53::server
