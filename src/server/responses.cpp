#include "server/responses.h"

#include <charconv>
#include <chrono>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "server/api_error.h"
#include "server/chat_completions.h"
#include "server/completion_reply.h"
#include "server/responses_request.h"

namespace glm53::server {
namespace {

using nlohmann::ordered_json;
using text::PromptJson;
using text::ReplyChannel;

ordered_json number_json(const std::string& literal) {
  const char* begin = literal.data();
  const char* end = begin + literal.size();
  int64_t integer = 0;
  if (const auto read = std::from_chars(begin, end, integer); read.ec == std::errc() && read.ptr == end) return integer;
  double value = 0;
  const bool fits = std::from_chars(begin, end, value).ec == std::errc();
  // Only an integer of hundreds of digits does not fit, and a number too small to matter.
  if (!fits) value = literal.find_first_of("eE.") != std::string::npos ? 0 : std::numeric_limits<double>::max();
  return value;
}

/// As deep as parse_body lets a request be.
ordered_json to_json(const PromptJson& value) {
  switch (value.kind()) {
    case PromptJson::Kind::kNull:
      return nullptr;
    case PromptJson::Kind::kBool:
      return value.as_bool();
    case PromptJson::Kind::kNumber:
      return number_json(value.number_literal());
    case PromptJson::Kind::kString:
      return value.as_string();
    case PromptJson::Kind::kArray: {
      ordered_json::array_t items;
      for (const PromptJson& item : value.items()) items.push_back(to_json(item));
      return items;
    }
    case PromptJson::Kind::kObject: {
      ordered_json::object_t members;
      members.reserve(value.members().size());
      // Keys differ already; operator[] would compare each with all before it.
      for (const auto& [key, member] : value.members()) members.emplace_back(key, to_json(member));
      return members;
    }
  }
  return nullptr;
}

struct ResponseHead {
  std::string id;
  std::string model;
  std::time_t created;
  ordered_json echo;

  ordered_json object(const char* status, ordered_json output) const {
    ordered_json body = {{"id", id},
                         {"object", "response"},
                         {"created_at", created},
                         {"status", status},
                         {"background", false},
                         {"error", nullptr},
                         {"incomplete_details", nullptr},
                         {"model", model},
                         {"output", std::move(output)},
                         {"previous_response_id", nullptr},
                         {"store", false},
                         {"usage", nullptr}};
    body.update(echo);
    return body;
  }

  /// The response once its reply has ended.
  ordered_json ended(const engine::GenerationResult& result, ordered_json output) const {
    const bool cut = result.reason == engine::FinishReason::kLength;
    ordered_json body = object(cut ? "incomplete" : "completed", std::move(output));
    if (cut) body["incomplete_details"] = {{"reason", "max_output_tokens"}};
    body["usage"] = {{"input_tokens", result.prompt_tokens},
                     {"input_tokens_details", {{"cached_tokens", result.cached_tokens}}},
                     {"output_tokens", result.completion_tokens},
                     {"output_tokens_details", {{"reasoning_tokens", result.reasoning_tokens}}},
                     {"total_tokens", result.prompt_tokens + result.completion_tokens}};
    return body;
  }
};

// ---- output items

/// A stretch of one channel: reasoning, or a message of one text part.
struct OutputItem {
  ReplyChannel channel;
  std::string id;
  std::string text;

  explicit OutputItem(ReplyChannel of)
      : channel(of), id((of == ReplyChannel::kReasoning ? "rs_" : "msg_") + random_id()) {}

  bool is_reasoning() const { return channel == ReplyChannel::kReasoning; }
  /// The content part with this much text.
  ordered_json part(const std::string& shown) const {
    if (is_reasoning()) return {{"type", "reasoning_text"}, {"text", shown}};
    return {{"type", "output_text"},
            {"text", shown},
            {"annotations", ordered_json::array()},
            {"logprobs", ordered_json::array()}};
  }
  ordered_json json(const char* status, ordered_json content) const {
    if (is_reasoning()) {
      return {{"type", "reasoning"},
              {"id", id},
              {"summary", ordered_json::array()},
              {"content", std::move(content)},
              {"status", status}};
    }
    return {
        {"type", "message"}, {"id", id}, {"role", "assistant"}, {"status", status}, {"content", std::move(content)}};
  }
  ordered_json done(const char* status) const { return json(status, ordered_json::array({part(text)})); }
};

/// A reply that was cut was cut in its last item.
const char* last_status(const engine::GenerationResult& result) {
  return result.reason == engine::FinishReason::kLength ? "incomplete" : "completed";
}

ordered_json whole_reply(RunningReply& reply, const ResponseHead& head, const HttpRequest& http) {
  std::vector<OutputItem> items;
  const engine::GenerationResult result = reply.collect(http.client_gone, [&](engine::GenerationEvent& event) {
    for (const text::ReplyDelta& delta : event.deltas) {
      if (items.empty() || items.back().channel != delta.channel) items.emplace_back(delta.channel);
      items.back().text += delta.text;
    }
  });
  ordered_json output = ordered_json::array();
  for (size_t i = 0; i < items.size(); ++i) {
    output.push_back(items[i].done(i + 1 < items.size() ? "completed" : last_status(result)));
  }
  return head.ended(result, std::move(output));
}

/// The events of spec 40 §8, numbered from 0 without gaps.
class ResponseStream {
 public:
  ResponseStream(SseWriter& out, const ResponseHead& head) : out_(out), head_(head) {}

