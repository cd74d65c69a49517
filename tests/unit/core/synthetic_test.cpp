#include "glm53/core/synthetic.h"

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "glm53/core/float_convert.h"
#include "glm53/core/host_tensor.h"

namespace glm53 {
namespace {

template <typename T>
std::vector<T> made(const SyntheticRule& rule, DType dtype, int64_t first, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  synthesise(rule, dtype, first, count, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

SyntheticRule rule(SyntheticRule::Kind kind, double centre = 0.0, double scale = 0.0) {
  return {kind, synthetic_key(7, "layers.3.x"), centre, scale};
}

TEST(Synthetic, WordsAreThoseOfTheDefinition) {
  const PhiloxKey key = synthetic_key(0x0123456789ABCDEFU, "a");
  // FNV-1a 64 of "a" is af63dc4c8601ec8c.
  const PhiloxCounter derived = philox4x32({0x8601EC8CU, 0xAF63DC4CU, 0, 2}, {0x89ABCDEFU, 0x01234567U});
  EXPECT_EQ(key, (PhiloxKey{derived[0], derived[1]}));
  const auto bits = made<uint16_t>({SyntheticRule::Kind::kBits, key, 0, 0}, DType::kI16, 0, 16);
  for (uint32_t w = 0; w < 8; ++w) {
    const uint32_t word = philox4x32({w / 4, 0, 0, 2}, key)[w % 4];
    EXPECT_EQ(bits[2 * w], word & 0xFFFFU);
    EXPECT_EQ(bits[2 * w + 1], word >> 16);
    const float sign = made<float>({SyntheticRule::Kind::kSigns, key, 0, 0.25}, DType::kF32, w, 1).front();
    EXPECT_EQ(sign, word >> 31 != 0 ? -0.25F : 0.25F);
    int n = -510;
    for (int b = 0; b < 4; ++b) n += static_cast<int>((word >> (8 * b)) & 0xFFU);
    const float value = made<float>({SyntheticRule::Kind::kValues, key, 1.0, 0.5}, DType::kF32, w, 1).front();
    EXPECT_EQ(value, 1.0F + 0.5F * static_cast<float>(n));
  }
}

TEST(Synthetic, AnyPartEqualsTheWhole) {
  const SyntheticRule bits = rule(SyntheticRule::Kind::kBits);
  const SyntheticRule values = rule(SyntheticRule::Kind::kValues, 0.0, 0.01);
  const auto all_bits = made<uint16_t>(bits, DType::kI16, 0, 64);
  const auto all_values = made<uint16_t>(values, DType::kBF16, 0, 64);
  for (int64_t first = 0; first < 12; ++first) {
    for (int64_t count = 0; count < 20; ++count) {
      EXPECT_EQ(made<uint16_t>(bits, DType::kI16, first, count),
                std::vector<uint16_t>(all_bits.begin() + first, all_bits.begin() + first + count));
      EXPECT_EQ(made<uint16_t>(values, DType::kBF16, first, count),
                std::vector<uint16_t>(all_values.begin() + first, all_values.begin() + first + count));
    }
  }
  // Far out, beyond 2^34 words.
  const int64_t far = int64_t{1} << 35;
  EXPECT_EQ(made<float>(values, DType::kF32, far + 3, 1).front(), made<float>(values, DType::kF32, far, 8)[3]);
  EXPECT_NE(made<float>(values, DType::kF32, far, 8), made<float>(values, DType::kF32, 0, 8));
}

TEST(Synthetic, MeanAndDeviation) {
  const auto values =
      made<float>(rule(SyntheticRule::Kind::kValues, 3.0, 0.5 / kSyntheticDeviation), DType::kF32, 0, 1 << 18);
  double sum = 0;
  double squares = 0;
  for (const float value : values) {
    sum += value;
    squares += (value - 3.0) * (value - 3.0);
  }
  EXPECT_NEAR(sum / static_cast<double>(values.size()), 3.0, 0.005);
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(values.size())), 0.5, 0.005);
}

TEST(Synthetic, SeedAndNameMatter) {
  EXPECT_NE(synthetic_key(1, "a"), synthetic_key(2, "a"));
  EXPECT_NE(synthetic_key(1, "a"), synthetic_key(1, "b"));
  EXPECT_NE(synthetic_key(1, "a"), synthetic_key(1 + (uint64_t{1} << 32), "a"));
}

TEST(Synthetic, TensorsReadLikeStoredOnes) {
  HostTensor tensor;
  tensor.dtype = DType::kF16;
  tensor.shape = {4, 8};
  tensor.synthetic = rule(SyntheticRule::Kind::kValues, 0.5, 0.001);
  const auto halves = made<uint16_t>(*tensor.synthetic, DType::kF16, 0, 32);
  const std::vector<float> floats = to_floats(tensor);
  for (size_t i = 0; i < floats.size(); ++i) EXPECT_EQ(floats[i], fp16_to_float(halves[i]));
  float one = 0;
  copy_as_float(tensor, 17, 1, &one);
  EXPECT_EQ(one, floats[17]);
  EXPECT_THROW(copy_as_float(tensor, 31, 2, &one), std::exception);
}

}  // namespace
}  // namespace glm53
