// POST /v1/messages and /v1/messages/count_tokens: what reaches the engine, and both shapes of the reply.
#include <gmock/gmock.h>

#include "api_test.h"

namespace glm53::server {
namespace {

using engine::FinishReason;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using text::ReplyChannel;

constexpr const char* kThink = R"("thinking":{"type":"enabled","budget_tokens":1024})";

class MessagesTest : public ApiTest {
 protected:
  RawReply send(const std::string& body) { return ask(post("/v1/messages", body)); }
  /// A message with the user's "hi".
  RawReply say_hi(const std::string& fields = {}) {
    return send(R"({"max_tokens":50,"messages":[{"role":"user","content":"hi"}])" +
                (fields.empty() ? "" : ',' + fields) + '}');
  }
  /// The prompt of these messages, without its head.
  std::string prompt_of(const std::string& messages, const std::string& fields = {}) {
    const RawReply reply = send(R"({"max_tokens":5,"thinking":{"type":"disabled"},"messages":)" + messages +
                                (fields.empty() ? "" : ',' + fields) + '}');
    EXPECT_EQ(reply.status, 200) << reply.body;
    const std::string head = "[gMASK]<sop>";
    EXPECT_THAT(last_prompt(), StartsWith(head));
    return last_prompt().substr(head.size());
  }
  /// The error object of a refusal.
  static json error_of(const RawReply& reply) {
    const json body = json::parse(reply.body);
    EXPECT_EQ(body["type"], "error");
    return body.at("error");
  }
};

TEST_F(MessagesTest, WholeReply) {
  const RawReply reply = say_hi(std::string(kThink) + R"(,"temperature":0.5,"top_k":7,"system":"Be brief.")");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json body = json::parse(reply.body);
  EXPECT_THAT(body["id"].get<std::string>(), StartsWith("msg_"));
  EXPECT_EQ(body["type"], "message");
  EXPECT_EQ(body["role"], "assistant");
  EXPECT_EQ(body["model"], "served");
  ASSERT_EQ(body["content"].size(), 2U);
  EXPECT_EQ(body["content"][0]["type"], "thinking");
  EXPECT_EQ(body["content"][0]["thinking"], "think");
  EXPECT_NE(body["content"][0]["signature"], "");
  EXPECT_EQ(body["content"][1], json::parse(R"({"type":"text","text":"answer"})"));
  EXPECT_EQ(body["stop_reason"], "end_turn");
  EXPECT_TRUE(body["stop_sequence"].is_null());
  const engine::GenerationRequest request = generator_.last();
  EXPECT_EQ(body["usage"]["input_tokens"], request.prompt.size() - 2);
  EXPECT_EQ(body["usage"]["cache_read_input_tokens"], 2);
  EXPECT_EQ(body["usage"]["cache_creation_input_tokens"], 0);
  EXPECT_EQ(body["usage"]["output_tokens"], 7);

  EXPECT_EQ(last_prompt(),
            "[gMASK]<sop><|system|>Reasoning Effort: Max<|system|>Be brief.<|user|>hi<|assistant|><think>");
  EXPECT_EQ(request.id, body["id"]);
  EXPECT_EQ(request.max_tokens, 50);
  EXPECT_FLOAT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_EQ(request.end_ids.size(), 4U);
  EXPECT_TRUE(request.reply.split_reasoning);
}

TEST_F(MessagesTest, ThinkingIsShownOnlyWhenAskedFor) {
  EXPECT_EQ(json::parse(say_hi().body)["content"], json::parse(R"([{"type":"text","text":"answer"}])"));
  EXPECT_THAT(last_prompt(), testing::EndsWith("<think>"));
  EXPECT_EQ(json::parse(say_hi(R"("thinking":{"type":"adaptive"})").body)["content"].size(), 2U);
  EXPECT_EQ(json::parse(say_hi(R"("thinking":{"type":"disabled"})").body)["content"].size(), 1U);
  EXPECT_THAT(last_prompt(), testing::EndsWith("<think></think>"));
  EXPECT_FALSE(generator_.last().reply.thinking);
  server_.reset();
  settings_.api.anthropic_default_thinking = "off";
  say_hi();
  EXPECT_THAT(last_prompt(), testing::EndsWith("<think></think>"));
  say_hi(kThink);
  EXPECT_THAT(last_prompt(), testing::EndsWith("<think>"));
}

TEST_F(MessagesTest, Effort) {
  say_hi(R"("output_config":{"effort":"low"})");
  EXPECT_THAT(last_prompt(), HasSubstr("Effort: Low"));
  say_hi(R"("output_config":{"effort":"medium"})");
  EXPECT_THAT(last_prompt(), HasSubstr("Effort: Max"));
  say_hi(R"("output_config":{"effort":"high"},"thinking":{"type":"disabled"})");
  EXPECT_THAT(last_prompt(), testing::EndsWith("<think></think>"));  // effort is no switch
}

TEST_F(MessagesTest, StopReasons) {
  reply_with({}, [](auto& result) { result.reason = FinishReason::kLength; });
  json body = json::parse(say_hi().body);
  EXPECT_EQ(body["stop_reason"], "max_tokens");
  EXPECT_EQ(body["content"], json::array());
  reply_with({}, [](auto& result) { result.stop_string.emplace("END"); });
  body = json::parse(say_hi(R"("stop_sequences":["END","x"])").body);
  EXPECT_THAT(generator_.last().reply.stop, ElementsAre("END", "x"));
  EXPECT_EQ(body["stop_reason"], "stop_sequence");
  EXPECT_EQ(body["stop_sequence"], "END");
  reply_with({}, [](auto& result) { result.stop_id = tiny_tokenizer().require_added("<|user|>"); });
  EXPECT_EQ(json::parse(say_hi().body)["stop_reason"], "end_turn");
}

// ---- the prompt

TEST_F(MessagesTest, SystemBlocksAreJoinedWithoutTheBillingHeader) {
  const std::string user = R"([{"role":"user","content":"hi"}])";
  const std::string rest = "<|user|>hi<|assistant|><think></think>";
  EXPECT_EQ(prompt_of(user, R"("system":[{"type":"text","text":"x-anthropic-billing-header: 1"},
                                         {"type":"text","text":"A","cache_control":{"type":"ephemeral"}},
                                         {"type":"text","text":"B"}])"),
            "<|system|>AB" + rest);
  EXPECT_EQ(prompt_of(user, R"("system":"")"), rest);
  EXPECT_EQ(prompt_of(user, R"("system":[{"type":"text","text":"x-anthropic-billing-header: 1"}])"), rest);
}

TEST_F(MessagesTest, BlocksOfATurnBecomeOneMessage) {
  EXPECT_EQ(prompt_of(R"([{"role":"user","content":[{"type":"text","text":"a"},
      {"type":"document","source":{"type":"text","media_type":"text/plain","data":"doc"}},{"type":"text","text":"b"}]},
    {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},
      {"type":"redacted_thinking","data":"x"},{"type":"text","text":"one "},{"type":"text","text":"two"},
      {"type":"tool_use","id":"t1","name":"f","input":{"n":1,"s":"x"}},
      {"type":"tool_use","id":"t2","name":"g","input":{}}]},
    {"role":"user","content":[{"type":"text","text":"and?"},
      {"type":"tool_result","tool_use_id":"t2","content":"second"},
      {"type":"tool_result","tool_use_id":"t1","is_error":true,"content":[{"type":"text","text":"fi"},
        {"type":"text","text":"rst"}]}]}])"),
            "<|user|>adocb<|assistant|><think>hm</think>one two"
            "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value><arg_key>s</arg_key><arg_value>x</arg_value>"
            "</tool_call><tool_call>g</tool_call>"
            "<|observation|><tool_response>first</tool_response><tool_response>second</tool_response>"
            "<|user|>and?<|assistant|><think></think>");
}

