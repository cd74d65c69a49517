// From sampled token ids to the text of a reply: reasoning split, tool calls, detokenising, stop strings (spec 40 §1.6,
// §3, §4, §11). Pure; one object a reply, fed one token at a time, so that the result does not depend on how many
// tokens a step gives.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "glm53/core/shared_list.h"
#include "text/offered_tools.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"
#include "text/tool_call_parser.h"
#include "text/tool_tags.h"

namespace glm53::text {

enum class ReplyChannel : uint8_t { kReasoning, kContent, kCall };

/// Ids that the reply grammar of this family names, looked up once.
struct ReplyMarkers {
  int32_t think_open = -1;   ///< <think>
  int32_t think_close = -1;  ///< </think>
  ToolTags tags;
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
  bool unknown_tools = true;       ///< false: a call of any other tool is text, however well formed it is
  bool spelled_tags = false;       ///< api.tool_tags: calls whose tags are spelled in ordinary tokens count too
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

/// Appends deltas in their order; what continues the one before it is joined to it.
void append_joined(std::vector<ReplyDelta> deltas, std::vector<ReplyDelta>& to);

/// How a reply ended.
enum class ReplyEnd : uint8_t {
  kComplete,  ///< by an end or stop id: the model had no more to say
  kCut,       ///< by a limit, a cancel or a failure
};

/// Of a ReplyParser: what it reads at a time. That is a token, but where tags may be spelled in ordinary ones, a byte
/// or a tag.
struct ReplyUnit {
  int32_t id = -1;  ///< of a token
  std::string_view text;
  ToolTag tag = ToolTag::kNone;
  int tokens = 1;  ///< that begin with it
};

/// Of a ReplyParser: what may be a call, in reasoning several, and is not known to be yet. (Not nested in it: a nested
/// class is not default-constructible before the outer one is complete.)
struct HeldCall {
  std::vector<ReplyUnit> units;  ///< from <tool_call> on; none from when the call is given out
  size_t bytes = 0;              ///< of their text
  bool spelled = false;          ///< begins with a tag in ordinary tokens, so that others of it may be spelled too
  std::optional<ToolCallParser> call;
  std::vector<ReplyDelta> calls;  ///< complete ones, in reasoning
  bool given_out = false;         ///< name and part of the arguments
};

/// Stop strings are searched within one stretch of a channel, never across a change of channel and never in a call. A
/// stop string that is the text of a marker without text in the reply (</think>, a skipped special token) matches that
/// token, in the channel where it arrives; such a think marker is not printed even with include_stop.
///
/// With tools, from <tool_call> on nothing is given out until it is known to be a call or text. What is text is then
/// read as if there were no tools, stop strings included. White space at the end of content waits too: that before the
/// first call is dropped, and so is content between or behind calls that is nothing else. In reasoning calls count
/// only if nothing but calls and white space comes before the reply's end or </think>, and at most 16 KiB wait
/// (spec 40 §3). A call that is cut off is dropped, its text too. At most 128 calls: the last one ends the reply.
///
/// With spelled_tags, a <tool_call> in ordinary tokens opens a call where a line of content begins, or content behind
/// reasoning or a call.
class ReplyParser {
 public:
  /// `tokenizer` must outlive the parser.
  ReplyParser(const Tokenizer& tokenizer, ReplyOptions options);
  ReplyParser(const ReplyParser&) = delete;
  ReplyParser& operator=(const ReplyParser&) = delete;

  /// Feeds one token that is part of the output (end ids are not fed). Text that is certain is appended to `out`,
  /// adjacent text of one channel merged. Returns true when the reply has ended by a stop string or its last call;
  /// tokens fed after that are ignored.
  bool push(int32_t id, std::vector<ReplyDelta>& out);
  /// No more tokens: settles what is held back, which may yet turn out to hold a stop string. Of an incomplete
  /// character, which is not searched for them, only flush_partial_utf8 leaves a trace. Nothing after push() has
  /// returned true.
  void finish(ReplyEnd end, std::vector<ReplyDelta>& out);

