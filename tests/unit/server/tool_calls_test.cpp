// Calls, choices and ids in the replies of the chat, Messages and Responses routes.
#include <set>

#include <gmock/gmock.h>

#include "api_test.h"

namespace glm53::server {
namespace {

using engine::FinishReason;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;
using testing::Not;
using text::ReplyChannel;
using text::ReplyDelta;

constexpr const char* kTools = R"("tools":[{"type":"function","function":{"name":"f"}},{"name":"g"}])";

ReplyDelta call(int index, const std::string& name, const std::string& arguments) {
  return {ReplyChannel::kCall, arguments, index, name};
}
ReplyDelta more(int index, const std::string& arguments) { return call(index, {}, arguments); }

/// The chunks of a chat stream, which must end with [DONE].
std::vector<json> chunks_of(const RawReply& reply) {
  std::vector<json> chunks;
  std::string last;
  for (size_t at = 0; at < reply.body.size();) {
    const size_t end = reply.body.find("\n\n", at);
    if (end == std::string::npos) break;
    last = reply.body.substr(at, end - at);
    at = end + 2;
    if (last.rfind("data: {", 0) == 0) chunks.push_back(json::parse(last.substr(6)));
  }
  EXPECT_EQ(last, "data: [DONE]");
  return chunks;
}

/// A choice of a stream as its whole reply would show it.
struct Assembled {
  std::string content, reasoning, finish;
  std::vector<json> calls;
};
Assembled assemble(const std::vector<json>& chunks, int choice = 0) {
  Assembled all;
  for (const json& chunk : chunks) {
    if (chunk["choices"].empty() || chunk["choices"][0]["index"] != choice) continue;
    EXPECT_EQ(all.finish, "") << "a chunk after the finish";
    const json& item = chunk["choices"][0];
    const json& delta = item["delta"];
    EXPECT_FALSE(delta.contains("content") && delta.contains("reasoning"));
    all.content += delta.value("content", "");
    all.reasoning += delta.value("reasoning", "");
    if (!item["finish_reason"].is_null()) all.finish = item["finish_reason"];
    if (!delta.contains("tool_calls")) continue;
    for (const json& call : delta["tool_calls"]) {
      const size_t index = call["index"];
      if (index == all.calls.size()) {
        all.calls.push_back({{"id", call.at("id")}, {"type", call.at("type")}, {"function", call.at("function")}});
      } else {
        EXPECT_LT(index, all.calls.size());
        EXPECT_FALSE(call.contains("id"));
        EXPECT_FALSE(call["function"].contains("name"));
        std::string& arguments = all.calls[index]["function"]["arguments"].get_ref<std::string&>();
        arguments += call["function"]["arguments"].get<std::string>();
      }
    }
  }
  return all;
}

class ToolCallsTest : public ApiTest {
 protected:
  RawReply chat(const std::string& fields) {
    return ask(post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"q"}],)" + fields + '}'));
  }
  json whole_choice(const std::string& fields) { return json::parse(chat(fields).body)["choices"][0]; }
  RawReply message(const std::string& fields) {
    return ask(post("/v1/messages", R"({"max_tokens":50,"messages":[{"role":"user","content":"q"}],)" + fields + '}'));
  }
  RawReply response(const std::string& fields) { return ask(post("/v1/responses", R"({"input":"q",)" + fields + '}')); }
};

// ---- what the parser is told

TEST_F(ToolCallsTest, TheParserHearsOfTheToolsThatMayBeCalled) {
  chat(std::string(kTools));
  engine::GenerationRequest request = generator_.last();
  ASSERT_NE(request.reply.tools, nullptr);
  EXPECT_EQ(request.reply.tools->size(), 2U);
  EXPECT_TRUE(request.reply.parallel_calls);
  EXPECT_FALSE(request.reply.incremental_calls);
  chat(std::string(kTools) + R"(,"tool_choice":"none")");
  EXPECT_EQ(generator_.last().reply.tools, nullptr);
  chat(R"("tools":[])");
  EXPECT_EQ(generator_.last().reply.tools, nullptr);
  chat(std::string(kTools) + R"(,"parallel_tool_calls":false)");
  EXPECT_FALSE(generator_.last().reply.parallel_calls);
  message(R"("tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"auto","disable_parallel_tool_use":true})");
  EXPECT_FALSE(generator_.last().reply.parallel_calls);
  EXPECT_EQ(generator_.last().reply.tools->size(), 1U);
}

