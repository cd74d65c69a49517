#include "server/responses.h"

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "server/api_error.h"
#include "server/chat_generation.h"
#include "server/completion_reply.h"
#include "server/random_id.h"
#include "server/reply_json.h"
#include "server/reply_parts.h"
#include "server/responses_request.h"

namespace glm53::server {
namespace {

using nlohmann::ordered_json;
using text::PromptJson;
using text::ReplyChannel;

/// The JSON of an object that has `members`, JSON already, after its own.
std::string with_members(const ordered_json& object, std::string_view members) {
  std::string text = dump(object);
  text.back() = ',';
  return text.append(members) += '}';
}

struct ResponseHead {
  std::string id;
  std::string model;
  std::time_t created;
  std::string echo;  ///< members of every response that repeat the request's fields, as JSON: trees of it are large
  ResponseTools tools;
  const ApiSettings& settings;

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
    return body;
  }

  /// The JSON of a response.
  std::string text(const ordered_json& response) const { return with_members(response, echo); }

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

/// A stretch of one channel: reasoning, a message of one text part, or a call.
class OutputItem {
 public:
  OutputItem(const text::ReplyDelta& first, const ResponseTools& tools) : channel_(first.channel), call_(first.call) {
    if (channel_ != ReplyChannel::kCall) {
      id_ = (is_reasoning() ? "rs_" : "msg_") + random_id();
      return;
    }
    const auto found = tools.find(first.tool_name);
    tool_ = found != tools.end() ? found->second : ResponseTool{{}, first.tool_name, false};
    id_ = (tool_.custom ? "ctc_" : "fc_") + random_id();
    call_id_ = call_id("call_");
  }

  bool holds(const text::ReplyDelta& delta) const { return channel_ == delta.channel && call_ == delta.call; }
  ReplyChannel channel() const { return channel_; }
  bool is_reasoning() const { return channel_ == ReplyChannel::kReasoning; }
  bool is_call() const { return channel_ == ReplyChannel::kCall; }
  bool is_custom() const { return is_call() && tool_.custom; }
  const std::string& id() const { return id_; }
  const std::string& name() const { return tool_.name; }
  void add(const std::string& piece) { text_ += piece; }
  /// What its last event repeats: the text, the arguments, or a custom tool's free text, which is an argument's value
  /// and unknown where the call was cut.
  std::string text() const {
    if (!is_custom()) return text_;
    try {
      const PromptJson arguments = PromptJson::parse(text_);
      const PromptJson* input = arguments.find("input");
      return input == nullptr ? std::string() : input->is_string() ? input->as_string() : input->dump();
    } catch (const PromptJson::ParseError&) {
      return {};
    }
  }

  /// The content part with this much text.
  ordered_json part(const std::string& shown) const {
    if (is_reasoning()) return {{"type", "reasoning_text"}, {"text", shown}};
    return {{"type", "output_text"},
            {"text", shown},
            {"annotations", ordered_json::array()},
            {"logprobs", ordered_json::array()}};
  }
  ordered_json opened() const {
    return is_call() ? call("in_progress", "") : json("in_progress", ordered_json::array());
  }
  ordered_json done(const char* status) const {
    return is_call() ? call(status, text()) : json(status, ordered_json::array({part(text_)}));
  }

 private:
  ordered_json json(const char* status, ordered_json content) const {
    if (is_reasoning()) {
      return {{"type", "reasoning"},
              {"id", id_},
              {"summary", ordered_json::array()},
              {"content", std::move(content)},
              {"status", status}};
    }
    return {
        {"type", "message"}, {"id", id_}, {"role", "assistant"}, {"status", status}, {"content", std::move(content)}};
  }
  ordered_json call(const char* status, const std::string& input) const {
    ordered_json item = {{"type", is_custom() ? "custom_tool_call" : "function_call"},
                         {"id", id_},
                         {"call_id", call_id_},
                         {"name", tool_.name}};
    if (!tool_.space.empty()) item["namespace"] = tool_.space;
    item[is_custom() ? "input" : "arguments"] = input;
    item["status"] = status;
    return item;
  }

  ReplyChannel channel_;
  int call_;
  std::string id_;
  std::string call_id_;
  ResponseTool tool_;
  std::string text_;
};

/// Of a reply's last item: whether it was being written when the reply was cut, or something that came to no item.
const char* last_status(const OutputItem& item, const engine::GenerationResult& result) {
  return result.cut_channel == item.channel() ? "incomplete" : "completed";
}

std::string whole_reply(RunningReplies& replies, const ResponseHead& head, const HttpRequest& http) {
  ReplyParts parts;
  replies.collect(http.client_gone,
                  [&](size_t, engine::GenerationEvent& event) { parts.add(std::move(event.deltas)); });
  const RunningReply& reply = replies[0];
  const std::vector<text::ReplyDelta> all = parts.take(reply, head.settings);
  ordered_json output = ordered_json::array();
  for (size_t i = 0; i < all.size(); ++i) {
    OutputItem item(all[i], head.tools);
    item.add(all[i].text);
    output.push_back(item.done(i + 1 < all.size() ? "completed" : last_status(item, *reply.result())));
  }
  return head.text(head.ended(*reply.result(), std::move(output)));
}

/// The events of spec 40 §8, numbered from 0 without gaps.
class ResponseStream {
 public:
  ResponseStream(SseWriter& out, const ResponseHead& head) : out_(out), head_(head) {}

  void begin() {
    for (const char* type : {"response.created", "response.in_progress"}) {
      send_response(type, head_.object("in_progress", ordered_json::array()));
    }
  }

