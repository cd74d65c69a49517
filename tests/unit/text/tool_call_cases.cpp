#include "tool_call_cases.h"

namespace glm53::test {

using namespace glm53::text;

namespace {

using Calls = std::vector<std::pair<std::string, std::string>>;

constexpr auto kCut = ReplyEnd::kCut;
constexpr auto kComplete = ReplyEnd::kComplete;

ReplyMessage says(std::string content, Calls calls = {}) {
  return {.content = std::move(content), .calls = std::move(calls)};
}
ReplyMessage thinks(std::string reasoning, std::string content = {}, Calls calls = {}) {
  return {.reasoning = std::move(reasoning), .content = std::move(content), .calls = std::move(calls)};
}

const std::string kTime = "<tool_call>get_time</tool_call>";
const std::string kOslo = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>";
const Calls kTimeCall = {{"get_time", "{}"}};
const Calls kOsloCall = {{"get_weather", R"({"city": "Oslo"})"}};

std::string argument(const std::string& key, const std::string& value) {
  return "<arg_key>" + key + "</arg_key><arg_value>" + value + "</arg_value>";
}

std::string call(const std::string& name, const std::string& rest = {}) {
  return "<tool_call>" + name + rest + "</tool_call>";
}

ToolCallCase text_case(std::string name, const std::string& text) { return {std::move(name), text, says(text)}; }

std::vector<ToolCallCase> well_formed() {
  const std::string code = "def f(x):\n\treturn \"a\\n\"  # é 😀\n";
  return {
      {"zero_arguments", kTime, says("", kTimeCall)},
      {"one_argument", kOslo, says("", kOsloCall)},
      {"typed", call("get_weather", argument("city", "Oslo") + argument("days", "3") + argument("unit", "C")),
       says("", {{"get_weather", R"({"city": "Oslo", "days": 3, "unit": "C"})"}})},
      {"spaces_and_lines",
       "<tool_call>\n get_weather \n<arg_key> city\t</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key> "
       "<arg_value> 3 </arg_value>\n</tool_call>",
       says("", {{"get_weather", R"({"city": "Oslo", "days": 3})"}})},
      {"two_calls", kOslo + kTime, says("", {kOsloCall[0], kTimeCall[0]})},
      {"two_calls_on_lines", kOslo + "\n" + kTime + "\n", says("", {kOsloCall[0], kTimeCall[0]})},
      {"text_before", "Let me look.\n\n" + kOslo, says("Let me look.", kOsloCall)},
      {"unicode_space_before", "a\u3000\u00a0" + kOslo, says("a", kOsloCall)},
      {"space_before", " \n" + kOslo, says("", kOsloCall)},
      {"text_after", kTime + "\nDone.\n", says("\nDone.\n", kTimeCall)},
      {"text_around", "A \n" + kTime + "\n mid \n" + kTime + " \n" + kTime + "z",
       says("A\n mid \nz", {kTimeCall[0], kTimeCall[0], kTimeCall[0]})},
      {"no_call_keeps_its_space", "a b \n\n", says("a b \n\n")},
      {"after_reasoning", "I should.</think>Now. <tool_call>get_time</tool_call>",
       thinks("I should.", "Now.", kTimeCall), kComplete, true},
      {"space_around_reasoning", "a \n<think>r</think>" + kTime, thinks("r", "a", kTimeCall)},
      {"string_of_digits", call("get_weather", argument("city", "007")),
       says("", {{"get_weather", R"({"city": "007"})"}})},
      {"string_like_json", call("write_file", argument("content", R"({"a": [1, "x"]})")),
       says("", {{"write_file", R"({"content": "{\"a\": [1, \"x\"]}"})"}})},
      {"code", call("write_file", argument("path", "a.py") + argument("content", code)),
       says("", {{"write_file", R"({"path": "a.py", "content": )" + PromptJson::string(code).dump() + "}"}})},
      {"tags_in_a_value",
       call("write_file", argument("content", " <x> </arg_key> <arg_value> <tool_call> </think> <think>")),
       says("", {{"write_file", R"({"content": " <x> </arg_key> <arg_value> <tool_call> </think> <think>"})"}})},
      {"nested_call_in_a_value",
       call("write_file", argument("content", "a" + kTime + "b <tool_call>x<arg_key></tool_call>")),
       says("", {{"write_file", R"({"content": "a)" + kTime + R"(b <tool_call>x<arg_key></tool_call>"})"}})},
      {"json_values",
       call("set", argument("object", R"({"b":1,"a":[1.50,12345678901234567890]})") + argument("flag", "True") +
                       argument("maybe", "null") + argument("number", "3.0")),
       says("",
            {{"set",
              R"({"object": {"b": 1, "a": [1.5, 12345678901234567890]}, "flag": true, "maybe": null, "number": 3})"}})},
      {"unknown_keys", call("get_time", argument("x", "5") + argument("y", "five")),
       says("", {{"get_time", R"({"x": 5, "y": "five"})"}})},
      {"empty_value", call("get_weather", argument("city", "")), says("", {{"get_weather", R"({"city": ""})"}})},
      {"name_in_other_case", call("GET_Weather", argument("city", "x")),
       says("", {{"get_weather", R"({"city": "x"})"}})},
      {"name_exact_among_cases", call("search"), says("", {{"search", "{}"}})},
      {"name_ambiguous", call("SEARCH"), says("", {{"SEARCH", "{}"}})},
      {"name_unknown", call("no-Such_1", argument("a", "1")), says("", {{"no-Such_1", R"({"a": 1})"}})},
  };
}

std::vector<ToolCallCase> repaired() {
  return {
      {"repeated_key", call("get_weather", argument("city", "A") + argument("days", "1") + argument("city", "B")),
       says("", {{"get_weather", R"({"city": "B", "days": 1})"}}), kComplete, false,
       says("", {{"get_weather", R"({"city": "A", "days": 1, "city": "B"})"}})},
      {"end_behind_value", "<tool_call>get_weather" + argument("city", "Oslo") + "\n", says("", kOsloCall)},
      {"end_in_value", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo \n", says("", kOsloCall)},
      {"end_behind_name", "Now <tool_call>get_time", says("Now", kTimeCall)},
      {"end_behind_key", "<tool_call>get_weather<arg_key>city</arg_key>",
       says("", {{"get_weather", R"({"city": ""})"}})},
      {"end_in_json", R"(<tool_call>{"name": "get_time"})", says("", kTimeCall)},
      {"end_in_second_call", kTime + "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo",
       says("", {kTimeCall[0], kOsloCall[0]})},
      {"value_open_before_key",
       "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo "
       "\n<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
       says("", {{"get_weather", R"({"city": "Oslo", "days": 3})"}})},
      {"value_open_before_end", "<tool_call>get_weather<arg_key>days</arg_key><arg_value>3\n</tool_call>",
       says("", {{"get_weather", R"({"days": 3})"}})},
      {"text_value_open_before_end", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>a  b\n </tool_call>",
       says("", {{"get_weather", R"({"city": "a  b"})"}})},
      {"keys_not_opened",
       "<tool_call>get_weather city</arg_key><arg_value>Oslo</arg_value> "
       "days</arg_key><arg_value>3</arg_value></tool_call>",
       says("", {{"get_weather", R"({"city": "Oslo", "days": 3})"}})},
      {"key_not_opened_on_line", "<tool_call>get_weather\ncity\n</arg_key>\n<arg_value>Oslo</arg_value></tool_call>",
       says("", kOsloCall)},
      {"key_without_value", "<tool_call>get_weather<arg_key>city</arg_key><arg_key>days</arg_key></tool_call>",
       says("", {{"get_weather", R"({"city": ""})"}})},
      {"key_without_value_dropped", "<tool_call>get_weather<arg_key>days</arg_key></tool_call>",
       says("", {{"get_weather", "{}"}})},
      {"call_not_closed_before_next", "<tool_call>get_weather" + argument("city", "Oslo") + kTime,
       says("", {kOsloCall[0], kTimeCall[0]})},
      {"json_body",
       R"(<tool_call>{"name": "get_weather", "arguments": {"days": "3", "city": "Oslo", "x": 1.0}}</tool_call>)",
       says("", {{"get_weather", R"({"days": "3", "city": "Oslo", "x": 1.0})"}})},
      {"json_body_of_text",
       "<tool_call>\n"
       R"({"name": "GET_TIME", "arguments": "{\"a\": 1}", "id": 7})"
       "\n</tool_call>",
       says("", {{"get_time", R"({"a": 1})"}})},
      {"json_body_unknown", R"(<tool_call>{"name": "nope"}</tool_call>)", says("", {{"nope", "{}"}})},
      {"json_body_with_braces_in_strings",
       R"(<tool_call>{"name": "write_file", "arguments": {"path": "}]\\\"}", "content": "{\"[", "l": [[], {}, -1.5e3]}} )"
       "\n</tool_call> }",
       says(" }", {{"write_file", R"({"path": "}]\\\"}", "content": "{\"[", "l": [[], {}, -1500.0]})"}})},
      {"end_behind_json_and_space", "<tool_call>{\"name\":\"get_time\"} \n", says("", kTimeCall)},
  };
}

