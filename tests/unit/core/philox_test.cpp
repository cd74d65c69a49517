#include "glm53/core/philox.h"

#include <cmath>
#include <set>

#include <gtest/gtest.h>

namespace glm53 {
namespace {

// kat_vectors of Random123, philox4x32 with 10 rounds.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, CounterAndKeyLayout) {
  const uint64_t seed = 0x0123456789abcdefULL;
  const PhiloxCounter derived = philox4x32({7, 0, 0, 1}, {0x89abcdefU, 0x01234567U});
  const PhiloxKey key = noise_key(seed, 7);
  EXPECT_EQ(key, (PhiloxKey{derived[0], derived[1]}));
  EXPECT_EQ(noise_bits(key, 1000, 42), philox4x32({1000, 42, 0, 0}, key)[0]);
  EXPECT_EQ(noise_bits(key, 1000, 42, NoiseLane::kBonus), philox4x32({1000, 42, 3, 0}, key)[0]);
}

TEST(Philox, EveryArgumentMatters) {
  std::set<uint32_t> seen;
  seen.insert(noise_bits(noise_key(1, 0), 5, 9));
  seen.insert(noise_bits(noise_key(2, 0), 5, 9));
  seen.insert(noise_bits(noise_key(1, 1), 5, 9));
  seen.insert(noise_bits(noise_key(1 + (uint64_t{1} << 32), 0), 5, 9));
  seen.insert(noise_bits(noise_key(static_cast<uint64_t>(int64_t{-1}), 0), 5, 9));
  seen.insert(noise_bits(noise_key(1, 0), 6, 9));
  seen.insert(noise_bits(noise_key(1, 0), 5, 10));
  seen.insert(noise_bits(noise_key(1, 0), 5, 9, NoiseLane::kDraftWalk));
  EXPECT_EQ(seen.size(), 8U);
}

TEST(Philox, UniformStaysInsideTheOpenInterval) {
  EXPECT_EQ(noise_uniform(0), 0x1p-33);
  EXPECT_EQ(noise_uniform(0xffffffff), 1.0 - 0x1p-33);
  EXPECT_NEAR(noise_gumbel(0), -3.1297, 1e-3);
  EXPECT_NEAR(noise_gumbel(0xffffffff), 33 * std::log(2.0), 1e-6);
}

TEST(Philox, GumbelHasItsMeanAndVariance) {
  const PhiloxKey key = noise_key(11, 0);
  const int count = 100000;
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < count; ++i) {
    const double g = noise_gumbel(noise_bits(key, i / 100, i % 100));
    sum += g;
    squares += g * g;
  }
  const double mean = sum / count;
  const double variance = squares / count - mean * mean;
  const double standard_error = std::sqrt(1.6449 / count);
  EXPECT_NEAR(mean, 0.57722, 4 * standard_error);
  EXPECT_NEAR(variance, 1.6449, 0.05);
}

}  // namespace
}  // namespace glm53
