// What tests of the engine share: requests over the tiny checkpoint's tokenizer, and whole replies.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/generation.h"
#include "text/load_tokenizer.h"

namespace glm53::engine {

inline constexpr int32_t kEnd = 4060;  // <|endoftext|>
inline constexpr std::chrono::milliseconds kLong{20000};

inline const text::Tokenizer& tokenizer() {
  static const text::Tokenizer instance = test::load_tokenizer(GLM53_TEST_DATA "/models/glm53-tiny/tokenizer.json");
  return instance;
}

inline std::vector<int32_t> ids_of(const std::string& text) { return tokenizer().encode(text); }

/// Everything one reply gave.
struct Reply {
  std::string reasoning;
  std::string content;
  std::vector<std::string> calls;  ///< "name(arguments)"
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> prompt_logprobs;
  int text_events = 0;
  GenerationResult result;
};

inline Reply read_all(Generation& generation) {
  Reply reply;
  for (;;) {
    std::optional<GenerationEvent> event = generation.next(kLong);
    if (!event) {
      ADD_FAILURE() << "no event came";
      return reply;
    }
    EXPECT_NE(event->deltas.empty(), !event->result.has_value());
    reply.tokens.insert(reply.tokens.end(), event->tokens.begin(), event->tokens.end());
    if (!event->prompt_logprobs.empty()) reply.prompt_logprobs = std::move(event->prompt_logprobs);
    for (const text::ReplyDelta& delta : event->deltas) {
      if (delta.channel == text::ReplyChannel::kCall) {
        reply.calls.push_back(delta.tool_name + "(" + delta.text + ")");
      } else {
        (delta.channel == text::ReplyChannel::kReasoning ? reply.reasoning : reply.content) += delta.text;
      }
    }
    reply.text_events += event->deltas.empty() ? 0 : 1;
    if (event->result) {
      reply.result = *event->result;
      return reply;
    }
  }
}

inline GenerationRequest request(int prompt_tokens = 3, int64_t max_tokens = 10) {
  GenerationRequest r;
  r.id = "test";
  r.prompt = std::vector<int32_t>(static_cast<std::size_t>(prompt_tokens), 65);
  r.max_tokens = max_tokens;
  r.end_ids = {kEnd};
  return r;
}

}  // namespace glm53::engine
