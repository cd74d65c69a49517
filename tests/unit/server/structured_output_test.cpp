// Fields that constrain a reply: how they are read, and the grammar with which a request reaches the engine.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api_test.h"
#include "server/api_error.h"
#include "server/output_constraint.h"

namespace glm53::server {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Kind = OutputConstraint::Kind;

constexpr const char* kOneKind =
    "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').";

OutputConstraint read(const std::string& fields) {
  return read_output_constraint(text::PromptJson::parse("{" + fields + "}"));
}

/// "param message" of the refusal.
std::string refusal(const std::string& fields) {
  try {
    read(fields);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    return error.param + " | " + error.what();
  }
  ADD_FAILURE() << "accepted: " << fields;
  return {};
}

TEST(OutputConstraint, ReadsEveryForm) {
  EXPECT_FALSE(read(""));
  EXPECT_FALSE(read(R"("response_format":null,"structured_outputs":null,"guided_json":null)"));
  EXPECT_FALSE(read(R"("response_format":{"type":"text"})"));
  EXPECT_FALSE(read(R"("structured_outputs":{})"));
  EXPECT_FALSE(read(R"("structured_outputs":{"json_object":false,"regex":null})"));
  EXPECT_EQ(read(R"("response_format":{"type":"json_object"})").kind, Kind::kObject);
  EXPECT_EQ(read(R"("structured_outputs":{"json_object":true})").kind, Kind::kObject);

  OutputConstraint schema = read(
      R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"null"}}})");
  EXPECT_EQ(schema.kind, Kind::kSchema);
  EXPECT_EQ(schema.field, "response_format.json_schema.schema");
  EXPECT_EQ(schema.schema.dump(), R"({"type": "null"})");
  schema = read(R"("structured_outputs":{"json":"{\"type\":\"null\"}","disable_any_whitespace":true})");
  EXPECT_EQ(schema.schema.dump(), R"({"type": "null"})");
  EXPECT_FALSE(schema.json.any_whitespace);
  EXPECT_FALSE(schema.json.no_additional_properties);
  schema = read(R"("structured_outputs":{"json":true,"disable_additional_properties":true})");
  EXPECT_TRUE(schema.json.any_whitespace);
  EXPECT_TRUE(schema.json.no_additional_properties);
  EXPECT_EQ(read(R"("guided_json":{})").kind, Kind::kSchema);

  EXPECT_EQ(read(R"("response_format":{"type":"regex","pattern":"a+"})").pattern, "a+");
  EXPECT_EQ(read(R"("structured_outputs":{"regex":"a+"})").pattern, "a+");
  EXPECT_EQ(read(R"("guided_regex":"a+")").kind, Kind::kRegex);
  EXPECT_EQ(read(R"("structured_outputs":{"choice":["a","b"]})").choices, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(read(R"("guided_choice":["a"])").kind, Kind::kChoice);
}

TEST(OutputConstraint, NamesWhatIsWrong) {
  EXPECT_EQ(refusal(R"("response_format":{"type":"json_schema"})"),
            "response_format | When response_format type is 'json_schema', the 'json_schema' field must be provided.");
  EXPECT_THAT(refusal(R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})"),
              StartsWith("response_format.json_schema.schema | "));
  EXPECT_THAT(refusal(R"("response_format":{"type":"json_schema","json_schema":{"schema":7}})"),
              StartsWith("response_format.json_schema.schema | "));
  EXPECT_THAT(refusal(R"("response_format":{})"), StartsWith("response_format.type | "));
  EXPECT_THAT(refusal(R"("response_format":{"type":"structural_tag"})"), StartsWith("response_format.type | "));
  EXPECT_THAT(refusal(R"("response_format":{"type":"regex"})"), StartsWith("response_format.pattern | "));
  EXPECT_THAT(refusal(R"("response_format":"json_object")"), StartsWith("response_format | "));
  EXPECT_THAT(refusal(R"("structured_outputs":{"json":"{"})"), StartsWith("structured_outputs.json | "));
  EXPECT_THAT(refusal(R"("structured_outputs":{"json":[]})"), StartsWith("structured_outputs.json | "));
  EXPECT_THAT(refusal(R"("structured_outputs":{"choice":[]})"), StartsWith("structured_outputs.choice | "));
  EXPECT_THAT(refusal(R"("structured_outputs":{"choice":["a",1]})"), StartsWith("structured_outputs.choice[1] | "));
  EXPECT_THAT(refusal(R"("guided_choice":[""])"), StartsWith("guided_choice[0] | "));
  for (const char* key : {"grammar", "structural_tag", "whitespace_pattern"}) {
    const std::string field = std::string("structured_outputs.") + key;
    EXPECT_EQ(refusal(std::string(R"("structured_outputs":{")") + key + R"(":"x"})"),
              field + " | " + field + " is not supported by this version");
  }
  EXPECT_EQ(refusal(R"("guided_grammar":"x")"), "guided_grammar | guided_grammar is not supported by this version");
  EXPECT_EQ(refusal(R"("structured_outputs":{"json":{},"regex":"a"})"),
            std::string("structured_outputs.regex | ") + kOneKind);
  EXPECT_EQ(refusal(R"("response_format":{"type":"json_object"},"guided_choice":["a"])"),
            std::string("guided_choice | ") + kOneKind);
}

// ---- requests

class StructuredOutput : public ApiTest {
 protected:
  RawReply chat(const std::string& fields) {
    return ask(post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}"));
  }
  /// The error object of a 400.
  nlohmann::json chat_error(const std::string& fields) {
    const RawReply reply = chat(fields);
    EXPECT_EQ(reply.status, 400) << reply.body;
    return nlohmann::json::parse(reply.body)["error"];
  }
  /// Whether the last request's content may be exactly `text`, markers recognised.
  bool admits(const std::string& text) {
    const engine::GenerationRequest request = generator_.last();
    if (request.grammar == nullptr) {
      ADD_FAILURE() << "no grammar";
      return false;
    }
    text::GrammarMatcher matcher(request.grammar);
    for (const int32_t id : tiny_tokenizer().encode(text)) {
      if (!matcher.accept(id)) return false;
    }
    return matcher.can_end();
  }
};

constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object",
  "properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}},
  {"type":"function","function":{"name":"now"}}])";
