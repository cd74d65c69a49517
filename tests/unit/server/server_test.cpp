// The API over loopback with a scripted generator.
#include "server/server.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include "api_test.h"

namespace glm53::server {
namespace {

using engine::FinishReason;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using text::ReplyChannel;

const text::Tokenizer& tokenizer() { return tiny_tokenizer(); }

int32_t id_of(const char* marker) { return tokenizer().require_added(marker); }

std::string chat_body(const std::string& fields = {}) {
  return R"({"messages":[{"role":"user","content":"Hello!"}])" + (fields.empty() ? "" : ',' + fields) + '}';
}

/// The events of a stream, without "data: ".
std::vector<std::string> events(const std::string& body) {
  std::vector<std::string> found;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = body.find("\n\n", at);
    EXPECT_NE(end, std::string::npos) << "an event without its blank line";
    if (end == std::string::npos) break;
    const std::string event = body.substr(at, end - at);
    if (event.rfind("data: ", 0) == 0) found.push_back(event.substr(6));
    at = end + 2;
  }
  return found;
}

class ServerTest : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    settings_.model.path = "/models/glm53-tiny/";
  }

  RawReply chat(const std::string& fields = {}) { return ask(post("/v1/chat/completions", chat_body(fields))); }
  static json error_of(const RawReply& reply) { return json::parse(reply.body).at("error"); }

  void finish_with(std::function<void(engine::GenerationResult&)> change) { reply_with({}, std::move(change)); }
};

// ---- small routes, headers, authentication

TEST_F(ServerTest, SmallRoutes) {
  const RawReply health = ask(get("/health"));
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(json::parse(health.body)["status"], "ok");
  EXPECT_EQ(json::parse(ask(get("/version")).body)["version"], "1.2.3");
  const json list = json::parse(ask(get("/v1/models")).body);
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], "served");
  EXPECT_EQ(list["data"][0]["root"], "glm53-tiny");
  EXPECT_EQ(list["data"][0]["max_model_len"], 512);
  EXPECT_EQ(json::parse(ask(get("/v1/models/served/")).body), list["data"][0]);
  EXPECT_EQ(error_of(ask(get("/v1/models/other")))["code"], "model_not_found");
}

TEST_F(ServerTest, SeveralServedNames) {
  settings_.model.served_name = {"first", "org/second"};
  const json list = json::parse(ask(get("/v1/models")).body);
  ASSERT_EQ(list["data"].size(), 2U);
  EXPECT_EQ(list["data"][0]["id"], "first");
  EXPECT_EQ(list["data"][1]["id"], "org/second");
  EXPECT_EQ(json::parse(ask(get("/v1/models/org/second")).body), list["data"][1]);
  // Replies name the model as the request did; one that names none gets the first.
  EXPECT_EQ(json::parse(chat().body)["model"], "first");
  const std::string second = R"("model":"org/second")";
  EXPECT_EQ(json::parse(chat(second).body)["model"], "org/second");
  EXPECT_EQ(json::parse(events(chat(second + R"(,"stream":true)").body)[0])["model"], "org/second");
  for (const auto& [path, prompt] :
       {std::pair{"/v1/completions", R"("prompt":"a")"},
        {"/v1/responses", R"("input":"a")"},
        {"/v1/messages", R"("max_tokens":9,"messages":[{"role":"user","content":"a"}])"}}) {
    EXPECT_EQ(json::parse(ask(post(path, '{' + second + ',' + prompt + '}')).body)["model"], "org/second") << path;
  }
  EXPECT_EQ(chat(R"("model":"served")").status, 404);
  EXPECT_THAT(ask(get("/metrics")).body, HasSubstr("{model_name=\"first\","));
}

TEST_F(ServerTest, HealthFollowsTheEngine) {
  generator_.current.ready = false;
  EXPECT_EQ(ask(get("/health")).status, 503);
  generator_.current.ready = true;
  generator_.current.failed = true;
  EXPECT_EQ(ask(get("/health")).status, 503);
}

TEST_F(ServerTest, WhileTheModelIsLoaded) {
  loading_ = true;
  settings_.context = 512;
  for (const RawReply& reply : {ask(get("/health")), ask(get("/ping")), chat(), chat("\"stream\":true"),
                                ask(post("/v1/completions", R"({"prompt":"a"})"))}) {
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(reply.header("retry-after"), "5");
  }
  EXPECT_EQ(chat("\"n\":0").status, 400);  // what is wrong is so at any time
  EXPECT_EQ(json::parse(ask(get("/v1/models")).body)["data"][0]["max_model_len"], 512);
  EXPECT_THAT(ask(get("/metrics")).body,
              HasSubstr("vllm:num_requests_running{model_name=\"served\",engine=\"0\"} 0\n"));
  EXPECT_EQ(json::parse(ask(post("/tokenize", R"({"prompt":"a"})")).body)["count"], 1);
  server_->serve(generator_);
  EXPECT_EQ(ask(get("/health")).status, 200);
  EXPECT_EQ(chat().status, 200);
}

TEST_F(ServerTest, RoutesAndMethodsThatDoNotExist) {
  start();
  RawClient client(server_->port());
  client.send(post("/v1/nothing", chat_body()) + get("/v1/chat/completions") + post("/health", chat_body()) +
              post("/v1/chat/completions/", chat_body()));
  RawReply reply = client.reply();
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(error_of(reply)["type"], "invalid_request_error");
  reply = client.reply();
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.header("allow"), "POST, OPTIONS");
  reply = client.reply();
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.header("allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(client.reply().status, 200);  // a trailing slash is no other route
}

TEST_F(ServerTest, CommonHeaders) {
  RawReply reply = ask(get("/health", "X-Request-Id: my-id_7\r\n"));
  EXPECT_EQ(reply.header("x-request-id"), "my-id_7");
  EXPECT_EQ(reply.header("access-control-allow-origin"), "*");
  reply = ask(get("/health", "X-Request-Id: " + std::string(129, 'x') + "\r\n"));
  EXPECT_EQ(reply.header("x-request-id").size(), 32U);
  reply = ask("OPTIONS /v1/chat/completions HTTP/1.1\r\nAccess-Control-Request-Headers: authorization, x-foo\r\n\r\n");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("access-control-allow-headers"), "authorization, x-foo");
  EXPECT_TRUE(ask(get("/nowhere")).has("access-control-allow-origin"));
  server_.reset();
  settings_.server.cors_origin = {"https://a.example"};
  EXPECT_EQ(ask(get("/health")).header("access-control-allow-origin"), "https://a.example");
  server_.reset();
  settings_.server.cors_origin = {};
  EXPECT_FALSE(ask(get("/health")).has("access-control-allow-origin"));
}

