#include <filesystem>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "data_file.h"
#include "server/api_error.h"
#include "server/chat_request.h"
#include "server/completions.h"

namespace glm53::server {
namespace {

constexpr int32_t kVocab = 4096;

RequestRules rules() {
  RequestRules rules;
  rules.settings.model.served_name = {"served"};
  rules.defaults.temperature = 0.9F;
  rules.defaults.top_p = 0.95F;
  rules.defaults.vocab = kVocab;
  rules.defaults.eos_ids = {4060, 4067, 4069};
  return rules;
}

/// A chat request with more fields: `fields` is what follows the messages, or empty.
std::string chat_body(const std::string& fields = {}) {
  return R"({"messages":[{"role":"user","content":"hi"}])" + (fields.empty() ? "" : ',' + fields) + '}';
}

ChatRequest chat(const std::string& fields = {}, const RequestRules& with = rules()) {
  return parse_chat_request(chat_body(fields), with);
}

ApiError chat_error(const std::string& fields) {
  try {
    chat(fields);
  } catch (const ApiError& error) {
    return error;
  }
  return ApiError(0, "accepted: " + fields);
}

// Every file of the corpus is refused with 400 and the parameter that its index line names ("-": none).
TEST(MalformedRequests, EachNamesItsParameter) {
  const std::filesystem::path folder = std::filesystem::path(GLM53_TEST_DATA) / "malformed/request_json";
  std::istringstream index(test::read_file(folder / "index.txt"));
  std::set<std::string> seen;
  std::string name, route, param;
  while (index >> name >> route >> param) {
    seen.insert(name);
    const std::string body = test::read_file(folder / name);
    try {
      if (route == "chat") {
        const ChatRequest request = parse_chat_request(body, rules());
        text::render_chat_prompt(request.prompt);
      } else {
        parse_completion_request(body, rules());
      }
      ADD_FAILURE() << name << " was accepted";
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 400) << name << ": " << error.what();
      EXPECT_EQ(error.param.empty() ? "-" : error.param, param) << name << ": " << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << name;
    } catch (const text::ChatPromptError& error) {
      EXPECT_EQ(error.param, param) << name << ": " << error.what();
    }
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    EXPECT_TRUE(file == "index.txt" || seen.count(file) == 1) << file << " is not in the index";
  }
  EXPECT_GT(seen.size(), 90U);
}

TEST(ChatRequest, Defaults) {
  const ChatRequest request = chat();
  EXPECT_FLOAT_EQ(request.common.sampling.temperature, 0.9F);
  EXPECT_FLOAT_EQ(request.common.sampling.top_p, 0.95F);
  EXPECT_EQ(request.common.sampling.top_k, 0);
  EXPECT_EQ(request.common.sampling.min_p, 0.0F);
  EXPECT_FALSE(request.common.max_tokens);
  EXPECT_TRUE(request.common.skip_special_tokens);
  EXPECT_FALSE(request.common.stream);
  EXPECT_TRUE(request.include_reasoning);
  EXPECT_TRUE(request.prompt.thinking);
  EXPECT_TRUE(request.prompt.add_generation_prompt);
  EXPECT_FALSE(request.prompt.clear_thinking);
  EXPECT_EQ(request.prompt.effort, "");
}

TEST(ChatRequest, ReadsFields) {
  const ChatRequest request =
      chat(R"("model":"served","temperature":0,"top_p":0.5,"top_k":40,"min_p":0.05,"seed":-2,"max_tokens":9,)"
           R"("max_completion_tokens":8,"min_tokens":3,"stop":["a","b"],"stop_token_ids":[5,4095],"ignore_eos":true,)"
           R"("include_stop_str_in_output":true,"skip_special_tokens":false,"include_reasoning":false,"stream":true,)"
           R"("stream_options":{"include_usage":true},"n":1,"user":"u","metadata":{},"store":false,"whatever":[1])");
  EXPECT_TRUE(request.common.sampling.greedy());
  EXPECT_EQ(request.common.sampling.top_k, 40);
  EXPECT_FLOAT_EQ(request.common.sampling.min_p, 0.05F);
  EXPECT_EQ(request.common.sampling.seed, static_cast<uint64_t>(int64_t{-2}));
  EXPECT_EQ(request.common.max_tokens, 8);
  EXPECT_EQ(request.common.min_tokens, 3);
  EXPECT_EQ(request.common.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.common.stop_token_ids, (std::vector<int32_t>{5, 4095}));
  EXPECT_TRUE(request.common.ignore_eos);
  EXPECT_TRUE(request.common.include_stop);
  EXPECT_FALSE(request.common.skip_special_tokens);
  EXPECT_FALSE(request.include_reasoning);
  EXPECT_TRUE(request.common.stream);
  EXPECT_TRUE(request.common.include_usage);
}

TEST(ChatRequest, SeedsDifferWithoutASeed) {
  EXPECT_NE(chat().common.sampling.seed, chat().common.sampling.seed);
  EXPECT_EQ(chat("\"seed\":7").common.sampling.seed, 7U);
}

TEST(ChatRequest, NullIsAbsentEverywhere) {
  std::string fields;
  for (const char* name : {"model",
                           "temperature",
                           "top_p",
                           "top_k",
                           "min_p",
                           "seed",
                           "max_tokens",
                           "max_completion_tokens",
                           "min_tokens",
                           "stop",
                           "stop_token_ids",
                           "n",
                           "logprobs",
                           "top_logprobs",
                           "logit_bias",
                           "presence_penalty",
                           "response_format",
                           "tools",
                           "tool_choice",
                           "parallel_tool_calls",
                           "reasoning_effort",
                           "chat_template_kwargs",
                           "stream",
                           "stream_options",
                           "thinking",
                           "enable_thinking",
                           "functions",
                           "structured_outputs",
                           "cache_salt",
                           "modalities",
                           "thinking_token_budget",
                           "best_of",
                           "echo"}) {
    fields += std::string(fields.empty() ? "" : ",") + '"' + name + "\":null";
  }
  EXPECT_NO_THROW(chat(fields));
}

TEST(ChatRequest, UnsupportedFieldsAreNamedUnlessNeutral) {
  const std::pair<const char*, const char*> asks[] = {{"guided_grammar", "\"g\""},   {"use_beam_search", "true"},
                                                      {"documents", "[{}]"},         {"functions", "[{}]"},
                                                      {"function_call", "\"auto\""}, {"audio", "{}"},
                                                      {"chat_template", "\"{{}}\""}};
  for (const auto& [name, value] : asks) {
    const ApiError error = chat_error(std::string("\"") + name + "\":" + value);
    EXPECT_EQ(error.status, 400) << name << ": " << error.what();
    EXPECT_EQ(error.param, name);
    EXPECT_NE(std::string(error.what()).find("not supported by this version"), std::string::npos) << error.what();
  }
  EXPECT_NO_THROW(chat(R"("logit_bias":{},"presence_penalty":0,"frequency_penalty":0.0,"repetition_penalty":1.0,)"
                       R"("bad_words":[],"echo":false,"best_of":1,"use_beam_search":false,"logprobs":false,)"
                       R"("top_logprobs":0,"documents":[],"separate_reasoning":true,"n":1,)"
                       R"("response_format":{"type":"text"},"modalities":["text"])"));
}

TEST(ChatRequest, PenaltiesAndBiases) {
  const ChatRequest request =
      chat(R"("presence_penalty":-2,"frequency_penalty":1.5,"repetition_penalty":1.25,)"
           R"("logit_bias":{"5":-100,"4095":250,"7":null,"0":0.5},"allowed_token_ids":[1,2],"bad_words":["a b","c"])");
  EXPECT_FLOAT_EQ(request.common.sampling.presence, -2.0F);
  EXPECT_FLOAT_EQ(request.common.sampling.frequency, 1.5F);
  EXPECT_FLOAT_EQ(request.common.sampling.repetition, 1.25F);
  ASSERT_EQ(request.common.biases.size(), 3U);
  EXPECT_EQ(request.common.biases[0].id, 5);
  EXPECT_EQ(request.common.biases[0].value, -100.0F);
  EXPECT_EQ(request.common.biases[1].value, 100.0F);  // clamped
  EXPECT_EQ(request.common.biases[2].value, 0.5F);
  EXPECT_EQ(request.common.allowed_token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(request.common.bad_words, (std::vector<std::string>{"a b", "c"}));
  EXPECT_FALSE(chat().common.sampling.penalizes());
  EXPECT_GT(chat("\"repetition_penalty\":1e-300").common.sampling.repetition, 0.0F);
}

TEST(ChatRequest, PenaltiesAndBiasesOutOfRangeAreNamed) {
  const std::pair<const char*, const char*> asks[] = {{"presence_penalty", "2.1"},
                                                      {"presence_penalty", "\"1\""},
                                                      {"frequency_penalty", "-2.1"},
                                                      {"repetition_penalty", "0"},
                                                      {"repetition_penalty", "-1"},
                                                      {"logit_bias", "[]"},
                                                      {"logit_bias", "{\"x\":1}"},
                                                      {"logit_bias", "{\"4096\":1}"},
                                                      {"logit_bias", "{\"-1\":1}"},
                                                      {"logit_bias", "{\"-0\":1}"},
                                                      {"logit_bias", "{\" 1\":1}"},
                                                      {"logit_bias", "{\"1\":1,\"01\":1}"},
                                                      {"allowed_token_ids", "[]"},
                                                      {"allowed_token_ids", "\"1\""},
                                                      {"bad_words", "\"x\""},
                                                      {"min_tokens", "-1"},
                                                      {"truncate_prompt_tokens", "0"},
                                                      {"truncate_prompt_tokens", "-2"},
                                                      {"best_of", "2"},
                                                      {"echo", "1"},
                                                      {"logprobs", "3"},
                                                      {"top_logprobs", "-1"},
                                                      {"top_logprobs", "3"},
                                                      {"n", "9"},
                                                      {"n", "1.5"}};
  for (const auto& [name, value] : asks) {
    const ApiError error = chat_error(std::string("\"") + name + "\":" + value);
    EXPECT_EQ(error.status, 400) << name << ' ' << value << ": " << error.what();
    EXPECT_EQ(error.param, name) << value;
  }
  EXPECT_EQ(chat_error(R"("logit_bias":{"3":"x"})").param, "logit_bias.3");
  EXPECT_EQ(chat_error(R"("allowed_token_ids":[1,4096])").param, "allowed_token_ids[1]");
  EXPECT_EQ(chat_error(R"("bad_words":["a",""])").param, "bad_words[1]");
}

TEST(ChatRequest, Logprobs) {
  EXPECT_EQ(chat().common.logprobs, -1);
  EXPECT_EQ(chat("\"logprobs\":false").common.logprobs, -1);
  EXPECT_EQ(chat("\"logprobs\":true").common.logprobs, 0);
  EXPECT_EQ(chat("\"logprobs\":true,\"top_logprobs\":20").common.logprobs, 20);
  EXPECT_STREQ(chat_error("\"top_logprobs\":1").what(), "when using `top_logprobs`, `logprobs` must be set to true.");
  EXPECT_STREQ(chat_error("\"logprobs\":true,\"top_logprobs\":21").what(),
               "Requested sample logprobs of 21, which is greater than max allowed: 20");
}

TEST(ChatRequest, Choices) {
  EXPECT_EQ(chat().common.choices, 1);
  EXPECT_EQ(chat("\"n\":8,\"best_of\":8").common.choices, 8);
  EXPECT_STREQ(chat_error("\"n\":2,\"temperature\":0").what(), "n must be 1 when using greedy sampling");
  RequestRules few = rules();
  few.settings.api.max_n = 2;
  EXPECT_THROW(chat("\"n\":3", few), ApiError);
}

TEST(ChatRequest, EchoRepeatsTheAssistantsFinalMessage) {
  const auto echo = [](const std::string& last) {
    return parse_chat_request(R"({"echo":true,"messages":[{"role":"user","content":"hi"})" + last + "]}", rules()).echo;
  };
  EXPECT_EQ(echo(R"(,{"role":"assistant","content":"Well"})"), "Well");
  EXPECT_EQ(echo(""), "");
  EXPECT_EQ(chat().echo, "");
}

TEST(ChatRequest, ContinuousUsage) {
  EXPECT_TRUE(chat(R"("stream":true,"stream_options":{"continuous_usage_stats":true})").common.continuous_usage);
}

TEST(ChatRequest, UnknownModelIs404) {
  const ApiError error = chat_error("\"model\":\"other\"");
  EXPECT_EQ(error.status, 404);
  EXPECT_EQ(error.code, "model_not_found");
  EXPECT_STREQ(error.what(), "The model `other` does not exist.");
}

TEST(ChatRequest, StreamOptionsNeedStream) {
  EXPECT_STREQ(chat_error(R"("stream_options":{})").what(), "Stream options can only be defined when `stream=True`.");
}

TEST(ChatRequest, Tools) {
  EXPECT_EQ(chat(R"("tools":[{"type":"function","function":{"name":"f"}},{"name":"g"}],"tool_choice":"none")")
                .prompt.tools.size(),
            2U);
  EXPECT_TRUE(chat("\"tools\":[]").prompt.tools.empty());
  EXPECT_TRUE(chat("\"tools\":[],\"tool_choice\":\"none\"").prompt.tools.empty());
  EXPECT_EQ(chat(R"("tools":[],"tool_choice":"auto")").tool_choice.mode, ToolChoice::Mode::kNone);
  EXPECT_EQ(chat_error(R"("tools":[],"tool_choice":"required")").param, "tool_choice");
  EXPECT_EQ(chat_error(R"("tool_choice":"auto")").param, "tool_choice");
  RequestRules strict = rules();
  strict.settings.api.lenient_empty_tools = false;
  EXPECT_THROW(chat("\"tools\":[]", strict), ApiError);
  EXPECT_TRUE(chat("\"tools\":null", strict).prompt.tools.empty());
}

TEST(ChatRequest, BoundsAreToldToThoseBeyondThem) {
  EXPECT_STREQ(chat_error("\"temperature\":-1").what(), "temperature must be at least 0");
  EXPECT_STREQ(chat_error("\"temperature\":1e200").what(), "temperature must be between 0 and 3.4028234663852886e+38");
}

TEST(ChatRequest, IntegersMayBeWrittenAsFloats) { EXPECT_EQ(chat("\"max_tokens\":5.0").common.max_tokens, 5); }

TEST(ChatRequest, ToolChoice) {
  const ChatRequest given =
      chat(R"("tools":[{"name":"f"}],"tool_choice":{"type":"function","name":"f"},"parallel_tool_calls":false)");
  EXPECT_EQ(given.tool_choice.mode, ToolChoice::Mode::kNamed);
  EXPECT_EQ(given.tool_choice.name, "f");
  EXPECT_FALSE(given.parallel_tool_calls);
  EXPECT_EQ(chat(R"("tools":[{"name":"f"}])").tool_choice.mode, ToolChoice::Mode::kAuto);
  EXPECT_TRUE(chat().parallel_tool_calls);
  EXPECT_EQ(chat().tool_choice.mode, ToolChoice::Mode::kNone);
  EXPECT_EQ(chat_error(R"("parallel_tool_calls":1)").param, "parallel_tool_calls");
  EXPECT_NO_THROW(chat("\"parallel_tool_calls\":false"));
}

// ---- thinking and effort: spec 40 §2.2

struct ThinkingCase {
  const char* fields;
  bool thinking;
  const char* effort;
};

TEST(ChatRequest, ThinkingSwitch) {
  const ThinkingCase cases[] = {
      {"\"enable_thinking\":false", false, ""},
      {"\"thinking\":false", false, ""},
      {"\"thinking\":true,\"enable_thinking\":false", true, ""},
      {"\"enable_thinking\":0", false, ""},
      {"\"thinking\":{\"type\":\"disabled\"}", false, ""},
      {"\"thinking\":{\"type\":\"enabled\"}", true, ""},
      {"\"thinking\":{\"type\":\"adaptive\"}", true, ""},
      {"\"thinking\":{}", true, ""},
      {"\"chat_template_kwargs\":{\"enable_thinking\":false}", false, ""},
      {"\"chat_template_kwargs\":{\"thinking\":{\"type\":\"disabled\"}}", false, ""},
      {"\"chat_template_kwargs\":{\"enable_thinking\":false},\"enable_thinking\":true", true, ""},
      {"\"chat_template_kwargs\":{\"enable_thinking\":true},\"enable_thinking\":false", false, ""},
      {"\"chat_template_kwargs\":{\"enable_thinking\":false},\"enable_thinking\":null", false, ""},
      {"\"chat_template_kwargs\":{\"enable_thinking\":null}", true, ""},
      {"\"reasoning_effort\":\"none\"", false, "none"},
      {"\"reasoning_effort\":\"low\"", true, "low"},
      {"\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{\"enable_thinking\":true}", true, "none"},
      {"\"reasoning_effort\":\"high\",\"chat_template_kwargs\":{\"enable_thinking\":false}", false, "high"},
      {"\"reasoning_effort\":\"high\",\"thinking\":{\"type\":\"disabled\"}", false, "high"},
      {"\"reasoning_effort\":\"high\",\"chat_template_kwargs\":{\"reasoning_effort\":\"low\"}", true, "high"},
      {"\"chat_template_kwargs\":{\"reasoning_effort\":\"low\"}", true, "low"},
      {"\"chat_template_kwargs\":{\"reasoning_effort\":\"none\"}", true, "none"},
      {"\"chat_template_kwargs\":{\"reasoning_effort\":5}", true, ""},
  };
  for (const ThinkingCase& one : cases) {
    const ChatRequest request = chat(one.fields);
    EXPECT_EQ(request.prompt.thinking, one.thinking) << one.fields;
    EXPECT_EQ(request.prompt.effort, one.effort) << one.fields;
  }
}

TEST(ChatRequest, ThinkingDefaultsOfTheServer) {
  RequestRules off = rules();
  off.settings.defaults.thinking = false;
  off.settings.defaults.effort = "high";
  off.settings.defaults.keep_reasoning = false;
  EXPECT_FALSE(chat("", off).prompt.thinking);
  EXPECT_EQ(chat("", off).prompt.effort, "high");
  EXPECT_TRUE(chat("", off).prompt.clear_thinking);
  EXPECT_TRUE(chat("\"thinking\":true", off).prompt.thinking);
  EXPECT_TRUE(chat("\"enable_thinking\":true", off).prompt.thinking);
  EXPECT_TRUE(chat("\"reasoning_effort\":\"low\"", off).prompt.thinking);
  EXPECT_FALSE(chat("\"thinking\":{\"type\":\"adaptive\"}", off).prompt.thinking);
  EXPECT_FALSE(chat("\"clear_thinking\":false", off).prompt.clear_thinking);
}

TEST(ChatRequest, ClearThinking) {
  EXPECT_TRUE(chat("\"clear_thinking\":true").prompt.clear_thinking);
  EXPECT_TRUE(chat("\"thinking\":{\"type\":\"enabled\",\"clear_thinking\":true}").prompt.clear_thinking);
  EXPECT_TRUE(chat("\"chat_template_kwargs\":{\"clear_thinking\":true}").prompt.clear_thinking);
  EXPECT_FALSE(
      chat("\"chat_template_kwargs\":{\"clear_thinking\":true},\"clear_thinking\":false").prompt.clear_thinking);
}

TEST(ChatRequest, GenerationFlags) {
  const ChatRequest request = chat("\"continue_final_message\":true,\"add_generation_prompt\":false");
  EXPECT_TRUE(request.prompt.continue_final_message);
  EXPECT_FALSE(request.prompt.add_generation_prompt);
  EXPECT_TRUE(chat("\"chat_template_kwargs\":{\"continue_final_message\":true,\"add_generation_prompt\":false}")
                  .prompt.continue_final_message);
}

TEST(ChatRequest, EffortPlacement) {
  RequestRules tail = rules();
  tail.settings.chat_template.effort_at = "tail";
  EXPECT_EQ(chat("", tail).prompt.effort_at, text::EffortPlacement::kTail);
  EXPECT_EQ(chat().prompt.effort_at, text::EffortPlacement::kHead);
}

TEST(CompletionRequest, Prompts) {
  const auto text_of = [](const std::string& body) {
    return std::get<std::string>(parse_completion_request(body, rules()).prompts.at(0));
  };
  const auto ids_of = [](const std::string& body) {
    return std::get<std::vector<int32_t>>(parse_completion_request(body, rules()).prompts.at(0));
  };
  EXPECT_EQ(text_of(R"({"prompt":"abc"})"), "abc");
  EXPECT_EQ(text_of(R"({"prompt":["abc"]})"), "abc");
  EXPECT_EQ(ids_of(R"({"prompt":[1,2,4095]})"), (std::vector<int32_t>{1, 2, 4095}));
  EXPECT_EQ(ids_of(R"({"prompt":[[7]]})"), (std::vector<int32_t>{7}));
  EXPECT_EQ(parse_completion_request(R"({"prompt":["a","b",[1,2]]})", rules()).prompts.size(), 3U);
}

TEST(CompletionRequest, WhatNeedsAChatIsNamed) {
  const auto param = [](const std::string& fields) {
    try {
      parse_completion_request("{\"prompt\":\"a\"," + fields + "}", rules());
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 400);
      return error.param;
    }
    return std::string("accepted");
  };
  EXPECT_EQ(param(R"("tools":[{"name":"f"}])"), "tools");
  EXPECT_EQ(param(R"("tool_choice":"required")"), "tool_choice");
  EXPECT_EQ(param(R"("tool_choice":{"type":"function","name":"f"})"), "tool_choice");
  EXPECT_EQ(param(R"("thinking_token_budget":0)"), "thinking_token_budget");
  EXPECT_EQ(param(R"("tools":[],"tool_choice":"none","thinking_token_budget":null)"), "accepted");
}

TEST(CompletionRequest, LogprobsAndEcho) {
  const auto parse = [](const std::string& fields) {
    return parse_completion_request(R"({"prompt":"a",)" + fields + '}', rules());
  };
  EXPECT_EQ(parse("\"logprobs\":0").common.logprobs, 0);
  EXPECT_EQ(parse("\"logprobs\":20").common.logprobs, 20);
  EXPECT_EQ(parse("\"logprobs\":null").common.logprobs, -1);
  EXPECT_TRUE(parse("\"echo\":true").echo);
  for (const char* fields : {"\"logprobs\":21", "\"logprobs\":-1", "\"logprobs\":true"}) {
    EXPECT_THROW(parse(fields), ApiError) << fields;
  }
}

}  // namespace
}  // namespace glm53::server