constexpr const char* kCall = "<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>";

TEST_F(StructuredOutput, ASchemaReachesTheEngine) {
  const std::string schema = R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})";
  EXPECT_EQ(
      chat(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)" + schema + "}}").status,
      200);
  EXPECT_TRUE(admits(R"({"a": 1})"));
  EXPECT_FALSE(admits(R"({"a": "1"})"));
  EXPECT_FALSE(admits("hello"));
  const auto first = generator_.last().grammar;
  chat(R"("guided_json":)" + schema);
  EXPECT_EQ(generator_.last().grammar, first);  // compiled once
  chat(R"("structured_outputs":{"json":)" + schema + R"(,"disable_any_whitespace":true})");
  EXPECT_NE(generator_.last().grammar, first);
  EXPECT_TRUE(admits(R"({"a": 1})"));
  EXPECT_FALSE(admits(R"({ "a": 1})"));
  chat("\"max_tokens\":5");
  EXPECT_EQ(generator_.last().grammar, nullptr);
}

TEST_F(StructuredOutput, OtherKindsAndRoutes) {
  chat(R"("response_format":{"type":"json_object"})");
  EXPECT_TRUE(admits(R"({"any": [1, null]})"));
  EXPECT_FALSE(admits("[1]"));
  chat(R"("structured_outputs":{"regex":"[ab]{2}"})");
  EXPECT_TRUE(admits("ab"));
  EXPECT_FALSE(admits("abc"));
  chat(R"("n":2,"guided_choice":["yes","no"])");
  EXPECT_TRUE(admits("no"));
  EXPECT_EQ(generator_.all().at(2).grammar, generator_.all().at(3).grammar);

  EXPECT_EQ(ask(post("/v1/completions", R"({"prompt":"a","guided_regex":"x+"})")).status, 200);
  EXPECT_TRUE(admits("xx"));
  const std::string format = R"({"type":"json_schema","name":"n","schema":{"enum":["e"]}})";
  EXPECT_EQ(ask(post("/v1/responses", R"({"input":"hi","text":{"format":)" + format + "}}")).status, 200);
  EXPECT_TRUE(admits("\"e\""));
  const std::string message = R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":9,)";
  EXPECT_EQ(ask(post("/v1/messages", message + R"("output_format":)" + format + "}")).status, 200);
  EXPECT_TRUE(admits("\"e\""));
  EXPECT_EQ(ask(post("/v1/messages", message + R"("output_config":{"format":)" + format + "}}")).status, 200);
  EXPECT_TRUE(admits("\"e\""));
}

TEST_F(StructuredOutput, WhatCannotBeCompiledNamesTheKeywordAndTheField) {
  nlohmann::json error = chat_error(
      R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"integer","multipleOf":3}}})");
  EXPECT_EQ(error["param"], "response_format.json_schema.schema");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("multipleOf"));
  EXPECT_EQ(chat_error(R"("guided_json":false)")["param"], "guided_json");
  error = chat_error(R"("structured_outputs":{"regex":"(a"})");
  EXPECT_EQ(error["param"], "structured_outputs.regex");
  error = chat_error(R"("guided_regex":"(a{10000}){10000}")");
  EXPECT_EQ(error["param"], "guided_regex");
  EXPECT_EQ(generator_.count(), 0U);
}