TEST_F(ToolCallsTest, AllowedToolsAreAllThatTheModelSeesAndCalls) {
  const std::string tools = R"({"type":"function","name":"f"},{"type":"function","name":"gg"})";
  for (const std::string mode : {"auto", "required"}) {
    const std::string allowed =
        R"("tool_choice":{"type":"allowed_tools","mode":")" + mode + R"(","tools":[{"type":"function","name":"gg"}]})";
    for (const bool flat : {true, false}) {
      const std::string fields = R"("tools":[)" + tools + "]," + allowed;
      const RawReply reply = flat ? response(fields) : chat(fields);
      ASSERT_EQ(reply.status, 200) << reply.body;
      EXPECT_THAT(last_prompt(), HasSubstr("\"gg\""));
      EXPECT_THAT(last_prompt(), Not(HasSubstr("\"f\"")));
      const engine::GenerationRequest request = generator_.last();
      ASSERT_EQ(request.reply.tools->size(), 1U);
      EXPECT_EQ(request.reply.tools->front().name, "gg");
      EXPECT_FALSE(request.reply.unknown_tools);
      EXPECT_EQ(request.grammar != nullptr, mode == "required");
    }
  }
  chat(kTools);
  EXPECT_TRUE(generator_.last().reply.unknown_tools);
}

TEST_F(ToolCallsTest, NamesThatNoReplyCouldCarryAreRefused) {
  const auto refused = [](const RawReply& reply, const std::string& field) {
    EXPECT_EQ(reply.status, 400) << reply.body;
    const json error = json::parse(reply.body)["error"];
    EXPECT_THAT(error["message"].get<std::string>(), testing::StartsWith(field + " must be 1 to 256 bytes"));
    EXPECT_EQ(error.value("param", field), field);  // the Messages API has none
  };
  for (const std::string& name : {std::string(), std::string("a b"), std::string("a\\n"), std::string("{a"),
                                  std::string("a<b"), std::string(257, 'x')}) {
    const std::string named = R"("name":")" + name + '"';
    refused(chat(R"("tools":[{"name":"f"},{"type":"function","function":{)" + named + "}}]"), "tools[1].function.name");
    refused(chat(R"("tools":[{)" + named + "}]"), "tools[0].name");
    refused(response(R"("tools":[{"type":"function",)" + named + "}]"), "tools[0].name");
    refused(response(R"("tools":[{"type":"namespace",)" + named + R"(,"tools":[{"type":"function","name":"f"}]}])"),
            "tools[0].name");
    refused(message(R"("tools":[{"input_schema":{},)" + named + "}]"), "tools[0].name");
  }
  for (const std::string& name : {std::string("a b"), std::string(), std::string(254, 'x')}) {
    refused(
        response(R"("tools":[{"type":"namespace","name":"ns","tools":[{"type":"function","name":")" + name + "\"}]}]"),
        "tools[0].tools[0].name");
  }
  for (const std::string name : {"größe", "天气", "a.b/c:d", "f{x}"}) {
    EXPECT_EQ(chat(R"("tools":[{"name":")" + name + R"("}])").status, 200) << name;
  }
}

TEST_F(ToolCallsTest, EmptyListsOfToolsAreRefusedWhereTheServerSaysSo) {
  const std::string messages = R"("messages":[{"role":"user","content":"hi"}],"max_tokens":9)";
  const auto all_answer = [&](int status) {
    for (const auto& [route, body] : {std::pair("/v1/chat/completions", messages), std::pair("/v1/messages", messages),
                                      std::pair("/v1/responses", std::string(R"("input":"hi")"))}) {
      EXPECT_EQ(ask(post(route, "{" + body + R"(,"tools":[]})")).status, status) << route;
    }
  };
  all_answer(200);
  server_.reset();
  settings_.api.lenient_empty_tools = false;
  all_answer(400);
}

TEST_F(ToolCallsTest, SettingsOfTheServerReachTheParser) {
  chat(kTools);
  EXPECT_FALSE(generator_.last().reply.spelled_tags);
  EXPECT_EQ(generator_.last().grammar, nullptr);
  server_.reset();
  settings_.api.tool_tags = "text-too";
  chat(kTools);
  EXPECT_TRUE(generator_.last().reply.spelled_tags);
  EXPECT_EQ(generator_.last().grammar, nullptr);
  server_.reset();
  settings_.api.tool_grammar = true;
  chat(kTools);
  EXPECT_NE(generator_.last().grammar, nullptr);
  chat(R"("n":1)");
  EXPECT_EQ(generator_.last().grammar, nullptr);
}

