#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data_file.h"
#include "tool_call_cases.h"

namespace glm53::test {
namespace {

using namespace glm53::text;
using testing::ElementsAre;
using testing::Pair;

/// A reply to be fed in many ways, with what must come of it each time.
struct Reply {
  std::string name;
  std::vector<int32_t> ids;
  ReplyEnd end = ReplyEnd::kComplete;
  bool reasoning = false;
  ReplyMessage whole;
  ReplyMessage incremental;
};

std::vector<Reply> case_replies() {
  std::vector<Reply> replies;
  for (const ToolCallCase& c : tool_call_cases()) {
    replies.push_back(
        {c.name, tiny_tokenizer().encode(c.text), c.end, c.reasoning, c.message, c.incremental.value_or(c.message)});
  }
  return replies;
}

// The steps of a decoder that hands over 1 to 8 tokens at once, in words: all fixed steps, random ones, and the text
// cut into other tokens.
void feed_in_every_way(const Reply& reply) {
  SCOPED_TRACE(reply.name);
  std::mt19937 random(static_cast<unsigned>(std::hash<std::string>()(reply.name)));
  std::vector<std::vector<int32_t>> cuts = {in_bytes(reply.ids)};
  const size_t bytes = plain_bytes(reply.ids);
  const bool is_long = bytes > 600;  // only what fills the hold of reasoning
  for (size_t at = 1; at < bytes && !is_long; ++at) cuts.push_back(cut_at(reply.ids, at));
  for (int i = 0; i < (is_long ? 4 : 100); ++i) cuts.push_back(cut_anew(reply.ids, random));
  for (const bool incremental : {false, true}) {
    const ReplyOptions options = case_options(reply.reasoning, incremental);
    const ReplyMessage& expected = incremental ? reply.incremental : reply.whole;
    ASSERT_EQ(parse_reply(reply.ids, options, reply.end, {}), expected) << "at once, incremental: " << incremental;
    for (size_t step = 1; step <= 8; ++step) {
      ASSERT_EQ(parse_reply(reply.ids, options, reply.end, {step}), expected) << "steps of " << step;
    }
    for (int i = 0; i < (is_long ? 50 : 2000); ++i) {
      std::vector<size_t> steps(1 + random() % 16);
      for (size_t& step : steps) step = 1 + random() % 8;
      ASSERT_EQ(parse_reply(reply.ids, options, reply.end, steps), expected) << testing::PrintToString(steps);
    }
    for (const auto& ids : cuts) {
      ASSERT_EQ(parse_reply(ids, options, reply.end, {1 + random() % 8}), expected) << testing::PrintToString(ids);
    }
  }
}

TEST(ToolCalls, CasesHoweverTheyArrive) {
  for (const Reply& reply : case_replies()) feed_in_every_way(reply);
}

TEST(ToolCalls, ArgumentsAreAlwaysAnObject) {
  for (const ToolCallCase& c : tool_call_cases()) {
    for (const ReplyMessage& message : {c.message, c.incremental.value_or(c.message)}) {
      for (const auto& [name, arguments] : message.calls) {
        EXPECT_TRUE(PromptJson::parse(arguments).is_object()) << c.name << " " << name;
      }
    }
  }
}

/// Golden replies: what the model wrote, and the assistant turns of the rendered conversations.
std::vector<Reply> golden_replies() {
  std::vector<Reply> replies;
  const auto add = [&](std::string name, std::vector<int32_t> ids, ReplyEnd end, bool reasoning) {
    Reply reply{std::move(name), std::move(ids), end, reasoning, {}, {}};
    reply.whole = parse_reply(reply.ids, case_options(reasoning, false), end, {});
    reply.incremental = parse_reply(reply.ids, case_options(reasoning, true), end, {});
    replies.push_back(std::move(reply));
  };
  const std::set<int32_t> ends = {4060, 4067, 4069};
  for (const char* file : {"/golden/text.json", "/golden/vision.json"}) {
    for (const auto& golden : nlohmann::json::parse(read_file(GLM53_TEST_DATA + std::string(file)))) {
      std::vector<int32_t> ids = golden["greedy"];
      const std::vector<int32_t> prompt = golden["ids"];
      const bool complete = ends.contains(ids.back());
      if (complete) ids.pop_back();
      add(golden["name"], std::move(ids), complete ? ReplyEnd::kComplete : ReplyEnd::kCut,
          start_channel(prompt, tiny_tokenizer()) == ReplyChannel::kReasoning);
    }
  }
  for (const auto& chat : nlohmann::json::parse(read_file(GLM53_TEST_DATA "/golden/chat_template.json"))) {
    const std::vector<int32_t> prompt = tiny_tokenizer().encode(std::string(chat["prompt"]));
    const int32_t assistant = tiny_tokenizer().require_added("<|assistant|>");
    for (size_t i = 0; i < prompt.size(); ++i) {
      if (prompt[i] != assistant) continue;
      std::vector<int32_t> ids;
      for (size_t j = i + 1; j < prompt.size() && !tiny_tokenizer().is_special(prompt[j]); ++j)
        ids.push_back(prompt[j]);
      if (!ids.empty()) add(chat["name"], ids, ReplyEnd::kComplete, false);
    }
  }
  return replies;
}

TEST(ToolCalls, GoldenRepliesHoweverTheyArrive) {
  const std::vector<Reply> replies = golden_replies();
  ASSERT_GT(replies.size(), 50u);
  std::set<std::vector<int32_t>> seen;  // many conversations have the same turns
  size_t calls = 0;
  for (const Reply& reply : replies) {
    if (!seen.insert(reply.ids).second) continue;
    calls += reply.whole.calls.size();
    EXPECT_EQ(reply.whole, reply.incremental) << reply.name;
    feed_in_every_way(reply);
  }
  EXPECT_GT(calls, 20u);
}

TEST(ToolCalls, GoldenReplyOfTheModel) {
  for (const Reply& reply : golden_replies()) {
    if (reply.name != "tool") continue;
    EXPECT_EQ(reply.whole.reasoning, "I should call get_weather.");
    EXPECT_EQ(reply.whole.content, "");
    EXPECT_THAT(reply.whole.calls, ElementsAre(Pair("get_weather", R"({"city": "London"})")));
    return;
  }
  FAIL() << "no golden reply with a call";
}

// What the chat template writes of a call is read back as that call.
TEST(ToolCalls, GoldenConversationsRoundTrip) {
  size_t compared = 0;
  const PromptJson conversations = PromptJson::parse(read_file(GLM53_TEST_DATA "/golden/chat_template.json"));
  for (const PromptJson& conversation : conversations.items()) {
    for (const PromptJson& message : conversation.find("messages")->items()) {
      const PromptJson* const calls = message.find("tool_calls");
      if (calls == nullptr || !calls->is_array()) continue;
      const std::string prompt = conversation.find("prompt")->as_string();
      for (const PromptJson& call : calls->items()) {
        const PromptJson& function = *call.find("function");
        const PromptJson& arguments = *function.find("arguments");
        const std::string tool = function.find("name")->as_string();
        // A tool whose schema says what the text cannot: which arguments are strings.
        PromptJson::Object properties;
        std::string text = "<tool_call>" + tool;
        for (const auto& [key, value] : arguments.members()) {
          text += "<arg_key>" + key + "</arg_key><arg_value>";
          text += (value.is_string() ? value.as_string() : value.dump()) + "</arg_value>";
          if (value.is_string()) properties.emplace_back(key, PromptJson::parse(R"({"type":"string"})"));
        }
        text += "</tool_call>";
        ASSERT_NE(prompt.find(text), std::string::npos) << text;
        PromptJson::Object schema;
        schema.emplace_back("properties", PromptJson::object(std::move(properties)));
        ReplyOptions options;
        options.tools = std::make_shared<OfferedTools>(OfferedTools{{tool, PromptJson::object(std::move(schema))}});
        for (const bool incremental : {false, true}) {
          options.incremental_calls = incremental;
          EXPECT_THAT(parse_reply(tiny_tokenizer().encode(text), options).calls,
                      ElementsAre(Pair(tool, arguments.dump())));
        }
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 50u);
}

// Any text is an argument, but for the tag that ends it.
TEST(ToolCalls, StringsArriveUnchanged) {
  const std::vector<std::string> pieces = {"a",          "B7",          " ",           "\n",      "\t",       "é",
                                           "😀",          "\u3000",      "\"",          "\\",      "{\"x\":",  "null",
                                           "</arg_key>", "<arg_value>", "<tool_call>", "<think>", "</think>", "0",
                                           "<",          "</",          "\x01",        "\u2028",  "[1]"};
  std::mt19937 random(11);
  for (int round = 0; round < 1000; ++round) {
    std::string text = "<tool_call>write_file";
    PromptJson::Object arguments;
    for (const char* key : {"path", "content"}) {
      std::string value;
      for (size_t n = random() % 12; n > 0; --n) value += pieces[random() % pieces.size()];
      text += "<arg_key>" + std::string(key) + "</arg_key><arg_value>" + value + "</arg_value>";
      arguments.emplace_back(key, PromptJson::string(std::move(value)));
    }
    const auto ids = cut_anew(tiny_tokenizer().encode(text + "</tool_call>"), random);
    const std::string expected = PromptJson::object(std::move(arguments)).dump();
    for (const bool incremental : {false, true}) {
      EXPECT_THAT(parse_reply(ids, case_options(false, incremental), ReplyEnd::kComplete, {1 + random() % 8}).calls,
                  ElementsAre(Pair("write_file", expected)))
          << text;
    }
  }
}

ReplyMessage parse(const std::string& text, const ReplyOptions& options, ReplyEnd end = ReplyEnd::kComplete) {
  return parse_reply(tiny_tokenizer().encode(text), options, end);
}

TEST(ToolCalls, NothingIsParsedWithoutTools) {
  const std::string text = "a \n<tool_call>get_time</tool_call> \n</tool_call>";
  ReplyOptions options = case_options(false, false);
  options.tools = nullptr;
  EXPECT_EQ(parse(text, options).content, text);
  options.tools = std::make_shared<OfferedTools>();
  EXPECT_EQ(parse(text, options).content, text);
  options = case_options(false, false);
  options.split_reasoning = false;
  EXPECT_EQ(parse(text, options).content, text);
}

std::vector<int32_t> spelled(const std::string& text) {
  const TextSegment segment{TextSegment::Kind::kPlain, text};
  return tiny_tokenizer().encode({&segment, 1});
}

TEST(ToolCalls, TagsSpelledInOrdinaryTokensAreText) {
  const std::string text = "<tool_call>get_time</tool_call>";
  EXPECT_EQ(parse_reply(spelled(text), case_options(false, false)).content, text);
}

size_t count_of(const std::string& part, const std::string& text) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// With their tags spelled out calls are read, repaired and refused as with tags of their own, however they arrive.
TEST(ToolCalls, SpelledTags) {
  std::mt19937 random(5);
  size_t tried = 0;
  for (const ToolCallCase& c : tool_call_cases()) {
    // Tags that are no part of a call count as tokens alone.
    const bool fits = c.text.starts_with("<tool_call>") && count_of("<tool_call>", c.text) == 1 &&
                      count_of("</tool_call>", c.text) <= 1 && count_of("think>", c.text) == 0 && !c.reasoning;
    if (!fits) continue;
    ++tried;
    const std::vector<int32_t> ids = spelled(c.text);
    std::vector<std::vector<int32_t>> cuts = {ids, in_bytes(ids)};
    for (size_t at = 1; at < plain_bytes(ids); ++at) cuts.push_back(cut_at(ids, at));
    for (int i = 0; i < 100; ++i) cuts.push_back(cut_anew(ids, random));
    for (const bool incremental : {false, true}) {
      ReplyOptions options = case_options(false, incremental);
      options.spelled_tags = true;
      const ReplyMessage& expected = incremental ? c.incremental.value_or(c.message) : c.message;
      for (const auto& cut : cuts) ASSERT_EQ(parse_reply(cut, options, c.end, {1 + random() % 8}), expected) << c.name;
    }
  }
  EXPECT_GT(tried, 50u);
}

TEST(ToolCalls, SpelledTagsCountWhereALineBegins) {
  const std::string call = "<tool_call>get_time</tool_call>";
  const std::string unended = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value>";
  ReplyOptions options = case_options(false, false);
  options.spelled_tags = true;
  const auto reply = [&](const std::string& text) { return parse_reply(spelled(text), options); };
  const auto is_text = [&](const std::string& text) {
    return reply(text).content == text && reply(text).calls.empty();
  };
  EXPECT_TRUE(is_text("a " + call));
  EXPECT_TRUE(is_text(" " + call));
  EXPECT_TRUE(is_text("a\n <tool_call>"));
  EXPECT_TRUE(is_text("a\n<tool_c"));
  EXPECT_TRUE(is_text("a\n<tool_call>get_weather<arg_k"));
  EXPECT_TRUE(is_text("a\n<<tool_call>get_time</tool_call>"));
  EXPECT_TRUE(is_text("<arg_key>\n</tool_call>\n</arg_value>"));

  EXPECT_EQ(reply("a\n" + call + "\nb"), (ReplyMessage{.content = "a\nb", .calls = {{"get_time", "{}"}}}));
  EXPECT_EQ(reply(call + call + "b").calls.size(), 2u);
  EXPECT_EQ(reply("<tool_call>get_time\n" + call),
            (ReplyMessage{.content = "<tool_call>get_time", .calls = {{"get_time", "{}"}}}));
  EXPECT_THAT(reply(unended + call).calls,
              ElementsAre(Pair("get_weather", R"({"city": "Oslo"})"), Pair("get_time", "{}")));

  // Tags that are tokens open calls anywhere, and then no other ones count.
  std::vector<int32_t> ids = tiny_tokenizer().encode("a <tool_call>write_file<arg_key>path</arg_key><arg_value>");
  for (const int32_t id : spelled("</arg_value></tool_call>\n<tool_call>")) ids.push_back(id);
  for (const int32_t id : tiny_tokenizer().encode("</arg_value></tool_call>")) ids.push_back(id);
  EXPECT_THAT(parse_reply(ids, options).calls,
              ElementsAre(Pair("write_file", R"({"path": "</arg_value></tool_call>\n<tool_call>"})")));
  // Tokens count in a call that is spelled.
  ids = spelled("<tool_call>get_time");
  ids.push_back(tiny_tokenizer().require_added("</tool_call>"));
  EXPECT_EQ(parse_reply(ids, options).calls.size(), 1u);

  // Not in reasoning; content behind it begins a line.
  options.start = ReplyChannel::kReasoning;
  EXPECT_EQ(reply(call).reasoning, call);
  ids = spelled("r\n");
  ids.push_back(tiny_tokenizer().require_added("</think>"));
  for (const int32_t id : spelled(call)) ids.push_back(id);
  EXPECT_EQ(parse_reply(ids, options), (ReplyMessage{.reasoning = "r\n", .calls = {{"get_time", "{}"}}}));
}

TEST(ToolCalls, CharactersCutByTags) {
  const auto with = [](bool flush) {
    ReplyOptions options = case_options(false, false);
    options.flush_partial_utf8 = flush;
    std::vector<int32_t> ids = tiny_tokenizer().encode(
        "<tool_call>write_file<arg_key>content</arg_key><arg_value>a\xF0\x9F\x98\x80</arg_value></tool_call>");
    ids = in_bytes(ids);
    ids.erase(ids.end() - 3);
    return parse_reply(ids, options).calls;
  };
  EXPECT_THAT(with(false), ElementsAre(Pair("write_file", R"({"content": "a"})")));
  EXPECT_THAT(with(true), ElementsAre(Pair("write_file", "{\"content\": \"a\xEF\xBF\xBD\"}")));
}

TEST(ToolCalls, SpecialTokensInAValue) {
  ReplyOptions options = case_options(false, false);
  const std::string text = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>a<sop>b</arg_value></tool_call>";
  EXPECT_THAT(parse(text, options).calls, ElementsAre(Pair("get_weather", R"({"city": "ab"})")));
  options.skip_special_tokens = false;
  EXPECT_THAT(parse(text, options).calls, ElementsAre(Pair("get_weather", R"({"city": "a<sop>b"})")));
}

TEST(ToolCalls, WithoutParallelCallsTheFirstEndsTheReply) {
  for (const bool incremental : {false, true}) {
    ReplyOptions options = case_options(false, incremental);
    options.parallel_calls = false;
    ReplyMessage reply = parse("a <tool_call>get_time</tool_call> b<tool_call>search</tool_call>", options);
    EXPECT_TRUE(reply.ended);
    EXPECT_EQ(reply.stop, std::nullopt);
    EXPECT_EQ(reply.content, "a");
    EXPECT_THAT(reply.calls, ElementsAre(Pair("get_time", "{}")));
    EXPECT_FALSE(parse("<tool_call>get_time", options).ended);

    options.start = ReplyChannel::kReasoning;
    for (const char* rest : {"</think>c", "<tool_call>search</tool_call>"}) {
      reply = parse("r<tool_call>get_time</tool_call>" + std::string(rest), options);
      EXPECT_TRUE(reply.ended) << rest;
      EXPECT_EQ(reply.reasoning, "r");
      EXPECT_EQ(reply.content, "");
      EXPECT_THAT(reply.calls, ElementsAre(Pair("get_time", "{}")));
    }
    EXPECT_FALSE(parse("r<tool_call>get_time</tool_call> as in", options).ended);
  }
}

TEST(ToolCalls, AtMost128) {
  std::string text;
  for (int i = 0; i < 130; ++i) text += "<tool_call>get_time</tool_call>";
  for (const bool reasoning : {false, true}) {
    const ReplyMessage reply = parse(text, case_options(reasoning, false));
    EXPECT_TRUE(reply.ended);
    EXPECT_EQ(reply.calls.size(), 128u);
  }
}

TEST(ToolCalls, StopStringsDoNotReachIntoCalls) {
  const std::string call = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>";
  for (const bool everywhere : {false, true}) {
    ReplyOptions options = case_options(false, false);
    options.stop_in_reasoning = everywhere;
    options.stop = {"Oslo", "city", "</arg_value>", "</tool_call>", "<tool_call>", "aget"};
    const ReplyMessage reply = parse("a" + call + "b", options);
    EXPECT_EQ(reply.stop, std::nullopt);
    EXPECT_THAT(reply.calls, ElementsAre(Pair("get_weather", R"({"city": "Oslo"})")));
    EXPECT_EQ(reply.content, "ab");
  }
}

TEST(ToolCalls, StopStringsOfTheTextAround) {
  const auto with = [](std::vector<std::string> stop, const std::string& text, ReplyEnd end = ReplyEnd::kComplete) {
    ReplyOptions options = case_options(false, false);
    options.stop = std::move(stop);
    return parse(text, options, end);
  };
  const std::string call = "<tool_call>get_time</tool_call>";
  ReplyMessage reply = with({"STOP"}, "a \nSTOP" + call);
  EXPECT_EQ(reply.stop, "STOP");
  EXPECT_EQ(reply.content, "a \n");
  EXPECT_TRUE(reply.calls.empty());

  reply = with({"STOP"}, "aST" + call + "OPb STOP c");  // not across a call
  EXPECT_EQ(reply.stop, "STOP");
  EXPECT_EQ(reply.content, "aSTOPb ");
  EXPECT_EQ(reply.calls.size(), 1u);

  // Held text that turns out to be none of a call is searched like any other, in finish() too.
  reply = with({"many"}, "The <tool_call> tag has many uses");
  EXPECT_EQ(reply.stop, "many");
  EXPECT_EQ(reply.content, "The <tool_call> tag has ");
  EXPECT_TRUE(reply.ended);
  reply = with({"weath"}, "The <tool_call>get_weather<arg_key>ci");
  EXPECT_EQ(reply.stop, "weath");
  EXPECT_EQ(reply.content, "The <tool_call>get_");
  EXPECT_FALSE(reply.ended) << "found by finish()";
  reply = with({"e <tool"}, "The <tool_call> x y");
  EXPECT_EQ(reply.content, "Th");
  reply = with({"weath"}, "The <tool_call>get_weather<arg_key>ci", ReplyEnd::kCut);
  EXPECT_EQ(reply.stop, std::nullopt);
  EXPECT_EQ(reply.content, "The ");

  reply = with({"</tool_call>"}, "a</tool_call>b");
  EXPECT_EQ(reply.stop, "</tool_call>");
  EXPECT_EQ(reply.content, "a");
}

TEST(ToolCalls, MinTokensCountHeldTokensWhereTheyStand) {
  ReplyOptions options = case_options(false, false);
  options.stop = {"x"};
  const auto ids = in_bytes(tiny_tokenizer().encode("<tool_call> x x x"));
  options.min_tokens = 3;  // the first x is the third token
  EXPECT_EQ(parse_reply(ids, options).content, "<tool_call> x ");
  options.min_tokens = 2;
  EXPECT_EQ(parse_reply(ids, options).content, "<tool_call> ");
}

TEST(ToolCalls, ReasoningTokensEndAtTheFirstCall) {
  const auto count = [](const std::string& text, ReplyEnd end = ReplyEnd::kComplete) {
    ReplyParser parser(tiny_tokenizer(), case_options(true, false));
    std::vector<ReplyDelta> out;
    for (const int32_t id : in_bytes(tiny_tokenizer().encode(text))) parser.push(id, out);
    parser.finish(end, out);
    return parser.reasoning_tokens();
  };
  EXPECT_EQ(count("abc<tool_call>get_time</tool_call>"), 3);
  EXPECT_EQ(count("abc<tool_call>get_time</tool_call>\n</think>d"), 3);
  EXPECT_EQ(count("abc<tool_call>x y</think>d"), 3 + 1 + 3);
  EXPECT_EQ(count("abc<tool_call>get_time</tool_call>"
                  " d"),
            3 + 1 + 8 + 1 + 2);
  EXPECT_EQ(count("abc<tool_call>get_time"), 3 + 1 + 8);
  EXPECT_EQ(count("abc</think>d<tool_call>get_time</tool_call>"), 3);
}

TEST(ToolCalls, WholeCallsComeAtOnce) {
  ReplyParser parser(tiny_tokenizer(), case_options(false, false));
  std::vector<ReplyDelta> out;
  const auto ids =
      tiny_tokenizer().encode("a <tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>");
  for (size_t i = 0; i + 1 < ids.size(); ++i) parser.push(ids[i], out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].text, "a");
  EXPECT_FALSE(parser.push(ids.back(), out));
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[1].channel, ReplyChannel::kCall);
  EXPECT_EQ(out[1].call, 0);
  EXPECT_EQ(out[1].tool_name, "get_weather");
  EXPECT_EQ(out[1].text, R"({"city": "Oslo"})");
}

// Held text is given out with the very byte that shows that it is no call.
TEST(ToolCalls, TextIsGivenOutOnceItIsNoCall) {
  for (const std::string text :
       {"<tool_call>?", "<tool_call>get t", "<tool_call>get_time?", "<tool_call>get_weather city x", "<tool_call>{a",
        "<tool_call>{ \n]", "<tool_call>{}", R"(<tool_call>{"get_time": 1})", R"(<tool_call>{"name" ")",
        R"(<tool_call>{"name": ?)", R"(<tool_call>{"name": "a" ")", R"(<tool_call>{"name": "a",})",
        R"(<tool_call>{"a": [1})", R"(<tool_call>{"a": [,)", R"(<tool_call>{"a": true?)", "<tool_call>{\"a\x01",
        R"(<tool_call>{"name": "get_time", "arguments": [1]})", R"(<tool_call>{"name": "get_time"} x)",
        R"(<tool_call>{"name": "get_time"}})"}) {
    ReplyParser parser(tiny_tokenizer(), case_options(false, false));
    std::vector<ReplyDelta> out;
    const std::vector<int32_t> ids = in_bytes(tiny_tokenizer().encode(text));
    for (size_t i = 0; i + 1 < ids.size(); ++i) parser.push(ids[i], out);
    EXPECT_TRUE(out.empty()) << text;
    parser.push(ids.back(), out);
    ASSERT_EQ(out.size(), 1u) << text;
    EXPECT_EQ(out[0].channel, ReplyChannel::kContent);
    EXPECT_EQ(out[0].text, text);
  }
}

