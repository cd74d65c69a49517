// The API over loopback with a scripted generator: what the tests of all routes share.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fake_generator.h"
#include "raw_client.h"
#include "server/server.h"
#include "text/load_tokenizer.h"

namespace glm53::server {

inline const text::Tokenizer& tiny_tokenizer() {
  static const text::Tokenizer loaded = test::load_tokenizer(GLM53_TEST_DATA "/models/glm53-tiny/tokenizer.json");
  return loaded;
}

/// A server with a context of 512 tokens whose replies think "think" and say "answer".
class ApiTest : public testing::Test {
 protected:
  void SetUp() override {
    settings_.server.host = "127.0.0.1";
    settings_.server.port = 0;
    settings_.server.access_log = false;
    settings_.model.served_name = {"served"};
    settings_.defaults.max_tokens = 100;
    reply_with({{text::ReplyChannel::kReasoning, "think"}, {text::ReplyChannel::kContent, "answer"}});
  }

  /// Replies give these deltas, each as an event of its own, and end as `change` says.
  void reply_with(
      std::vector<text::ReplyDelta> deltas,
      std::function<void(engine::GenerationResult&)> change = [](engine::GenerationResult&) {}) {
    generator_.script = [deltas, change](engine::Generation& generation, const engine::GenerationRequest& request) {
      for (const text::ReplyDelta& delta : deltas) {
        generation.publish({}, {delta});
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      engine::GenerationResult result = result_of(request, engine::FinishReason::kStop);
      change(result);
      generation.finish(result);
    };
  }

  /// With the settings as they are now, unless it runs already.
  void start() {
    if (server_ != nullptr) return;
    GenerationDefaults defaults;
    for (const char* end : {"<|endoftext|>", "<|user|>", "<|observation|>"}) {
      defaults.eos_ids.push_back(tiny_tokenizer().require_added(end));
    }
    defaults.vocab = 4096;
    server_ = std::make_unique<Server>(tiny_tokenizer(), settings_, defaults, "1.2.3");
    if (!loading_) server_->serve(generator_);
    server_->start();
  }
  RawReply ask(const std::string& request) {
    start();
    RawClient client(server_->port());
    client.send(request);
    return client.reply();
  }

  std::string last_prompt() { return tiny_tokenizer().decode(generator_.last().prompt, false); }

  Settings settings_;
  FakeGenerator generator_;
  bool loading_ = false;  ///< the server starts without the generator
  std::unique_ptr<Server> server_;
};

/// The named events of a stream; each event's name must be the `type` of its data.
inline std::vector<nlohmann::json> named_events(const std::string& body) {
  std::vector<nlohmann::json> found;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos) {
      ADD_FAILURE() << "an event without its blank line";
      break;
    }
    const std::string event = body.substr(at, end - at);
    at = end + 2;
    if (event.rfind(": ", 0) == 0) continue;
    const size_t line = event.find("\ndata: ");
    if (event.rfind("event: ", 0) != 0 || line == std::string::npos) {
      ADD_FAILURE() << event;
      continue;
    }
    found.push_back(nlohmann::json::parse(event.substr(line + 7)));
    EXPECT_EQ(found.back()["type"], event.substr(7, line - 7));
  }
  return found;
}

}  // namespace glm53::server
