// From sampled token ids to the text of a reply: reasoning split, detokenising, stop strings (spec 40 §1.6, §3, §11).
// Pure; one object a reply, fed one token at a time, so that the result does not depend on how many tokens a step
// gives.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "glm53/core/shared_list.h"
#include "text/prompt_json.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"

namespace glm53::text {

enum class ReplyChannel : uint8_t { kReasoning, kContent, kCall };

/// A function that a reply may call.
struct OfferedTool {
  std::string name;
  PromptJson parameters;  ///< JSON schema of its arguments; null: none given
  bool strict = false;
};
using OfferedTools = std::vector<OfferedTool>;

/// Ids that the reply grammar of this family names, looked up once.
struct ReplyMarkers {
  int32_t think_open = -1;   ///< <think>
  int32_t think_close = -1;  ///< </think>
  /// Throws Error naming a marker that the tokenizer lacks; −1 without a vocabulary.
  static ReplyMarkers from(const Tokenizer& tokenizer);
};

/// What the end of a prompt says about the reply: inside reasoning or not (spec 40 §3, first paragraph). The last of
/// <think>, </think> and the role markers decides; with none of them, content.
ReplyChannel start_channel(std::span<const int32_t> prompt_ids, const Tokenizer& tokenizer);

struct ReplyOptions {
  bool split_reasoning = true;  ///< false: /v1/completions, raw text in kContent; `start` and `thinking` unused
  ReplyChannel start = ReplyChannel::kContent;
  bool thinking = true;  ///< a later <think> in content reopens reasoning; otherwise it is literal text
  bool skip_special_tokens = true;
  bool include_stop = false;       ///< include_stop_str_in_output
  bool stop_in_reasoning = false;  ///< api.stop_scope: all
  bool flush_partial_utf8 = false;
  SharedList<std::string> stop;  ///< non-empty strings, else std::invalid_argument
  int64_t min_tokens = 0;        ///< the text of this many tokens is not searched for stop strings
  /// Calls of these are told apart from content; null: nothing is, the text of a call stays in its channel.
  std::shared_ptr<const OfferedTools> tools;
  bool parallel_calls = true;      ///< false: the reply ends with its first call
  bool incremental_calls = false;  ///< api.tool_stream: arguments as they come, not a call at once
};

struct ReplyDelta {
  ReplyChannel channel = ReplyChannel::kContent;
  std::string text;         ///< not empty, but for the first delta of a call; of a call: a piece of its arguments' JSON
  int call = -1;            ///< kCall: which one, from 0
  std::string tool_name{};  ///< of the first delta of a call alone

  /// Text that may be joined: of one channel, within one call.
  bool continued_by(const ReplyDelta& next) const { return channel == next.channel && call == next.call; }
};

/// Stop strings are searched within one stretch of a channel, never across a change of channel. A stop string that is
/// the text of a marker without text in the reply (</think>, a skipped special token) matches that token, in the
/// channel where it arrives; such a think marker is not printed even with include_stop.
class ReplyParser {
 public:
  /// `tokenizer` must outlive the parser.
  ReplyParser(const Tokenizer& tokenizer, ReplyOptions options);

  /// Feeds one token that is part of the output (end ids are not fed). Text that is certain is appended to `out`,
  /// adjacent text of one channel merged. Returns true when a stop string ended the reply; tokens fed after that are
  /// ignored.
  bool push(int32_t id, std::vector<ReplyDelta>& out);
  /// No more tokens: releases text held back for a possible stop string, and settles an incomplete character. A
  /// character cut off here is not searched for stop strings.
  void finish(std::vector<ReplyDelta>& out);

  const std::optional<std::string>& matched_stop() const { return matched_stop_; }
  /// Tokens fed while in reasoning, </think> excluded.
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  /// True where stop strings count in the present channel.
  bool searching() const {
    return tokens_ > options_.min_tokens && (channel_ == ReplyChannel::kContent || options_.stop_in_reasoning);
  }
  bool feed_text(const std::string& text, std::vector<ReplyDelta>& out);
  bool feed_silent_marker(int32_t id, bool printable, std::vector<ReplyDelta>& out);
  void end_stretch(std::vector<ReplyDelta>& out);
  void emit(std::string_view text, std::vector<ReplyDelta>& out) const;

  const Tokenizer& tokenizer_;
  ReplyOptions options_;
  ReplyMarkers markers_;
  ReplyChannel channel_;
  IncrementalDecoder decoder_;
  StopMatcher matcher_;
  int64_t tokens_ = 0;  ///< fed so far
  std::string held_;    ///< longest suffix of the channel's text that may still begin a stop string
  std::optional<std::string> matched_stop_;
  int64_t reasoning_tokens_ = 0;
};

}  // namespace glm53::text
