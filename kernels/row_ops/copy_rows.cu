// Gather, scatter and clear.
//
// Operation   target[to[i]] = source[from[i]]
// Shapes      rows of any multiple of 16 bytes
// Rounding    none
// Bound       memory
#include <stdexcept>

#include "kernels/common/cuda_check.h"
#include "kernels/row_ops/row_ops.h"

namespace glm53::kernels {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    copy_rows_kernel(const uint4* source, int64_t source_stride, const int32_t* from, uint4* target,
                     int64_t target_stride, const int32_t* to, int64_t row_vectors) {
  const int64_t i = blockIdx.x;
  const int64_t source_row = from == nullptr ? i : from[i];
  const int64_t target_row = to == nullptr ? i : to[i];
  if (source_row < 0 || target_row < 0) return;
  for (int64_t v = threadIdx.x; v < row_vectors; v += kThreads) {
    target[target_row * target_stride + v] = source[source_row * source_stride + v];
  }
}

}  // namespace

void copy_rows(const void* source, int64_t source_stride, const int32_t* from, void* target, int64_t target_stride,
               const int32_t* to, int rows, int64_t bytes, cudaStream_t stream) {
  if (bytes % 16 != 0 || source_stride % 16 != 0 || target_stride % 16 != 0) {
    throw std::invalid_argument("copy_rows: bytes and strides must be multiples of 16");
  }
  if (rows < 1) return;
  copy_rows_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
      static_cast<const uint4*>(source), source_stride / 16, from, static_cast<uint4*>(target), target_stride / 16, to,
      bytes / 16);
  check_cuda(cudaGetLastError(), "copy_rows launch");
}

void zero_fill(void* memory, size_t bytes, cudaStream_t stream) {
  if (bytes > 0) check_cuda(cudaMemsetAsync(memory, 0, bytes, stream), "zero_fill");
}

}  // namespace glm53::kernels
