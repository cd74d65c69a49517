// The 8-bit float e4m3: 4 exponent bits of bias 7, 3 mantissa bits, no infinities, largest value 448.
#pragma once

#include <algorithm>
#include <cmath>

namespace glm53 {

inline constexpr float kLargestE4m3 = 448.0F;

/// The nearest e4m3 value, ties to even, saturating at ±448; NaN stays NaN.
inline float round_to_e4m3(float value) {
  if (std::isnan(value)) return value;
  const float magnitude = std::fmin(std::fabs(value), kLargestE4m3);
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  // Below 2^-6 the step stays that of subnormals, 2^-9.
  const float step = std::ldexp(1.0F, std::max(exponent - 1, -6) - 3);
  return std::copysign(std::nearbyint(magnitude / step) * step, value);
}

}  // namespace glm53
