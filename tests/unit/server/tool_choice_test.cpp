#include "server/tool_choice.h"

#include <gtest/gtest.h>

#include "server/api_error.h"

namespace glm53::server {
namespace {

using text::PromptJson;
using Mode = ToolChoice::Mode;

std::vector<PromptJson> two_tools() {
  return PromptJson::parse(R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"},"strict":true}},
                               {"name":"ns__g"}])")
      .items();
}

ToolChoice choice(const std::string& value, const std::vector<PromptJson>& tools = two_tools()) {
  return read_tool_choice(PromptJson::parse(R"({"tool_choice":)" + value + '}'), tools);
}

std::string wrong_field(const std::string& value, const std::vector<PromptJson>& tools = two_tools()) {
  try {
    choice(value, tools);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(std::string(error.what()).rfind(error.param, 0), 0U) << error.what();
    return error.param;
  }
  return "accepted";
}

TEST(ToolChoice, Words) {
  EXPECT_EQ(choice("null").mode, Mode::kAuto);
  EXPECT_EQ(choice("null", {}).mode, Mode::kNone);
  EXPECT_EQ(choice("\"none\"").mode, Mode::kNone);
  EXPECT_EQ(choice("\"none\"", {}).mode, Mode::kNone);
  EXPECT_EQ(choice("\"auto\"").mode, Mode::kAuto);
  EXPECT_EQ(choice("\"required\"").mode, Mode::kRequired);
}

TEST(ToolChoice, NamesAFunction) {
  for (const char* form : {R"({"type":"function","function":{"name":"f"}})", R"({"type":"function","name":"f"})"}) {
    EXPECT_EQ(choice(form).mode, Mode::kNamed);
    EXPECT_EQ(choice(form).name, "f");
  }
  EXPECT_EQ(choice(R"({"type":"custom","name":"g","namespace":"ns"})").name, "ns__g");
}

TEST(ToolChoice, AllowedTools) {
  const ToolChoice nested = choice(
      R"({"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"f"}}]}})");
  EXPECT_EQ(nested.mode, Mode::kRequired);
  EXPECT_EQ(nested.allowed, std::vector<std::string>{"f"});
  const ToolChoice flat =
      choice(R"({"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"ns__g"}]})");
  EXPECT_EQ(flat.mode, Mode::kAuto);
  EXPECT_EQ(flat.allowed, std::vector<std::string>{"ns__g"});
}

TEST(ToolChoice, RefusesNamingTheField) {
  EXPECT_EQ(wrong_field("7"), "tool_choice");
  EXPECT_EQ(wrong_field("\"sometimes\""), "tool_choice");
  EXPECT_EQ(wrong_field("\"auto\"", {}), "tool_choice");
  EXPECT_EQ(wrong_field("\"required\"", {}), "tool_choice");
  EXPECT_EQ(wrong_field(R"({"type":"function","name":"f"})", {}), "tool_choice");
  EXPECT_EQ(wrong_field("{}"), "tool_choice.type");
  EXPECT_EQ(wrong_field(R"({"type":"web_search"})"), "tool_choice.type");
  EXPECT_EQ(wrong_field(R"({"type":"function"})"), "tool_choice.name");
  EXPECT_EQ(wrong_field(R"({"type":"function","function":{}})"), "tool_choice.function.name");
  EXPECT_EQ(wrong_field(R"({"type":"function","function":{"name":"h"}})"), "tool_choice.function.name");
  EXPECT_EQ(wrong_field(R"({"type":"function","name":"F"})"), "tool_choice.name");
  EXPECT_EQ(wrong_field(R"({"type":"allowed_tools","allowed_tools":{"mode":"none","tools":[]}})"),
            "tool_choice.allowed_tools.mode");
  EXPECT_EQ(wrong_field(R"({"type":"allowed_tools","mode":"auto","tools":[]})"), "tool_choice.tools");
  EXPECT_EQ(wrong_field(R"({"type":"allowed_tools","mode":"auto","tools":[7]})"), "tool_choice.tools[0]");
  EXPECT_EQ(wrong_field(R"({"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"h"}]})"),
            "tool_choice.tools[0].name");
}

TEST(OfferedTools, AreThoseThatMayBeCalled) {
  const auto offered = offered_tools(two_tools(), {Mode::kAuto, {}, {}});
  ASSERT_EQ(offered->size(), 2U);
  EXPECT_EQ((*offered)[0].name, "f");
  EXPECT_TRUE((*offered)[0].strict);
  EXPECT_EQ((*offered)[0].parameters.dump(), R"({"type": "object"})");
  EXPECT_TRUE((*offered)[1].parameters.is_null());
  EXPECT_FALSE((*offered)[1].strict);

  EXPECT_EQ(offered_tools(two_tools(), {Mode::kNone, {}, {}}), nullptr);
  EXPECT_EQ(offered_tools({}, {Mode::kNone, {}, {}}), nullptr);
  const auto named = offered_tools(two_tools(), {Mode::kNamed, "ns__g", {}});
  ASSERT_EQ(named->size(), 1U);
  EXPECT_EQ((*named)[0].name, "ns__g");
  EXPECT_EQ(offered_tools(two_tools(), {Mode::kAuto, {}, {"f"}})->size(), 1U);
}

TEST(OfferedTools, TheLastOfOneNameCounts) {
  const auto offered = offered_tools(
      PromptJson::parse(R"([{"name":"f","parameters":{"a":1}},{"name":"f","parameters":{"b":2}}])").items(),
      {Mode::kAuto, {}, {}});
  ASSERT_EQ(offered->size(), 1U);
  EXPECT_EQ((*offered)[0].parameters.dump(), R"({"b": 2})");
}

}  // namespace
}  // namespace glm53::server
