// A scripted model for the engine's tests: it answers with given ids and holds the engine to the model's contract.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "engine/model_runner.h"
#include "engine/page_pool.h"

namespace glm53::engine {

/// Outlives the runner that the engine owns. The test reads it once a result has come, or while the engine is held in
/// a hook.
struct FakeModel {
  struct Call {
    SegmentKind kind;
    int64_t first;
    int rows;
    bool logits;
    bool operator==(const Call&) const = default;
  };

  ModelRunner::Capacity capacity{.vocab = 4096, .sequences = 1, .pages = 16, .rows = 64, .logit_rows = 1};
  std::vector<int32_t> reply;  ///< the n-th token of every reply; after them, `filler`
  int32_t filler = 64;         ///< "a"; also what comes where the script's id is banned, or else the first id allowed
  bool heeds_masks = true;
  std::function<void(const Batch&)> on_forward;
  std::function<void(const SampleRow&)> on_sample;
  SampleStatus status = SampleStatus::kPicked;         ///< of every row that draws
  SampleStatus prompt_status = SampleStatus::kPicked;  ///< of those that give logprobs of the prompt

  std::vector<int32_t> sequence;              ///< tokens in the state
  std::vector<Call> calls;                    ///< since the last reset
  std::vector<int64_t> positions;             ///< of the tokens drawn since the last reset
  std::vector<std::vector<int32_t>> prompts;  ///< prompt rows of every sequence so far

  std::unique_ptr<ModelRunner> runner();
};

class FakeRunner final : public ModelRunner {
 public:
  explicit FakeRunner(FakeModel& model) : model_(model) {}

  Capacity capacity() const override { return model_.capacity; }

  void reset_sequence(int slot) override {
    EXPECT_EQ(slot, 0);
    model_.sequence.clear();
    model_.calls.clear();
    model_.positions.clear();
    model_.prompts.emplace_back();
    uncommitted_ = 0;
    has_logits_ = false;
  }

  void forward(const Batch& batch) override {
    ASSERT_EQ(batch.segments.size(), 1U);
    const Segment& segment = batch.segments[0];
    EXPECT_EQ(uncommitted_, 0) << "a window was not committed";
    EXPECT_EQ(segment.first_position, static_cast<int64_t>(model_.sequence.size()));
    EXPECT_EQ(segment.rows, batch.rows());
    EXPECT_LE(segment.rows, model_.capacity.rows);
    EXPECT_EQ(static_cast<int64_t>(segment.pages.size()), pages_for(segment.first_position + segment.rows));
    const std::set<int32_t> distinct(segment.pages.begin(), segment.pages.end());
    EXPECT_EQ(distinct.size(), segment.pages.size());
    EXPECT_TRUE(std::all_of(distinct.begin(), distinct.end(),
                            [&](int32_t page) { return page >= 0 && page < model_.capacity.pages; }));
    const bool window = segment.kind == SegmentKind::kWindow;
    has_logits_ = !batch.logit_rows.empty();
    if (has_logits_) {
      EXPECT_EQ(batch.logit_rows.size(), 1U);
      EXPECT_EQ(batch.logit_rows[0], batch.rows() - 1);
    }
    if (model_.on_forward) model_.on_forward(batch);
    model_.calls.push_back({segment.kind, segment.first_position, segment.rows, has_logits_});
    model_.sequence.insert(model_.sequence.end(), batch.token_ids.begin(), batch.token_ids.end());
    if (window) {
      uncommitted_ = segment.rows;
    } else {
      auto& prompt = model_.prompts.back();
      prompt.insert(prompt.end(), batch.token_ids.begin(), batch.token_ids.end());
    }
  }

  void sample(std::span<const SampleRow> rows, std::span<SampledToken> out) override {
    ASSERT_TRUE(has_logits_);
    ASSERT_EQ(rows.size(), 1U);
    ASSERT_EQ(out.size(), 1U);
    EXPECT_EQ(rows[0].logits_row, 0);
    if (rows[0].position == 0) {  // gives the logprob of the prompt's next token, which its bias makes certain
      ASSERT_EQ(rows[0].biases.size(), 1U);
      out[0].status = model_.prompt_status;
      if (out[0].status == SampleStatus::kPicked) {
        out[0].id = rows[0].biases[0].id;
        out[0].logprob = -1.0F;
      }
      return;
    }
    EXPECT_EQ(rows[0].position, static_cast<int64_t>(model_.sequence.size()));
    if (model_.on_sample) model_.on_sample(rows[0]);
    const std::size_t index = model_.positions.size();
    model_.positions.push_back(rows[0].position);
    int32_t id = index < model_.reply.size() ? model_.reply[index] : model_.filler;
    const auto allows = [this, &row = rows[0]](int32_t candidate) {
      const auto at = static_cast<std::size_t>(candidate);
      const bool masked = model_.heeds_masks && !row.mask.empty() && (row.mask[at / 32] >> (at % 32) & 1) == 0;
      return !masked && std::find(row.banned.begin(), row.banned.end(), candidate) == row.banned.end();
    };
    if (!allows(id)) id = model_.filler;
    for (int32_t other = 0; !allows(id) && other < model_.capacity.vocab; ++other) id = other;
    out[0].status = allows(id) ? model_.status : SampleStatus::kNothingAllowed;
    if (out[0].status == SampleStatus::kPicked) out[0].id = id;
  }

  void commit(int slot, int kept_rows) override {
    EXPECT_EQ(slot, 0);
    EXPECT_EQ(kept_rows, uncommitted_);
    uncommitted_ = 0;
  }

 private:
  FakeModel& model_;
  int uncommitted_ = 0;
  bool has_logits_ = false;
};

inline std::unique_ptr<ModelRunner> FakeModel::runner() { return std::make_unique<FakeRunner>(*this); }

}  // namespace glm53::engine