// Ordinary text of a grammar may spell a call that the grammar has not seen.
TEST_F(ToolCallsTest, SpelledCallsDoNotEvadeAGrammar) {
  settings_.api.tool_tags = "text-too";
  const std::string strict = R"("tools":[{"type":"function","function":{"name":"f","strict":true}}])";
  for (const std::string& fields : {strict, std::string(kTools) + R"(,"tool_choice":"required")",
                                    std::string(kTools) + R"(,"guided_regex":"(.|\n)*")"}) {
    chat(fields);
    EXPECT_NE(generator_.last().grammar, nullptr) << fields;
    EXPECT_FALSE(generator_.last().reply.spelled_tags) << fields;
  }
}

TEST_F(ToolCallsTest, ArgumentsComePiecewiseOnlyInStreams) {
  settings_.api.tool_stream = "incremental";
  chat(kTools);
  EXPECT_FALSE(generator_.last().reply.incremental_calls);
  chat(std::string(kTools) + R"(,"stream":true)");
  EXPECT_TRUE(generator_.last().reply.incremental_calls);
}

// ---- chat

TEST_F(ToolCallsTest, CallsOfAChat) {
  reply_with({{ReplyChannel::kReasoning, "hm"},
              {ReplyChannel::kContent, "Let me look."},
              call(0, "f", R"({"city": "Köln"})"),
              call(1, "g", "{}")});
  const json choice = whole_choice(kTools);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Let me look.");
  EXPECT_EQ(choice["message"]["reasoning"], "hm");
  const json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0]["type"], "function");
  EXPECT_EQ(calls[0]["function"], (json{{"name", "f"}, {"arguments", R"({"city": "Köln"})"}}));
  EXPECT_EQ(calls[1]["function"], (json{{"name", "g"}, {"arguments", "{}"}}));
  for (const json& each : calls) EXPECT_THAT(each["id"].get<std::string>(), MatchesRegex("call_[0-9a-f]{24}"));
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);

  const auto chunks = chunks_of(chat(std::string(kTools) + R"(,"stream":true)"));
  const Assembled streamed = assemble(chunks);
  EXPECT_EQ(streamed.content, "Let me look.");
  EXPECT_EQ(streamed.reasoning, "hm");
  EXPECT_EQ(streamed.finish, "tool_calls");
  ASSERT_EQ(streamed.calls.size(), 2U);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(streamed.calls[i]["function"], calls[i]["function"]);
  EXPECT_THAT(streamed.calls[1]["id"].get<std::string>(), MatchesRegex("call_[0-9a-f]{24}"));
}

TEST_F(ToolCallsTest, ArgumentsInPieces) {
  reply_with({call(0, "f", ""), more(0, "{\"a\": "), more(0, "1}"), call(1, "f", ""), more(1, "{}")});
  const Assembled streamed = assemble(chunks_of(chat(std::string(kTools) + R"(,"stream":true)")));
  ASSERT_EQ(streamed.calls.size(), 2U);
  EXPECT_EQ(streamed.calls[0]["function"], (json{{"name", "f"}, {"arguments", "{\"a\": 1}"}}));
  EXPECT_EQ(streamed.calls[1]["function"], (json{{"name", "f"}, {"arguments", "{}"}}));
}

TEST_F(ToolCallsTest, ContentBesideCalls) {
  reply_with({call(0, "f", "{}")});
  EXPECT_TRUE(whole_choice(kTools)["message"]["content"].is_null());
  reply_with({});
  const json none = whole_choice(kTools);
  EXPECT_EQ(none["message"]["content"], "");
  EXPECT_FALSE(none["message"].contains("tool_calls"));
  EXPECT_EQ(none["finish_reason"], "stop");
}

TEST_F(ToolCallsTest, LengthWins) {
  reply_with({call(0, "f", "{}")}, [](auto& result) { result.reason = FinishReason::kLength; });
  EXPECT_EQ(whole_choice(kTools)["finish_reason"], "length");
  EXPECT_EQ(assemble(chunks_of(chat(std::string(kTools) + R"(,"stream":true)"))).finish, "length");
}

