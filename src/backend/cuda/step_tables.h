// The device copy of one forward call's ragged tables, cut into runs of one segment kind.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/device_memory.h"
#include "glm53/core/batch.h"
#include "kernels/common/segment_table.h"

namespace glm53::cuda {

/// Consecutive rows of one kind: what one launch covers. At most 64 rows for windows.
struct Run {
  SegmentKind kind = SegmentKind::kPrompt;
  int first_row = 0;  ///< in the call
  int rows = 0;
  int first_logit = 0;  ///< its share of Batch::logit_rows
  int logits = 0;
  int64_t most_tokens = 0;  ///< largest position + 1 of its rows
  kernels::BatchTables tables;

  bool window() const { return kind == SegmentKind::kWindow; }
};

class StepTables {
 public:
  /// Room for calls of `rows` rows and `logit_rows` logit rows over `sequences` page tables of `pages` entries each.
  StepTables(int rows, int logit_rows, int sequences, int64_t pages);

  /// Fills and uploads the tables of `batch`. Waits only for the upload before.
  void upload(const Batch& batch, cudaStream_t stream);

  std::span<const Run> runs() const { return runs_; }
  const int32_t* token_ids() const { return device_.as<int32_t>() + ids_at_ / 4; }      ///< [rows]
  const int32_t* logit_rows() const { return device_.as<int32_t>() + logits_at_ / 4; }  ///< [logit rows]

 private:
  void add_run(const Batch& batch, size_t first_segment, size_t end_segment, int first_logit);

  PinnedBuffer pinned_;
  DeviceBuffer device_;
  Event uploaded_;
  std::vector<Run> runs_;
  int64_t pages_used_ = 0;
  // Byte offsets of the parts, the same in both buffers.
  size_t segments_at_ = 0;     ///< [segments] DeviceSegment
  size_t positions_at_ = 0;    ///< [rows] int64
  size_t ids_at_ = 0;          ///< [rows] int32
  size_t row_segment_at_ = 0;  ///< [rows] int32
  size_t logits_at_ = 0;       ///< [logit rows] int32
  size_t pages_at_ = 0;        ///< [sequences · pages] int32
};

}  // namespace glm53::cuda