TEST_F(MessagesTest, OnlyToolResultsMakeNoUserMessage) {
  EXPECT_EQ(prompt_of(R"([{"role":"user","content":"q"},
    {"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]},
    {"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]}])"),
            "<|user|>q<|assistant|><think></think><tool_call>f</tool_call>"
            "<|observation|><tool_response></tool_response><|assistant|><think></think>");
}

TEST_F(MessagesTest, AFinalAssistantMessageIsContinued) {
  EXPECT_EQ(prompt_of(R"([{"role":"user","content":"q"},{"role":"assistant","content":"The answer is "}])"),
            "<|user|>q<|assistant|><think></think>The answer is ");
  EXPECT_EQ(generator_.last().reply.start, ReplyChannel::kContent);
}

TEST_F(MessagesTest, ToolsAreRenderedAsFunctions) {
  const std::string prompt =
      prompt_of(R"([{"role":"user","content":"q"}])",
                R"("tool_choice":{"type":"auto"},"tools":[{"name":"f","description":"d","cache_control":{},
        "input_schema":{"type":"object","properties":{"b":{"type":"string"},"a":{"type":"integer"}}}},
        {"type":"web_search_20250305","name":"web_search"},{"type":"custom","name":"g","input_schema":{}}])");
  EXPECT_THAT(prompt, HasSubstr("<tools>\n"
                                R"({"name": "f", "description": "d", "parameters": {"type": "object", "properties": )"
                                R"({"b": {"type": "string"}, "a": {"type": "integer"}}}})"
                                "\n"
                                R"({"name": "g", "parameters": {}})"
                                "\n</tools>"));
}

