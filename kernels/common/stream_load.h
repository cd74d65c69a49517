// Loads of data that is read once: past L1, so that what is read again stays there.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace glm53::kernels {

/// `address` 16-byte aligned, in global memory that nothing writes while the kernel runs.
__device__ inline uint4 load_streamed(const uint4* address) {
  uint4 value;
  asm("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
      : "l"(address));
  return value;
}

/// `address` 8-byte aligned.
__device__ inline uint2 load_streamed(const uint2* address) {
  uint2 value;
  asm("ld.global.nc.L1::no_allocate.L2::256B.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(address));
  return value;
}

}  // namespace glm53::kernels