std::vector<ToolCallCase> refused() {
  const auto open = says("", {{"get_weather", "{}"}});
  std::vector<ToolCallCase> cases = {
      text_case("mention", "Write <tool_call> and then the name of the function, like so."),
      text_case("mention_closed", "Write <tool_call> and then </tool_call> at the end."),
      text_case("mention_at_the_end", "The tag is <tool_call>"),
      text_case("mention_with_backticks", "The `<tool_call>` tag"),
      text_case("name_unknown_unclosed", "The tag <tool_call> done"),
      text_case("empty_name", "<tool_call></tool_call>"),
      text_case("empty_name_with_argument", "<tool_call> " + argument("city", "x") + "</tool_call> b"),
      text_case("name_of_two_words", "<tool_call>get time</tool_call>"),
      text_case("name_with_other_characters", "<tool_call>get/time</tool_call>"),
      text_case("name_unknown_with_dot", "<tool_call>get.time</tool_call>"),
      text_case("name_too_long", call(std::string(65, 'a'))),
      text_case("unknown_repair", "<tool_call>nope key</arg_key><arg_value>v</arg_value></tool_call>"),
      text_case("unknown_value_open", "<tool_call>nope<arg_key>k</arg_key><arg_value>v</tool_call>"),
      text_case("unknown_key_without_value", "<tool_call>nope<arg_key>k</arg_key></tool_call>"),
      text_case("unknown_json_unclosed", R"(<tool_call>{"name": "nope"})"),
      text_case("json_of_something_else", R"(<tool_call>{"get_time": 1}</tool_call>)"),
      text_case("json_broken", R"(<tool_call>{"name": "get_time"</tool_call>)"),
      text_case("json_arguments_no_object", R"(<tool_call>{"name": "get_time", "arguments": [1]}</tool_call>)"),
      text_case("json_then_text", R"(<tool_call>{"name": "get_time"}. And so on.</tool_call>)"),
      text_case("json_then_brace", R"(<tool_call>{"name": "get_time"}}</tool_call>)"),
      text_case("json_of_a_list_that_ends_early", R"(<tool_call>{"name": "get_time", "arguments": {]}</tool_call>)"),
      text_case("brace_in_prose", "A <tool_call>{ opens it, and the reply goes on (\"so\") } to its end."),
      text_case("json_with_tags", R"(<tool_call>{"name": "get_time"<arg_key>)"),
      {"stray_close", "a</tool_call>b", says("ab")},
      {"stray_close_behind_call", kTime + "</tool_call> x", says(" x", kTimeCall)},
      {"mention_then_call", "Use <tool_call> now: " + kTime, says("Use <tool_call> now:", kTimeCall)},
      {"json_then_call", R"(<tool_call>{"name": "get_time"})" + kTime,
       says(R"(<tool_call>{"name": "get_time"})", kTimeCall)},
      {"tag_then_call", "<tool_call>" + kTime, says("<tool_call>", kTimeCall)},
      {"name_then_call", "<tool_call>get_time<tool_call>get_time</tool_call>", says("<tool_call>get_time", kTimeCall)},
      {"mention_behind_call", kTime + " and <tool_call>.", says(" and <tool_call>.", kTimeCall)},
      {"think_close_in_mention", "a <tool_call></think>b", says("a <tool_call>b")},
      // The rest differ where the call has been given out.
      {"end_in_key", "<tool_call>get_weather<arg_key>ci", says("<tool_call>get_weather<arg_key>ci"), kComplete, false,
       open},
      {"key_without_close", "<tool_call>get_weather<arg_key>city</tool_call> b",
       says("<tool_call>get_weather<arg_key>city</tool_call> b"), kComplete, false,
       says(" b", {{"get_weather", "{}"}})},
      {"text_behind_argument", "<tool_call>get_weather" + argument("city", "Oslo") + "and so on</tool_call>",
       says("<tool_call>get_weather" + argument("city", "Oslo") + "and so on</tool_call>"), kComplete, false,
       says("", kOsloCall)},
      {"argument_behind_text",
       "<tool_call>get_weather" + argument("city", "Oslo") + "and so on" + argument("days", "3") + kTime,
       says("<tool_call>get_weather" + argument("city", "Oslo") + "and so on" + argument("days", "3"), kTimeCall),
       kComplete, false, says("", {{"get_weather", R"({"city": "Oslo", "days": 3})"}, kTimeCall[0]})},
      {"value_without_key", "<tool_call>get_weather<arg_key></arg_key><arg_value>x</arg_value></tool_call>",
       says("<tool_call>get_weather<arg_key></arg_key><arg_value>x</arg_value></tool_call>"), kComplete, false, open},
  };
  return cases;
}

