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

}  // namespace glm53