TEST_F(ServerTest, RefusalsSayToBrowsersWhoMayReadThem) {
  settings_.server.api_key = {"key"};
  settings_.server.max_body_mib = 1;
  generator_.refuse = engine::SubmitError::Kind::kQueueFull;
  const std::string key = "X-Api-Key: key\r\n";
  struct Case {
    int status;
    std::string head;  ///< without the blank line
    std::string body;
  };
  const std::string chat = "POST /v1/chat/completions HTTP/1.1\r\n";
  const auto length = [](size_t bytes) { return "Content-Length: " + std::to_string(bytes) + "\r\n"; };
  const std::vector<Case> cases = {
      {200, "OPTIONS /v1/chat/completions HTTP/1.1\r\n", ""},
      {401, chat + length(2), "{}"},
      {400, chat + key + length(2), "{}"},
      {400, chat + key + "Transfer-Encoding: chunked\r\n", "zz\r\n"},
      {400, chat + key + "Content-Length: 2\r\nContent-Length: 3\r\n", "{}"},
      {404, "GET /nothing HTTP/1.1\r\n", ""},
      {405, "GET /v1/chat/completions HTTP/1.1\r\n" + key, ""},
      {413, chat + key + length(2 << 20), ""},
      {429, chat + key + length(chat_body().size()), chat_body()},
      {501, "BREW / HTTP/1.1\r\n", ""},
  };
  const std::string a = "https://a.example", b = "https://b.example:8080";
  for (const std::vector<std::string>& allowed : {std::vector<std::string>{"*"}, {a}, {a, b}}) {
    server_.reset();
    settings_.server.cors_origin = allowed;
    for (const Case& c : cases) {
      const auto ask_from = [&](const std::string& origin) {
        const RawReply reply = ask(c.head + (origin.empty() ? "" : "Origin: " + origin + "\r\n") + "\r\n" + c.body);
        EXPECT_EQ(reply.status, c.status) << c.head;
        EXPECT_EQ(reply.header("x-request-id").size(), 32U) << c.head;
        EXPECT_EQ(reply.header("vary"), allowed.size() > 1 ? "Origin" : "") << c.head;
        return reply.header("access-control-allow-origin");
      };
      EXPECT_EQ(ask_from(a), allowed.front()) << c.head;
      if (allowed.size() < 2) continue;
      EXPECT_EQ(ask_from(b), b) << c.head;
      EXPECT_EQ(ask_from("https://b.example"), "") << c.head;
      EXPECT_EQ(ask_from(""), "") << c.head;
    }
  }
}

TEST_F(ServerTest, EveryRequestIsALineOfTheLogWithoutWhatItSays) {
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  settings_.server.access_log = true;
  settings_.server.api_key = {"secret-key"};
  const std::string key = "Authorization: Bearer secret-key\r\nX-Request-Id: mine\r\n";
  ask(post("/v1/chat/completions?secret=query", chat_body(R"("n":2)"), key));
  ask(post("/v1/chat/completions", chat_body(R"("stream":true)"), key));
  ask(post("/v1/chat/completions", chat_body(), "Authorization: Bearer secret-guess\r\n"));
  ask(get("/%0a%1b[31m\xc2\x9b"));
  server_.reset();  // its lines are written
  settings_.server.access_log = false;
  ask(get("/health"));
  server_.reset();
  spdlog::set_default_logger(before);
  const std::string lines = log.str();
  const std::string prompt = std::to_string(generator_.last().prompt.size());
  EXPECT_THAT(lines, HasSubstr("client=127.0.0.1 id=mine method=POST path=/v1/chat/completions status=200 bytes="));
  EXPECT_THAT(lines, HasSubstr(" prompt_tokens=" + prompt + " completion_tokens=14\n"));
  EXPECT_THAT(lines, HasSubstr(" prompt_tokens=" + prompt + " completion_tokens=7\n"));
  EXPECT_THAT(lines, HasSubstr("path=/v1/chat/completions status=401"));
  EXPECT_THAT(lines, HasSubstr("path=/%0a%1b[31m%C2%9B status=404"));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 4) << lines;
  for (const char* kept_out : {"secret", "Hello", "think", "answer", "/health"}) {
    EXPECT_EQ(lines.find(kept_out), std::string::npos) << kept_out << '\n' << lines;
  }
}

TEST_F(ServerTest, WhatIsPolledIsLoggedAtLevelDebug) {
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  const auto logger = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log));
  logger->set_pattern("%l %v");
  logger->set_level(spdlog::level::debug);
  spdlog::set_default_logger(logger);
  settings_.server.access_log = true;
  for (const char* path : {"/health", "/ping", "/metrics", "/version"}) ask(get(path));
  ask("HEAD /health HTTP/1.1\r\nConnection: close\r\n\r\n");
  server_.reset();  // its lines are written
  spdlog::set_default_logger(before);
  for (const char* path : {"/health", "/ping", "/metrics"}) {
    EXPECT_THAT(log.str(), testing::ContainsRegex(std::string("\ndebug client=[^\n]* path=") + path)) << log.str();
    EXPECT_THAT(log.str(), testing::Not(testing::ContainsRegex(std::string("info client=[^\n]* path=") + path)));
  }
  EXPECT_THAT(log.str(), testing::ContainsRegex("\ninfo client=[^\n]* path=/version"));
}

TEST_F(ServerTest, ApiKeys) {
  settings_.server.api_key = {"first-key", "second"};
  EXPECT_EQ(ask(get("/health")).status, 200);
  const RawReply refused = ask(get("/v1/models"));
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.header("www-authenticate"), "Bearer");
  EXPECT_EQ(error_of(refused)["code"], "invalid_api_key");
  EXPECT_EQ(error_of(refused)["type"], "authentication_error");
  for (const char* header : {"Authorization: Bearer first-key", "Authorization: bearer second", "x-api-key: second"}) {
    EXPECT_EQ(ask(get("/v1/models", std::string(header) + "\r\n")).status, 200) << header;
  }
  for (const char* header :
       {"Authorization: Bearer first", "Authorization: Bearer first-keyx", "Authorization: Basic second",
        "x-api-key: ", "Authorization: Bearer ", "x-api-key: secondsecond"}) {
    EXPECT_EQ(ask(get("/v1/models", std::string(header) + "\r\n")).status, 401) << header;
  }
  EXPECT_EQ(ask(post("/v1/unknown", "x")).status, 401);
  EXPECT_EQ(ask("OPTIONS /v1/models HTTP/1.1\r\n\r\n").status, 200);
}

