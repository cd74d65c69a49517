// The device copy of one forward call's ragged tables, cut into runs of one segment kind.
#pragma once

#include <array>
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
  int64_t most_tokens = 0;  ///< at least the largest position + 1 of its rows
  kernels::BatchTables tables;

  bool window() const { return kind == SegmentKind::kWindow; }
};

/// The form of a call that is padded to a fixed size: what a recorded graph is made for. Its tables lie at the same
/// addresses in every call.
struct PaddedForm {
  SegmentKind kind = SegmentKind::kWindow;
  int rows = 0;
  int logits = 0;  ///< rows for which the head runs
  int segments = 0;
  int64_t most_tokens = 0;
};

class StepTables {
 public:
  /// Room for calls of `rows` rows and `logit_rows` logit rows over `sequences` page tables of `pages` entries each.
  StepTables(int rows, int logit_rows, int sequences, int64_t pages);

  /// Fills and uploads the tables of `batch`. The host may run ahead of the device by kUploads calls.
  void upload(const Batch& batch, cudaStream_t stream);

  /// The same for a call of windows alone that fits `form`, as one run of that form: rows without a segment, absent
  /// segments, and row 0 again where fewer logit rows were asked for. A batch without rows makes a call of padding.
  void upload_padded(const Batch& batch, const PaddedForm& form, cudaStream_t stream);

  /// No rows at all: operations measure, and launch nothing.
  void clear() { runs_.clear(); }

  std::span<const Run> runs() const { return runs_; }
  const int32_t* token_ids() const { return device_.as<int32_t>() + ids_at_ / 4; }      ///< [rows]
  const int32_t* logit_rows() const { return device_.as<int32_t>() + logits_at_ / 4; }  ///< [logit rows]

 private:
  static constexpr size_t kUploads = 4;

  struct Staging {
    PinnedBuffer memory;
    Event uploaded;
  };

  void begin_upload(const Batch& batch);
  void end_upload(cudaStream_t stream);
  void add_run(const Batch& batch, size_t first_segment, size_t end_segment, int first_logit);
  template <typename T>
  T* staged(size_t at) {
    return reinterpret_cast<T*>(staging_[current_].memory.as<std::byte>() + at);
  }

  std::array<Staging, kUploads> staging_;  ///< copies in flight still read the others
  size_t current_ = 0;
  DeviceBuffer device_;
  std::vector<Run> runs_;
  int64_t pages_used_ = 0;
  // Byte offsets of the parts, the same in all buffers.
  size_t segments_at_ = 0;     ///< [segments] DeviceSegment
  size_t positions_at_ = 0;    ///< [rows] int64
  size_t ids_at_ = 0;          ///< [rows] int32
  size_t row_segment_at_ = 0;  ///< [rows] int32
  size_t logits_at_ = 0;       ///< [logit rows] int32
  size_t pages_at_ = 0;        ///< [sequences · pages] int32
};

}  // namespace glm53::cuda
