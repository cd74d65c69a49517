// Sums over a warp or a block in an order fixed by its size alone.
#pragma once

namespace glm53::kernels {

/// Every lane gets the same bits.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFU, value, step);
  return value;
}

/// Every thread gets the same bits. `scratch` [kThreads / 32] shared; once a kernel, or with a barrier between uses.
template <int kThreads>
__device__ inline float block_sum(float value, float* scratch) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0F;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) sum += scratch[warp];
  return sum;
}

}  // namespace glm53::kernels
