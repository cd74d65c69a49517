#include "text/chat_prompt.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data_file.h"

namespace glm53::text {
namespace {

using testing::ElementsAre;

std::vector<PromptJson> list(std::string_view json) { return PromptJson::parse(json).items(); }

ChatPromptInput input_of(std::string_view messages, std::string_view tools = "[]") {
  ChatPromptInput input;
  input.messages = list(messages);
  input.tools = list(tools);
  return input;
}

std::string render(const ChatPromptInput& input) { return render_chat_prompt(input).text(); }
std::string render(std::string_view messages, std::string_view tools = "[]") {
  return render(input_of(messages, tools));
}

// "param: message" of the refusal.
std::string refusal(const ChatPromptInput& input) {
  try {
    render_chat_prompt(input);
  } catch (const ChatPromptError& error) {
    return error.param + ": " + error.what();
  }
  return "rendered";
}
std::string refusal(std::string_view messages, std::string_view tools = "[]") {
  return refusal(input_of(messages, tools));
}

constexpr char kMax[] = "[gMASK]<sop><|system|>Reasoning Effort: Max";

std::string with_head(const std::string& text) { return kMax + text; }
// A conversation that ends in a generation prompt.
std::string turns(const std::string& text) { return kMax + text + "<|assistant|><think>"; }

TEST(ChatPrompt, EqualsGolden) {
  const PromptJson golden = PromptJson::parse(test::read_file(GLM53_TEST_DATA "/golden/chat_template.json"));
  ASSERT_EQ(golden.items().size(), 55u);
  for (const PromptJson& entry : golden.items()) {
    ChatPromptInput input;
    input.messages = entry.find("messages")->items();
    if (const PromptJson* tools = entry.find("tools")) {
      input.tools = tools->items();
    }
    input.add_generation_prompt = entry.find("add_generation_prompt")->as_bool();
    const PromptJson& kwargs = *entry.find("template_kwargs");
    if (const PromptJson* effort = kwargs.find("reasoning_effort")) {
      input.effort = effort->as_string();
    }
    if (const PromptJson* clear = kwargs.find("clear_thinking")) {
      input.clear_thinking = clear->as_bool();
    }
    EXPECT_EQ(render(input), entry.find("prompt")->as_string()) << entry.find("name")->as_string();
  }
}

// E1..E13: the examples of spec 40 §2.8.
TEST(ChatPrompt, E1Hello) {
  EXPECT_EQ(render(R"([{"role":"user","content":"Hello!"}])"),
            "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Hello!<|assistant|><think>");
}

TEST(ChatPrompt, E2SystemAndHighEffort) {
  auto input = input_of(R"([{"role":"system","content":"You are terse."},{"role":"user","content":"Hi"}])");
  input.effort = "high";
  EXPECT_EQ(render(input),
            "[gMASK]<sop><|system|>Reasoning Effort: High<|system|>You are terse.<|user|>Hi<|assistant|><think>");
}

TEST(ChatPrompt, E3ThinkingOffHasNoEffortLine) {
  auto input = input_of(R"([{"role":"user","content":"hello"}])");
  input.thinking = false;
  input.effort = "high";
  for (const auto at : {EffortPlacement::kHead, EffortPlacement::kBeforeLastUser, EffortPlacement::kTail}) {
    input.effort_at = at;
    EXPECT_EQ(render(input), "[gMASK]<sop><|user|>hello<|assistant|><think></think>");
  }
  input.add_generation_prompt = false;
  EXPECT_EQ(render(input), "[gMASK]<sop><|user|>hello");
}

TEST(ChatPrompt, E4HistoryWithoutReasoning) {
  EXPECT_EQ(render(R"([{"role":"user","content":"What is 2+2?"},{"role":"assistant","content":"4"},
                       {"role":"user","content":"And 3+3?"}])"),
            turns("<|user|>What is 2+2?<|assistant|><think></think>4<|user|>And 3+3?"));
}

TEST(ChatPrompt, E5HistoryWithReasoning) {
  auto input = input_of(R"([{"role":"user","content":"q"},
      {"role":"assistant","content":"4","reasoning_content":"R1"},{"role":"user","content":"again"}])");
  EXPECT_EQ(render(input), turns("<|user|>q<|assistant|><think>R1</think>4<|user|>again"));
  input.clear_thinking = true;
  EXPECT_EQ(render(input), turns("<|user|>q<|assistant|><think></think>4<|user|>again"));
}

