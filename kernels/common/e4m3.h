// FP8 E4M3 with power-of-two scales, as the caches store it (spec 70 §2.4, §3.2).
#pragma once

#include <bit>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp8.h>

namespace glm53::kernels {

inline constexpr float kE4m3Max = 448.0F;

/// 2^ceil(log2(max(largest, 1e-4) / 448)): the smallest power of two that brings |x| <= largest into range.
__host__ __device__ inline float e4m3_scale(float largest) {
  const float raw = (largest > 1e-4F ? largest : 1e-4F) / kE4m3Max;
#ifdef __CUDA_ARCH__
  uint32_t bits = __float_as_uint(raw);
  if ((bits & 0x7FFFFFU) != 0) bits = (bits & 0x7F800000U) + 0x800000U;
  return __uint_as_float(bits);
#else
  auto bits = std::bit_cast<uint32_t>(raw);
  if ((bits & 0x7FFFFFU) != 0) bits = (bits & 0x7F800000U) + 0x800000U;
  return std::bit_cast<float>(bits);
#endif
}

/// Nearest code, ties to even; beyond ±448 the largest finite one.
__host__ __device__ inline uint8_t to_e4m3(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

__host__ __device__ inline float from_e4m3(uint8_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

#ifdef __CUDACC__
/// Four codes (byte i = element i) to two bf16 pairs, exactly, without the slow conversion pipe: sign, exponent and
/// mantissa move to their bf16 places and 2^120 corrects the exponent bias, subnormal codes included. NaN codes (never
/// written) come out as ±480.
__device__ inline void e4m3x4_to_bf16(uint32_t codes, uint32_t& low, uint32_t& high) {
  const auto widen = [](uint32_t spread) {
    const uint32_t bits = (spread & 0x80008000U) | ((spread >> 4) & 0x07F007F0U);
    const uint32_t bias = 0x7B807B80U;  // 2^120 twice
    const __nv_bfloat162 value =
        __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits), *reinterpret_cast<const __nv_bfloat162*>(&bias));
    return *reinterpret_cast<const uint32_t*>(&value);
  };
  low = widen(__byte_perm(codes, 0, 0x1404));
  high = widen(__byte_perm(codes, 0, 0x3424));
}
#endif

}  // namespace glm53::kernels