// ---- chat, whole

TEST_F(ServerTest, WholeChatReply) {
  const RawReply reply = chat("\"max_tokens\":50,\"seed\":11,\"temperature\":0");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.header("content-type"), "application/json");
  const json body = json::parse(reply.body);
  EXPECT_THAT(body["id"].get<std::string>(), testing::StartsWith("chatcmpl-"));
  EXPECT_EQ(body["id"].get<std::string>().size(), 41U);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "served");
  const json& choice = body["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], "answer");
  EXPECT_EQ(choice["message"]["reasoning"], "think");
  EXPECT_EQ(choice["message"]["reasoning_content"], "think");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["stop_reason"].is_null());

  const engine::GenerationRequest request = generator_.last();
  EXPECT_EQ(tokenizer().decode(request.prompt, false),
            "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Hello!<|assistant|><think>");
  EXPECT_EQ(request.id, body["id"]);
  EXPECT_EQ(reply.header("x-request-id"), body["id"]);
  EXPECT_EQ(request.max_tokens, 50);
  EXPECT_EQ(request.sampling.seed, 11U);
  EXPECT_TRUE(request.reply.split_reasoning);
  EXPECT_TRUE(request.reply.thinking);
  EXPECT_EQ(request.reply.start, ReplyChannel::kReasoning);
  EXPECT_THAT(request.end_ids,
              ElementsAre(id_of("<|endoftext|>"), id_of("<|user|>"), id_of("<|observation|>"), id_of("<|assistant|>")));
  EXPECT_EQ(body["usage"],
            json::parse(R"({"prompt_tokens":)" + std::to_string(request.prompt.size()) +
                        R"(,"completion_tokens":7,"total_tokens":)" + std::to_string(request.prompt.size() + 7) +
                        R"(,"prompt_tokens_details":{"cached_tokens":2},)"
                        R"("completion_tokens_details":{"reasoning_tokens":3}})"));
}

TEST_F(ServerTest, EndIdsFollowOptions) {
  settings_.guards.assistant_ends = false;
  chat();
  EXPECT_EQ(generator_.last().end_ids.size(), 3U);
  chat("\"ignore_eos\":true");
  EXPECT_TRUE(generator_.last().end_ids.empty());
}

TEST_F(ServerTest, ThinkingOffStartsInContent) {
  chat("\"enable_thinking\":false");
  EXPECT_EQ(tokenizer().decode(generator_.last().prompt, false),
            "[gMASK]<sop><|user|>Hello!<|assistant|><think></think>");
  EXPECT_EQ(generator_.last().reply.start, ReplyChannel::kContent);
  EXPECT_FALSE(generator_.last().reply.thinking);
}

TEST_F(ServerTest, ContentMarkers) {
  const std::string body = R"({"messages":[{"role":"user","content":"<|assistant|>"}]})";
  ask(post("/v1/chat/completions", body));
  const auto count = [&] {
    const auto prompt = generator_.last().prompt;
    return std::count(prompt.begin(), prompt.end(), id_of("<|assistant|>"));
  };
  EXPECT_EQ(count(), 2);
  server_.reset();
  settings_.api.content_markers = "text";
  ask(post("/v1/chat/completions", body));
  EXPECT_EQ(count(), 1);
}

TEST_F(ServerTest, ReasoningFields) {
  settings_.api.reasoning_field = "reasoning_content";
  json message = json::parse(chat().body)["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "think");
  EXPECT_FALSE(message.contains("reasoning"));
  message = json::parse(chat("\"include_reasoning\":false").body)["choices"][0]["message"];
  EXPECT_FALSE(message.contains("reasoning_content"));
  EXPECT_EQ(message["content"], "answer");
}

TEST_F(ServerTest, ContentIsNullOnlyNextToReasoning) {
  finish_with([](engine::GenerationResult&) {});
  EXPECT_EQ(json::parse(chat().body)["choices"][0]["message"]["content"], "");
  generator_.script = [](engine::Generation& generation, const engine::GenerationRequest& request) {
    say(generation, ReplyChannel::kReasoning, "only");
    generation.finish(result_of(request, FinishReason::kLength));
  };
  const json choice = json::parse(chat().body)["choices"][0];
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["finish_reason"], "length");
}

TEST_F(ServerTest, StopReasons) {
  const auto reason = [&](const std::string& fields, std::function<void(engine::GenerationResult&)> change) {
    finish_with(std::move(change));
    const json choice = json::parse(chat(fields).body)["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop");
    return choice["stop_reason"];
  };
  EXPECT_EQ(reason("\"stop\":\"x\"", [](auto& result) { result.stop_string.emplace("x"); }), "x");
  EXPECT_TRUE(reason("", [](auto& result) { result.stop_id = id_of("<|endoftext|>"); }).is_null());
  EXPECT_EQ(reason("", [](auto& result) { result.stop_id = id_of("<|user|>"); }), id_of("<|user|>"));
  EXPECT_EQ(reason("\"stop_token_ids\":[17]", [](auto& result) { result.stop_id = 17; }), 17);
  EXPECT_TRUE(reason("", [](auto& result) { result.stop_id = id_of("<|assistant|>"); }).is_null());
  EXPECT_EQ(reason("\"stop\":[\"</think>\"]", [](auto& result) { result.stop_id = id_of("</think>"); }), "</think>");
  EXPECT_THAT(generator_.last().stop_token_ids, ElementsAre(id_of("</think>")));
}

TEST_F(ServerTest, TextThatIsNotUtf8DoesNotBreakAReply) {
  generator_.script = [](engine::Generation& generation, const engine::GenerationRequest& request) {
    say(generation, ReplyChannel::kContent, "a\xFF");
    generation.finish(result_of(request, FinishReason::kStop));
  };
  EXPECT_EQ(json::parse(chat().body)["choices"][0]["message"]["content"], "a\xEF\xBF\xBD");
}

// ---- limits and refusals