TEST(ChatPrompt, E6ClearThinkingKeepsTheToolLoopInProgress) {
  auto input = input_of(R"([{"role":"user","content":"q"},
      {"role":"assistant","content":"4","reasoning_content":"R1"},{"role":"user","content":"again"},
      {"role":"assistant","content":"","reasoning_content":"R2","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}]},
      {"role":"tool","tool_call_id":"a","content":"ok"}])");
  input.clear_thinking = true;
  EXPECT_EQ(render(input), turns("<|user|>q<|assistant|><think></think>4<|user|>again<|assistant|><think>R2</think>"
                                 "<tool_call>f</tool_call><|observation|><tool_response>ok</tool_response>"));
}

TEST(ChatPrompt, E7TypedArgumentsAndResultsOutOfOrder) {
  EXPECT_EQ(render(R"([{"role":"system","content":"S"},{"role":"user","content":"hi"},
      {"role":"assistant","content":"  Let me look. \n","reasoning_content":"think A\n","tool_calls":[
        {"id":"c1","type":"function","function":{"name":"get_weather",
         "arguments":"{\"city\":\"Köln \\\"x\\\"\",\"days\":3,\"opts\":{\"a\":[1,true,null,1.5]}}"}},
        {"id":"c2","type":"function","function":{"name":"ping","arguments":"{}"}}]},
      {"role":"tool","tool_call_id":"c2","content":"pong"},{"role":"tool","tool_call_id":"c1","content":"18C"}])"),
            turns("<|system|>S<|user|>hi<|assistant|><think>think A\n</think>Let me look."
                  "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Köln \"x\"</arg_value>"
                  "<arg_key>days</arg_key><arg_value>3</arg_value><arg_key>opts</arg_key>"
                  "<arg_value>{\"a\": [1, true, null, 1.5]}</arg_value></tool_call><tool_call>ping</tool_call>"
                  "<|observation|><tool_response>18C</tool_response><tool_response>pong</tool_response>"));
}

constexpr char kToolsHead[] =
    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n";
constexpr char kToolsTail[] =
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
    "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>"
    "<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>";

std::string tools_block(const std::string& lines) { return kToolsHead + lines + kToolsTail; }

TEST(ChatPrompt, E8OneTool) {
  EXPECT_EQ(
      render(R"([{"role":"user","content":"w?"}])",
             R"([{"type":"function","function":{"name":"get_weather","description":"Get the weather.","strict":true,
                 "parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},
                 "required":["city"]}}}])"),
      turns(tools_block(R"({"name": "get_weather", "description": "Get the weather.", "parameters": {"type": )"
                        R"("object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, )"
                        R"("required": ["city"]}})"
                        "\n") +
            "<|user|>w?"));
}

TEST(ChatPrompt, E9PictureThenText) {
  const ChatPrompt prompt = render_chat_prompt(input_of(R"([{"role":"user","content":[
      {"type":"image_url","image_url":{"url":"data:,"}},{"type":"text","text":"what is this?"}]}])"));
  const std::string expected = turns("<|user|><|begin_of_image|><|image|><|end_of_image|>what is this?");
  EXPECT_EQ(prompt.text(), expected);
  ASSERT_EQ(prompt.media.size(), 1u);
  EXPECT_EQ(prompt.media[0].kind, MediaPart::Kind::kImage);
  EXPECT_EQ(prompt.media[0].param, "messages[0].content[0]");
  EXPECT_EQ(prompt.media[0].offset, expected.find("<|begin_of_image|>"));
}

TEST(ChatPrompt, E10InlineThink) {
  EXPECT_EQ(render(R"([{"role":"user","content":"q"},{"role":"assistant","content":"<think>let me add</think>4"},
                       {"role":"user","content":"again"}])"),
            turns("<|user|>q<|assistant|><think>let me add</think>4<|user|>again"));
}

constexpr char kCallsAB[] =
    R"({"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f"}},
       {"id":"b","function":{"name":"g"}}]},)";

