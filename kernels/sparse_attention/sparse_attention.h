// Multi-query attention of absorbed queries over selected rows of the latent cache (spec 10 §3.6, spec 70 §4).
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/common/segment_table.h"
#include "kernels/latent_cache/latent_layout.h"

namespace glm53::kernels {

/// z[t][h] = Σ_j softmax_j(scale · a[t][h] · c_j) c_j over the positions row t attends to: with n = (position + 1) /
/// kpool complete pools, the selected ones if n > pools_per_query, else all, and after them the positions of the
/// incomplete pool. Padding rows get zeros.
struct SparseAttention {
  BatchTables tables;
  int rows = 0;
  int heads = 0;
  int kpool = 4;            ///< 4 or 16
  int pools_per_query = 0;  ///< pools_per_query · kpool <= 2048
  float scale = 0.0F;       ///< qk_dim^-1/2
  LatentFormat format = LatentFormat::kBf16;
  const uint8_t* pages = nullptr;        ///< [pages, 64, latent_row_bytes] of one layer, latent = 512, 16-byte aligned
  const __nv_bfloat16* query = nullptr;  ///< [rows, heads, 512] bf16
  const int32_t* selected = nullptr;     ///< [rows, pools_per_query], read where n > pools_per_query
  __nv_bfloat16* output = nullptr;       ///< [rows, heads, 512] bf16
  void* workspace = nullptr;             ///< window only; sparse_attention_workspace bytes, 16-byte aligned
};

/// Rows of windows: the list is cut every 256 keys, the parts are merged in order.
void sparse_attention_window(const SparseAttention& attention, cudaStream_t stream);
int64_t sparse_attention_workspace(int rows, int heads, int kpool, int pools_per_query);

/// Rows of prompts: one pass over the list.
void sparse_attention_prompt(const SparseAttention& attention, cudaStream_t stream);

}  // namespace glm53::kernels