TEST_F(ServerTest, ContextLength) {
  const RawReply reply = chat("\"max_tokens\":600");
  EXPECT_EQ(reply.status, 400);
  const auto prompt = std::to_string(
      tokenizer().encode("[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Hello!<|assistant|><think>").size());
  const auto total = std::to_string(std::stoi(prompt) + 600);
  EXPECT_EQ(error_of(reply)["code"], "context_length_exceeded");
  EXPECT_EQ(error_of(reply)["message"],
            "This model's maximum context length is 512 tokens. However, you requested " + total + " tokens (" +
                prompt +
                " in the messages, 600 in the completion). Please reduce the length of the messages or completion.");
  std::string ids = "1";
  for (int i = 0; i < 511; ++i) ids += ",1";
  const RawReply full = ask(post("/v1/completions", "{\"prompt\":[" + ids + "],\"stream\":true}"));
  EXPECT_EQ(full.status, 400);
  EXPECT_EQ(error_of(full)["code"], "context_length_exceeded");
  EXPECT_EQ(error_of(full)["param"], "prompt");
  const auto param = [this](const std::string& path, const std::string& body) {
    const RawReply refusal = ask(post(path, body));
    EXPECT_EQ(error_of(refusal)["code"], "context_length_exceeded") << body;
    return error_of(refusal)["param"];
  };
  EXPECT_EQ(param("/v1/completions", "{\"prompt\":[[1],[" + ids + "]]}"), "prompt[1]");
  EXPECT_EQ(param("/v1/completions", "{\"prompt\":[1],\"max_tokens\":600}"), "max_tokens");
  EXPECT_EQ(param("/v1/completions", "{\"prompt\":[1],\"max_completion_tokens\":600}"), "max_completion_tokens");
  EXPECT_EQ(param("/v1/responses", "{\"input\":\"a\",\"max_output_tokens\":600}"), "max_output_tokens");
  std::string words;
  for (int i = 0; i < 600; ++i) words += "a ";
  EXPECT_EQ(param("/v1/responses", "{\"input\":\"" + words + "\"}"), "input");
  EXPECT_EQ(param("/v1/chat/completions", chat_body("\"max_completion_tokens\":600")), "max_completion_tokens");
  EXPECT_EQ(generator_.count(), 0U);
}

TEST_F(ServerTest, MaxTokensDefaults) {
  chat();
  EXPECT_EQ(generator_.last().max_tokens, 100);
  server_.reset();
  settings_.defaults.max_tokens = 0;
  chat();
  EXPECT_EQ(generator_.last().max_tokens, 512 - static_cast<int64_t>(generator_.last().prompt.size()));
  EXPECT_EQ(error_of(chat("\"max_tokens\":3,\"min_tokens\":4"))["param"], "min_tokens");
}

TEST_F(ServerTest, ErrorsNameTheirField) {
  const RawReply reply = chat("\"temperature\":\"0.5\",\"stream\":true");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(error_of(reply)["param"], "temperature");
  EXPECT_EQ(error_of(reply)["code"], 400);
  const RawReply role = ask(post("/v1/chat/completions", R"({"messages":[{"role":"x","content":"a"}]})"));
  EXPECT_EQ(error_of(role)["param"], "messages[0].role");
}

TEST_F(ServerTest, AFullQueueIs429BeforeAnyHeader) {
  generator_.refuse = engine::SubmitError::Kind::kQueueFull;
  for (const char* fields : {"\"stream\":true", "\"stream\":false"}) {
    const RawReply reply = chat(fields);
    EXPECT_EQ(reply.status, 429);
    EXPECT_EQ(reply.header("retry-after"), "5");
    EXPECT_EQ(error_of(reply)["code"], "queue_full");
    EXPECT_EQ(error_of(reply)["type"], "rate_limit_error");
  }
  generator_.refuse = engine::SubmitError::Kind::kStopping;
  EXPECT_EQ(chat().status, 503);
  generator_.refuse = engine::SubmitError::Kind::kEngineFailed;
  EXPECT_EQ(chat().status, 503);
  generator_.refuse = engine::SubmitError::Kind::kBadRequest;
  EXPECT_EQ(chat().status, 400);
}

TEST_F(ServerTest, EngineFailures) {
  generator_.script = [](engine::Generation& generation, const engine::GenerationRequest& request) {
    say(generation, ReplyChannel::kContent, "a");
    engine::GenerationResult result = result_of(request, FinishReason::kFailed);
    result.error = "the model produced NaN";
    generation.finish(result);
  };
  const RawReply whole = chat();
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(error_of(whole)["message"], "the model produced NaN");
  const RawReply streamed = chat("\"stream\":true");
  EXPECT_EQ(streamed.status, 200);
  const auto list = events(streamed.body);
  ASSERT_GE(list.size(), 3U);
  EXPECT_EQ(json::parse(list[list.size() - 2])["error"]["type"], "server_error");
  EXPECT_EQ(list.back(), "[DONE]");
  EXPECT_TRUE(streamed.complete);
}

// ---- chat, streamed

TEST_F(ServerTest, StreamedChunksComeInOrder) {
  generator_.script = [](engine::Generation& generation, const engine::GenerationRequest& request) {
    generation.publish({}, {{ReplyChannel::kReasoning, "think"}, {ReplyChannel::kContent, "ans"}});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    say(generation, ReplyChannel::kContent, "wer");
    generation.finish(result_of(request, FinishReason::kStop));
  };
  const RawReply reply = chat("\"stream\":true,\"stream_options\":{\"include_usage\":true}");
  EXPECT_EQ(reply.header("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(reply.header("cache-control"), "no-cache");
  EXPECT_EQ(reply.header("x-accel-buffering"), "no");
  const auto list = events(reply.body);
  ASSERT_GE(list.size(), 6U);
  EXPECT_EQ(list.back(), "[DONE]");
  std::vector<json> chunks;
  for (size_t i = 0; i + 1 < list.size(); ++i) chunks.push_back(json::parse(list[i]));
  for (const json& chunk : chunks) {
    EXPECT_EQ(chunk["id"], chunks[0]["id"]);
    EXPECT_EQ(chunk["created"], chunks[0]["created"]);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["model"], "served");
  }
  EXPECT_EQ(chunks[0]["choices"][0]["delta"], json::parse(R"({"role":"assistant","content":""})"));
  EXPECT_TRUE(chunks[0]["usage"].is_null());
  EXPECT_EQ(chunks[1]["choices"][0]["delta"], json::parse(R"({"reasoning":"think","reasoning_content":"think"})"));
  std::string content;
  for (size_t i = 2; i + 2 < chunks.size(); ++i) {
    EXPECT_TRUE(chunks[i]["choices"][0]["finish_reason"].is_null());
    content += chunks[i]["choices"][0]["delta"].at("content").get<std::string>();
  }
  EXPECT_EQ(content, "answer");
  const json& last = chunks[chunks.size() - 2]["choices"][0];
  EXPECT_EQ(last["finish_reason"], "stop");
  EXPECT_EQ(last["delta"], json::object());
  EXPECT_TRUE(last.contains("stop_reason"));
  const json& usage = chunks.back();
  EXPECT_EQ(usage["choices"], json::array());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 7);
}