/// A call after 2.4 s of tokens that show nothing.
void work_on_a_call(engine::Generation& generation, const engine::GenerationRequest& request) {
  for (int32_t i = 0; i < 24; ++i) {
    generation.publish(std::array<int32_t, 1>{i}, {});
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  generation.publish({}, {call(0, "f", "{}")});
  generation.finish(result_of(request, FinishReason::kStop));
}

size_t count_of(const std::string& part, const std::string& text) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(ToolCallsTest, EveryStreamShowsThatItIsBeingWorkedOn) {
  generator_.script = work_on_a_call;
  EXPECT_EQ(count_of("event: ping", message(R"("stream":true)").body), 2U) << "the first one comes with the start";
  EXPECT_EQ(count_of("\n\n: keepalive\n\n", response(R"("stream":true)").body), 1U);
  EXPECT_EQ(count_of(": keepalive\n\n", ask(post("/v1/completions", R"({"prompt":[5],"stream":true})")).body), 1U);
}

TEST_F(ToolCallsTest, HiddenReasoningIsWorkToo) {
  generator_.script = [](engine::Generation& generation, const engine::GenerationRequest& request) {
    for (int32_t i = 0; i < 24; ++i) {
      generation.publish(std::array<int32_t, 1>{i}, {{ReplyChannel::kReasoning, "hm"}});
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    generation.finish(result_of(request, FinishReason::kStop));
  };
  EXPECT_EQ(count_of("event: ping", message(R"("stream":true)").body), 2U);
  EXPECT_EQ(count_of(": keepalive", chat(R"("stream":true,"include_reasoning":false)").body), 1U);
  EXPECT_EQ(count_of(": keepalive", chat(R"("stream":true)").body), 0U);
}

TEST_F(ToolCallsTest, AChatAtWorkOnACallShowsIt) {
  generator_.script = work_on_a_call;
  const auto empty_chunks = [&](const std::string& fields) {
    const auto chunks = chunks_of(chat(fields + R"("stream":true)"));
    return std::count_if(chunks.begin(), chunks.end(), [](const json& chunk) {
      const json& choice = chunk["choices"][0];
      return choice["delta"].empty() && choice["finish_reason"].is_null();
    });
  };
  EXPECT_EQ(empty_chunks(std::string(kTools) + ','), 1);
  EXPECT_EQ(empty_chunks(""), 0);
}

// ---- Messages

TEST_F(ToolCallsTest, ToolUseBlocks) {
  reply_with(
      {{ReplyChannel::kContent, "Let me look."}, call(0, "f", R"({"b": 1, "a": [true, null]})"), call(1, "g", "{}")});
  const std::string tools = R"("tools":[{"name":"f","input_schema":{}},{"name":"g","input_schema":{}}])";
  const json body = json::parse(message(tools).body);
  EXPECT_EQ(body["stop_reason"], "tool_use");
  ASSERT_EQ(body["content"].size(), 3U);
  EXPECT_EQ(body["content"][0], json::parse(R"({"type":"text","text":"Let me look."})"));
  EXPECT_EQ(body["content"][1]["type"], "tool_use");
  EXPECT_EQ(body["content"][1]["name"], "f");
  EXPECT_EQ(body["content"][1]["input"].dump(), R"({"a":[true,null],"b":1})");
  EXPECT_EQ(body["content"][2]["input"], json::object());
  EXPECT_THAT(body["content"][1]["id"].get<std::string>(), MatchesRegex("toolu_[0-9a-f]{24}"));
  EXPECT_NE(body["content"][1]["id"], body["content"][2]["id"]);

  const auto events = named_events(message(tools + R"(,"stream":true)").body);
  std::vector<json> blocks;
  std::vector<std::string> inputs(3);
  std::vector<int> stops;
  for (const json& event : events) {
    if (event["type"] == "content_block_start") {
      EXPECT_EQ(event["index"], blocks.size());
      EXPECT_EQ(stops.size(), blocks.size()) << "a block opened before the last one closed";
      blocks.push_back(event["content_block"]);
    }
    if (event["type"] == "content_block_delta" && event["delta"]["type"] == "input_json_delta") {
      inputs[event["index"]] += event["delta"]["partial_json"].get<std::string>();
    }
    if (event["type"] == "content_block_stop") stops.push_back(event["index"]);
  }
  ASSERT_EQ(blocks.size(), 3U);
  EXPECT_THAT(stops, ElementsAre(0, 1, 2));
  EXPECT_EQ(blocks[1]["name"], "f");
  EXPECT_EQ(blocks[1]["input"], json::object());
  EXPECT_EQ(json::parse(inputs[1]), body["content"][1]["input"]);
  EXPECT_EQ(inputs[2], "{}");
  EXPECT_EQ(events[events.size() - 2]["delta"]["stop_reason"], "tool_use");
}

TEST_F(ToolCallsTest, ACallWithoutArgumentsHasAnInputDelta) {
  reply_with({call(0, "f", "")});
  EXPECT_THAT(message(R"("tools":[{"name":"f","input_schema":{}}],"stream":true)").body,
              HasSubstr(R"({"type":"input_json_delta","partial_json":"{}"})"));
}

TEST_F(ToolCallsTest, AMessageThatWasCutSaysSo) {
  reply_with({call(0, "f", "{}")}, [](auto& result) { result.reason = FinishReason::kLength; });
  EXPECT_EQ(json::parse(message(R"("tools":[{"name":"f","input_schema":{}}])").body)["stop_reason"], "max_tokens");
}

// ---- Responses

constexpr const char* kResponseTools = R"("tools":[{"type":"function","name":"f","parameters":{}},
    {"type":"namespace","name":"ns","tools":[{"type":"function","name":"t__u","parameters":{}}]},
    {"type":"custom","name":"patch"}])";

