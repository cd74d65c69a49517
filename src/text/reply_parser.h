// From sampled token ids to the text of a reply: reasoning split, detokenising, stop strings (spec 40 §1.6, §3, §11).
// Pure; one object a reply, fed one token at a time, so that the result does not depend on how many tokens a step
// gives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace glm53::text {

enum class ReplyChannel : uint8_t { kReasoning, kContent };

/// Ids that the reply grammar of this family names, looked up once.
struct ReplyMarkers {
  int32_t think_open = -1;   ///< <think>
  int32_t think_close = -1;  ///< </think>
  static ReplyMarkers from(const Tokenizer& tokenizer);
};

/// What the end of a prompt says about the reply: inside reasoning or not (spec 40 §3, first paragraph).
ReplyChannel start_channel(std::span<const int32_t> prompt_ids, const Tokenizer& tokenizer);

struct ReplyOptions {
  bool split_reasoning = true;  ///< false: /v1/completions, raw text
  ReplyChannel start = ReplyChannel::kContent;
  bool thinking = true;  ///< a later <think> in content reopens reasoning; otherwise it is literal text
  bool skip_special_tokens = true;
  bool include_stop = false;       ///< include_stop_str_in_output
  bool stop_in_reasoning = false;  ///< api.stop_scope: all
  bool flush_partial_utf8 = false;
  std::vector<std::string> stop;  ///< non-empty strings
};

struct ReplyDelta {
  ReplyChannel channel = ReplyChannel::kContent;
  std::string text;  ///< not empty
};

class ReplyParser {
 public:
  ReplyParser(const Tokenizer& tokenizer, ReplyOptions options);

  /// Feeds one token that is part of the output (end ids are not fed). Text that is certain is appended to `out`,
  /// adjacent text of one channel merged. Returns true when a stop string ended the reply.
  bool push(int32_t id, std::vector<ReplyDelta>& out);
  /// No more tokens: releases text held back for a possible stop string.
  void finish(std::vector<ReplyDelta>& out);

  const std::optional<std::string>& matched_stop() const { return matched_stop_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  void emit(ReplyChannel channel, std::string text, std::vector<ReplyDelta>& out);
  bool feed_text(ReplyChannel channel, const std::string& text, std::vector<ReplyDelta>& out);

  const Tokenizer& tokenizer_;
  ReplyOptions options_;
  ReplyMarkers markers_;
  ReplyChannel channel_;
  IncrementalDecoder decoder_;
  std::string held_;  ///< longest suffix of the channel's text that may still begin a stop string
  std::optional<std::string> matched_stop_;
  int64_t reasoning_tokens_ = 0;
};

}  // namespace glm53::text