std::vector<ToolCallCase> cut_off() {
  return {
      {"cut_in_value", "Look: <tool_call>get_weather<arg_key>city</arg_key><arg_value>Os lo ", says("Look: "), kCut,
       false, says("Look:", {{"get_weather", R"({"city": "Os lo"})"}})},
      {"cut_in_number", "<tool_call>get_weather" + argument("city", "Oslo") + "<arg_key>days</arg_key><arg_value>3",
       says(""), kCut, false, says("", kOsloCall)},
      {"cut_in_key", "<tool_call>get_weather<arg_key>ci", says(""), kCut, false, says("", {{"get_weather", "{}"}})},
      {"cut_in_name", "a<tool_call>get_ti", says("a"), kCut},
      {"cut_in_second", kOslo + "\n<tool_call>get_time", says("", kOsloCall), kCut},
      {"cut_in_text", "a <tool_call> b c d \n", says("a <tool_call> b c d \n"), kCut},
      {"cut_behind_call", kOslo, says("", kOsloCall), kCut},
  };
}

std::vector<ToolCallCase> in_reasoning() {
  const std::string held = argument("city", std::string(15000, 'x'));
  const auto of = [](std::string name, const std::string& text, ReplyMessage message, ReplyEnd end = kComplete) {
    return ToolCallCase{std::move(name), text, std::move(message), end, true, {}};
  };
  return {
      of("reasoning_call", "I call. " + kOslo, thinks("I call. ", "", kOsloCall)),
      of("reasoning_calls", "r" + kOslo + " \n" + kTime + "\n", thinks("r", "", {kOsloCall[0], kTimeCall[0]})),
      of("reasoning_call_closed", "r" + kOslo + "</think>", thinks("r", "", kOsloCall)),
      of("reasoning_call_then_content", "r" + kOslo + "\n</think>Well.", thinks("r", "Well.", kOsloCall)),
      of("reasoning_call_unknown", "r" + call("nope"), thinks("r", "", {{"nope", "{}"}})),
      of("reasoning_mention", "I write <tool_call> now.</think>a", thinks("I write <tool_call> now.", "a")),
      of("reasoning_call_then_text", "r" + kOslo + " is what I write.</think>a",
         thinks("r" + kOslo + " is what I write.", "a")),
      of("reasoning_call_then_text_then_call", "r" + kOslo + " then " + kTime,
         thinks("r" + kOslo + " then ", "", kTimeCall)),
      of("reasoning_call_then_mention", "r" + kOslo + "<tool_call> x y", thinks("r" + kOslo + "<tool_call> x y")),
      of("reasoning_think_inside", "r<tool_call>get_weather<arg_key>city</arg_key><arg_value>Os</think>lo",
         thinks("r<tool_call>get_weather<arg_key>city</arg_key><arg_value>Os", "lo")),
      of("reasoning_unclosed", "r<tool_call>get_time", thinks("r<tool_call>get_time")),
      of("reasoning_repair", "r<tool_call>get_weather city</arg_key><arg_value>x</arg_value></tool_call>",
         thinks("r<tool_call>get_weather city</arg_key><arg_value>x</arg_value></tool_call>")),
      of("reasoning_json", R"(r<tool_call>{"name": "get_time"}</tool_call>)",
         thinks(R"(r<tool_call>{"name": "get_time"}</tool_call>)")),
      of("reasoning_stray_close", "r</tool_call>s", thinks("r</tool_call>s")),
      of("reasoning_cut_behind", "r" + kOslo, thinks("r" + kOslo), kCut),
      of("reasoning_cut_inside", "r<tool_call>get_time", thinks("r<tool_call>get_time"), kCut),
      of("reasoning_held_16k", "r" + call("get_weather", held),
         thinks("r", "", {{"get_weather", R"({"city": ")" + std::string(15000, 'x') + "\"}"}})),
      of("reasoning_beyond_16k", "r" + call("get_weather", held) + call("get_weather", held),
         thinks("r" + call("get_weather", held) + call("get_weather", held))),
      of("reasoning_reopened", "r</think>a <think>s" + kTime, thinks("rs", "a", kTimeCall)),
  };
}

}  // namespace