std::string after_calls_ab(const std::string& results) {
  return turns("<|user|>q<|assistant|><think></think><tool_call>f</tool_call><tool_call>g</tool_call><|observation|>" +
               results);
}
std::string response(const std::string& text) { return "<tool_response>" + text + "</tool_response>"; }
std::string render_results(const std::string& messages) { return render("[" + std::string(kCallsAB) + messages + "]"); }

TEST(ChatPrompt, E11ListOfOutputs) {
  EXPECT_EQ(render_results(
                R"({"role":"tool","content":[{"tool_call_id":"b","output":"B"},{"tool_call_id":"a","output":"A"}]})"),
            after_calls_ab(response("A") + response("B")));
}

TEST(ChatPrompt, E12ResultWithoutIdKeepsMessageOrder) {
  EXPECT_EQ(render_results(R"({"role":"tool","tool_call_id":"b","content":"B"},{"role":"tool","content":"A"})"),
            after_calls_ab(response("B") + response("A")));
}

TEST(ChatPrompt, E13SystemInTheMiddle) {
  EXPECT_EQ(render(R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"},
                       {"role":"system","content":"sys2"},{"role":"user","content":"r"}])"),
            turns("<|user|>q<|assistant|><think></think>a<|system|>sys2<|user|>r"));
}

TEST(ChatPrompt, ResultOrder) {
  const auto tool = [](const std::string& id, const std::string& text) {
    return R"({"role":"tool","tool_call_id":")" + id + R"(","content":")" + text + "\"}";
  };
  // A call without a result contributes nothing; `id` stands in for `tool_call_id`.
  EXPECT_EQ(render_results(tool("b", "B")), after_calls_ab(response("B")));
  EXPECT_EQ(render_results(R"({"role":"tool","id":"b","content":"B"},)" + tool("a", "A")),
            after_calls_ab(response("A") + response("B")));
  EXPECT_EQ(render_results(R"({"role":"tool","tool_call_id":"","id":"b","content":"B"},)" + tool("a", "A")),
            after_calls_ab(response("A") + response("B")));
  // Repeated and unknown ids: message order.
  EXPECT_EQ(render_results(tool("b", "1") + "," + tool("b", "2") + "," + tool("a", "3")),
            after_calls_ab(response("1") + response("2") + response("3")));
  EXPECT_EQ(render_results(tool("b", "1") + "," + tool("z", "2")), after_calls_ab(response("1") + response("2")));
  // A call without an id, or two of one id: message order.
  for (const char* calls : {R"([{"id":"a","name":"f"},{"name":"g"},{"id":"b","name":"h"}])",
                            R"([{"id":"a","name":"f"},{"id":"b","name":"g"},{"id":"b","name":"h"}])"}) {
    EXPECT_EQ(render(R"([{"role":"assistant","tool_calls":)" + std::string(calls) + "}," + tool("b", "B") + "," +
                     tool("a", "A") + "]"),
              turns("<|assistant|><think></think><tool_call>f</tool_call><tool_call>g</tool_call>"
                    "<tool_call>h</tool_call><|observation|>" +
                    response("B") + response("A")));
  }
  // A run after another message, or at the start.
  EXPECT_EQ(render(R"([{"role":"assistant","tool_calls":[{"id":"a","name":"f"},{"id":"b","name":"g"}]},
                       {"role":"user","content":"u"},)" +
                   tool("b", "B") + "," + tool("a", "A") + "]"),
            turns("<|assistant|><think></think><tool_call>f</tool_call><tool_call>g</tool_call><|user|>u"
                  "<|observation|>" +
                  response("B") + response("A")));
  EXPECT_EQ(render("[" + tool("b", "B") + "]"), turns("<|observation|>" + response("B")));
}

