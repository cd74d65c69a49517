// Writes the indexer's caches: the ring of raw keys and gates, and the pages of pooled keys (spec 10 §3.7.1–2).
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/common/segment_table.h"
#include "kernels/indexer/index_layout.h"

namespace glm53::kernels {

struct IndexWrite {
  BatchTables tables;
  bool prompt = false;                   ///< segments are prompts (any length), else windows
  int rows = 0;                          ///< rows to visit; padding rows write nothing
  const float* input = nullptr;          ///< [rows, input_stride] fp32: wk [128] | compress_gate [128] | weights_proj
  int64_t input_stride = 0;              ///< floats, even
  const float* key_norm = nullptr;       ///< [128] fp32 LayerNorm weight
  const float* key_bias = nullptr;       ///< [128] fp32
  const float* pool_position = nullptr;  ///< [kpool, 128] fp32 index_kpool_compress_ape
  int kpool = 4;                         ///< 4 or 16
  int ring = 32;                         ///< entries a slot; >= most window rows + kpool - 1
  __nv_bfloat16* rings = nullptr;        ///< [slots, ring, 2, 128] bf16 of one layer, entry = position mod ring
  IndexFormat format = IndexFormat::kBf16;
  uint8_t* pages = nullptr;  ///< [pages, index_page_bytes] of one layer, 16-byte aligned
};

/// A row whose position completes a pool writes that pool's key, from this launch's rows and, for positions before the
/// segment, from the ring. Every row of a window, and the last `ring` rows of a prompt, enter the ring. Rows of a
/// rejected window need no undo: their ring entries and pools are overwritten before anything may read them.
/// Throws std::invalid_argument for bad sizes and CudaError for a failed launch. Asynchronous on `stream`.
void index_write(const IndexWrite& write, cudaStream_t stream);

}  // namespace glm53::kernels
