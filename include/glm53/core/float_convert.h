// Conversions between fp32 and the 16-bit float formats. All round to nearest, ties to even; NaN stays a quiet NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace glm53 {

inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((bits >> 16) | 0x0040U);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

inline float fp16_to_float(uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }

inline uint16_t float_to_fp16(float value) { return std::bit_cast<uint16_t>(static_cast<_Float16>(value)); }

}  // namespace glm53