TEST(ChatPrompt, PictureOfAResultMovesWithIt) {
  const ChatPrompt prompt = render_chat_prompt(input_of("[" + std::string(kCallsAB) + R"(
      {"role":"tool","tool_call_id":"b","content":[{"type":"text","text":"see"},{"type":"image","image":"x"}]},
      {"role":"tool","content":[{"tool_call_id":"a","output":[{"type":"video_url","video_url":{}}]}]}])"));
  EXPECT_EQ(prompt.text(), after_calls_ab(response("<|begin_of_video|><|video|><|end_of_video|>") +
                                          response("see<|begin_of_image|><|image|><|end_of_image|>")));
  ASSERT_EQ(prompt.media.size(), 2u);
  EXPECT_EQ(prompt.media[0].param, "messages[3].content[0].output[0]");
  EXPECT_EQ(prompt.media[0].kind, MediaPart::Kind::kVideo);
  EXPECT_EQ(prompt.media[0].offset, prompt.text().find("<|begin_of_video|>"));
  EXPECT_EQ(prompt.media[1].param, "messages[2].content[1]");
  EXPECT_EQ(prompt.media[1].offset, prompt.text().find("<|begin_of_image|>"));
}

TEST(ChatPrompt, ToolContentForms) {
  const auto result = [](const std::string& content) {
    return render(R"([{"role":"tool","content":)" + content + "}]");
  };
  const auto observed = [](const std::string& text) { return turns("<|observation|>" + response(text)); };
  EXPECT_EQ(result("360"), observed("360"));
  EXPECT_EQ(result("1.50"), observed("1.5"));
  EXPECT_EQ(result("true"), observed("true"));
  EXPECT_EQ(result("null"), observed(""));
  EXPECT_EQ(result(R"({"b":1,"a":[null]})"), observed(R"({"b": 1, "a": [null]})"));
  EXPECT_EQ(result(R"("  kept \n")"), observed("  kept \n"));
  EXPECT_EQ(result("[]"), observed(""));
  EXPECT_EQ(result(R"([{"output":7},{"output":{"x":1}},{"output":null},{}])"),
            turns("<|observation|>" + response("7") + response("{\"x\": 1}") + response("") + response("")));
  EXPECT_EQ(render(R"([{"role":"tool"}])"), observed(""));
}

TEST(ChatPrompt, ToolReferences) {
  constexpr char kTools[] = R"([{"type":"function","function":{"name":"hidden","defer_loading":true,"n":1}},
                                {"name":"flat","defer_loading":1,"strict":false},{"name":"shown","strict":true}])";
  EXPECT_EQ(render(R"([{"role":"tool","content":[{"type":"tool_reference","name":"hidden"},
                       {"type":"tool_reference","tool_name":"flat"},{"type":"tool_reference","name":"none"},
                       {"type":"tool_reference"}]}])",
                   kTools),
            turns(tools_block("{\"name\": \"shown\"}\n") + "<|observation|>" +
                  response("<tools>\n{\"name\": \"hidden\", \"n\": 1}\n{\"name\": \"flat\"}\n</tools>")));
  const std::string big = R"([{"name":"t","description":")" + std::string(1 << 20, 'x') + "\"}]";
  std::string items;
  for (int i = 0; i < 17; ++i) {
    items += std::string(i > 0 ? "," : "") + R"({"type":"tool_reference","name":"t"})";
  }
  EXPECT_EQ(refusal(R"([{"role":"tool","content":[)" + items + "]}]", big),
            "messages[0].content[15]: tool references add more than 16 MiB to the prompt");
}

TEST(ChatPrompt, DeferredAndNestedKeys) {
  // Deferred beside the function object; the two keys go at the tool's own level only.
  EXPECT_EQ(render(R"([{"role":"user","content":"q"}])",
                   R"([{"type":"function","defer_loading":true,"function":{"name":"a"}}])"),
            turns(tools_block("") + "<|user|>q"));
  EXPECT_EQ(
      render(R"([{"role":"user","content":"q"}])",
             R"([{"function":{"strict":null,"name":"a","parameters":{"strict":1,"defer_loading":2}}}])"),
      turns(tools_block("{\"name\": \"a\", \"parameters\": {\"strict\": 1, \"defer_loading\": 2}}\n") + "<|user|>q"));
}

TEST(ChatPrompt, ThinkingOffStillShowsTools) {
  auto input = input_of(R"([{"role":"user","content":"q"}])", R"([{"name":"a"}])");
  input.thinking = false;
  EXPECT_EQ(render(input),
            "[gMASK]<sop>" + tools_block("{\"name\": \"a\"}\n") + "<|user|>q<|assistant|><think></think>");
}