TEST_F(StructuredOutput, RequiredAndNamedCalls) {
  chat(std::string(kTools) + R"(,"tool_choice":"required")");
  EXPECT_TRUE(admits(kCall));
  EXPECT_TRUE(admits(std::string(kCall) + "<tool_call>now</tool_call>"));
  EXPECT_FALSE(admits("<tool_call>weather</tool_call>"));  // `city` is required
  EXPECT_FALSE(admits(""));
  EXPECT_FALSE(admits("It rains."));
  chat(std::string(kTools) + R"(,"tool_choice":"required","parallel_tool_calls":false)");
  EXPECT_FALSE(admits(std::string(kCall) + "<tool_call>now</tool_call>"));
  chat(std::string(kTools) + R"(,"tool_choice":{"type":"function","function":{"name":"now"}})");
  EXPECT_TRUE(admits("<tool_call>now</tool_call>"));
  EXPECT_FALSE(admits(kCall));
  EXPECT_FALSE(admits("<tool_call>now</tool_call><tool_call>now</tool_call>"));
  chat(
      std::string(kTools) +
      R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"now"}}]}})");
  EXPECT_TRUE(admits("<tool_call>now</tool_call>"));
  EXPECT_FALSE(admits(kCall));
  // The calls win over a format, but one function and a format contradict each other.
  const std::string json = R"(,"response_format":{"type":"json_object"})";
  chat(std::string(kTools) + R"(,"tool_choice":"required")" + json);
  EXPECT_FALSE(admits("{}"));
  EXPECT_EQ(chat_error(std::string(kTools) + R"(,"tool_choice":{"type":"function","function":{"name":"now"}})" +
                       json)["param"],
            "response_format");
}

TEST_F(StructuredOutput, ToolsBesideAFormat) {
  for (const char* constraint : {R"("response_format":{"type":"json_object"})", R"("guided_json":{"const":{}})",
                                 R"("guided_regex":"[{]}")", R"("guided_choice":["{}"])"}) {
    chat(std::string(kTools) + "," + constraint);
    EXPECT_TRUE(admits("{}")) << constraint;
    EXPECT_TRUE(admits(kCall)) << constraint;
    EXPECT_FALSE(admits("text")) << constraint;
    EXPECT_FALSE(admits(std::string("{}") + kCall)) << constraint;
    chat(std::string(kTools) + R"(,"tool_choice":"none",)" + constraint);
    EXPECT_TRUE(admits("{}")) << constraint;
    EXPECT_FALSE(admits(kCall)) << constraint;
  }
}

TEST_F(StructuredOutput, AStrictFunctionHoldsCallsToItsSchema) {
  chat(kTools);
  EXPECT_EQ(generator_.last().grammar, nullptr);
  chat(R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object",
      "properties":{"n":{"type":"integer"}},"required":["n"]}}},{"type":"function","function":{"name":"g",
      "parameters":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}}}])");
  EXPECT_TRUE(admits(""));
  EXPECT_TRUE(admits("Text alone, <b>with</b> what \xE2\x82\xAC there is."));
  const std::string unit = "<arg_key>n</arg_key><arg_value>7</arg_value>";
  EXPECT_TRUE(admits("First.\n<tool_call>f" + unit + "</tool_call> And <tool_call>f" + unit + "</tool_call> so."));
  EXPECT_FALSE(admits("<tool_call>f</tool_call>"));
  EXPECT_FALSE(admits("<tool_call>f" + unit + unit + "</tool_call>"));
  EXPECT_TRUE(admits("<tool_call>g</tool_call>"));
  EXPECT_TRUE(admits("<tool_call>g" + unit + unit + "</tool_call>"));
  EXPECT_FALSE(admits("<tool_call>h</tool_call>"));
}

TEST_F(StructuredOutput, StrictFunctionsThatAreTooLargeAreNotHeld) {
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":
      {"type":"object","properties":{"p":{"items":{"pattern":"^[^x]{9999}$"}}}}}}])";
  EXPECT_EQ(chat(tools).status, 200);
  EXPECT_EQ(generator_.last().grammar, nullptr);
  const nlohmann::json error = chat_error(tools + R"(,"tool_choice":"required")");
  EXPECT_EQ(error["param"], "tools[0].function.parameters");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("too large"));
}