TEST_F(ServerTest, StreamWithoutUsage) {
  const auto list = events(chat("\"stream\":true,\"include_reasoning\":false").body);
  ASSERT_EQ(list.size(), 4U);
  EXPECT_EQ(json::parse(list[1])["choices"][0]["delta"]["content"], "answer");
  for (size_t i = 0; i + 1 < list.size(); ++i) EXPECT_FALSE(json::parse(list[i]).contains("usage"));
}

TEST_F(ServerTest, OldClientsCanStream) {
  const std::string body = chat_body("\"stream\":true");
  const RawReply reply =
      ask("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_FALSE(reply.has("transfer-encoding"));
  EXPECT_EQ(events(reply.body).back(), "[DONE]");
}

TEST_F(ServerTest, ASilentStreamGetsComments) {
  settings_.api.sse_keepalive_s = 1;
  std::atomic<bool> stop{false};
  generator_.script = [&](engine::Generation& generation, const engine::GenerationRequest& request) {
    while (!stop && !generation.cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    generation.finish(result_of(request, FinishReason::kStop));
  };
  start();
  RawClient client(server_->port());
  client.send(post("/v1/chat/completions", chat_body("\"stream\":true")));
  EXPECT_TRUE(client.wait_for(": keepalive\n\n"));
  stop = true;
  EXPECT_EQ(events(client.reply().body).back(), "[DONE]");
}

TEST_F(ServerTest, LeavingCancels) {
  for (const char* fields : {"\"stream\":true", "\"stream\":false"}) {
    std::atomic<bool> started{false}, cancelled{false};
    generator_.script = [&](engine::Generation& generation, const engine::GenerationRequest& request) {
      started = true;
      cancelled = run_until_cancelled(generation);
      generation.finish(result_of(request, FinishReason::kCancelled));
    };
    start();
    {
      RawClient client(server_->port());
      client.send(post("/v1/chat/completions", chat_body(fields)));
      while (!started) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (int i = 0; i < 4000 && !cancelled; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(cancelled) << fields;
  }
}

TEST_F(ServerTest, StoppingCancelsWhatOutlastsTheDrain) {
  std::atomic<int> started{0}, cancelled{0};
  generator_.script = [&](engine::Generation& generation, const engine::GenerationRequest& request) {
    ++started;
    cancelled += run_until_cancelled(generation) ? 1 : 0;
    generation.finish(result_of(request, FinishReason::kCancelled));
  };
  start();
  RawClient streaming(server_->port()), waiting(server_->port());
  streaming.send(post("/v1/chat/completions", chat_body("\"stream\":true")));
  waiting.send(post("/v1/chat/completions", chat_body()));
  while (started < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  server_->stop(std::chrono::milliseconds(20));
  EXPECT_EQ(cancelled, 2);
  const RawReply cut = streaming.reply();
  EXPECT_TRUE(cut.complete);
  const auto list = events(cut.body);
  ASSERT_GE(list.size(), 2U);
  EXPECT_EQ(list.back(), "[DONE]");
  EXPECT_EQ(json::parse(list[list.size() - 2])["error"]["code"], "unavailable");
  const RawReply refused = waiting.reply();
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.has("retry-after"));
}

TEST_F(ServerTest, AnEngineThatStopsEndsRepliesWithAnError) {
  finish_with([](engine::GenerationResult& result) { result.reason = FinishReason::kCancelled; });
  EXPECT_EQ(chat().status, 503);
  const auto list = events(chat("\"stream\":true").body);
  EXPECT_EQ(json::parse(list[list.size() - 2])["error"]["type"], "server_error");
}

// ---- completions

TEST_F(ServerTest, Completions) {
  generator_.script = [](engine::Generation& generation, const engine::GenerationRequest& request) {
    say(generation, ReplyChannel::kContent, "raw </think> text");
    engine::GenerationResult result = result_of(request, FinishReason::kLength);
    generation.finish(result);
  };
  const json whole = json::parse(ask(post("/v1/completions", R"({"prompt":"<|user|>hi"})")).body);
  EXPECT_THAT(whole["id"].get<std::string>(), testing::StartsWith("cmpl-"));
  EXPECT_EQ(whole["object"], "text_completion");
  EXPECT_EQ(whole["choices"][0]["text"], "raw </think> text");
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 7);
  const engine::GenerationRequest request = generator_.last();
  EXPECT_EQ(request.prompt, tokenizer().encode("<|user|>hi"));
  EXPECT_EQ(request.prompt.front(), id_of("<|user|>"));
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.end_ids.size(), 3U);
  EXPECT_FALSE(request.reply.split_reasoning);

  const RawReply streamed = ask(post(
      "/v1/completions", R"({"prompt":[5,6],"stream":true,"stream_options":{"include_usage":true},"max_tokens":3})"));
  EXPECT_THAT(generator_.last().prompt, ElementsAre(5, 6));
  const auto list = events(streamed.body);
  ASSERT_EQ(list.size(), 4U);
  EXPECT_EQ(json::parse(list[0])["choices"][0]["text"], "raw </think> text");
  EXPECT_EQ(json::parse(list[1])["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(json::parse(list[2])["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(list[3], "[DONE]");
}

// ---- choices and logprobs

engine::TokenLogprobs logprobs_of(const char* text, float logprob, const char* other) {
  const int32_t id = tokenizer().encode(text).at(0);
  return {id, logprob, {{id, logprob}, {tokenizer().encode(other).at(0), logprob - 1}}};
}

/// Two tokens, the second of which has text only with the end.
void speak_with_logprobs(engine::Generation& generation, const engine::GenerationRequest& request) {
  const int32_t ids[] = {tokenizer().encode("a").at(0), id_of("<|endoftext|>")};
  generation.publish({ids, 1}, {{ReplyChannel::kContent, "a"}}, {logprobs_of("a", -0.5F, "b")});
  generation.publish({ids + 1, 1}, {}, {{ids[1], -std::numeric_limits<float>::infinity(), {}}});
  generation.finish(result_of(request, FinishReason::kStop));
}

TEST_F(ServerTest, ChatLogprobsHaveTheShapeOfOpenAi) {
  generator_.script = speak_with_logprobs;
  const json choice = json::parse(chat("\"logprobs\":true,\"top_logprobs\":2").body)["choices"][0];
  EXPECT_EQ(generator_.last().logprobs, 2);
  const json& content = choice["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2U);
  EXPECT_EQ(content[0]["token"], "a");
  EXPECT_EQ(content[0]["bytes"], json::parse("[97]"));
  EXPECT_FLOAT_EQ(content[0]["logprob"].get<float>(), -0.5F);
  ASSERT_EQ(content[0]["top_logprobs"].size(), 2U);
  EXPECT_EQ(content[0]["top_logprobs"][1]["token"], "b");
  EXPECT_EQ(content[1]["token"], "<|endoftext|>");
  EXPECT_EQ(content[1]["logprob"], -9999.0);
  EXPECT_TRUE(json::parse(chat().body)["choices"][0]["logprobs"].is_null());
}

TEST_F(ServerTest, NoStreamedLogprobIsLost) {
  generator_.script = speak_with_logprobs;
  const auto list = events(chat("\"stream\":true,\"logprobs\":true").body);
  std::vector<std::string> tokens;
  for (size_t i = 0; i + 1 < list.size(); ++i) {
    const json logprobs = json::parse(list[i])["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (const json& entry : logprobs["content"]) tokens.push_back(entry["token"]);
  }
  EXPECT_THAT(tokens, ElementsAre("a", "<|endoftext|>"));
}

TEST_F(ServerTest, TextOffsetsIndexTheReturnedText) {
  // The reply: a special token, half of 😀, its other half, "x".
  const std::vector<int32_t> emoji = tokenizer().encode("\xF0\x9F\x98\x80");
  ASSERT_GE(emoji.size(), 2U);
  std::vector<int32_t> reply = {id_of("<|user|>")};
  reply.insert(reply.end(), emoji.begin(), emoji.end());
  reply.push_back(tokenizer().encode("x").at(0));
  generator_.script = [&](engine::Generation& generation, const engine::GenerationRequest& request) {
    const auto entries = [](const std::vector<int32_t>& ids) {
      std::vector<engine::TokenLogprobs> logprobs;
      for (const int32_t id : ids) logprobs.push_back({id, -1.0F, {}});
      return logprobs;
    };
    if (request.prompt_logprobs >= 0) generation.set_prompt_logprobs(entries(request.prompt));
    generation.publish(reply, {{ReplyChannel::kContent, "\xF0\x9F\x98\x80x"}}, entries(reply));
    generation.finish(result_of(request, FinishReason::kLength));
  };
  const auto offsets = [this](const std::string& fields) {
    const RawReply answer = ask(post("/v1/completions", R"({"logprobs":0,"temperature":0,)" + fields + "}"));
    return json::parse(answer.body)["choices"][0]["logprobs"]["text_offset"].get<std::vector<int>>();
  };
  const int e = static_cast<int>(emoji.size());
  // Appends what the tokens of one 😀 and the "x" after it have.
  const auto with_emoji = [e](std::vector<int> list, int at) {
    list.insert(list.end(), static_cast<size_t>(e), at);
    list.push_back(at + 1);
    return list;
  };
  EXPECT_EQ(offsets(R"("prompt":"q")"), with_emoji({0}, 0));
  EXPECT_EQ(offsets(R"("prompt":"q","skip_special_tokens":false)"), with_emoji({0}, 8));
  // A prompt shows its special tokens, and part of a character as U+FFFD.
  EXPECT_EQ(offsets("\"echo\":true,\"prompt\":[" + std::to_string(id_of("<|user|>")) + ',' +
                    std::to_string(emoji.front()) + ']'),
            with_emoji({0, 8, 9}, 9));
}

TEST_F(ServerTest, CompletionLogprobsAndEcho) {
  generator_.script = [](engine::Generation& generation, const engine::GenerationRequest& request) {
    generation.set_prompt_logprobs({{request.prompt[0], std::nullopt, {}}, logprobs_of("b", -2.0F, "c")});
    speak_with_logprobs(generation, request);
  };
  const std::string ids =
      std::to_string(tokenizer().encode("\xC3\xA9").at(0)) + ',' + std::to_string(tokenizer().encode("b").at(0));
  const std::string body = R"({"prompt":[)" + ids + R"(],"echo":true,"logprobs":1)";
  const json choice = json::parse(ask(post("/v1/completions", body + "}")).body)["choices"][0];
  EXPECT_EQ(generator_.last().prompt_logprobs, 1);
  const json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["token_logprobs"], json::parse("[null,-2.0,-0.5,-9999.0]"));
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["top_logprobs"][1], json::parse(R"({"b":-2.0,"c":-3.0})"));
  EXPECT_EQ(logprobs["top_logprobs"][3], json::parse(R"({"<|endoftext|>":-9999.0})"));
  EXPECT_EQ(logprobs["text_offset"], json::parse("[0,1,2,3]"));
  const std::string text = choice["text"];
  EXPECT_EQ(text, tokenizer().decode(generator_.last().prompt, false) + "a");

  std::string streamed;
  json joined = json::array();
  const auto list = events(ask(post("/v1/completions", body + R"(,"stream":true})")).body);
  for (size_t i = 0; i + 1 < list.size(); ++i) {
    const json part = json::parse(list[i])["choices"][0];
    streamed += part["text"];
    for (const json& value : part["logprobs"]["token_logprobs"]) joined.push_back(value);
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(joined, logprobs["token_logprobs"]);
}

TEST_F(ServerTest, ChoicesHaveTheirOwnNoiseAndOneUsage) {
  generator_.script = [](engine::Generation& generation, const engine::GenerationRequest& request) {
    say(generation, ReplyChannel::kContent, "choice " + std::to_string(request.sampling.choice));
    generation.finish(result_of(request, FinishReason::kStop));
  };
  const json body = json::parse(chat("\"n\":3,\"seed\":5").body);
  ASSERT_EQ(body["choices"].size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["message"]["content"], "choice " + std::to_string(i));
  }
  EXPECT_EQ(body["usage"]["completion_tokens"], 21);
  EXPECT_EQ(body["usage"]["prompt_tokens"], generator_.last().prompt.size());

  const auto list = events(chat(R"("n":2,"stream":true,"stream_options":{"include_usage":true})").body);
  std::vector<std::string> content(2);
  std::vector<int> finished(2);
  std::vector<int> roles(2);
  for (size_t i = 0; i + 2 < list.size(); ++i) {
    const json choice = json::parse(list[i])["choices"][0];
    const size_t index = choice["index"];
    roles[index] += choice["delta"].contains("role") ? 1 : 0;
    if (choice["delta"].contains("content")) content[index] += choice["delta"]["content"].get<std::string>();
    finished[index] += choice["finish_reason"].is_null() ? 0 : 1;
  }
  EXPECT_THAT(content, ElementsAre("choice 0", "choice 1"));
  EXPECT_THAT(finished, ElementsAre(1, 1));
  EXPECT_THAT(roles, ElementsAre(1, 1));
  EXPECT_EQ(json::parse(list[list.size() - 2])["usage"]["completion_tokens"], 14);
}

TEST_F(ServerTest, EveryPromptOfACompletionHasItsChoices) {
  generator_.script = [](engine::Generation& generation, const engine::GenerationRequest& request) {
    say(generation, ReplyChannel::kContent,
        std::to_string(request.prompt.size()) + '/' + std::to_string(request.sampling.choice));
    generation.finish(result_of(request, FinishReason::kStop));
  };
  const json body = json::parse(ask(post("/v1/completions", R"({"prompt":[[5],[6,7]],"n":2})")).body);
  std::vector<std::string> texts;
  for (const json& choice : body["choices"]) {
    EXPECT_EQ(choice["index"], texts.size());
    texts.push_back(choice["text"]);
  }
  EXPECT_THAT(texts, ElementsAre("1/0", "1/1", "2/0", "2/1"));
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], 28);
}

TEST_F(ServerTest, MoreChoicesThanTheQueueHoldsAreRefusedByName) {
  generator_.refuse = engine::SubmitError::Kind::kTooManyChoices;
  const auto param = [this](const char* body) {
    const RawReply reply = ask(post("/v1/completions", body));
    EXPECT_EQ(reply.status, 400);
    return json::parse(reply.body)["error"]["param"].get<std::string>();
  };
  EXPECT_EQ(param(R"({"prompt":[[5],[6,7]],"n":2})"), "n");
  EXPECT_EQ(param(R"({"prompt":[[5],[6,7]]})"), "prompt");
}

TEST_F(ServerTest, RulesThatLeaveNoTokenAreTheRequestsFault) {
  generator_.refuse = engine::SubmitError::Kind::kNoToken;
  const RawReply refused = ask(post("/v1/completions", R"({"prompt":"a","allowed_token_ids":[5]})"));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(json::parse(refused.body)["error"]["param"], "allowed_token_ids");
  const RawReply words = ask(post("/v1/completions", R"({"prompt":"a","bad_words":["b"]})"));
  EXPECT_EQ(json::parse(words.body)["error"]["param"], "bad_words");
  generator_.refuse.reset();
  generator_.script = [](engine::Generation& generation, const engine::GenerationRequest& request) {
    engine::GenerationResult result = result_of(request, FinishReason::kFailed);
    result.no_token = true;
    result.error = "no way on";
    generation.finish(result);
  };
  const auto error_of = [this](const std::string& route, const std::string& fields) {
    const RawReply reply = ask(post(route, "{" + fields + "}"));
    EXPECT_EQ(reply.status, 400) << reply.body;
    const json error = json::parse(reply.body)["error"];
    return error.value("param", "-") + " | " + error["message"].get<std::string>();
  };
  const std::string messages = R"("messages":[{"role":"user","content":"hi"}],"max_tokens":9,)";
  const std::string schema = R"({"type":"json_schema","schema":{"type":"null"}})";
  EXPECT_EQ(error_of("/v1/completions", R"("prompt":"a","guided_regex":"b","allowed_token_ids":[5])"),
            "guided_regex | guided_regex: no way on");
  EXPECT_EQ(error_of("/v1/completions", R"("prompt":"a","allowed_token_ids":[5])"),
            "allowed_token_ids | allowed_token_ids: no way on");
  EXPECT_EQ(error_of("/v1/chat/completions",
                     messages + R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"null"}}})"),
            "response_format.json_schema.schema | response_format.json_schema.schema: no way on");
  EXPECT_EQ(
      error_of("/v1/chat/completions", messages + R"("tool_choice":"required","tools":[{"name":"f"},{"name":"g"}])"),
      "tools | tools: no way on");
  EXPECT_EQ(error_of("/v1/responses", R"("input":"a","text":{"format":)" + schema + "}"),
            "text.format.schema | text.format.schema: no way on");
  EXPECT_EQ(error_of("/v1/messages", messages + R"("output_format":)" + schema), "- | output_format.schema: no way on");
  const std::vector<std::string> list =
      events(ask(post("/v1/completions", R"({"prompt":"a","guided_regex":"b","stream":true})")).body);
  EXPECT_EQ(json::parse(list.at(0))["error"]["param"], "guided_regex");
}

