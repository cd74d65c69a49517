// Sums of bf16 rows on the device: the smallest kernel that proves the toolchain and the tensor-core path.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

namespace glm53::kernels {

/// sums[r] = Σ_c matrix[r · stride + c], c < columns, accumulated in fp32 in an order that depends on `columns` alone.
///
/// matrix  device, [rows, stride] bf16, `stride` >= columns
/// sums    device, [rows] fp32
/// Throws std::invalid_argument for bad sizes and CudaError for a failed launch. Asynchronous on `stream`.
void row_sums(const __nv_bfloat16* matrix, int64_t rows, int64_t columns, int64_t stride, float* sums,
              cudaStream_t stream);

}  // namespace glm53::kernels
