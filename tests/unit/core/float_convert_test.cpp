#include "glm53/core/float_convert.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace glm53 {
namespace {

TEST(FloatConvert, EveryFp16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = fp16_to_float(half);
    if (std::isnan(value)) {
      EXPECT_EQ(float_to_fp16(value), half | 0x0200) << bits;  // quiet
    } else {
      EXPECT_EQ(float_to_fp16(value), half) << bits;
    }
  }
}

TEST(FloatConvert, Fp16ValuesFollowTheirDefinition) {
  for (uint32_t bits = 0; bits < 0x7C00; ++bits) {
    const int exponent = static_cast<int>(bits >> 10);
    const auto mantissa = static_cast<double>(bits & 0x3FF);
    const double expected = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024.0 + mantissa, exponent - 25);
    EXPECT_EQ(fp16_to_float(static_cast<uint16_t>(bits)), expected);
    EXPECT_EQ(fp16_to_float(static_cast<uint16_t>(bits | 0x8000)), -expected);
  }
  EXPECT_EQ(fp16_to_float(0x7C00), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(fp16_to_float(0x7C01)));
}

TEST(FloatConvert, Fp16RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7BFF; ++bits) {
    const auto lower = static_cast<uint16_t>(bits);
    const auto upper = static_cast<uint16_t>(bits + 1);
    const float middle = (fp16_to_float(lower) + fp16_to_float(upper)) / 2;  // exact in fp32
    EXPECT_EQ(float_to_fp16(middle), (bits & 1) == 0 ? lower : upper);
    EXPECT_EQ(float_to_fp16(std::nextafter(middle, 0.0F)), lower);
    EXPECT_EQ(float_to_fp16(std::nextafter(middle, 1e9F)), upper);
  }
  EXPECT_EQ(float_to_fp16(std::nextafter(65520.0F, 0.0F)), 0x7BFF);
  EXPECT_EQ(float_to_fp16(65520.0F), 0x7C00);
  EXPECT_EQ(float_to_fp16(-1e30F), 0xFC00);
  EXPECT_EQ(float_to_fp16(std::numeric_limits<float>::denorm_min()), 0x0000);
  EXPECT_EQ(float_to_fp16(-0.0F), 0x8000);
}

TEST(FloatConvert, Bf16RoundsToNearestEven) {
  EXPECT_EQ(float_to_bf16(1.0F), 0x3F80);
  EXPECT_EQ(float_to_bf16(1.00390625F), 0x3F80);  // halfway, even below
  EXPECT_EQ(float_to_bf16(1.01171875F), 0x3F82);  // halfway, even above
  EXPECT_EQ(float_to_bf16(1.00390637F), 0x3F81);  // just above halfway
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace glm53