TEST_F(MessagesTest, AutoIsFineWhereAllToolsAreTheProvidersOwn) {
  const std::string prompt =
      prompt_of(R"([{"role":"user","content":"q"}])",
                R"("tool_choice":{"type":"auto"},"tools":[{"type":"web_search_20250305","name":"web_search"}])");
  EXPECT_THAT(prompt, Not(HasSubstr("<tools>")));
  EXPECT_EQ(generator_.last().reply.tools, nullptr);
}

TEST_F(MessagesTest, DeferredToolsAppearWhereTheyAreReferredTo) {
  const std::string prompt = prompt_of(
      R"([{"role":"user","content":"q"},
        {"role":"assistant","content":[{"type":"tool_use","id":"t","name":"search","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[
          {"type":"tool_reference","tool_name":"late"}]}]}])",
      R"("tools":[{"name":"late","input_schema":{},"defer_loading":true}])");
  EXPECT_THAT(prompt, HasSubstr("<tools>\n</tools>"));
  EXPECT_THAT(prompt, HasSubstr("<tool_response><tools>\n"
                                R"({"name": "late", "parameters": {}})"
                                "\n</tools></tool_response>"));
}

// ---- streamed

std::vector<std::string> types_of(const std::vector<json>& events) {
  std::vector<std::string> types;
  for (const json& event : events) types.push_back(event["type"]);
  return types;
}

TEST_F(MessagesTest, StreamedEvents) {
  reply_with({{ReplyChannel::kReasoning, "th"},
              {ReplyChannel::kReasoning, "ink"},
              {ReplyChannel::kContent, "ans"},
              {ReplyChannel::kContent, "wer"}});
  const RawReply reply = say_hi(std::string(kThink) + R"(,"stream":true)");
  EXPECT_EQ(reply.header("content-type"), "text/event-stream; charset=utf-8");
  const auto events = named_events(reply.body);
  std::vector<std::string> deltas, order;
  std::string thinking, text;
  int open = -1;
  for (const json& event : events) {
    const std::string type = event["type"];
    if (type == "content_block_start") {
      EXPECT_EQ(event["index"], ++open);
      order.push_back(event["content_block"]["type"]);
    } else if (type == "content_block_delta") {
      EXPECT_EQ(event["index"], open);
      const json& delta = event["delta"];
      order.push_back(delta["type"]);
      if (delta["type"] == "thinking_delta") thinking += delta["thinking"];
      if (delta["type"] == "text_delta") text += delta["text"];
    }
  }
  EXPECT_EQ(thinking, "think");
  EXPECT_EQ(text, "answer");
  order.erase(std::unique(order.begin(), order.end()), order.end());
  EXPECT_THAT(order, ElementsAre("thinking", "thinking_delta", "signature_delta", "text", "text_delta"));
  auto types = types_of(events);
  types.erase(std::unique(types.begin(), types.end()), types.end());
  EXPECT_THAT(types, ElementsAre("message_start", "ping", "content_block_start", "content_block_delta",
                                 "content_block_stop", "content_block_start", "content_block_delta",
                                 "content_block_stop", "message_delta", "message_stop"));
  const json& start = events[0]["message"];
  EXPECT_EQ(start["content"], json::array());
  EXPECT_TRUE(start["stop_reason"].is_null());
  EXPECT_EQ(start["usage"]["input_tokens"], generator_.last().prompt.size());
  const json& last = events[events.size() - 2];
  EXPECT_EQ(last["delta"], json::parse(R"({"stop_reason":"end_turn","stop_sequence":null})"));
  EXPECT_EQ(last["usage"]["output_tokens"], 7);
  EXPECT_EQ(last["usage"]["input_tokens"], generator_.last().prompt.size() - 2);
}

