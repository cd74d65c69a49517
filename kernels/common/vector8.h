// Eight bf16 values in one 16-byte access.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

namespace glm53::kernels {

/// Word i holds elements 2i (low half) and 2i + 1.
__device__ inline void unpack8(const uint4& packed, float (&values)[8]) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
  }
}

/// Nearest bf16, ties to even.
__device__ inline uint4 pack8(const float (&values)[8]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
    words[i] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  return {words[0], words[1], words[2], words[3]};
}

}  // namespace glm53::kernels
