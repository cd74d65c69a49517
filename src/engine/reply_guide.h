// What a reply must look like beyond its request's bans: the mask of each next token by the request's grammar, its
// reasoning budget and the loop guard (spec 40 §3, §12.2, §12.3). One object a running reply, told of every token it
// delivers that does not end it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/generation.h"
#include "engine/loop_guard.h"
#include "text/grammar_matcher.h"
#include "text/reply_parser.h"

namespace glm53::engine {

/// Reasoning is free but for its end. Where a grammar waits for the end of reasoning, the ids that end a reply or open
/// a call are masked until then: the reply would end without the content that was asked for.
///
/// Grammar and request share the end ids: where the grammar may end, those that the request heeds are allowed, and with
/// ignore_eos none.
class ReplyGuide {
 public:
  /// `request` and `tokens_mask` (SampleRow::mask of the ids that have a token; empty: all) outlive the object.
  ReplyGuide(const GenerationRequest& request, const text::ReplyMarkers& markers, std::span<const uint32_t> tokens_mask,
             int vocab);

  /// SampleRow::mask of the next token; valid until the next call of a member, and of any reply with the same grammar.
  /// Reasoning that is spent leaves </think> alone, unless the request's own rules ban it now: not `may_close`. Throws
  /// Error when the grammar is too ambiguous to follow.
  std::span<const uint32_t> next_mask(bool may_close = true);

  /// `id` became part of the output. `in_reasoning`: where the ReplyParser, which was fed it, then stands; it alone
  /// knows a <think> that is part of a call. False: the grammar does not allow `id`, and the reply cannot go on. Throws
  /// Error as next_mask().
  [[nodiscard]] bool take(int32_t id, bool in_reasoning);
  /// The grammar allows nothing more: the reply is complete.
  bool complete() const { return matcher_ && matcher_->must_end(); }
  /// The grammar allows an end here, whatever the request bans.
  bool can_end() const { return matcher_ && matcher_->can_end(); }

 private:
  std::span<const uint32_t> grammar_mask();
  void count_reasoning(int32_t id);
  std::vector<uint32_t> without(std::span<const int32_t> ids) const;

  const GenerationRequest& request_;
  const text::ReplyMarkers markers_;
  const std::span<const uint32_t> tokens_mask_;
  const int vocab_;

  std::optional<text::GrammarMatcher> matcher_;  ///< made with the first mask, since that may throw
  std::vector<int32_t> unheeded_ends_;           ///< end ids of the grammar that do not end this reply
  std::vector<uint32_t> waiting_mask_;           ///< before a grammar
  std::vector<uint32_t> content_mask_;           ///< without <think>, for once reasoning is spent
  std::vector<uint32_t> made_;                   ///< the mask last handed out, where it is no one else's

  bool in_reasoning_;
  bool reasoning_spent_ = false;
  int64_t reasoning_tokens_ = 0;
  std::optional<LoopGuard> loop_;
};

}  // namespace glm53::engine
