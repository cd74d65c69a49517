// POST /v1/responses: what reaches the engine, and both shapes of the reply.
#include <set>

#include <gmock/gmock.h>

#include "api_test.h"

namespace glm53::server {
namespace {

using engine::FinishReason;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using text::ReplyChannel;

class ResponsesTest : public ApiTest {
 protected:
  RawReply send(const std::string& body) { return ask(post("/v1/responses", body)); }
  /// A response to "hi".
  RawReply say_hi(const std::string& fields = {}) {
    return send(R"({"input":"hi")" + (fields.empty() ? "" : ',' + fields) + '}');
  }
  /// The prompt of this input, without its head.
  std::string prompt_of(const std::string& input, const std::string& fields = {}) {
    const RawReply reply =
        send(R"({"reasoning":{"effort":"none"},"input":)" + input + (fields.empty() ? "" : ',' + fields) + '}');
    EXPECT_EQ(reply.status, 200) << reply.body;
    const std::string head = "[gMASK]<sop>";
    EXPECT_THAT(last_prompt(), StartsWith(head));
    return last_prompt().substr(head.size());
  }
};

TEST_F(ResponsesTest, WholeReply) {
  const RawReply reply =
      say_hi(R"("instructions":"Be brief.","temperature":0.5,"max_output_tokens":50,"metadata":{"k":"v"},"store":true,)"
             R"("include":["reasoning.encrypted_content"],"truncation":"auto","user":"u")");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json body = json::parse(reply.body);
  EXPECT_THAT(body["id"].get<std::string>(), StartsWith("resp_"));
  EXPECT_EQ(body["object"], "response");
  EXPECT_EQ(body["status"], "completed");
  EXPECT_EQ(body["model"], "served");
  EXPECT_TRUE(body["created_at"].is_number_integer());
  ASSERT_EQ(body["output"].size(), 2U);
  const json& reasoning = body["output"][0];
  EXPECT_EQ(reasoning["type"], "reasoning");
  EXPECT_EQ(reasoning["summary"], json::array());
  EXPECT_EQ(reasoning["content"], json::parse(R"([{"type":"reasoning_text","text":"think"}])"));
  const json& message = body["output"][1];
  EXPECT_EQ(message["type"], "message");
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["status"], "completed");
  EXPECT_EQ(message["content"],
            json::parse(R"([{"type":"output_text","text":"answer","annotations":[],"logprobs":[]}])"));
  EXPECT_NE(message["id"], reasoning["id"]);
  EXPECT_TRUE(body["error"].is_null());
  EXPECT_TRUE(body["incomplete_details"].is_null());

  const engine::GenerationRequest request = generator_.last();
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  EXPECT_EQ(body["usage"], (json{{"input_tokens", prompt},
                                 {"input_tokens_details", {{"cached_tokens", 2}}},
                                 {"output_tokens", 7},
                                 {"output_tokens_details", {{"reasoning_tokens", 3}}},
                                 {"total_tokens", prompt + 7}}));
  EXPECT_EQ(last_prompt(),
            "[gMASK]<sop><|system|>Reasoning Effort: Max<|system|>Be brief.<|user|>hi<|assistant|><think>");
  EXPECT_EQ(request.id, body["id"]);
  EXPECT_EQ(request.max_tokens, 50);
  EXPECT_FLOAT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_EQ(request.end_ids.size(), 4U);