TEST(ChatPrompt, OtherRolesAndContentForms) {
  EXPECT_EQ(render(R"([{"role":"developer","content":"d"},{"role":"user","content":null},{"role":"user"},
                       {"role":"user","content":[]},{"role":"assistant","content":null},
                       {"role":"function","name":"f","content":"r"}])"),
            turns("<|system|>d<|user|><|user|><|user|><|assistant|><think></think><|observation|>" + response("r")));
  EXPECT_EQ(
      render(R"([{"role":"user","content":["a ",{"type":"input_text","text":"b"},{"type":"output_text","text":" c"},
                       {"type":"refusal","refusal":"x"},{"type":"thinking","thinking":"x"},{"type":"reasoning"}]}])"),
      turns("<|user|>a b c"));
  EXPECT_EQ(render(R"([{"role":"user","content":" \n kept \t"}])"), turns("<|user|> \n kept \t"));
}

TEST(ChatPrompt, ReasoningFields) {
  const auto reply = [](const std::string& fields) { return render(R"([{"role":"assistant",)" + fields + "}]"); };
  const auto shown = [](const std::string& reasoning, const std::string& text) {
    return turns("<|assistant|><think>" + reasoning + "</think>" + text);
  };
  EXPECT_EQ(reply(R"("content":"c","reasoning":"r")"), shown("r", "c"));
  EXPECT_EQ(reply(R"("content":"c","reasoning":"r","reasoning_content":"rc")"), shown("r", "c"));
  EXPECT_EQ(reply(R"("content":"c","reasoning":"","reasoning_content":"rc")"), shown("rc", "c"));
  EXPECT_EQ(reply(R"("content":"c","reasoning":"r","reasoning_content":"")"), shown("r", "c"));
  EXPECT_EQ(reply(R"("content":"c","reasoning":null,"reasoning_content":" rc\n")"), shown(" rc\n", "c"));
  // A string, also an empty one, ends the search in the content; other kinds do not count.
  EXPECT_EQ(reply(R"("content":"<think>X</think>a","reasoning":"")"), shown("", "<think>X</think>a"));
  EXPECT_EQ(reply(R"("content":"<think>X</think>a","reasoning":{"x":1})"), shown("X", "a"));
  EXPECT_EQ(reply(R"("content":"x<think>A<think>B</think>C</think> D ")"), shown("B", "D"));
  EXPECT_EQ(reply(R"("content":"only</think>")"), shown("only", ""));
  EXPECT_EQ(reply(R"("content":"<think>open")"), shown("", "<think>open"));
  // The search goes over the parts joined.
  EXPECT_EQ(reply(R"("content":[{"type":"text","text":"R</thi"},{"type":"text","text":"nk> c "}])"), shown("R", "c"));
}

TEST(ChatPrompt, PicturesInAnAssistantMessageFollowTheCut) {
  const ChatPrompt prompt = render_chat_prompt(input_of(R"([{"role":"assistant","content":[
      {"type":"image"},{"type":"text","text":"<think>"},{"type":"image"},{"type":"text","text":"</think> "},
      {"type":"video"},{"type":"text","text":" "}]}])"));
  EXPECT_EQ(prompt.text(), turns("<|assistant|><think><|begin_of_image|><|image|><|end_of_image|></think>"
                                 "<|begin_of_video|><|video|><|end_of_video|>"));
  ASSERT_EQ(prompt.media.size(), 2u);
  EXPECT_EQ(prompt.media[0].param, "messages[0].content[2]");
  EXPECT_EQ(prompt.media[0].offset, prompt.text().find("<|begin_of_image|>"));
  EXPECT_EQ(prompt.media[1].param, "messages[0].content[4]");
  EXPECT_EQ(prompt.media[1].offset, prompt.text().find("<|begin_of_video|>"));
}