TEST_F(ToolCallsTest, ResponseItemsOfCalls) {
  reply_with({{ReplyChannel::kContent, "Look:"},
              call(0, "f", R"({"a": 1})"),
              call(1, "ns__t__u", "{}"),
              call(2, "patch", R"({"input": "*** \"Begin\"\n"})"),
              call(3, "x__y", "{}")});
  const json whole = json::parse(response(kResponseTools).body);
  EXPECT_EQ(whole["status"], "completed");
  const json& output = whole["output"];
  ASSERT_EQ(output.size(), 5U);
  EXPECT_EQ(output[1]["type"], "function_call");
  EXPECT_THAT(output[1]["id"].get<std::string>(), MatchesRegex("fc_[0-9a-f]+"));
  EXPECT_THAT(output[1]["call_id"].get<std::string>(), MatchesRegex("call_[0-9a-f]{24}"));
  EXPECT_EQ(output[1]["name"], "f");
  EXPECT_EQ(output[1]["arguments"], R"({"a": 1})");
  EXPECT_EQ(output[1]["status"], "completed");
  EXPECT_FALSE(output[1].contains("namespace"));
  EXPECT_EQ(output[2]["name"], "t__u");
  EXPECT_EQ(output[2]["namespace"], "ns");
  EXPECT_EQ(output[3]["type"], "custom_tool_call");
  EXPECT_EQ(output[3]["input"], "*** \"Begin\"\n");
  EXPECT_EQ(output[4]["name"], "x__y");  // no tool of the request: as the model wrote it

  const auto events = named_events(response(std::string(kResponseTools) + R"(,"stream":true)").body);
  std::map<std::string, std::string> deltas, dones;
  std::vector<std::string> types;
  for (size_t i = 0; i < events.size(); ++i) {
    const json& event = events[i];
    EXPECT_EQ(event["sequence_number"], i);
    if (event.value("output_index", 0) == 1) types.push_back(event["type"]);
    if (event.contains("delta")) deltas[event["item_id"]] += event["delta"].get<std::string>();
    for (const char* key : {"text", "arguments", "input"}) {
      if (event.contains(key)) dones[event["item_id"]] = event[key];
    }
    if (event["type"] == "response.output_item.added" && event["output_index"] == 1) {
      EXPECT_EQ(event["item"]["arguments"], "");
      EXPECT_EQ(event["item"]["status"], "in_progress");
    }
  }
  EXPECT_THAT(types, ElementsAre("response.output_item.added", "response.function_call_arguments.delta",
                                 "response.function_call_arguments.done", "response.output_item.done"));
  EXPECT_EQ(deltas, dones);
  EXPECT_EQ(dones.size(), 5U);
  EXPECT_EQ(events.back()["type"], "response.completed");
  const json& last = events.back()["response"]["output"];
  ASSERT_EQ(last.size(), 5U);
  for (size_t i = 1; i < 5; ++i) {
    for (const char* key : {"type", "name", "arguments", "input", "namespace"}) {
      EXPECT_EQ(last[i].value(key, ""), output[i].value(key, "")) << i << key;
    }
  }
}

TEST_F(ToolCallsTest, TheLastEventOfAResponseAlwaysComes) {
  reply_with({call(0, "f", "{}")}, [](auto& result) {
    result.reason = FinishReason::kFailed;
    result.error = "lost";
  });
  const auto events = named_events(response(std::string(kResponseTools) + R"(,"stream":true)").body);
  EXPECT_EQ(events.back()["type"], "response.failed");
  EXPECT_EQ(events.back()["response"]["error"]["message"], "lost");
}

