// Philox4x32-10 on the device, and the noise of include/glm53/core/philox.h: counter (position, token, lane, 0). The
// tests hold both to the same words.
#pragma once

#include <cstdint>

namespace glm53::kernels {

/// Ten rounds.
__device__ inline uint4 philox4x32(uint4 c, uint32_t key0, uint32_t key1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * c.x;
    const uint64_t product1 = uint64_t{0xCD9E8D57} * c.z;
    c = make_uint4(static_cast<uint32_t>(product1 >> 32) ^ c.y ^ key0, static_cast<uint32_t>(product1),
                   static_cast<uint32_t>(product0 >> 32) ^ c.w ^ key1, static_cast<uint32_t>(product0));
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return c;
}

/// Word 0 of the block: the 32 random bits of one (position, token, lane) under a request's key.
__device__ inline uint32_t noise_bits(uint32_t key0, uint32_t key1, uint32_t position, uint32_t token, uint32_t lane) {
  return philox4x32(make_uint4(position, token, lane, 0), key0, key1).x;
}

/// Standard Gumbel noise of u = (bits + ½)·2⁻³², in double as on the CPU.
__device__ inline double noise_gumbel(uint32_t bits) { return -log(-log((bits + 0.5) * 0x1p-32)); }

/// An upper bound of noise_gumbel(bits) without a logarithm: −ln u ≥ 1 − u ≥ 2^−(1 + leading ones of bits).
__device__ inline float noise_gumbel_bound(uint32_t bits) {
  return static_cast<float>(1 + __clz(static_cast<int>(~bits))) * 0.6931473F;
}

inline constexpr float kLargestNoise = 22.8739F;  ///< above every noise_gumbel

}  // namespace glm53::kernels
