// Rows of the latent cache (spec 70 §2.4) and the 656-byte fp8_ds_mla record (§2.2), host and device.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/common/segment_table.h"

namespace glm53::kernels {

/// kBf16: `latent` bf16 values. kFp8: `latent` E4M3 codes, one power-of-two fp32 scale, zeros up to 16 bytes.
enum class LatentFormat : uint8_t { kBf16, kFp8 };

/// 1,024 or 528 for latent = 512.
__host__ __device__ constexpr int64_t latent_row_bytes(LatentFormat format, int latent) {
  return format == LatentFormat::kBf16 ? int64_t{2} * latent : int64_t{latent} + 16;
}

/// Physical row of a position: pages are consecutive arrays of 64 rows.
__host__ __device__ inline int64_t latent_row(const int32_t* pages, int64_t position) {
  return int64_t{pages[position / kPagePositions]} * kPagePositions + position % kPagePositions;
}

// ---- the fp8_ds_mla record: 512 codes, 4 fp32 scales (one per 128 channels), 64 bf16 RoPE values (zero here).
// For tests and exchange with other programs; nothing serves from it. A record need not be aligned.

inline constexpr int kRecordLatent = 512;
inline constexpr int kRecordGroup = 128;
inline constexpr int kRecordBytes = 656;

/// A kFp8 row as a record: the same codes, its scale four times. Exact.
void record_from_fp8_row(const uint8_t* row, uint8_t* record);
/// bf16 values [512] as a record with a power-of-two scale for each group.
void record_from_bf16(const __nv_bfloat16* values, uint8_t* record);
/// code · scale rounded to bf16 [512]; any scale, the RoPE part ignored.
void bf16_from_record(const uint8_t* record, __nv_bfloat16* values);
/// bf16 values [512] as a kFp8 row [528] (the write kernel's quantiser on the host).
void fp8_row_from_bf16(const __nv_bfloat16* values, uint8_t* row);

}  // namespace glm53::kernels
