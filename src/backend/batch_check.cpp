#include "backend/batch_check.h"

#include <set>
#include <stdexcept>
#include <string>

#include "glm53/core/limits.h"

namespace glm53 {
namespace {

std::logic_error misuse(const std::string& what) { return std::logic_error("forward call: " + what); }

}  // namespace

void check_batch(const Batch& batch, const CachePlan& plan, int vocab,
                 const std::function<SlotPosition(int slot)>& slot_position) {
  if (batch.rows() > plan.max_rows) throw misuse("more rows than CachePlan::max_rows");
  if (static_cast<int>(batch.logit_rows.size()) > plan.max_logit_rows) {
    throw misuse("more logit rows than CachePlan::max_logit_rows");
  }
  int next_row = 0;
  std::set<int> slots;
  for (const Segment& segment : batch.segments) {
    const std::string where = "segment of slot " + std::to_string(segment.slot);
    if (segment.slot < 0 || segment.slot >= plan.sequences) throw misuse(where + ": no such slot");
    const SlotPosition at = slot_position(segment.slot);
    if (!slots.insert(segment.slot).second) throw misuse(where + " appears twice");
    if (segment.rows < 1 || segment.first_row != next_row) throw misuse(where + " does not follow the previous rows");
    if (at.commit_pending) throw misuse(where + " follows a window that was not committed");
    if (segment.first_position != at.position) {
      throw misuse(where + " starts at position " + std::to_string(segment.first_position) + ", the sequence is at " +
                   std::to_string(at.position));
    }
    const int64_t end = segment.first_position + segment.rows;
    if (static_cast<int64_t>(segment.pages.size()) * kPageTokens < end) throw misuse(where + " lacks pages");
    for (int32_t page : segment.pages) {
      if (page < 0 || page >= plan.pages) throw misuse(where + " names page " + std::to_string(page));
    }
    if (segment.kind == SegmentKind::kWindow && segment.rows > kMaxWindowRows) {
      throw misuse(where + " is a window of more than 16 rows");
    }
    next_row += segment.rows;
  }
  if (next_row != batch.rows()) throw misuse("segments do not cover the rows of the call");
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    const int32_t row = batch.logit_rows[i];
    if (row < 0 || row >= next_row || (i > 0 && row <= batch.logit_rows[i - 1])) {
      throw misuse("logit rows must ascend within the call");
    }
  }
  for (int32_t id : batch.token_ids) {
    if (id < 0 || id >= vocab) throw misuse("token id " + std::to_string(id) + " outside the vocabulary");
  }
}

}  // namespace glm53