  EXPECT_EQ(body["instructions"], "Be brief.");
  EXPECT_EQ(body["temperature"], 0.5);
  EXPECT_EQ(body["max_output_tokens"], 50);
  EXPECT_EQ(body["metadata"], json::parse(R"({"k":"v"})"));
  EXPECT_EQ(body["truncation"], "auto");
  EXPECT_EQ(body["store"], false);
}

TEST_F(ResponsesTest, FieldsNotGivenAreShownWithTheirDefaults) {
  const json body = json::parse(say_hi().body);
  EXPECT_TRUE(body["instructions"].is_null());
  EXPECT_TRUE(body["max_output_tokens"].is_null());
  EXPECT_EQ(body["tools"], json::array());
  EXPECT_EQ(body["tool_choice"], "auto");
  EXPECT_EQ(body["parallel_tool_calls"], true);
  EXPECT_EQ(body["temperature"], 1.0);
  EXPECT_EQ(body["text"], json::parse(R"({"format":{"type":"text"}})"));
  EXPECT_EQ(body["metadata"], json::object());
  EXPECT_EQ(generator_.last().max_tokens, 100);
}

TEST_F(ResponsesTest, MetadataIsBounded) {
  const auto refused = [this](const json& metadata) {
    const RawReply reply = say_hi("\"metadata\":" + metadata.dump());
    return reply.status == 200 ? std::string() : json::parse(reply.body)["error"]["param"].get<std::string>();
  };
  json pairs = json::object();
  for (int i = 0; i < 16; ++i) pairs["key" + std::to_string(i)] = "";
  EXPECT_EQ(refused(pairs), "");
  pairs["one more"] = "";
  EXPECT_EQ(refused(pairs), "metadata");
  std::string key, value;  // of two bytes a character
  for (int i = 0; i < 64; ++i) key += "\xC3\xA4";
  for (int i = 0; i < 512; ++i) value += "\xC3\xA4";
  EXPECT_EQ(refused({{key, value}}), "");
  EXPECT_EQ(refused({{key + "a", value}}), "metadata");
  EXPECT_EQ(refused({{"k", value + "a"}}), "metadata.k");
  for (const json& other : {json(1), json(nullptr), json::array(), json::object()}) {
    EXPECT_EQ(refused({{"k", other}}), "metadata.k");
  }
}

TEST_F(ResponsesTest, EchoedValuesOfAnySize) {
  const std::string big(400, '9');
  const json body = json::parse(
      say_hi(R"("reasoning":{"i":-7,"u":1e-999,"f":0.25,"n":null,"big":)" + big + R"(,"list":[1,{"a":true}]})").body);
  EXPECT_EQ(body["reasoning"]["i"], -7);
  EXPECT_EQ(body["reasoning"]["u"], 0.0);
  EXPECT_EQ(body["reasoning"]["f"], 0.25);
  EXPECT_TRUE(body["reasoning"]["n"].is_null());
  EXPECT_TRUE(body["reasoning"]["big"].is_number());
  EXPECT_EQ(body["reasoning"]["list"], json::parse(R"([1,{"a":true}])"));
}

TEST_F(ResponsesTest, ACutReplyIsIncomplete) {
  reply_with({{ReplyChannel::kReasoning, "a"}, {ReplyChannel::kContent, "b"}}, [](auto& result) {
    result.reason = FinishReason::kLength;
    result.cut_channel = ReplyChannel::kContent;
  });
  const json body = json::parse(say_hi().body);
  EXPECT_EQ(body["status"], "incomplete");
  EXPECT_EQ(body["incomplete_details"], json::parse(R"({"reason":"max_output_tokens"})"));
  EXPECT_EQ(body["output"][0]["status"], "completed");
  EXPECT_EQ(body["output"][1]["status"], "incomplete");
  const auto events = named_events(say_hi(R"("stream":true)").body);
  EXPECT_EQ(events.back()["type"], "response.incomplete");
  EXPECT_EQ(events.back()["response"]["output"][1]["status"], "incomplete");
}

TEST_F(ResponsesTest, OnlyTheItemThatWasBeingWrittenIsIncomplete) {
  using Channel = std::optional<ReplyChannel>;
  const auto statuses = [&](std::vector<text::ReplyDelta> deltas, Channel cut) {
    reply_with(std::move(deltas), [cut](auto& result) {
      result.reason = FinishReason::kLength;
      result.cut_channel = cut;
    });
    const json whole = json::parse(say_hi().body);
    const json streamed = named_events(say_hi(R"("stream":true)").body).back()["response"];
    EXPECT_EQ(whole["status"], "incomplete");
    EXPECT_EQ(streamed["status"], "incomplete");
    std::vector<std::string> all;
    for (size_t i = 0; i < whole["output"].size(); ++i) {
      all.push_back(whole["output"][i]["status"]);
      EXPECT_EQ(streamed["output"][i]["status"], all.back());
    }
    return all;
  };
  const text::ReplyDelta reasoning{ReplyChannel::kReasoning, "a"}, content{ReplyChannel::kContent, "b"},
      call{ReplyChannel::kCall, "{}", 0, "f"};
  EXPECT_THAT(statuses({reasoning}, ReplyChannel::kReasoning), ElementsAre("incomplete"));
  EXPECT_THAT(statuses({reasoning}, ReplyChannel::kContent), ElementsAre("completed"));
  EXPECT_THAT(statuses({reasoning, content}, std::nullopt), ElementsAre("completed", "completed"));
  EXPECT_THAT(statuses({content, call}, ReplyChannel::kContent), ElementsAre("completed", "completed"));
  EXPECT_THAT(statuses({content, call}, ReplyChannel::kCall), ElementsAre("completed", "incomplete"));
}

TEST_F(ResponsesTest, Effort) {
  say_hi(R"("reasoning":{"effort":"low","summary":"auto"})");
  EXPECT_THAT(last_prompt(), HasSubstr("Effort: Low"));
  say_hi(R"("reasoning":{"effort":"none"})");
  EXPECT_THAT(last_prompt(), testing::EndsWith("<think></think>"));
  say_hi(R"("reasoning":{"effort":null})");
  EXPECT_THAT(last_prompt(), testing::EndsWith("<think>"));
  say_hi(R"("chat_template_kwargs":{"enable_thinking":false})");
  EXPECT_THAT(last_prompt(), testing::EndsWith("<think></think>"));
}

// ---- the prompt

TEST_F(ResponsesTest, ItemsOfOneTurnAreMerged) {
  EXPECT_EQ(prompt_of(R"([{"role":"developer","content":"D"},
    {"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
    {"type":"reasoning","summary":[{"type":"summary_text","text":"s"}],
     "content":[{"type":"reasoning_text","text":"r1"}],"encrypted_content":"x"},
    {"type":"message","role":"assistant","content":[{"type":"output_text","text":"I look","annotations":[]},
     {"type":"refusal","refusal":"no"}]},
    {"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":"{\"n\": 1}"},
    {"type":"function_call","call_id":"c2","name":"g","arguments":""},
    {"type":"function_call_output","call_id":"c2","output":"two"},
    {"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"one"}]},
    {"type":"reasoning","summary":[{"type":"summary_text","text":"r2"}]},
    {"type":"message","role":"assistant","content":"done"},
    {"role":"user","content":"more"}])"),
            "<|system|>D<|user|>ab<|assistant|><think>r1</think>I look"
            "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value></tool_call><tool_call>g</tool_call>"
            "<|observation|><tool_response>one</tool_response><tool_response>two</tool_response>"
            "<|assistant|><think>r2</think>done<|user|>more<|assistant|><think></think>");
}

TEST_F(ResponsesTest, TurnsThatFollowEachOtherStayApart) {
  EXPECT_EQ(prompt_of(R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"},
    {"role":"assistant","content":"b"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
    {"role":"assistant","content":"c"},{"role":"user","content":"q2"}])"),
            "<|user|>q<|assistant|><think></think>a<|assistant|><think></think>b<tool_call>f</tool_call>"
            "<|assistant|><think></think>c<|user|>q2<|assistant|><think></think>");
}

TEST_F(ResponsesTest, ItemsOfCodingAgents) {
  EXPECT_EQ(prompt_of(R"([{"role":"user","content":"q"},{"type":"item_reference","id":"x"},
    {"type":"agent_message","text":"hm"},
    {"type":"custom_tool_call","call_id":"c","name":"apply_patch","input":"*** Begin"},
    {"type":"custom_tool_call_output","call_id":"c","output":"ok"},
    {"type":"function_call","call_id":"d","namespace":"ns","name":"t","arguments":{"a":"b"}},
    {"type":"web_search_call","id":"w"},{"type":"from_the_future","x":[1]}])"),
            "<|user|>q<|user|>[An earlier part of the conversation is not available.]<|assistant|><think></think>hm"
            "<tool_call>apply_patch<arg_key>input</arg_key><arg_value>*** Begin</arg_value></tool_call>"
            "<|observation|><tool_response>ok</tool_response><|assistant|><think></think>"
            "<tool_call>ns__t<arg_key>a</arg_key><arg_value>b</arg_value></tool_call>"
            "<|user|>[A web search was made here.]<|assistant|><think></think>");
}

TEST_F(ResponsesTest, ToolsAreRenderedAsFunctions) {
  const std::string prompt = prompt_of(R"("q")", R"("tools":[
    {"type":"function","name":"f","description":null,"parameters":{"type":"object","properties":{}},"strict":true},
    {"type":"web_search"},{"type":"function","function":{"name":"nested"}},
    {"type":"namespace","name":"ns","tools":[{"type":"function","name":"t","parameters":{}}]},
    {"type":"custom","name":"patch","description":"d","format":{"type":"grammar"}}])");
  EXPECT_THAT(prompt, HasSubstr("<tools>\n"
                                R"({"name": "f", "parameters": {"type": "object", "properties": {}}})"
                                "\n"
                                R"({"name": "nested"})"
                                "\n"
                                R"({"name": "ns__t", "parameters": {}})"
                                "\n"
                                R"({"name": "patch", "description": "d", "parameters": {"type": "object", )"
                                R"("properties": {"input": {"type": "string"}}, "required": ["input"]}})"
                                "\n</tools>"));
}

