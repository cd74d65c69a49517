// Scores of pools for the query rows (spec 10 §3.7.3, spec 70 §3.4).
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/common/segment_table.h"
#include "kernels/indexer/index_layout.h"

namespace glm53::kernels {

/// Queries as the score kernel reads them. kBf16: as they are. kFp8: rotated and quantised like the pool keys; the
/// codes go on as bf16, the query's scale into the head weight.
struct IndexQuery {
  BatchTables tables;
  int rows = 0;  ///< rows to visit
  int heads = 0;
  IndexFormat format = IndexFormat::kBf16;
  const __nv_bfloat16* query = nullptr;  ///< [rows, heads, 128] bf16
  const float* head_weight = nullptr;    ///< fp32, row r at head_weight + r · head_weight_stride, [heads] each
  int64_t head_weight_stride = 0;
  __nv_bfloat16* prepared_query = nullptr;  ///< [rows, heads, 128] bf16; unused (may be null) for kBf16
  float* prepared_weight = nullptr;         ///< [rows, heads] fp32: w · query scale · 128^-1/2 · heads^-1/2
};
void index_query(const IndexQuery& query, cudaStream_t stream);

/// score[t][P] = Σ_h weight[t][h] · relu(query[t][h] · key[P]) · key scale[P] for the pools complete at row t.
/// Rows with at most `pools_per_query` complete pools attend to everything: their scores are not written, nor are those
/// of incomplete pools.
struct IndexScore {
  BatchTables tables;
  int first_row = 0;  ///< rows [first_row, first_row + rows) of the launch's activations: a block of a prompt, or all
  int rows = 0;
  int heads = 0;
  int kpool = 4;
  int pools_per_query = 0;
  int64_t pool_capacity = 0;  ///< most complete pools of any row; a multiple of 4, the pitch of `scores`
  IndexFormat format = IndexFormat::kBf16;
  const __nv_bfloat16* query = nullptr;  ///< [launch rows, heads, 128] bf16 (prepared)
  const float* weight = nullptr;         ///< [launch rows, heads] fp32 (prepared)
  const uint8_t* pages = nullptr;        ///< [pages, index_page_bytes] of one layer, 16-byte aligned
  float* scores = nullptr;               ///< [rows, pool_capacity] fp32, row 0 = first_row
};
void index_score(const IndexScore& score, cudaStream_t stream);

/// Rows of a score block of at most 64 MiB: a multiple of 16, at least 16.
constexpr int64_t score_block_rows(int64_t pool_capacity) {
  const int64_t fit = (int64_t{64} << 20) / (4 * pool_capacity) / 16 * 16;
  return fit < 16 ? 16 : fit;
}

}  // namespace glm53::kernels
