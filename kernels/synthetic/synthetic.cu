// Contents of synthetic tensors.
//
// Operation   target[i] = element first + i of the rule: random bits, ±scale, or centre + scale·n (core/synthetic.h)
// Shapes      any range of a tensor of 2- or 4-byte elements
// Rounding    in double, once to fp32, once to the element's type, as on the CPU
// Bound       the arithmetic of Philox, about 100 instructions for 16 bytes; load time only
#include <climits>
#include <stdexcept>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/common/cuda_check.h"
#include "kernels/common/philox.h"
#include "kernels/synthetic/synthetic.h"

namespace glm53::kernels {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kDomain = 2;  // word 3 of the counter

__device__ float value_of(const SyntheticTensor& tensor, uint32_t word) {
  if (tensor.signs) return static_cast<float>(word >> 31 != 0 ? -tensor.scale : tensor.scale);
  const int n = static_cast<int>((word & 0xFFU) + ((word >> 8) & 0xFFU) + ((word >> 16) & 0xFFU) + (word >> 24)) - 510;
  return static_cast<float>(tensor.centre + tensor.scale * n);
}

/// One thread: the elements of one Philox block, 4 words of the tensor.
__global__ void __launch_bounds__(kThreads)
    synthetic_kernel(const SyntheticTensor tensor, int64_t first_block, int64_t first, int64_t count, void* target) {
  const int64_t block = first_block + int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const uint4 words =
      philox4x32(make_uint4(static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, kDomain),
                 tensor.key[0], tensor.key[1]);
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
  if (tensor.form == SyntheticForm::bits) {
    auto* out = static_cast<uint16_t*>(target);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int64_t at = block * 8 + i - first;
      if (at >= 0 && at < count) out[at] = static_cast<uint16_t>(word[i / 2] >> (16 * (i % 2)));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t at = block * 4 + i - first;
    if (at < 0 || at >= count) continue;
    const float value = value_of(tensor, word[i]);
    if (tensor.form == SyntheticForm::f32) {
      static_cast<float*>(target)[at] = value;
    } else if (tensor.form == SyntheticForm::f16) {
      static_cast<__half*>(target)[at] = __float2half_rn(value);
    } else {
      static_cast<__nv_bfloat16*>(target)[at] = __float2bfloat16(value);
    }
  }
}

}  // namespace

void fill_synthetic(const SyntheticTensor& tensor, int64_t first, int64_t count, void* target, cudaStream_t stream) {
  const int64_t elements = tensor.form == SyntheticForm::bits ? 8 : 4;  // of one Philox block
  const int64_t first_block = first / elements;
  const int64_t blocks = (first + count + elements - 1) / elements - first_block;
  const int64_t grid = (blocks + kThreads - 1) / kThreads;
  if (first < 0 || count < 1 || grid > INT_MAX) throw std::invalid_argument("fill_synthetic: empty or too large");
  synthetic_kernel<<<static_cast<unsigned>(grid), kThreads, 0, stream>>>(tensor, first_block, first, count, target);
  check_cuda(cudaGetLastError(), "fill_synthetic launch");
}

}  // namespace glm53::kernels