TEST_F(ToolCallsTest, ACallThatCameAtOnceIsCompleteInACutResponse) {
  reply_with({call(0, "f", "{}")}, [](auto& result) { result.reason = FinishReason::kLength; });
  const json whole = json::parse(response(kResponseTools).body);
  EXPECT_EQ(whole["status"], "incomplete");
  EXPECT_EQ(whole["output"][0]["status"], "completed");
  const auto events = named_events(response(std::string(kResponseTools) + R"(,"stream":true)").body);
  EXPECT_EQ(events.back()["type"], "response.incomplete");
  EXPECT_EQ(events.back()["response"]["output"][0]["status"], "completed");
}

TEST_F(ToolCallsTest, ACutCallOfAResponse) {
  settings_.api.tool_stream = "incremental";
  reply_with({call(0, "patch", R"({"input": "x)")}, [](auto& result) {
    result.reason = FinishReason::kLength;
    result.cut_channel = ReplyChannel::kCall;
  });
  const auto events = named_events(response(std::string(kResponseTools) + R"(,"stream":true)").body);
  EXPECT_EQ(events.back()["type"], "response.incomplete");
  EXPECT_EQ(events.back()["response"]["output"][0]["status"], "incomplete");
}

// ---- choices side by side

TEST_F(ToolCallsTest, ChoicesInterleaveAsTheyCome) {
  std::atomic<int> step{0};
  // Choice 1 ends before choice 0 says anything; a stream that reads them in turn would never get there.
  generator_.script = [&](engine::Generation& generation, const engine::GenerationRequest& request) {
    const bool first = request.sampling.choice == 0;
    for (int i = 0; first && i < 2000 && step < 1; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    say(generation, ReplyChannel::kContent, first ? "zero" : "one");
    generation.finish(result_of(request, FinishReason::kStop));
  };
  start();
  RawClient client(server_->port());
  client.send(post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"q"}],"stream":true,"n":2,"stream_options":{"include_usage":true}})"));
  ASSERT_TRUE(client.wait_for("\"content\":\"one\"")) << "choice 1 waited for choice 0";
  ASSERT_TRUE(client.wait_for("\"finish_reason\":\"stop\""));
  step = 1;
  const auto chunks = chunks_of(client.reply());
  EXPECT_EQ(assemble(chunks, 0).content, "zero");
  EXPECT_EQ(assemble(chunks, 1).content, "one");
  for (const int choice : {0, 1}) {
    EXPECT_EQ(assemble(chunks, choice).finish, "stop");
    EXPECT_EQ(std::count_if(chunks.begin(), chunks.end(),
                            [&](const json& chunk) {
                              return !chunk["choices"].empty() && chunk["choices"][0]["index"] == choice &&
                                     chunk["choices"][0]["delta"].contains("role");
                            }),
              1);
  }
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], 14);
}