TEST_F(ServerTest, WhatARequestSaysIsQuotedWholeOnOneLineAndShort) {
  const auto message = [](const RawReply& reply) {
    return json::parse(reply.body)["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(message(ask(post("/v1/completions", R"({"prompt":"a","model":"ab\u0000c\nd"})"))),
            R"(The model `ab\x00c\x0ad` does not exist.)");
  EXPECT_EQ(message(ask(post("/v1/completions", R"({"prompt":"a","model":")" + std::string(1 << 20, 'm') + "\"}"))),
            "The model `" + std::string(200, 'm') + "…` does not exist.");
  EXPECT_LT(message(ask("GET /v1/models/" + std::string(4000, 'm') + " HTTP/1.1\r\nHost: x\r\n\r\n")).size(), 300U);
  EXPECT_LT(message(ask("GET /" + std::string(4000, 'm') + " HTTP/1.1\r\nHost: x\r\n\r\n")).size(), 300U);
  EXPECT_LT(message(ask(post("/v1/completions",
                             R"({"prompt":"a","logit_bias":{")" + std::string(1 << 20, '0') + R"(":1,"0":"x"}})")))
                .size(),
            300U);
}

TEST_F(ServerTest, EqualPromptsWithoutASeedHaveNoiseOfTheirOwn) {
  ask(post("/v1/completions", R"({"prompt":[[5],[5]],"n":2})"));
  const auto fresh = generator_.all();
  EXPECT_EQ(fresh[0].sampling.seed, fresh[1].sampling.seed);
  EXPECT_NE(fresh[0].sampling.seed, fresh[2].sampling.seed);
  ask(post("/v1/completions", R"({"prompt":[[5],[5]],"seed":3})"));
  EXPECT_EQ(generator_.all()[4].sampling.seed, 3U);
  EXPECT_EQ(generator_.all()[5].sampling.seed, 3U);
}