TEST(ChatPrompt, StripIsPythons) {
  const std::string spaces =
      "\t\n\v\f\r\x1c\x1d\x1e\x1f \u0085\u00a0\u1680\u2000\u2005\u200a\u2028\u2029\u202f\u205f\u3000";
  auto input = input_of("[{\"role\":\"assistant\"}]");
  const auto reply = [&](const std::string& content) {
    input.messages[0] =
        PromptJson::object({{"role", PromptJson::string("assistant")}, {"content", PromptJson::string(content)}});
    return render(input);
  };
  EXPECT_EQ(reply(spaces + "a" + spaces + "b" + spaces), turns("<|assistant|><think></think>a" + spaces + "b"));
  EXPECT_EQ(reply(spaces), turns("<|assistant|><think></think>"));
  for (const char* kept : {"\u200b", "\ufeff", "\u180e", "\u2060", "\u00ad", "é", "中", "😀"}) {
    EXPECT_EQ(reply(kept), turns(std::string("<|assistant|><think></think>") + kept));
  }
}

TEST(ChatPrompt, CallArguments) {
  const auto call = [](const std::string& fields) {
    return render_chat_prompt(input_of(R"([{"role":"assistant","tool_calls":[)" + fields + "]}]"));
  };
  const auto shown = [](const std::string& text) {
    return turns("<|assistant|><think></think><tool_call>" + text + "</tool_call>");
  };
  for (const char* fields : {R"({"function":{"name":"f"}})", R"({"function":{"name":"f","arguments":""}})",
                             R"({"function":{"name":"f","arguments":null}})", R"({"name":"f","arguments":{}})",
                             R"({"name":"f","arguments":" {} "})"}) {
    EXPECT_EQ(call(fields).text(), shown("f")) << fields;
    EXPECT_THAT(call(fields).ignored_arguments, ElementsAre()) << fields;
  }
  for (const char* arguments : {R"("{\"a\":")", R"("[1]")", R"("null")", R"("7")", R"([1])", "7", R"(" ")"}) {
    const ChatPrompt prompt = call(R"({"function":{"name":"f","arguments":)" + std::string(arguments) + "}}");
    EXPECT_EQ(prompt.text(), shown("f")) << arguments;
    EXPECT_THAT(prompt.ignored_arguments, ElementsAre("messages[0].tool_calls[0].function.arguments")) << arguments;
  }
  EXPECT_THAT(call(R"({"name":"f","arguments":"x"})").ignored_arguments,
              ElementsAre("messages[0].tool_calls[0].arguments"));
  EXPECT_EQ(
      call(
          R"({"name":"f","arguments":"{\"z\":\"\\\"007\\\"\\n\",\"a\":1E5,\"z2\":null,\"big\":12345678901234567890123}"})")
          .text(),
      shown("f<arg_key>z</arg_key><arg_value>\"007\"\n</arg_value><arg_key>a</arg_key><arg_value>100000.0"
            "</arg_value><arg_key>z2</arg_key><arg_value>null</arg_value><arg_key>big</arg_key>"
            "<arg_value>12345678901234567890123</arg_value>"));
  EXPECT_EQ(render(R"([{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{\"a\":1}"}}])"),
            shown("f<arg_key>a</arg_key><arg_value>1</arg_value>"));
}

TEST(ChatPrompt, EffortWords) {
  auto input = input_of(R"([{"role":"user","content":"q"}])");
  for (const auto& [effort, word] : std::initializer_list<std::pair<const char*, const char*>>{{"", "Max"},
                                                                                               {"low", "Low"},
                                                                                               {"high", "High"},
                                                                                               {"medium", "Max"},
                                                                                               {"minimal", "Max"},
                                                                                               {"xhigh", "Max"},
                                                                                               {"max", "Max"},
                                                                                               {"bogus", "Max"},
                                                                                               {"High", "Max"}}) {
    input.effort = effort;
    EXPECT_EQ(render(input),
              "[gMASK]<sop><|system|>Reasoning Effort: " + std::string(word) + "<|user|>q<|assistant|><think>");
  }
}