  void begin() {
    send("response.created", {{"response", head_.object("in_progress", ordered_json::array())}});
    send("response.in_progress", {{"response", head_.object("in_progress", ordered_json::array())}});
  }

  void add(const text::ReplyDelta& delta) {
    if (!item_ || item_->channel != delta.channel) {
      close("completed");
      open(delta.channel);
    }
    item_->text += delta.text;
    ordered_json event = place();
    event["delta"] = delta.text;
    if (!item_->is_reasoning()) event["logprobs"] = ordered_json::array();
    send(item_->is_reasoning() ? "response.reasoning_text.delta" : "response.output_text.delta", std::move(event));
  }

  void end(const engine::GenerationResult& result) {
    close(last_status(result));
    ordered_json response = head_.ended(result, std::move(output_));
    const std::string status = response["status"];
    send("response." + status, {{"response", std::move(response)}});
  }

  void fail(const ApiError& error) {
    close("incomplete");
    ordered_json response = head_.object("failed", std::move(output_));
    response["error"] = {{"code", "server_error"}, {"message", error.what()}};
    send("response.failed", {{"response", std::move(response)}});
  }

 private:
  void open(ReplyChannel channel) {
    item_.emplace(channel);
    send("response.output_item.added",
         {{"output_index", output_.size()}, {"item", item_->json("in_progress", ordered_json::array())}});
    ordered_json event = place();
    event["part"] = item_->part("");
    send("response.content_part.added", std::move(event));
  }

  void close(const char* status) {
    if (!item_) return;
    ordered_json event = place();
    event["text"] = item_->text;
    if (!item_->is_reasoning()) event["logprobs"] = ordered_json::array();
    send(item_->is_reasoning() ? "response.reasoning_text.done" : "response.output_text.done", std::move(event));
    event = place();
    event["part"] = item_->part(item_->text);
    send("response.content_part.done", std::move(event));
    ordered_json done = item_->done(status);
    send("response.output_item.done", {{"output_index", output_.size()}, {"item", done}});
    output_.push_back(std::move(done));
    item_.reset();
  }

  /// Where the open item's text is.
  ordered_json place() const {
    return {{"item_id", item_->id}, {"output_index", output_.size()}, {"content_index", 0}};
  }

  void send(const std::string& type, ordered_json fields) {
    ordered_json event = {{"type", type}, {"sequence_number", sequence_++}};
    for (auto& [key, value] : fields.items()) event[key] = std::move(value);
    out_.event(type, dump(event));
  }

  SseWriter& out_;
  const ResponseHead& head_;
  int64_t sequence_ = 0;
  std::optional<OutputItem> item_;  ///< the open one
  ordered_json output_ = ordered_json::array();
};

void stream_reply(RunningReply& reply, const ResponseHead& head, std::chrono::seconds keepalive, SseWriter& out) {
  ResponseStream stream(out, head);
  stream.begin();
  engine::GenerationResult result;
  try {
    result = reply.stream(out, keepalive, [&](engine::GenerationEvent& event) {
      for (const text::ReplyDelta& delta : event.deltas) stream.add(delta);
    });
  } catch (const ApiError& error) {
    stream.fail(error);
    return;
  }
  stream.end(result);
}

/// chat_generation with errors that name the fields of this API.
engine::GenerationRequest prepare(const ChatRequest& chat, const std::string& id, const ApiContext& api) {
  try {
    return chat_generation(chat, chat_prompt_ids(chat.prompt, api), id, api);
  } catch (ApiError& error) {
    if (error.param == "max_tokens") error.param = "max_output_tokens";
    if (error.param.compare(0, 8, "messages") == 0) error.param = "input";
    throw;
  }
}

}  // namespace

HttpResponse responses(const HttpRequest& http, const ApiContext& api) {
  const ResponsesRequest request = parse_responses_request(http.body, api.rules);
  const ResponseHead head{"resp_" + random_id(), api.rules.settings.model.served_name, std::time(nullptr),
                          to_json(request.echo)};
  const std::chrono::seconds keepalive(api.rules.settings.api.sse_keepalive_s);
  const ReplyShapes shapes{[&](RunningReplies& replies) { return whole_reply(*replies.front(), head, http); },
                           [head, keepalive](RunningReplies& replies, SseWriter& out) {
                             stream_reply(*replies.front(), head, keepalive, out);
                           }};
  return answer({prepare(request.chat, head.id, api)}, api, request.chat.common.stream, shapes);
}

}  // namespace glm53::server
