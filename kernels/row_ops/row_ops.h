// Small operations on rows of activations. All launchers are asynchronous on `stream`, allocate nothing, and a row's
// bits depend on that row alone. Pointers are device memory; bf16 rows are 16-byte aligned, widths and strides
// multiples of
// 8. They throw std::invalid_argument for bad sizes and CudaError for a failed launch; no rows is no work.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

namespace glm53::kernels {

/// streams [rows, 4, hidden] = table[ids[r]] in all four streams (spec 10 §3.1). table [vocab, hidden], ids [rows]; an
/// id outside the table (padding rows: −1) gives zeros.
void embed(const __nv_bfloat16* table, int64_t vocab, const int32_t* ids, int rows, int hidden, __nv_bfloat16* streams,
           cudaStream_t stream);

/// x̄ = bf(mean of the four streams), then y = RMSNorm(x̄), or x̄ itself where `norm` is null (spec 10 §3.9).
/// streams [·, 4, hidden], which [rows]: the row of `streams` that y row i is made of; −1 gives zeros; y [rows,
/// hidden].
void collapse_streams(const __nv_bfloat16* streams, const int32_t* which, int rows, int hidden, const float* norm,
                      float eps, __nv_bfloat16* y, cudaStream_t stream);

/// y = bf(x · rsqrt(mean(x²) + eps) · weight) (spec 10 §3.2, S); may be in place. x [rows, x_stride], y [rows,
/// y_stride], weight [width] fp32.
void rms_norm(const __nv_bfloat16* x, int64_t x_stride, const float* weight, int width, float eps, int rows,
              __nv_bfloat16* y, int64_t y_stride, cudaStream_t stream);

/// h = bf(silu(min(gate, limit)) · clamp(up, ±limit)) (spec 10 §3.8, S). gate_up [rows, 2·width] gate first, h [rows,
/// width].
void swiglu(const __nv_bfloat16* gate_up, int rows, int width, float limit, __nv_bfloat16* h, cudaStream_t stream);

/// Copies `rows` rows of `bytes`: row from[i] of `source` to row to[i] of `target`. A null list means i; a pair with a
/// negative entry is skipped. `bytes` and strides (bytes) multiples of 16.
void copy_rows(const void* source, int64_t source_stride, const int32_t* from, void* target, int64_t target_stride,
               const int32_t* to, int rows, int64_t bytes, cudaStream_t stream);

void zero_fill(void* memory, size_t bytes, cudaStream_t stream);

}  // namespace glm53::kernels