TEST(ChatPrompt, EffortPlacement) {
  auto input = input_of(R"([{"role":"system","content":"s"},{"role":"user","content":"u1"},
      {"role":"assistant","content":"a"},{"role":"user","content":"u2"},{"role":"assistant","content":"b"}])");
  const std::string effort = "<|system|>Reasoning Effort: Max";
  input.effort_at = EffortPlacement::kBeforeLastUser;
  EXPECT_EQ(render(input), "[gMASK]<sop><|system|>s<|user|>u1<|assistant|><think></think>a" + effort +
                               "<|user|>u2<|assistant|><think></think>b<|assistant|><think>");
  input.effort_at = EffortPlacement::kTail;
  EXPECT_EQ(render(input),
            "[gMASK]<sop><|system|>s<|user|>u1<|assistant|><think></think>a<|user|>u2<|assistant|>"
            "<think></think>b" +
                effort + "<|assistant|><think>");
  for (const auto at : {EffortPlacement::kBeforeLastUser, EffortPlacement::kTail}) {
    input.effort_at = at;
    input.add_generation_prompt = false;
    EXPECT_EQ(render(input), with_head("<|system|>s<|user|>u1<|assistant|><think></think>a<|user|>u2<|assistant|>"
                                       "<think></think>b"));
  }
  auto no_user = input_of(R"([{"role":"system","content":"s"}])");
  no_user.effort_at = EffortPlacement::kBeforeLastUser;
  EXPECT_EQ(render(no_user), turns("<|system|>s"));
}

TEST(ChatPrompt, ContinueFinalMessage) {
  auto input = input_of(R"([{"role":"user","content":"q"},{"role":"assistant","content":" The answer is "}])");
  input.continue_final_message = true;
  EXPECT_EQ(refusal(input),
            "continue_final_message: continue_final_message and add_generation_prompt must not both be true");
  input.add_generation_prompt = false;
  EXPECT_EQ(render(input), with_head("<|user|>q<|assistant|><think></think>The answer is "));
  input.thinking = false;
  EXPECT_EQ(render(input), "[gMASK]<sop><|user|>q<|assistant|><think></think>The answer is ");
  input.thinking = true;
  input.messages = list(R"([{"role":"assistant","content":" a "},
                            {"role":"assistant","content":"b \n","reasoning_content":"r"}])");
  EXPECT_EQ(render(input), with_head("<|assistant|><think></think>a<|assistant|><think>r</think>b \n"));
  input.messages = list(R"([{"role":"assistant","content":"a"},{"role":"user","content":"q"}])");
  EXPECT_EQ(refusal(input), "messages[1].role: continue_final_message needs a final message of role assistant");
  input.messages = list(R"([{"role":"assistant","content":"a","tool_calls":[{"name":"f"}]}])");
  EXPECT_EQ(refusal(input), "messages[0]: continue_final_message: the final message has tool calls after its text");
}

TEST(ChatPrompt, Refusals) {
  EXPECT_EQ(refusal("[]"), "messages: messages must not be empty");
  EXPECT_EQ(refusal("[7]"), "messages[0]: messages[0] must be an object");
  EXPECT_EQ(refusal("[{}]"), "messages[0].role: messages[0].role must be a string");
  EXPECT_EQ(refusal(R"([{"role":null}])"), "messages[0].role: messages[0].role must be a string");
  EXPECT_EQ(refusal(R"([{"role":"user"},{"role":"critic\n"}])"),
            "messages[1].role: unknown role \"critic\\x0a\" in messages[1]");
  for (const char* role : {"user", "system", "developer", "assistant"}) {
    for (const char* content : {"1", "true", "{}"}) {
      EXPECT_EQ(refusal(R"([{"role":")" + std::string(role) + R"(","content":)" + content + "}]"),
                "messages[0].content: messages[0].content must be a string or a list of parts");
    }
  }
  const auto part = [](const std::string& json) {
    return refusal(R"([{"role":"user","content":["x",)" + json + "]}]");
  };
  EXPECT_EQ(part("5"), "messages[0].content[1]: messages[0].content[1] must be a string or an object");
  EXPECT_EQ(part("null"), "messages[0].content[1]: messages[0].content[1] must be a string or an object");
  EXPECT_EQ(part("{}"), "messages[0].content[1].type: messages[0].content[1].type must be a string");
  EXPECT_EQ(part(R"({"type":"text"})"), "messages[0].content[1].text: messages[0].content[1].text must be a string");
  EXPECT_EQ(part(R"({"type":"hologram"})"),
            "messages[0].content[1].type: unknown content part type \"hologram\" in messages[0].content[1]");
  for (const char* type : {"audio", "audio_url", "input_audio"}) {
    EXPECT_EQ(part(R"({"type":")" + std::string(type) + "\"}"),
              "messages[0].content[1].type: audio input is not supported");
  }
  EXPECT_EQ(
      refusal(R"([{"role":"tool","content":[{"output":[{"type":"x"}]}]}])"),
      "messages[0].content[0].output[0].type: unknown content part type \"x\" in messages[0].content[0].output[0]");
  EXPECT_EQ(refusal(R"([{"role":"tool","content":[{"output":"a"},"b"]}])"),
            "messages[0].content[1]: messages[0].content[1] must be an object");
  EXPECT_EQ(refusal(R"([{"role":"assistant","tool_calls":{}}])"),
            "messages[0].tool_calls: messages[0].tool_calls must be a list");
  EXPECT_EQ(refusal(R"([{"role":"assistant","tool_calls":["f"]}])"),
            "messages[0].tool_calls[0]: messages[0].tool_calls[0] must be an object");
  EXPECT_EQ(refusal(R"([{"role":"assistant","tool_calls":[{"function":{"arguments":"{}"}}]}])"),
            "messages[0].tool_calls[0].function.name: messages[0].tool_calls[0].function.name must be a string");
  EXPECT_EQ(refusal(R"([{"role":"assistant","tool_calls":[{"function":"f"}]}])"),
            "messages[0].tool_calls[0].function: messages[0].tool_calls[0].function must be an object");
  EXPECT_EQ(refusal(R"([{"role":"user","content":"q"}])", "[1]"), "tools[0]: tools[0] must be an object");
}