TEST_F(MessagesTest, HiddenThinkingLeavesNoTraceInAStream) {
  reply_with({{ReplyChannel::kContent, "a"}, {ReplyChannel::kReasoning, "hidden"}, {ReplyChannel::kContent, "b"}});
  const RawReply reply = say_hi(R"("stream":true)");
  EXPECT_THAT(reply.body, Not(HasSubstr("hidden")));
  EXPECT_THAT(types_of(named_events(reply.body)),
              ElementsAre("message_start", "ping", "content_block_start", "content_block_delta", "content_block_delta",
                          "content_block_stop", "message_delta", "message_stop"));
  EXPECT_EQ(json::parse(say_hi().body)["content"], json::parse(R"([{"type":"text","text":"ab"}])"));
}

TEST_F(MessagesTest, AFailureInAStreamIsAnErrorEvent) {
  reply_with({{ReplyChannel::kContent, "a"}}, [](auto& result) {
    result.reason = FinishReason::kFailed;
    result.error = "broken";
  });
  const auto events = named_events(say_hi(R"("stream":true)").body);
  EXPECT_EQ(events.back(), json::parse(R"({"type":"error","error":{"type":"api_error","message":"broken"}})"));
  EXPECT_EQ(error_of(say_hi())["type"], "api_error");
}

// ---- refusals

