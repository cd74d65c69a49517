// The ragged rows of one forward call, in device memory. The same layout on host and device: the backend fills a pinned
// copy and uploads it, so that captured graphs see new values without new launches.
#pragma once

#include <cstdint>

namespace glm53::kernels {

/// Consecutive rows of one sequence. rows == 0: absent, every kernel skips it.
struct DeviceSegment {
  int32_t slot = -1;      ///< sequence slot; indexes per-sequence state
  int32_t first_row = 0;  ///< in the activations of this launch
  int32_t rows = 0;
  int32_t pages_begin = 0;     ///< first entry of its page table in BatchTables::page_table
  int64_t first_position = 0;  ///< absolute position of its first row
};

/// Device pointers, constant over a run of one segment kind.
struct BatchTables {
  const DeviceSegment* segments = nullptr;  ///< [segment_capacity]
  int32_t segment_capacity = 0;             ///< entries to visit; absent ones have rows == 0
  const int32_t* row_segment = nullptr;     ///< [row capacity] segment of a row, -1 for padding rows
  const int64_t* row_position = nullptr;    ///< [row capacity] absolute position of a row
  const int32_t* page_table = nullptr;      ///< physical page of positions [64·i, 64·i + 64) at pages_begin + i
};

inline constexpr int kPagePositions = 64;

/// Most rows of one launch of a window kernel.
inline constexpr int kWindowRows = 64;

}  // namespace glm53::kernels
