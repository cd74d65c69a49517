// Pages of pooled indexer keys and the ring of raw keys (spec 70 §3.2, §3.3; spec 30 §7.4).
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "kernels/common/segment_table.h"

namespace glm53::kernels {

inline constexpr int kIndexDim = 128;

/// kBf16: pool keys as bf16. kFp8: rotated by the Walsh–Hadamard transform, then E4M3 with a power-of-two scale.
enum class IndexFormat : uint8_t { kBf16, kFp8 };

/// 256 or 132.
__host__ __device__ constexpr int64_t pool_key_bytes(IndexFormat format) {
  return format == IndexFormat::kBf16 ? int64_t{2} * kIndexDim : int64_t{kIndexDim} + 4;
}

/// A page holds the 64 / kpool pools of a latent page. kFp8 pages are planar: all codes, then all scales (fp32).
__host__ __device__ constexpr int64_t index_page_bytes(IndexFormat format, int kpool) {
  return kPagePositions / kpool * pool_key_bytes(format);
}

/// bf16 [2][128] an entry: key, gate.
inline constexpr int64_t kIndexRingEntry = 2 * kIndexDim;

}  // namespace glm53::kernels
