// Writes the latent cache and the normalised low-rank query of sparse MLA (spec 10 §3.6 steps 1 and 3).
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/common/segment_table.h"
#include "kernels/latent_cache/latent_layout.h"

namespace glm53::kernels {

struct LatentWrite {
  BatchTables tables;
  int rows = 0;    ///< rows to visit; padding rows (row_segment < 0) write nothing
  int q_lora = 0;  ///< multiple of 8
  int latent = 0;  ///< multiple of 16
  float eps = 1e-5F;
  const __nv_bfloat16* low = nullptr;  ///< [rows, q_lora + latent] bf16, q_a | kv_a before their norms
  const float* query_norm = nullptr;   ///< [q_lora] fp32
  const float* latent_norm = nullptr;  ///< [latent] fp32
  __nv_bfloat16* query_low = nullptr;  ///< [rows, q_lora] bf16
  LatentFormat format = LatentFormat::kBf16;
  uint8_t* pages = nullptr;  ///< [pages, 64, latent_row_bytes] of one layer, 16-byte aligned
};

/// Throws std::invalid_argument for bad sizes and CudaError for a failed launch. Asynchronous on `stream`.
void latent_write(const LatentWrite& write, cudaStream_t stream);

}  // namespace glm53::kernels
