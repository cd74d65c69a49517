#include "engine/reply_guide.h"

#include "glm53/core/contains.h"

namespace glm53::engine {
namespace {

void clear(std::span<uint32_t> mask, std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    if (id >= 0 && static_cast<std::size_t>(id) / 32 < mask.size()) forbid_id(mask, id);
  }
}

}  // namespace

ReplyGuide::ReplyGuide(const GenerationRequest& request, const text::ReplyMarkers& markers,
                       std::span<const uint32_t> tokens_mask, int vocab)
    : request_(request),
      markers_(markers),
      tokens_mask_(tokens_mask),
      vocab_(vocab),
      in_reasoning_(request.reply.split_reasoning && request.reply.start == text::ReplyChannel::kReasoning) {
  reasoning_spent_ = request.reasoning_budget == 0;
  if (request.loop_guard && request.reply.split_reasoning) loop_.emplace();
  if (request.grammar == nullptr) return;
  for (const int32_t id : request.grammar->trie().end_ids()) {
    if (!contains(request.end_ids, id) && !contains(request.stop_token_ids, id)) unheeded_ends_.push_back(id);
  }
}

std::span<const uint32_t> ReplyGuide::next_mask(bool may_close) {
  if (in_reasoning_ && reasoning_spent_ && may_close) {
    made_.assign(mask_words(vocab_), 0);
    allow_id(made_, markers_.think_close);
    return made_;
  }
  if (request_.grammar != nullptr) return grammar_mask();
  // Reasoning that is spent is not opened again either.
  const bool may_reopen = request_.reply.split_reasoning && request_.reply.thinking && !in_reasoning_;
  if (!reasoning_spent_ || !may_reopen) return tokens_mask_;
  if (content_mask_.empty()) content_mask_ = without({&markers_.think_open, 1});
  return content_mask_;
}

std::span<const uint32_t> ReplyGuide::grammar_mask() {
  if (!matcher_) {
    matcher_.emplace(request_.grammar, in_reasoning_ ? std::optional(markers_.think_close) : std::nullopt);
  }
  if (!matcher_->active()) {
    if (waiting_mask_.empty()) {
      std::vector<int32_t> ends = request_.grammar->trie().end_ids();
      ends.insert(ends.end(), request_.end_ids.begin(), request_.end_ids.end());
      ends.push_back(markers_.tags.call_open);
      waiting_mask_ = without(ends);
    }
    return waiting_mask_;
  }
  // The trie holds tokens alone, so that its masks lie within tokens_mask_.
  const std::span<const uint32_t> mask = matcher_->next_mask();
  if (unheeded_ends_.empty() || !matcher_->can_end()) return mask;
  made_.assign(mask.begin(), mask.end());
  clear(made_, unheeded_ends_);
  return made_;
}

bool ReplyGuide::take(int32_t id, bool in_reasoning) {
  if (matcher_ && !matcher_->accept(id)) return false;
  const bool inside = in_reasoning && in_reasoning_;  // neither opens nor closes it
  in_reasoning_ = in_reasoning;
  if (inside) count_reasoning(id);
  return true;
}

void ReplyGuide::count_reasoning(int32_t id) {
  ++reasoning_tokens_;
  if (loop_) loop_->push(id);
  if (request_.reasoning_budget >= 0 && reasoning_tokens_ >= request_.reasoning_budget) reasoning_spent_ = true;
  if (loop_ && loop_->looping()) reasoning_spent_ = true;
}

/// tokens_mask_ without `ids`.
std::vector<uint32_t> ReplyGuide::without(std::span<const int32_t> ids) const {
  std::vector<uint32_t> mask(tokens_mask_.begin(), tokens_mask_.end());
  if (mask.empty()) {
    mask.resize(mask_words(vocab_));
    for (int32_t id = 0; id < vocab_; ++id) allow_id(mask, id);
  }
  clear(mask, ids);
  return mask;
}

}  // namespace glm53::engine
