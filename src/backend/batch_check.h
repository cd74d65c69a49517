// Caller's mistakes in a forward call, found before anything runs. Shared by all backends.
#pragma once

#include <cstdint>
#include <functional>

#include "backend/backend.h"

namespace glm53 {

/// Where a slot stands.
struct SlotPosition {
  int64_t position = 0;
  bool commit_pending = false;  ///< a window ran and commit() has not been called
};

/// Throws std::logic_error: too many rows, segments that do not tile the call, a slot named twice, a segment that does
/// not continue its sequence or follows an uncommitted window, missing or foreign pages, ids outside the vocabulary,
/// logit rows that are not rows of the call in ascending order.
void check_batch(const Batch& batch, const CachePlan& plan, int vocab,
                 const std::function<SlotPosition(int slot)>& slot_position);

template <typename Item>
bool same_memory(std::span<const Item> a, std::span<const Item> b) {
  return a.data() == b.data() && a.size() == b.size();
}

/// Entries that one sample() call may bring in all lists of one kind (banned, biases, counts), a list that neighbouring
/// rows share counted once: enough for every sequence to name the whole vocabulary.
inline int64_t sample_list_capacity(const CachePlan& plan, int vocab) { return int64_t{plan.sequences} * vocab; }

/// Throws std::logic_error: more rows than max_logit_rows or than results, a logits row that does not exist, no params,
/// a mask of another size, ids outside the vocabulary, more top logprobs than kMaxTopLogprobs, lists beyond
/// sample_list_capacity.
void check_sample_rows(std::span<const SampleRow> rows, std::span<const SampledToken> out, const CachePlan& plan,
                       int vocab);

}  // namespace glm53
