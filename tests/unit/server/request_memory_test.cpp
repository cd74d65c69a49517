// What a request holds in memory while its reply waits and runs, and what it is refused for before it takes any.
#include <atomic>

#include <gmock/gmock.h>
#include <malloc.h>

#include "api_test.h"
#include "server/api_error.h"
#include "server/chat_completions.h"
#include "server/completions.h"
#include "server/grammar_cache.h"
#include "server/messages.h"
#include "server/request_counts.h"
#include "server/responses.h"

namespace glm53::server {
namespace {

using nlohmann::json;
using testing::HasSubstr;

int64_t allocated() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

class RequestMemoryTest : public ApiTest {
 protected:
  /// Bytes that the process has more than before, while the reply to `body` runs.
  int64_t held_by(const std::string& path, const std::string& body) {
    std::atomic<int64_t> during{0};
    generator_.script = [&](engine::Generation& generation, const engine::GenerationRequest& request) {
      during = allocated();
      generation.finish(result_of(request, engine::FinishReason::kStop));
    };
    const std::string request = post(path, body);
    start();
    const int64_t before = allocated();
    EXPECT_EQ(ask(request).status, 200) << path;
    return during - before;
  }
};

TEST_F(RequestMemoryTest, WhatWasParsedIsGoneWhileTheReplyRuns) {
  std::string list = "[]";
  for (int i = 1; i < 500'000; ++i) list += ",[]";  // some 30 MB once it is parsed
  const std::string schema = R"({"type":"object","x-a":[)" + list + "]}";
  const std::string format = R"({"type":"json_schema","name":"n","schema":)" + schema + '}';
  const std::string nested = R"({"type":"json_schema","json_schema":{"name":"n","schema":)" + schema + "}}";
  const std::string chat = R"("messages":[{"role":"user","content":"hi"}])";
  const struct {
    const char* path;
    std::string body;
  } cases[] = {
      {"/v1/chat/completions", '{' + chat + ",\"response_format\":" + nested + '}'},
      {"/v1/chat/completions", '{' + chat + ",\"stream\":true,\"response_format\":" + nested + '}'},
      {"/v1/chat/completions", '{' + chat + ",\"unknown\":[" + list + "]}"},
      {"/v1/completions", R"({"prompt":"hi","response_format":)" + nested + '}'},
      {"/v1/messages", "{\"max_tokens\":5," + chat + ",\"output_format\":" + format + '}'},
      {"/v1/responses", R"({"input":"hi","text":{"format":)" + format + "}}"},
      {"/v1/responses", R"({"input":"hi","stream":true,"text":{"format":)" + format + "}}"},
      {"/v1/responses", R"({"input":"hi","reasoning":{"x":[)" + list + "]}}"},
      {"/v1/responses", R"({"input":"hi","stream":true,"reasoning":{"x":[)" + list + "]}}"},
  };
  for (const auto& c : cases) {
    EXPECT_LT(held_by(c.path, c.body), 10'000'000) << c.path << ' ' << c.body.substr(0, 60);
  }
}

TEST_F(RequestMemoryTest, ABodyIsPausedBeforeItsGrammarIsMadeAndDoneBeforeItsReplyIs) {
  RequestCounts counts;
  const std::vector<int32_t> ends = {tiny_tokenizer().require_added("<|user|>")};
  GrammarCache grammars(std::make_shared<const text::TokenTrie>(tiny_tokenizer(), 4096, ends));
  GenerationDefaults defaults;
  defaults.eos_ids = ends;
  defaults.vocab = 4096;
  const ApiContext api{{settings_, defaults}, generator_, tiny_tokenizer(), grammars, counts, 16, "1.2.3", 0};
  std::string seen;
  HttpRequest http;
  http.client_gone = [] { return false; };
  http.body_paused = [&] { seen += "paused "; };
  http.body_done = [&](uint64_t) { seen += "done "; };
  reply_with({{text::ReplyChannel::kContent, "answer"}}, [&](engine::GenerationResult&) { seen += "replied "; });
  const auto outcome = [&](const auto& handler, const std::string& body) {
    seen.clear();
    http.body = body;
    try {
      handler(http, api);
    } catch (const ApiError& error) {
      seen += error.param;
    }
    return seen;
  };
  const std::string chat = R"({"max_tokens":9,"messages":[{"role":"user","content":"hi"}])";
  EXPECT_EQ(outcome(chat_completions, chat + '}'), "paused done replied ");
  EXPECT_EQ(outcome(messages, chat + '}'), "paused done replied ");
  EXPECT_EQ(outcome(responses, R"({"input":"hi"})"), "paused done replied ");
  EXPECT_EQ(outcome(completions, R"({"prompt":"hi"})"), "paused done replied ");
  const std::string broken = R"(,"structured_outputs":{"regex":"("}})";
  EXPECT_EQ(outcome(chat_completions, chat + broken), "paused structured_outputs.regex");
  EXPECT_EQ(outcome(completions, R"({"prompt":"hi")" + broken), "paused structured_outputs.regex");
  EXPECT_EQ(outcome(responses, R"({"input":"hi")" + broken), "paused structured_outputs.regex");
}

TEST_F(RequestMemoryTest, APromptThatCannotFitIsRefusedBeforeItIsEncoded) {
  size_t longest = 0;
  std::string token;
  for (int32_t id = 0; id < tiny_tokenizer().id_count(); ++id) {
    const std::string_view bytes = tiny_tokenizer().token_bytes(id);
    if (bytes.size() > longest) token = bytes;
    longest = std::max(longest, bytes.size());
  }
  const std::string too_long(longest * 511 + 1, 'x');  // 512 tokens at least
  const auto message = [this](const std::string& path, const json& body) {
    const RawReply reply = ask(post(path, body.dump()));
    EXPECT_EQ(reply.status, 400) << path;
    return json::parse(reply.body)["error"]["message"].get<std::string>();
  };
  const json messages = {{{"role", "user"}, {"content", too_long}}};
  const std::string at_least = "However, you requested at least ";
  EXPECT_THAT(message("/v1/completions", {{"prompt", too_long}, {"max_tokens", 1}}),
              HasSubstr(at_least + "513 tokens (at least 512 in the messages, 1 in the completion)"));
  EXPECT_THAT(message("/v1/chat/completions", {{"messages", messages}}), HasSubstr(at_least));
  EXPECT_THAT(message("/v1/responses", {{"input", too_long}}), HasSubstr(at_least));
  EXPECT_THAT(message("/v1/messages", {{"max_tokens", 1}, {"messages", messages}}),
              testing::StartsWith("prompt is too long: 5"));
  EXPECT_EQ(generator_.count(), 0U);
  // One byte less might fit, and what is to be cut does.
  EXPECT_THAT(message("/v1/completions", {{"prompt", too_long.substr(1)}, {"max_tokens", 1}}),
              testing::Not(HasSubstr("at least")));
  const json cut = {{"prompt", too_long}, {"max_tokens", 1}, {"truncate_prompt_tokens", -1}};
  EXPECT_EQ(ask(post("/v1/completions", cut.dump())).status, 200);
  EXPECT_EQ(ask(post("/v1/completions", json{{"prompt", token}, {"max_tokens", 511}}.dump())).status, 200);
  // Counting them is no request for a reply.
  EXPECT_EQ(ask(post("/tokenize", json{{"prompt", too_long}}.dump())).status, 200);
}

}  // namespace
}  // namespace glm53::server
