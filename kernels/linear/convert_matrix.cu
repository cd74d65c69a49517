// Conversion of a checkpoint matrix while loading.
//
// Operation   target[r][c] = T(source[r][c]), T bf16 (nearest, ties to even) or fp32 (exact)
// Shapes      any strided matrix of fp32, fp16 or bf16; the target is contiguous
// Bound       memory; runs once a tensor
#include <climits>
#include <stdexcept>

#include "kernels/common/cuda_check.h"
#include "kernels/linear/load_element.h"

namespace glm53::kernels {
namespace {

constexpr int kThreads = 256;

__device__ void store(float* target, float value) { *target = value; }
__device__ void store(__nv_bfloat16* target, float value) { *target = __float2bfloat16(value); }

template <typename T>
__global__ void convert_kernel(const SourceMatrix source, T* target) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= source.rows * source.columns) return;
  const int64_t row = index / source.columns;
  const int64_t column = index % source.columns;
  store(target + index,
        load_element(source.data, source.type, row * source.row_stride + column * source.column_stride));
}

}  // namespace

template <typename T>
void convert_matrix(const SourceMatrix& source, T* target, cudaStream_t stream) {
  const int64_t blocks = (source.rows * source.columns + kThreads - 1) / kThreads;
  if (source.rows < 1 || source.columns < 1 || blocks > INT_MAX) {
    throw std::invalid_argument("convert_matrix: empty or too large");
  }
  convert_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(source, target);
  check_cuda(cudaGetLastError(), "convert_matrix launch");
}

template void convert_matrix(const SourceMatrix&, __nv_bfloat16*, cudaStream_t);
template void convert_matrix(const SourceMatrix&, float*, cudaStream_t);

}  // namespace glm53::kernels
