// The best pools of every row, exactly (spec 10 §3.7.5, spec 70 §3.5).
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "kernels/common/segment_table.h"

namespace glm53::kernels {

struct IndexSelect {
  BatchTables tables;
  bool prompt = false;  ///< rows of prompts: many, so coarser slices; the result is the same
  int first_row = 0;    ///< as in IndexScore
  int rows = 0;
  int kpool = 4;
  int pools_per_query = 0;        ///< K <= 1024
  int64_t pool_capacity = 0;      ///< pitch of `scores`, multiple of 4
  const float* scores = nullptr;  ///< [rows, pool_capacity] fp32, row 0 = first_row
  int32_t* selected = nullptr;    ///< [launch rows, K], ascending pool ids
  void* workspace = nullptr;      ///< index_select_workspace bytes, 16-byte aligned
};

/// Bytes for `rows` rows; 0 when one block sees a whole row. At most 8 MiB for 64 window rows or a prompt's score
/// block.
int64_t index_select_workspace(int rows, int64_t pool_capacity, int pools_per_query, bool prompt);

/// Rows with more than K complete pools get the K with the highest score; of equal scores the lower pool wins
/// (−0.0 equals +0.0, NaN counts as −inf). Other rows are left untouched.
void index_select(const IndexSelect& select, cudaStream_t stream);

}  // namespace glm53::kernels
