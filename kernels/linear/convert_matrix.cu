// Conversion and check of a checkpoint matrix while loading.
//
// Operation   target[r][c] = T(source[r][c]), T bf16 (nearest, ties to even) or fp32 (exact)
// Shapes      any strided matrix of fp32, fp16 or bf16; the target is contiguous
//             least = min(least, number) where source holds a value that is not finite
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

__global__ void mark_kernel(const SourceMatrix source, int32_t number, int32_t* least) {
  const int64_t count = source.rows * source.columns;
  bool finite = true;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    const int64_t at = i / source.columns * source.row_stride + i % source.columns * source.column_stride;
    finite &= isfinite(load_element(source.data, source.type, at));
  }
  if (!finite) atomicMin(least, number);
}

}  // namespace

void mark_non_finite(const SourceMatrix& source, int32_t number, int32_t* least, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 4096;
  const int64_t blocks = (source.rows * source.columns + kThreads - 1) / kThreads;
  if (source.rows < 1 || source.columns < 1) throw std::invalid_argument("mark_non_finite: empty");
  mark_kernel<<<static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks), kThreads, 0, stream>>>(source, number,
                                                                                                         least);
  check_cuda(cudaGetLastError(), "mark_non_finite launch");
}

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