TEST(ChatPrompt, LongWordsAreClippedInMessages) {
  std::string role;
  for (int i = 0; i < 1000; ++i) {
    role += "é";
  }
  std::string clipped;
  for (int i = 0; i < 32; ++i) {
    clipped += "é";
  }
  EXPECT_EQ(refusal(R"([{"role":"x)" + role + "\"}]"),
            "messages[0].role: unknown role \"x" + clipped.substr(0, 62) + "…\" in messages[0]");
}

TEST(ChatPrompt, SegmentsTellTemplateFromContent) {
  const ChatPrompt prompt = render_chat_prompt(input_of(
      R"([{"role":"user","content":["<|image|>",{"type":"image"}," <|user|>"]},
          {"role":"assistant","content":"c","reasoning":"r","tool_calls":[{"name":"f","arguments":{"k":"v"}}]}])"));
  std::vector<std::string> shown;
  for (const TextSegment& segment : prompt.segments) {
    shown.push_back((segment.kind == TextSegment::Kind::kTemplate ? "T:" : "C:") + segment.text);
  }
  EXPECT_THAT(shown,
              ElementsAre("T:[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>", "C:<|image|>",
                          "T:<|begin_of_image|><|image|><|end_of_image|>", "C: <|user|>", "T:<|assistant|><think>",
                          "C:r", "T:</think>", "C:c", "T:<tool_call>", "C:f", "T:<arg_key>", "C:k",
                          "T:</arg_key><arg_value>", "C:v", "T:</arg_value></tool_call><|assistant|><think>"));
}

// The published template compares every result with every other.
TEST(ChatPrompt, ManyResultsAreSortedByCall) {
  constexpr int kCalls = 20000;
  std::string calls;
  std::string results;
  for (int i = 0; i < kCalls; ++i) {
    calls += std::string(i > 0 ? "," : "") + R"({"id":"c)" + std::to_string(i) + R"(","name":"f"})";
    results += std::string(R"(,{"role":"tool","tool_call_id":"c)") + std::to_string(kCalls - 1 - i) +
               R"(","content":")" + std::to_string(kCalls - 1 - i) + "\"}";
  }
  const std::string text = render(R"([{"role":"assistant","tool_calls":[)" + calls + "]}" + results + "]");
  std::string expected = "<|observation|>";
  for (int i = 0; i < kCalls; ++i) {
    expected += response(std::to_string(i));
  }
  EXPECT_NE(text.find(expected), std::string::npos);
}

}  // namespace
}  // namespace glm53::text
