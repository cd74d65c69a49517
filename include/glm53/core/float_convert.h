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

// The two fp16 conversions use the machine's own instruction where the compiler may assume one, and integer arithmetic
// with the same results elsewhere (where _Float16 is a slow library call, or unknown as in clang 14). Files compiled
// for different instruction sets include this header, so each must get its own copy: never a shared out-of-line one.
#if defined(__aarch64__) || (defined(__FLT16_MAX__) && defined(__F16C__))
#if defined(__aarch64__)
using MachineHalf = __fp16;  // g++ 12 has no _Float16 there
#else
using MachineHalf = _Float16;
#endif

[[gnu::always_inline]] inline float fp16_to_float(uint16_t bits) {
  return static_cast<float>(std::bit_cast<MachineHalf>(bits));
}

[[gnu::always_inline]] inline uint16_t float_to_fp16(float value) {
  return std::bit_cast<uint16_t>(static_cast<MachineHalf>(value));
}

#else

[[gnu::always_inline]] inline float fp16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t magnitude = bits & 0x7FFFU;
  uint32_t result;
  if (magnitude >= 0x7C00U) {
    result = 0x7F800000U | (magnitude << 13) | (magnitude > 0x7C00U ? 0x00400000U : 0U);
  } else if (magnitude < 0x0400U) {
    result = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24F);
  } else {
    result = (magnitude << 13) + (112U << 23);  // exponent bias 15 → 127
  }
  return std::bit_cast<float>(sign | result);
}

[[gnu::always_inline]] inline uint16_t float_to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  uint32_t result;
  if (magnitude > 0x7F800000U) {
    result = 0x7E00U | ((magnitude >> 13) & 0x03FFU);
  } else if (magnitude >= 0x477FF000U) {  // 65520, halfway between the largest fp16 and 2^16, and above
    result = 0x7C00U;
  } else if (magnitude < 0x38800000U) {  // below 2^-14: adding 0.5 rounds at 2^-24, the step of subnormal fp16
    result = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
  } else {
    result = (magnitude - (112U << 23) + 0x0FFFU + ((magnitude >> 13) & 1U)) >> 13;
  }
  return static_cast<uint16_t>(sign | result);
}

#endif

}  // namespace glm53
