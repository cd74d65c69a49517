#include "backend/batch_check.h"

#include <set>
#include <stdexcept>
#include <string>

#include "glm53/core/limits.h"
#include "glm53/core/token_mask.h"

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

namespace {

std::logic_error sample_misuse(const std::string& what) { return std::logic_error("sample call: " + what); }

/// Checks one list of every row and adds up the distinct ones.
template <typename Item, typename IdOf>
void check_lists(std::span<const SampleRow> rows, std::span<const Item> SampleRow::*list, const char* what, int vocab,
                 int64_t capacity, const IdOf& id_of) {
  int64_t entries = 0;
  std::span<const Item> previous;
  for (const SampleRow& row : rows) {
    const std::span<const Item> items = row.*list;
    if (items.empty() || same_memory(items, previous)) continue;
    previous = items;
    entries += static_cast<int64_t>(items.size());
    for (const Item& item : items) {
      if (id_of(item) < 0 || id_of(item) >= vocab) {
        throw sample_misuse(std::string(what) + " token " + std::to_string(id_of(item)) + " outside the vocabulary");
      }
    }
  }
  if (entries > capacity) throw sample_misuse(std::to_string(entries) + ' ' + what + " tokens in one sample call");
}

}  // namespace

void check_sample_rows(std::span<const SampleRow> rows, std::span<const SampledToken> out, const CachePlan& plan,
                       int vocab) {
  if (rows.size() > out.size() || static_cast<int>(rows.size()) > plan.max_logit_rows) {
    throw sample_misuse("more rows to sample than results or CachePlan::max_logit_rows");
  }
  const size_t words = mask_words(vocab);
  for (const SampleRow& row : rows) {
    if (row.params == nullptr) throw sample_misuse("a row to sample has no params");
    if (row.logits_row < 0 || row.logits_row >= plan.max_logit_rows)
      throw sample_misuse("a row to sample has no logits");
    if (!row.mask.empty() && row.mask.size() != words) throw sample_misuse("a token mask does not fit the vocabulary");
    if (row.logprobs > kMaxTopLogprobs) throw sample_misuse("more top logprobs than kMaxTopLogprobs");
  }
  const int64_t capacity = sample_list_capacity(plan, vocab);
  check_lists(rows, &SampleRow::banned, "banned", vocab, capacity, [](int32_t id) { return id; });
  check_lists(rows, &SampleRow::biases, "biased", vocab, capacity, [](const LogitBias& bias) { return bias.id; });
  check_lists(rows, &SampleRow::counts, "counted", vocab, capacity, [](const TokenCount& count) { return count.id; });
}

}  // namespace glm53