// A call that is spelled is read byte by byte; of what becomes reasoning, tokens count all the same.
TEST(ToolCalls, ReasoningWithinWhatWasNoSpelledCall) {
  ReplyOptions options = case_options(false, false);
  options.spelled_tags = true;
  std::vector<int32_t> ids = spelled("<tool_call>get_weather<arg_key>city</arg_key><arg_value>");
  ids.push_back(tiny_tokenizer().require_added("<think>"));
  const std::vector<int32_t> reasoning = spelled("somewhere far away</arg_value> and no call");
  ids.insert(ids.end(), reasoning.begin(), reasoning.end());
  ReplyParser parser(tiny_tokenizer(), options);
  std::vector<ReplyDelta> out;
  for (const int32_t id : ids) parser.push(id, out);
  parser.finish(ReplyEnd::kComplete, out);
  EXPECT_TRUE(parser.in_reasoning());
  EXPECT_EQ(parser.reasoning_tokens(), std::ssize(reasoning));
}

TEST(ToolCalls, WhatIsHeldForACallHasABound) {
  const int32_t letter = in_bytes(tiny_tokenizer().encode("x")).front();
  const auto held = [&](const std::string& head, size_t enough) {
    ReplyParser parser(tiny_tokenizer(), case_options(false, false));
    std::vector<ReplyDelta> out;
    for (const int32_t id : tiny_tokenizer().encode(head)) parser.push(id, out);
    for (size_t n = 0; n < enough; ++n) parser.push(letter, out);
    return out.empty();
  };
  const std::string key = "<tool_call>get_weather<arg_key>";
  EXPECT_TRUE(held(key, kMaxArgumentName));
  EXPECT_FALSE(held(key, kMaxArgumentName + 1));
  const std::string json = R"(<tool_call>{"name": "write_file", "arguments": {"content": ")";
  EXPECT_TRUE(held(json, 262'000));
  EXPECT_FALSE(held(json, 262'145));
  EXPECT_TRUE(held("<tool_call>write_file<arg_key>content</arg_key><arg_value>", 300'000)) << "as long as it may be";
}

TEST(ToolCalls, OnlyOfferedToolsWhereTheRequestSaysSo) {
  ReplyOptions options = case_options(false, false);
  options.unknown_tools = false;
  for (const std::string text : {"<tool_call>nope</tool_call>", R"(<tool_call>{"name": "nope"}</tool_call>)",
                                 "<tool_call>nope<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"}) {
    EXPECT_EQ(parse(text, options).content, text);
    EXPECT_TRUE(parse(text, options).calls.empty());
  }
  EXPECT_THAT(parse("a<tool_call>GET_TIME</tool_call>", options).calls, ElementsAre(Pair("get_time", "{}")));
  options.start = ReplyChannel::kReasoning;
  EXPECT_EQ(parse("a<tool_call>nope</tool_call>", options).reasoning, "a<tool_call>nope</tool_call>");
}

TEST(ToolCalls, NamesThatAReplyCanCarry) {
  for (const std::string name :
       {"f", "get_weather", "mcp__files__read.txt", "a:b/c", "f{x}", "größe", "天气", "a\u00a0b", "[x]", "f()"}) {
    EXPECT_TRUE(is_callable_name(name)) << name;
    ReplyOptions options;
    options.tools = std::make_shared<OfferedTools>(OfferedTools{{name, {}}, {"other", {}}});
    EXPECT_THAT(parse("<tool_call>" + name + "</tool_call>", options).calls, ElementsAre(Pair(name, "{}")));
    EXPECT_THAT(
        parse("<tool_call>\n" + name + "\n<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>", options).calls,
        ElementsAre(Pair(name, R"({"k": "v"})")));
  }
  EXPECT_TRUE(is_callable_name(std::string(kMaxToolName, 'x')));
  for (const std::string& name :
       {std::string(), std::string(" "), std::string("a b"), std::string("a\n"), std::string("{a"), std::string("a<b"),
        std::string("<arg_key>"), std::string("a\0b", 3), std::string("\x7f"), std::string(kMaxToolName + 1, 'x')}) {
    EXPECT_FALSE(is_callable_name(name)) << name;
  }
}

TEST(ToolCalls, WhereAReplyWasCut) {
  const auto cut_in = [](const std::string& text, bool incremental = false, bool reasoning = false) {
    ReplyParser parser(tiny_tokenizer(), case_options(reasoning, incremental));
    std::vector<ReplyDelta> out;
    for (const int32_t id : tiny_tokenizer().encode(text)) parser.push(id, out);
    parser.finish(ReplyEnd::kCut, out);
    return parser.cut_channel();
  };
  const std::string call = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>";
  const std::string part = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Os";
  EXPECT_EQ(cut_in("a"), ReplyChannel::kContent);
  EXPECT_EQ(cut_in("a<tool_call> b c"), ReplyChannel::kContent);
  EXPECT_EQ(cut_in(call), ReplyChannel::kContent);
  EXPECT_EQ(cut_in("a" + part), std::nullopt);
  EXPECT_EQ(cut_in(call + part), std::nullopt);
  EXPECT_EQ(cut_in("a" + part, true), ReplyChannel::kCall);
  EXPECT_EQ(cut_in("a<tool_call>get_wea", true), std::nullopt);
  EXPECT_EQ(cut_in("r", false, true), ReplyChannel::kReasoning);
  EXPECT_EQ(cut_in("r" + part, false, true), ReplyChannel::kReasoning);
  EXPECT_EQ(cut_in("r</think>", false, true), ReplyChannel::kContent);
  ReplyParser complete(tiny_tokenizer(), case_options(false, false));
  std::vector<ReplyDelta> out;
  complete.finish(ReplyEnd::kComplete, out);
  EXPECT_EQ(complete.cut_channel(), std::nullopt);
}

TEST(ToolCalls, IncrementalArgumentsComeAsTheyAreKnown) {
  ReplyParser parser(tiny_tokenizer(), case_options(false, true));
  std::vector<std::string> pieces;
  const auto ids =
      in_bytes(tiny_tokenizer().encode("<tool_call>get_weather<arg_key>city</arg_key><arg_value>O\n\"</arg_value>"
                                       "<arg_key>days</arg_key><arg_value>12</arg_value></tool_call>"));
  for (const int32_t id : ids) {
    std::vector<ReplyDelta> out;
    parser.push(id, out);
    for (const ReplyDelta& delta : out)
      pieces.push_back(delta.tool_name.empty() ? delta.text : delta.tool_name + "(" + delta.text);
  }
  EXPECT_THAT(pieces, ElementsAre("get_weather(", R"({"city": ")", "O", R"(\n\")", "\"", R"(, "days": 12)", "}"));
}

// A reply that never ends its call, or opens one again and again: each token is read a bounded number of times.
TEST(ToolCalls, LongRepliesTakeLinearTime) {
  const auto tag = [](const char* text) { return tiny_tokenizer().require_added(text); };
  const std::vector<int32_t> head = tiny_tokenizer().encode("<tool_call>get_weather<arg_key>days</arg_key><arg_value>");
  for (const bool incremental : {false, true}) {
    for (const char* repeated :
         {"<tool_call>", "<tool_call>x y ", "x ", " ", "</arg_value><arg_key>city</arg_key><arg_value>"}) {
      std::vector<int32_t> ids = head;
      const std::vector<int32_t> unit = tiny_tokenizer().encode(repeated);
      while (ids.size() < 1'000'000) ids.insert(ids.end(), unit.begin(), unit.end());
      ids.push_back(tag("</arg_value>"));
      ids.push_back(tag("<arg_key>"));  // does not parse
      const ReplyMessage reply = parse_reply(ids, case_options(false, incremental), ReplyEnd::kComplete, {});
      EXPECT_EQ(reply.calls.size(), incremental ? 1u : 0u);
      EXPECT_TRUE(incremental || reply.content.size() > 1'000'000u);
    }
    for (const char* repeated : {"<tool_call>", "<tool_call>get_time<arg_key>", "<tool_call>{"}) {
      std::vector<int32_t> ids;
      const std::vector<int32_t> unit = tiny_tokenizer().encode(repeated);
      while (ids.size() < 500'000) ids.insert(ids.end(), unit.begin(), unit.end());
      parse_reply(ids, case_options(false, incremental));
      parse_reply(ids, case_options(true, incremental));
    }
  }
}

}  // namespace
}  // namespace glm53::test
