// Barriers among some of a block's warps.
#pragma once

namespace glm53::kernels {

/// Waits until `threads` threads, whole warps, have arrived at barrier `id`, 1..15 (0 is __syncthreads), and orders
/// their memory accesses like __syncthreads.
__device__ inline void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace glm53::kernels