TEST_F(StructuredOutput, FunctionsAtFaultAreNamed) {
  const std::string odd = R"({"type":"object","properties":{"n":{"$ref":"#/nowhere"}}})";
  const auto function = [](const std::string& name, const std::string& rest) {
    return R"({"type":"function","function":{"name":")" + name + "\"" + rest + "}}";
  };
  // Of two of one name the last counts.
  const std::string strict = "\"tools\":[" + function("z", "") + "," + function("f", "") + "," +
                             function("f", R"(,"strict":true,"parameters":)" + odd) + "]";
  nlohmann::json error = chat_error(strict);
  EXPECT_EQ(error["param"], "tools[2].function.parameters");
  EXPECT_EQ(error["message"], "tools[2].function.parameters: schema: '$ref' points to nothing");
  EXPECT_EQ(chat_error(strict + R"(,"response_format":{"type":"json_object"})")["param"],
            "tools[2].function.parameters");
  EXPECT_EQ(chat(strict + R"(,"tool_choice":{"type":"function","function":{"name":"z"}})").status, 200);
  EXPECT_EQ(chat("\"tools\":[" + function("f", R"(,"parameters":)" + odd) + R"(],"tool_choice":"required")").status,
            200);  // its type alone counts
  EXPECT_EQ(
      chat_error("\"tools\":[" + function("f", R"(,"strict":true,"parameters":{"$ref":"#/nowhere"})") + "]")["param"],
      "tools[0].function.parameters");

  const RawReply reply =
      ask(post("/v1/responses", R"({"input":"hi","tools":[{"type":"web_search"},{"type":"namespace","name":"s",
          "tools":[{"type":"function","name":"f","strict":true,"parameters":)" +
                                    odd + "}]}]}"));
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(nlohmann::json::parse(reply.body)["error"]["param"], "tools[1].tools[0].parameters");
}

// Spec 40 §4.5: an argument falls back to the form that is not strict.
TEST_F(StructuredOutput, UnsupportedKeywordsOfAStrictFunction) {
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":
      {"type":"object","properties":{"n":{"type":"integer","multipleOf":2},"m":{"type":"integer","maximum":5}},
       "required":["n"]}}}])";
  for (const char* choice : {"", R"(,"tool_choice":"required")"}) {
    EXPECT_EQ(chat(tools + choice).status, 200) << choice;
    EXPECT_TRUE(admits("<tool_call>f<arg_key>n</arg_key><arg_value>7</arg_value></tool_call>"));
    EXPECT_FALSE(admits("<tool_call>f<arg_key>n</arg_key><arg_value>x</arg_value></tool_call>"));
    EXPECT_FALSE(admits("<tool_call>f</tool_call>"));
    EXPECT_FALSE(
        admits("<tool_call>f<arg_key>n</arg_key><arg_value>7</arg_value>"
               "<arg_key>m</arg_key><arg_value>6</arg_value></tool_call>"));
  }
}

TEST_F(StructuredOutput, ReasoningBudgets) {
  chat("\"max_tokens\":5");
  EXPECT_EQ(generator_.last().reasoning_budget, -1);
  EXPECT_FALSE(generator_.last().loop_guard);
  chat("\"thinking_token_budget\":0");
  EXPECT_EQ(generator_.last().reasoning_budget, 0);
  EXPECT_EQ(chat_error("\"thinking_token_budget\":-2")["param"], "thinking_token_budget");
  const std::string message = R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":9,"thinking":)";
  ask(post("/v1/messages", message + R"({"type":"enabled","budget_tokens":1024}})"));
  EXPECT_EQ(generator_.last().reasoning_budget, 1024);
  EXPECT_EQ(ask(post("/v1/messages", message + R"({"type":"enabled"},"thinking_token_budget":4})")).status, 400);
  ask(post("/v1/responses", R"({"input":"hi","thinking_token_budget":4})"));
  EXPECT_EQ(generator_.last().reasoning_budget, 4);
}

TEST_F(StructuredOutput, TheServersOwnBudgetAndGuard) {
  settings_.defaults.reasoning_budget = 7;
  settings_.guards.loop = true;
  chat("\"max_tokens\":5");
  EXPECT_EQ(generator_.last().reasoning_budget, 7);
  EXPECT_TRUE(generator_.last().loop_guard);
  chat("\"thinking_token_budget\":3");
  EXPECT_EQ(generator_.last().reasoning_budget, 3);
  chat("\"thinking_token_budget\":-1");
  EXPECT_EQ(generator_.last().reasoning_budget, -1);
}

}  // namespace
}  // namespace glm53::server