// ---- streamed

TEST_F(ResponsesTest, StreamedEvents) {
  reply_with({{ReplyChannel::kReasoning, "th"},
              {ReplyChannel::kReasoning, "ink"},
              {ReplyChannel::kContent, "ans"},
              {ReplyChannel::kContent, "wer"}});
  const RawReply reply = say_hi(R"("stream":true)");
  EXPECT_EQ(reply.header("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_THAT(reply.body, Not(HasSubstr("[DONE]")));
  const auto events = named_events(reply.body);
  std::vector<std::string> types;
  std::map<std::string, std::string> deltas, dones;  // by item
  std::map<std::string, int> place;
  for (size_t i = 0; i < events.size(); ++i) {
    const json& event = events[i];
    EXPECT_EQ(event["sequence_number"], i);
    types.push_back(event["type"]);
    if (event.contains("item_id")) {
      EXPECT_EQ(event["content_index"], 0);
      const auto [at, fresh] = place.emplace(event["item_id"], event["output_index"]);
      EXPECT_EQ(at->second, event["output_index"]);
    }
    if (event.contains("delta")) deltas[event["item_id"]] += event["delta"].get<std::string>();
    if (event.contains("text")) dones[event["item_id"]] = event["text"];
  }
  types.erase(std::unique(types.begin(), types.end()), types.end());
  EXPECT_THAT(
      types, ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added", "response.reasoning_text.delta", "response.reasoning_text.done",
                         "response.content_part.done", "response.output_item.done", "response.output_item.added",
                         "response.content_part.added", "response.output_text.delta", "response.output_text.done",
                         "response.content_part.done", "response.output_item.done", "response.completed"));
  EXPECT_EQ(deltas, dones);
  EXPECT_EQ(place.size(), 2U);
  EXPECT_EQ(events[0]["response"]["status"], "in_progress");
  EXPECT_TRUE(events[0]["response"]["usage"].is_null());
  const json& last = events.back()["response"];
  EXPECT_EQ(last["id"], events[0]["response"]["id"]);
  EXPECT_EQ(last["status"], "completed");
  EXPECT_EQ(last["output"][0]["content"][0]["text"], "think");
  EXPECT_EQ(last["output"][1]["content"][0]["text"], "answer");
  EXPECT_EQ(last["usage"]["output_tokens"], 7);
  std::vector<json> items;
  for (const json& event : events) {
    if (event["type"] == "response.output_item.done") items.push_back(event["item"]);
  }
  EXPECT_EQ(last["output"], json(items));
}

TEST_F(ResponsesTest, AFailedStreamEndsWithItsEvent) {
  reply_with({{ReplyChannel::kContent, "a"}}, [](auto& result) {
    result.reason = FinishReason::kFailed;
    result.error = "broken";
  });
  const auto events = named_events(say_hi(R"("stream":true)").body);
  EXPECT_EQ(events.back()["type"], "response.failed");
  EXPECT_EQ(events.back()["response"]["status"], "failed");
  EXPECT_EQ(events.back()["response"]["error"], json::parse(R"({"code":"server_error","message":"broken"})"));
  EXPECT_EQ(events.back()["response"]["output"][0]["content"][0]["text"], "a");
  EXPECT_EQ(say_hi().status, 500);
}

TEST_F(ResponsesTest, AStreamThatItsOwnRequestEndsIsNoErrorOfTheServer) {
  reply_with({{ReplyChannel::kContent, "a"}}, [](auto& result) {
    result.reason = FinishReason::kFailed;
    result.no_token = true;
    result.error = "no way on";
  });
  const auto events =
      named_events(say_hi(R"("stream":true,"text":{"format":{"type":"json_schema","schema":{"type":"null"}}})").body);
  EXPECT_EQ(events.back()["response"]["error"],
            json::parse(R"({"code":"invalid_prompt","message":"text.format.schema: no way on"})"));
}

TEST_F(ResponsesTest, LeavingCancels) {
  std::atomic<bool> started{false}, cancelled{false};
  generator_.script = [&](engine::Generation& generation, const engine::GenerationRequest& request) {
    started = true;
    cancelled = run_until_cancelled(generation);
    generation.finish(result_of(request, FinishReason::kCancelled));
  };
  start();
  {
    RawClient client(server_->port());
    client.send(post("/v1/responses", R"({"input":"hi","stream":true})"));
    while (!started) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (int i = 0; i < 4000 && !cancelled; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(cancelled);
}

// ---- refusals

TEST_F(ResponsesTest, RefusalsNameTheField) {
  const auto refused = [&](const std::string& body) {
    const RawReply reply = send(body);
    EXPECT_EQ(reply.status, 400) << body;
    const json error = json::parse(reply.body).at("error");
    EXPECT_EQ(error["type"], "invalid_request_error");
    return error["param"].is_null() ? "-" : error["param"].get<std::string>();
  };
  const auto with = [&](const std::string& fields) { return refused(R"({"input":"hi",)" + fields + '}'); };
  const auto item = [&](const std::string& value) { return refused(R"({"input":[)" + value + "]}"); };
  EXPECT_EQ(refused("{"), "-");
  EXPECT_EQ(refused("{}"), "input");
  EXPECT_EQ(refused(R"({"input":7})"), "input");
  EXPECT_EQ(refused(R"({"input":[]})"), "input");
  EXPECT_EQ(item("7"), "input[0]");
  EXPECT_EQ(item(R"({"role":"wizard","content":"x"})"), "input[0].role");
  EXPECT_EQ(item(R"({"role":"user"})"), "input[0].content");
  EXPECT_EQ(item(R"({"role":"user","content":7})"), "input[0].content");
  EXPECT_EQ(item(R"({"role":"user","content":[{"type":"input_image","image_url":"x"}]})"), "input[0].content[0]");
  EXPECT_EQ(item(R"({"role":"user","content":[{"type":"wizardry"}]})"), "input[0].content[0].type");
  EXPECT_EQ(item(R"({"role":"user","content":[{"type":"input_text"}]})"), "input[0].content[0].text");
  EXPECT_EQ(item(R"({"type":"function_call","name":"f"})"), "input[0].call_id");
  EXPECT_EQ(item(R"({"type":"function_call","call_id":"c"})"), "input[0].name");
  EXPECT_EQ(item(R"({"type":"function_call","call_id":"c","name":"f","arguments":7})"), "input[0].arguments");
  EXPECT_EQ(item(R"({"type":"function_call_output","call_id":"c"})"), "input[0].output");
  EXPECT_EQ(item(R"({"type":"function_call_output","call_id":"c","output":[{"type":"input_image"}]})"),
            "input[0].output[0]");
  EXPECT_EQ(item(R"({"type":"reasoning","content":[{}]})"), "input[0].content[0].text");
  EXPECT_EQ(with(R"("instructions":7)"), "instructions");
  EXPECT_EQ(with(R"("max_output_tokens":0)"), "max_output_tokens");
  EXPECT_EQ(with(R"("max_output_tokens":600)"), "max_output_tokens");
  EXPECT_EQ(with(R"("temperature":"1")"), "temperature");
  EXPECT_EQ(with(R"("n":2)"), "n");
  EXPECT_EQ(with(R"("include":"all")"), "include");
  EXPECT_EQ(with(R"("include":["everything"])"), "include[0]");
  EXPECT_EQ(with(R"("previous_response_id":"resp_1")"), "previous_response_id");
  EXPECT_EQ(with(R"("conversation":"c")"), "conversation");
  EXPECT_EQ(with(R"("background":true)"), "background");
  EXPECT_EQ(with(R"("top_logprobs":2)"), "top_logprobs");
  EXPECT_EQ(with(R"("text":{"format":{"type":"grammar"}})"), "text.format.type");
  EXPECT_EQ(with(R"("text":{"format":{}})"), "text.format.type");
  EXPECT_EQ(with(R"("reasoning":{"effort":"most"})"), "reasoning.effort");
  EXPECT_EQ(with(R"("reasoning":"high")"), "reasoning");
  EXPECT_EQ(with(R"("truncation":"some")"), "truncation");
  EXPECT_EQ(with(R"("metadata":[])"), "metadata");
  EXPECT_EQ(with(R"("tools":[7])"), "tools[0]");
  EXPECT_EQ(with(R"("tools":[{"type":"function"}])"), "tools[0].name");
  EXPECT_EQ(with(R"("tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":7}]}])"),
            "tools[0].tools[0].name");
  EXPECT_EQ(with(R"("tool_choice":"required")"), "tool_choice");
  EXPECT_EQ(with(R"("tool_choice":"sometimes")"), "tool_choice");
  EXPECT_EQ(with(R"("parallel_tool_calls":"no")"), "parallel_tool_calls");
  EXPECT_EQ(with(R"("model":7)"), "model");
  EXPECT_EQ(generator_.count(), 0U);
  EXPECT_EQ(send(R"({"input":"hi","model":"other"})").status, 404);
  generator_.refuse = engine::SubmitError::Kind::kQueueFull;
  EXPECT_EQ(say_hi(R"("stream":true)").status, 429);
}

}  // namespace
}  // namespace glm53::server