  /// The stop string that ended the reply.
  const std::optional<std::string>& matched_stop() const { return matched_stop_; }
  /// After finish(kCut): the channel that was cut off; nothing where a call was, of which nothing was given out.
  const std::optional<ReplyChannel>& cut_channel() const { return cut_channel_; }
  /// Where the last token fed left the reply; of one held back, where what is held began.
  bool in_reasoning() const { return channel_ == ReplyChannel::kReasoning; }
  /// Tokens fed while in reasoning, </think> excluded; of those held back, only what finish() makes reasoning.
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  /// True where stop strings count in the present channel.
  bool searching() const {
    return tokens_ > options_.min_tokens && (channel_ == ReplyChannel::kContent || options_.stop_in_reasoning);
  }
  bool push_unit(const ReplyUnit& unit, std::vector<ReplyDelta>& out);
  bool push_byte(const ReplyUnit& byte, std::vector<ReplyDelta>& out);
  bool push_spelling(std::vector<ReplyDelta>& out);
  bool push_plain(const ReplyUnit& unit, std::vector<ReplyDelta>& out);
  bool feed_text(const std::string& text, std::vector<ReplyDelta>& out);
  bool feed_silent_marker(int32_t id, bool printable, std::vector<ReplyDelta>& out);
  void end_stretch(std::vector<ReplyDelta>& out);
  void end_at_stop(const std::string& stop, std::vector<ReplyDelta>& out);
  void emit(std::string_view text, std::vector<ReplyDelta>& out);
  void emit_content(std::string_view text, std::vector<ReplyDelta>& out);
  void release_space(std::vector<ReplyDelta>& out);

  void begin_content();
  int max_calls() const;
  void hold_call(const ReplyUnit& opening);
  bool push_held(const ReplyUnit& unit, std::vector<ReplyDelta>& out);
  bool push_held_reasoning(const ReplyUnit& unit, std::vector<ReplyDelta>& out);
  ToolCallParser::Status feed_call(const ReplyUnit& unit);
  void give_out(std::vector<ReplyDelta>& out);
  bool take_held_call(std::vector<ReplyDelta>& out);
  bool take_held_calls(std::vector<ReplyDelta>& out);
  void begin_call(std::vector<ReplyDelta>& out);
  bool release(std::vector<ReplyDelta>& out);
  void finish_held(ReplyEnd end, std::vector<ReplyDelta>& out);

  const Tokenizer& tokenizer_;
  ReplyOptions options_;
  ReplyMarkers markers_;
  ReplyChannel channel_;
  IncrementalDecoder decoder_;
  StopMatcher matcher_;
  int64_t tokens_ = 0;  ///< fed so far, without those in hold_
  std::string held_;    ///< longest suffix of the channel's text that may still begin a stop string
  bool ended_ = false;
  std::optional<std::string> matched_stop_;
  std::optional<ReplyChannel> cut_channel_;
  int64_t reasoning_tokens_ = 0;

  std::optional<ToolNames> names_;  ///< nothing: calls are not told apart
  ArgumentTypers typers_;
  std::optional<HeldCall> hold_;
  int calls_ = 0;                  ///< given out
  std::string space_;              ///< white space of the content that a call would drop
  bool text_since_ = false;        ///< content since the last call that is not white space
  int prose_opens_ = 0;            ///< <tool_call> tags in content that were text and may still meet their </tool_call>
  std::vector<ReplyUnit> tags_{};  ///< with spelled_tags: what may be spelled, <tool_call> first
  ReplyUnit spelling_{-1, {}, ToolTag::kNone, 0};  ///< the beginning of one of them, seen last
  bool line_begins_ = true;                        ///< content goes on at the beginning of a line
};

}  // namespace glm53::text
