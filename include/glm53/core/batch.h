// One forward call: a ragged list of segments over one flat list of rows (00-decisions §4).
#pragma once

#include <cstdint>
#include <span>

namespace glm53 {

/// Prompt rows always run the prompt kernels, down to one row; window rows (decode, verify, MTP absorb) always run the
/// window kernels. The kind, never the number of rows, chooses the summation order.
enum class SegmentKind : uint8_t { kPrompt, kWindow };

/// Consecutive rows of one sequence.
struct Segment {
  int slot = 0;                ///< sequence slot of the backend, 0 <= slot < CachePlan::sequences
  int64_t first_position = 0;  ///< absolute position of the segment's first row
  int first_row = 0;           ///< index of that row in the call
  int rows = 0;                ///< >= 1; at most kMaxWindowRows for a window
  SegmentKind kind = SegmentKind::kPrompt;
  /// [ceil((first_position + rows) / 64)] physical page of positions [64·i, 64·i + 64). Pages that hold the segment's
  /// own rows belong to this sequence alone.
  std::span<const int32_t> pages;
};

/// Views only; valid during the call.
struct Batch {
  std::span<const int32_t> token_ids;  ///< [rows]
  std::span<const Segment> segments;   ///< cover rows 0..rows-1 in order, each slot at most once
  std::span<const int32_t>
      logit_rows;  ///< ascending rows for which the head runs; logits row i belongs to logit_rows[i]

  int rows() const { return static_cast<int>(token_ids.size()); }
};

}  // namespace glm53