TEST_F(ToolCallsTest, AClientThatLeavesCancelsEveryChoice) {
  std::atomic<int> cancelled{0};
  generator_.script = [&](engine::Generation& generation, const engine::GenerationRequest& request) {
    say(generation, ReplyChannel::kContent, "begun");
    cancelled += run_until_cancelled(generation) ? 1 : 0;
    generation.finish(result_of(request, FinishReason::kCancelled));
  };
  start();
  {
    RawClient client(server_->port());
    client.send(post("/v1/completions", R"({"prompt":[[5],[6]],"n":2,"stream":true})"));
    ASSERT_TRUE(client.wait_for("begun"));
  }
  for (int i = 0; i < 2000 && cancelled < 4; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(cancelled, 4);
}

// ---- ids and reasoning

/// Says "think", closes the reasoning where told to, says "answer", ends on an end id.
void think_and_answer(engine::Generation& generation, const engine::GenerationRequest& request) {
  const int32_t close = tiny_tokenizer().require_added("</think>"), end = tiny_tokenizer().require_added("<|user|>");
  generation.publish(std::array<int32_t, 2>{11, close}, {{ReplyChannel::kReasoning, "think"}});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  generation.publish(std::array<int32_t, 1>{12}, {{ReplyChannel::kContent, "answer"}});
  generation.publish(std::array<int32_t, 1>{end}, {});
  engine::GenerationResult result = result_of(request, FinishReason::kStop);
  result.stop_id = end;
  generation.finish(std::move(result));
}

TEST_F(ToolCallsTest, TokenIds) {
  generator_.script = think_and_answer;
  const json body = json::parse(chat(R"("return_token_ids":true)").body);
  const json ids = {11, tiny_tokenizer().require_added("</think>"), 12, tiny_tokenizer().require_added("<|user|>")};
  EXPECT_EQ(body["choices"][0]["token_ids"], ids);
  EXPECT_EQ(body["prompt_token_ids"], json(generator_.last().prompt.get()));
  EXPECT_FALSE(json::parse(chat(R"("return_token_ids":false)").body)["choices"][0].contains("token_ids"));

  json streamed = json::array();
  const auto chunks = chunks_of(chat(R"("return_token_ids":true,"stream":true)"));
  EXPECT_EQ(chunks[0]["prompt_token_ids"], json(generator_.last().prompt.get()));
  for (const json& chunk : chunks) {
    for (const json& id : chunk["choices"][0]["token_ids"]) streamed.push_back(id);
  }
  EXPECT_EQ(streamed, ids);

  const json completion =
      json::parse(ask(post("/v1/completions", R"({"prompt":[[5,6],[7]],"return_token_ids":true})")).body)["choices"];
  EXPECT_EQ(completion[0]["prompt_token_ids"], (json{5, 6}));
  EXPECT_EQ(completion[1]["prompt_token_ids"], json::array({7}));
  EXPECT_EQ(completion[0]["token_ids"], ids);
}

TEST_F(ToolCallsTest, TokensNamedByTheirIds) {
  generator_.script = [](engine::Generation& generation, const engine::GenerationRequest& request) {
    generation.publish(std::array<int32_t, 1>{11}, {{ReplyChannel::kContent, "x"}},
                       {{11, -0.5F, {{11, -0.5F}, {12, -1.5F}}}});
    generation.finish(result_of(request, FinishReason::kStop));
  };
  const std::string fields = R"("logprobs":true,"top_logprobs":2,"return_tokens_as_token_ids":true)";
  const json entry = whole_choice(fields)["logprobs"]["content"][0];
  EXPECT_EQ(entry["token"], "token_id:11");
  EXPECT_EQ(entry["top_logprobs"][1]["token"], "token_id:12");
  const json completion = json::parse(
      ask(post("/v1/completions", R"({"prompt":[5],"logprobs":1,"return_tokens_as_token_ids":true})")).body);
  EXPECT_THAT(completion["choices"][0]["logprobs"]["tokens"], ElementsAre("token_id:11"));
}

TEST_F(ToolCallsTest, PromptLogprobs) {
  generator_.script = [](engine::Generation& generation, const engine::GenerationRequest& request) {
    if (request.prompt_logprobs >= 0) {
      generation.set_prompt_logprobs(
          {{5, std::nullopt, {}}, {6, -3.0F, {{7, -0.5F}, {8, -1.0F}}}, {7, -0.25F, {{7, -0.25F}, {9, -2.0F}}}});
    }
    say(generation, ReplyChannel::kContent, "x");
    generation.finish(result_of(request, FinishReason::kStop));
  };
  const std::string name7 = tiny_tokenizer().decode(std::array<int32_t, 1>{7}, false);
  const json list =
      json::parse(chat(R"("prompt_logprobs":1,"n":2,"return_tokens_as_token_ids":true)").body)["prompt_logprobs"];
  EXPECT_EQ(generator_.all()[0].prompt_logprobs, 1);
  EXPECT_EQ(generator_.all()[1].prompt_logprobs, -1);
  ASSERT_EQ(list.size(), 3U);
  EXPECT_TRUE(list[0].is_null());
  EXPECT_EQ(list[1].size(), 2U);
  EXPECT_EQ(list[1]["6"]["logprob"], -3.0);
  EXPECT_TRUE(list[1]["6"]["rank"].is_null());
  EXPECT_EQ(list[1]["7"], (json{{"logprob", -0.5}, {"rank", 1}, {"decoded_token", name7}}));
  EXPECT_EQ(list[2], (json{{"7", {{"logprob", -0.25}, {"rank", 1}, {"decoded_token", name7}}}}));

  const json completion = json::parse(
      ask(post("/v1/completions", R"({"prompt":[5,6,7],"prompt_logprobs":2,"echo":true,"logprobs":1})")).body);
  EXPECT_EQ(completion["choices"][0]["prompt_logprobs"][1].size(), 3U);
  EXPECT_EQ(completion["choices"][0]["logprobs"]["top_logprobs"][1].size(), 2U);  // the likeliest and the token itself

  EXPECT_EQ(json::parse(chat(R"("prompt_logprobs":1,"stream":true)").body)["error"]["param"], "prompt_logprobs");
  EXPECT_EQ(json::parse(chat(R"("prompt_logprobs":21)").body)["error"]["message"],
            "Requested prompt logprobs of 21, which is greater than max allowed: 20");
  EXPECT_EQ(json::parse(chat(R"("prompt_logprobs":-1)").body)["error"]["param"], "prompt_logprobs");
}

TEST_F(ToolCallsTest, ReasoningInsideTheContent) {
  generator_.script = think_and_answer;
  const std::string fields = R"("separate_reasoning":false)";
  const json message = whole_choice(fields)["message"];
  EXPECT_EQ(message["content"], "<think>think</think>answer");
  EXPECT_FALSE(message.contains("reasoning"));
  EXPECT_FALSE(message.contains("reasoning_content"));
  const Assembled streamed = assemble(chunks_of(chat(fields + R"(,"stream":true)")));
  EXPECT_EQ(streamed.content, "<think>think</think>answer");
  EXPECT_EQ(streamed.reasoning, "");
  EXPECT_EQ(whole_choice(fields + R"(,"include_reasoning":false)")["message"]["content"], "answer");
  reply_with({{ReplyChannel::kReasoning, "hm"}, call(0, "f", "{}")});
  EXPECT_EQ(whole_choice(fields + ',' + kTools)["message"]["content"], "<think>hm</think>");
}

TEST_F(ToolCallsTest, PromptLogprobsHaveABoundOverAllPromptsAndChoices) {
  json body = {{"prompt", json::array()}, {"n", 5}, {"prompt_logprobs", 20}, {"max_tokens", 1}};
  for (int i = 0; i < 128; ++i) body["prompt"].push_back(std::vector<int>(100, 5));
  const auto refused = ask(post("/v1/completions", body.dump()));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(json::parse(refused.body)["error"]["param"], "prompt_logprobs");
}

TEST_F(ToolCallsTest, ReasoningThatTheModelNeverCloses) {
  settings_.api.unclosed_think = "content";
  const auto end_with = [](int32_t id) {
    return [id](engine::Generation& generation, const engine::GenerationRequest& request) {
      generation.publish(std::array<int32_t, 2>{11, id}, {{ReplyChannel::kReasoning, "Paris."}});
      engine::GenerationResult result = result_of(request, FinishReason::kStop);
      result.stop_id = id;
      generation.finish(std::move(result));
    };
  };
  generator_.script = end_with(tiny_tokenizer().require_added("<|user|>"));
  EXPECT_EQ(whole_choice(R"("n":1)")["message"]["content"], "Paris.");
  EXPECT_EQ(json::parse(message(R"("stream":false)").body)["content"][0]["text"], "Paris.");
  EXPECT_EQ(assemble(chunks_of(chat(R"("stream":true)"))).reasoning, "Paris.");
  generator_.script = end_with(9);  // a stop id of the request
  EXPECT_TRUE(whole_choice(R"("stop_token_ids":[9])")["message"]["content"].is_null());
  generator_.script = think_and_answer;
  EXPECT_EQ(whole_choice(R"("n":1)")["message"]["reasoning"], "think");
  reply_with({{ReplyChannel::kReasoning, "cut"}}, [](auto& result) { result.reason = FinishReason::kLength; });
  EXPECT_EQ(whole_choice(R"("n":1)")["message"]["reasoning"], "cut");
}

TEST_F(ToolCallsTest, ReasoningThatACallEndsStaysReasoning) {
  settings_.api.unclosed_think = "content";
  reply_with({{ReplyChannel::kReasoning, "plan"}, call(0, "f", "{}")},
             [](auto& result) { result.stop_id = tiny_tokenizer().require_added("<|observation|>"); });
  const json message = whole_choice(kTools)["message"];
  EXPECT_EQ(message["reasoning"], "plan");
  EXPECT_TRUE(message["content"].is_null());
}

TEST_F(ToolCallsTest, HiddenReasoningDoesNotSilenceTheKeepalive) {
  settings_.api.sse_keepalive_s = 1;
  generator_.script = [](engine::Generation& generation, const engine::GenerationRequest& request) {
    for (int i = 0; i < 13; ++i) {
      say(generation, ReplyChannel::kReasoning, "hm");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    generation.finish(result_of(request, FinishReason::kStop));
  };
  EXPECT_THAT(chat(R"("stream":true,"include_reasoning":false)").body, HasSubstr(": keepalive"));
}

}  // namespace
}  // namespace glm53::server