const std::vector<ToolCallCase>& tool_call_cases() {
  static const std::vector<ToolCallCase> cases = [] {
    std::vector<ToolCallCase> all;
    for (auto list : {well_formed(), repaired(), refused(), cut_off(), in_reasoning()}) {
      all.insert(all.end(), list.begin(), list.end());
    }
    return all;
  }();
  return cases;
}

std::shared_ptr<const OfferedTools> case_tools() {
  static const auto tools = [] {
    const auto parse = [](const char* schema) { return PromptJson::parse(schema); };
    return std::make_shared<const OfferedTools>(OfferedTools{
        {"get_time", {}},
        {"get_weather",
         parse(
             R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},"unit":{"enum":["C","F"]}}})")},
        {"write_file",
         parse(R"({"type":"object","properties":{"path":{"type":"string"},"content":{"type":"string"}}})")},
        {"set", parse(R"({"type":"object","properties":{"object":{"type":"object"},"flag":{"type":"boolean"},
                          "maybe":{"type":["integer","null"]},"number":{"type":"number"}}})")},
        {"Search", {}},
        {"search", {}}});
  }();
  return tools;
}

ReplyOptions case_options(bool reasoning, bool incremental) {
  ReplyOptions options;
  options.start = reasoning ? ReplyChannel::kReasoning : ReplyChannel::kContent;
  options.tools = case_tools();
  options.incremental_calls = incremental;
  return options;
}

}  // namespace glm53::test