TEST_F(MessagesTest, RefusalsNameTheField) {
  const auto refused = [&](const std::string& body) {
    const RawReply reply = send(body);
    EXPECT_EQ(reply.status, 400) << body;
    const json error = error_of(reply);
    EXPECT_EQ(error["type"], "invalid_request_error");
    return error["message"].get<std::string>();
  };
  const auto with = [&](const std::string& fields) {
    return refused(R"({"max_tokens":50,"messages":[{"role":"user","content":"hi"}],)" + fields + '}');
  };
  const auto content = [&](const std::string& blocks) {
    return refused(R"({"max_tokens":50,"messages":[{"role":"user","content":)" + blocks + "}]}");
  };
  EXPECT_EQ(refused(R"({"messages":[{"role":"user","content":"hi"}]})"), "max_tokens is required");
  EXPECT_EQ(refused(R"({"max_tokens":5})"), "messages is required");
  EXPECT_EQ(refused(R"({"max_tokens":5,"messages":[]})"), "messages must not be empty");
  EXPECT_EQ(refused(R"({"max_tokens":5,"messages":["x"]})"), "messages[0] must be an object");
  EXPECT_EQ(refused(R"({"max_tokens":5,"messages":[{"role":"system","content":"x"}]})"),
            "messages[0].role must be user or assistant");
  EXPECT_EQ(refused(R"({"max_tokens":5,"messages":[{"role":"user"}]})"), "messages[0].content is required");
  EXPECT_THAT(refused("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(with(R"("max_tokens":0)"), HasSubstr("max_tokens must be an integer"));
  EXPECT_THAT(with(R"("temperature":"1")"), StartsWith("temperature must be"));
  EXPECT_THAT(with(R"("n":2)"), StartsWith("n must be 1"));
  EXPECT_THAT(with(R"("stop_sequences":["a",""])"), StartsWith("stop_sequences[1] "));
  EXPECT_THAT(with(R"("stop_sequences":"a")"), StartsWith("stop_sequences must be a list"));
  EXPECT_THAT(with(R"("system":[{"type":"image"}])"), HasSubstr("system[0]"));
  EXPECT_THAT(with(R"("system":7)"), StartsWith("system must be"));
  EXPECT_THAT(with(R"("thinking":{"type":"maybe"})"), StartsWith("thinking.type "));
  EXPECT_THAT(with(R"("thinking":{"type":"enabled","budget_tokens":0})"), StartsWith("thinking.budget_tokens "));
  EXPECT_THAT(with(R"("output_config":{"effort":"most"})"), StartsWith("output_config.effort "));
  EXPECT_THAT(with(R"("output_config":{"format":{}})"), StartsWith("output_config.format.type "));
  EXPECT_THAT(with(R"("tools":[{"name":"f"}])"), StartsWith("tools[0].input_schema "));
  EXPECT_THAT(with(R"("tools":[{"input_schema":{}}])"), StartsWith("tools[0].name "));
  EXPECT_THAT(with(R"("tools":[7])"), StartsWith("tools[0] "));
  EXPECT_THAT(with(R"("tool_choice":{"type":"auto"})"), StartsWith("tool_choice needs tools"));
  EXPECT_THAT(with(R"("tool_choice":{"type":"any"},"tools":[{"type":"web_search_20250305","name":"web_search"}])"),
              StartsWith("tool_choice needs tools"));
  EXPECT_THAT(with(R"("tool_choice":{"type":"some"})"), StartsWith("tool_choice.type "));
  EXPECT_THAT(content("7"), StartsWith("messages[0].content must be"));
  EXPECT_THAT(content("[7]"), StartsWith("messages[0].content[0] must be an object"));
  EXPECT_THAT(content(R"([{"text":"x"}])"), StartsWith("messages[0].content[0].type is required"));
  EXPECT_THAT(content(R"([{"type":"text"}])"), StartsWith("messages[0].content[0].text is required"));
  EXPECT_THAT(content(R"([{"type":"wizardry"}])"), HasSubstr("messages[0].content[0]"));
  EXPECT_THAT(content(R"([{"type":"image","source":{"type":"url","url":"x"}}])"), HasSubstr("messages[0].content[0]"));
  EXPECT_THAT(content(R"([{"type":"document","source":{"type":"base64","data":"x"}}])"),
              HasSubstr("messages[0].content[0].source"));
  EXPECT_THAT(content(R"([{"type":"tool_result"}])"), StartsWith("messages[0].content[0].tool_use_id "));
  EXPECT_THAT(content(R"([{"type":"tool_result","tool_use_id":"t","content":[{"type":"image"}]}])"),
              HasSubstr("messages[0].content[0].content[0]"));
  EXPECT_EQ(generator_.count(), 0U);
}

TEST_F(MessagesTest, ContextLength) {
  EXPECT_THAT(error_of(say_hi(R"("max_tokens":510)"))["message"].get<std::string>(),
              testing::MatchesRegex("input length and `max_tokens` exceed context limit: [0-9]+ \\+ 510 > 512, .*"));
  const std::string body =
      json{{"max_tokens", 5}, {"messages", {{{"role", "user"}, {"content", std::string(4000, '?') + "a b c"}}}}}.dump();
  const auto tokens = json::parse(ask(post("/v1/messages/count_tokens", body)).body)["input_tokens"].get<int>();
  ASSERT_GT(tokens, 512) << "the prompt should have been too long";
  EXPECT_EQ(error_of(send(body))["message"], "prompt is too long: " + std::to_string(tokens) + " tokens > 512 maximum");
}

TEST_F(MessagesTest, CountingTokensLeavesTheEngineAlone) {
  const char* fields = R"("messages":[{"role":"user","content":"hi"}],"system":"S")";
  const RawReply counted = ask(post("/v1/messages/count_tokens", std::string("{") + fields + '}'));
  EXPECT_EQ(counted.status, 200);
  EXPECT_EQ(generator_.count(), 0U);
  send(std::string(R"({"max_tokens":5,)") + fields + '}');
  EXPECT_EQ(json::parse(counted.body)["input_tokens"], generator_.last().prompt.size());
}

TEST_F(MessagesTest, ErrorsOfTheServerHaveTheProtocolsShape) {
  settings_.server.api_key = {"key"};
  EXPECT_EQ(error_of(say_hi())["type"], "authentication_error");
  const std::string body = R"({"max_tokens":5,"model":"other","messages":[{"role":"user","content":"hi"}]})";
  const RawReply other = ask(post("/v1/messages", body, "x-api-key: key\r\nanthropic-version: 2023-06-01\r\n"));
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(error_of(other)["type"], "not_found_error");
  server_.reset();
  settings_.server.api_key.clear();
  generator_.refuse = engine::SubmitError::Kind::kQueueFull;
  const RawReply full = say_hi();
  EXPECT_EQ(full.status, 529);
  EXPECT_EQ(full.header("retry-after"), "5");
  EXPECT_EQ(error_of(full)["type"], "overloaded_error");
  EXPECT_EQ(ask(get("/v1/messages")).status, 405);
}

}  // namespace
}  // namespace glm53::server