TEST_F(ServerTest, TheChoicesOfAllPromptsShareTheirLists) {
  ask(post("/v1/completions", R"({"prompt":[[5],[6,7]],"n":2,"stop":["zz"],"stop_token_ids":[9,8,9]})"));
  const auto requests = generator_.all();
  ASSERT_EQ(requests.size(), 4U);
  EXPECT_EQ(requests[0].prompt.data(), requests[1].prompt.data());
  EXPECT_EQ(requests[2].prompt.data(), requests[3].prompt.data());
  EXPECT_EQ(requests[0].reply.stop.data(), requests[3].reply.stop.data());
  EXPECT_EQ(requests[0].stop_token_ids.data(), requests[3].stop_token_ids.data());
  EXPECT_THAT(requests[0].stop_token_ids, ElementsAre(8, 9));
}

TEST_F(ServerTest, ContinuousUsageAndTruncatedPrompts) {
  const auto list =
      events(chat(R"("stream":true,"stream_options":{"continuous_usage_stats":true},"truncate_prompt_tokens":4)").body);
  EXPECT_EQ(generator_.last().prompt.size(), 4U);
  for (size_t i = 0; i + 1 < list.size(); ++i) EXPECT_EQ(json::parse(list[i])["usage"]["prompt_tokens"], 4) << list[i];
}