  void add(const text::ReplyDelta& delta) {
    if (!item_ || !item_->holds(delta)) {
      close("completed");
      open(delta);
    }
    item_->add(delta.text);
    // The free text of a custom tool is in the arguments' JSON, to be had once that is complete.
    if (!delta.text.empty() && !item_->is_custom()) send_delta(delta.text);
  }

  void end(const engine::GenerationResult& result) {
    if (item_) close(last_status(*item_, result));
    const ordered_json response = head_.ended(result, std::move(output_));
    send_response("response." + response["status"].get<std::string>(), response);
  }

  void fail(const ApiError& error) {
    close("incomplete");
    ordered_json response = head_.object("failed", std::move(output_));
    // The code of this API for what would fail again: clients ask once more after a server_error.
    const char* const code = error.status == 400 ? "invalid_prompt" : "server_error";
    response["error"] = {{"code", code}, {"message", error.what()}};
    send_response("response.failed", response);
  }

 private:
  void open(const text::ReplyDelta& first) {
    item_.emplace(first, head_.tools);
    send("response.output_item.added", {{"output_index", output_.size()}, {"item", item_->opened()}});
    if (item_->is_call()) return;
    ordered_json event = place();
    event["part"] = item_->part("");
    send("response.content_part.added", std::move(event));
  }

  /// The events of the open item's text are named after this.
  const char* text_event() const {
    return item_->is_reasoning() ? "response.reasoning_text"
           : item_->is_custom()  ? "response.custom_tool_call_input"
           : item_->is_call()    ? "response.function_call_arguments"
                                 : "response.output_text";
  }

  void send_delta(const std::string& text) {
    ordered_json event = place();
    event["delta"] = text;
    if (!item_->is_reasoning() && !item_->is_call()) event["logprobs"] = ordered_json::array();
    send(std::string(text_event()) + ".delta", std::move(event));
  }

  void close(const char* status) {
    if (!item_) return;
    const std::string text = item_->text();
    if (item_->is_custom() && !text.empty()) send_delta(text);
    ordered_json event = place();
    if (item_->is_call()) {
      if (!item_->is_custom()) event["name"] = item_->name();
      event[item_->is_custom() ? "input" : "arguments"] = text;
    } else {
      event["text"] = text;
      if (!item_->is_reasoning()) event["logprobs"] = ordered_json::array();
    }
    send(std::string(text_event()) + ".done", std::move(event));
    if (!item_->is_call()) {
      event = place();
      event["part"] = item_->part(text);
      send("response.content_part.done", std::move(event));
    }
    ordered_json done = item_->done(status);
    send("response.output_item.done", {{"output_index", output_.size()}, {"item", done}});
    output_.push_back(std::move(done));
    item_.reset();
  }

  /// Where the open item's text is.
  ordered_json place() const {
    ordered_json place = {{"item_id", item_->id()}, {"output_index", output_.size()}};
    if (!item_->is_call()) place["content_index"] = 0;
    return place;
  }

  void send_response(const std::string& type, const ordered_json& response) {
    const ordered_json event = {{"type", type}, {"sequence_number", sequence_++}};
    out_.event(type, with_members(event, R"("response":)" + head_.text(response)));
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

void stream_reply(RunningReplies& replies, const ResponseHead& head, SseWriter& out) {
  ResponseStream stream(out, head);
  stream.begin();
  try {
    replies.stream(out, {}, [&](size_t, engine::GenerationEvent& event) {
      for (const text::ReplyDelta& delta : event.deltas) stream.add(delta);
    });
  } catch (const ApiError& error) {
    stream.fail(error);
    return;
  }
  stream.end(*replies[0].result());
}

/// chat_generation with errors that name the fields of this API.
engine::GenerationRequest generation_of(const ChatRequest& chat, const std::string& id, const HttpRequest& http,
                                        const ApiContext& api) {
  try {
    std::vector<int32_t> prompt = chat_prompt_ids(
        chat.prompt, api, [&](int64_t least) { check_text_fits(chat.common, least, chat.prompt_field, api); });
    return chat_generation(chat, std::move(prompt), id, http, api);
  } catch (ApiError& error) {
    if (error.param == "max_tokens") error.param = "max_output_tokens";
    if (error.param.compare(0, 8, "messages") == 0) error.param = "input";
    throw;
  }
}

/// An object's members without its braces.
std::string members_of(const PromptJson& object) {
  const std::string text = dump(to_json(object));
  return text.substr(1, text.size() - 2);
}

PreparedReply prepare(const HttpRequest& http, const ApiContext& api) {
  const ResponsesRequest request = parse_responses_request(http.body, api.rules);
  const auto head = std::make_shared<const ResponseHead>(ResponseHead{"resp_" + random_id(), request.chat.common.model,
                                                                      std::time(nullptr), members_of(request.echo),
                                                                      request.tools, api.rules.settings.api});
  PreparedReply prepared;
  prepared.stream = request.chat.common.stream;
  prepared.kept = head->echo.size();
  prepared.shapes = {[head, &http](RunningReplies& replies) { return whole_reply(replies, *head, http); },
                     [head](RunningReplies& replies, SseWriter& out) { stream_reply(replies, *head, out); }};
  prepared.choices.push_back(generation_of(request.chat, head->id, http, api));
  return prepared;
}

}  // namespace

HttpResponse responses(const HttpRequest& http, const ApiContext& api) { return answer(prepare(http, api), http, api); }

}  // namespace glm53::server