TEST_F(ServerTest, BadWordsAreBannedAsWrittenAndAfterASpace) {
  chat(R"("bad_words":["a"])");
  EXPECT_THAT(generator_.last().bad_words, ElementsAre(tokenizer().encode("a"), tokenizer().encode(" a")));
  chat(R"("bad_words":["hedgehog"])");  // more tokens than " hedgehog", or fewer
  EXPECT_THAT(generator_.last().bad_words,
              ElementsAre(tokenizer().encode("hedgehog"), tokenizer().encode(" hedgehog")));
}

TEST_F(ServerTest, AnEchoedChatContinuesTheMessage) {
  const RawReply reply = ask(post(
      "/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"The "}],)"
                              R"("add_generation_prompt":false,"continue_final_message":true,"echo":true})"));
  EXPECT_EQ(json::parse(reply.body)["choices"][0]["message"]["content"], "The answer");
}

// ---- tokenize

TEST_F(ServerTest, TokenizeGivesTheIdsOfAPrompt) {
  const json body = json::parse(ask(post("/tokenize", R"({"prompt":"a<|user|> b","return_token_strs":true})")).body);
  const std::vector<int32_t> ids = tokenizer().encode("a<|user|> b");
  EXPECT_EQ(body["tokens"], json(ids));
  EXPECT_EQ(body["count"], ids.size());
  EXPECT_EQ(body["max_model_len"], 512);
  EXPECT_EQ(body["token_strs"][0], "a");
  EXPECT_EQ(body["token_strs"][1], "<|user|>");
  EXPECT_TRUE(json::parse(ask(post("/tokenize", R"({"prompt":""})")).body)["token_strs"].is_null());
  const std::string tokens = R"({"tokens":)" + json(ids).dump() + '}';
  EXPECT_EQ(json::parse(ask(post("/detokenize", tokens)).body)["prompt"], "a<|user|> b");
  EXPECT_EQ(generator_.count(), 0U);
}

TEST_F(ServerTest, TokenizeListsAtMostSoManyIds) {
  const std::string word = " a";
  ASSERT_EQ(tokenizer().encode(word + word).size(), 2U);
  std::string text;
  for (size_t i = 0; i <= text::PromptJson::kMaxValues; ++i) text += word;
  const RawReply reply = ask(post("/tokenize", R"({"prompt":")" + text + "\"}"));
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(error_of(reply)["param"], "prompt");
  EXPECT_EQ(error_of(reply)["message"], "4194305 tokens are too many to list; the most are 4194304");
}

TEST_F(ServerTest, TokenizeRendersMessagesAsAChatDoes) {
  for (const char* fields : {"", R"("reasoning_effort":"high")", R"("chat_template_kwargs":{"enable_thinking":false})",
                             R"("add_generation_prompt":false)", R"("tools":[{"name":"f","parameters":{}}])"}) {
    chat(fields);
    const json body = json::parse(ask(post("/tokenize", chat_body(fields))).body);
    EXPECT_EQ(body["tokens"], json(generator_.last().prompt)) << fields;
  }
}

TEST_F(ServerTest, TokenizeRefusalsNameTheField) {
  const auto param = [&](const char* path, const char* body) {
    const RawReply reply = ask(post(path, body));
    EXPECT_EQ(reply.status, 400) << body;
    return error_of(reply)["param"];
  };
  EXPECT_EQ(param("/tokenize", "{}"), "prompt");
  EXPECT_EQ(param("/tokenize", R"({"prompt":[1]})"), "prompt");
  EXPECT_EQ(param("/tokenize", R"({"messages":[]})"), "messages");
  EXPECT_EQ(param("/tokenize", R"({"prompt":"a","messages":[{"role":"user","content":"a"}]})"), "prompt");
  EXPECT_EQ(param("/tokenize", R"({"messages":[{"role":"wizard","content":"a"}]})"), "messages[0].role");
  EXPECT_EQ(param("/detokenize", "{}"), "tokens");
  EXPECT_EQ(param("/detokenize", R"({"tokens":[1,4096]})"), "tokens[1]");
  EXPECT_EQ(ask(post("/detokenize", R"({"model":"other","tokens":[]})")).status, 404);
}

}  // namespace
}  // namespace glm53::server
