#include "backend/cpu/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "glm53/core/philox.h"

namespace glm53::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

SamplingParams seeded(uint64_t seed, float temperature = 1.0F) {
  SamplingParams params;
  params.temperature = temperature;
  params.seed = seed;
  return params;
}

int32_t pick(const std::vector<float>& logits, const SamplingParams& params, int64_t position = 0,
             const std::vector<int32_t>& banned = {}) {
  SamplerScratch scratch;
  return sample_row(logits, {.logits_row = 0, .position = position, .params = &params, .banned = banned}, scratch);
}

std::vector<float> random_logits(std::mt19937& random, int size, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(static_cast<std::size_t>(size));
  for (float& logit : logits) logit = normal(random);
  return logits;
}

/// The steps of spec 40 §10.2 as written there: probabilities, full sorts, no shortcut.
std::set<int32_t> reference_survivors(const std::vector<float>& logits, const SamplingParams& params) {
  const double temperature = std::max(params.temperature, 0.01F);
  std::vector<double> scaled;
  for (const float logit : logits) scaled.push_back(logit / temperature);
  const double largest = *std::max_element(scaled.begin(), scaled.end());
  std::vector<int32_t> alive;
  for (std::size_t i = 0; i < scaled.size(); ++i) {
    if (scaled[i] > -kInfinity && std::exp(scaled[i] - largest) >= params.min_p) {
      alive.push_back(static_cast<int32_t>(i));
    }
  }
  const auto value = [&](int32_t id) { return scaled[static_cast<std::size_t>(id)]; };
  // Ascending; among equal ones the higher id first.
  std::sort(alive.begin(), alive.end(),
            [&](int32_t a, int32_t b) { return value(a) < value(b) || (value(a) == value(b) && a > b); });
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < alive.size()) {
    const double threshold = value(alive[alive.size() - static_cast<std::size_t>(params.top_k)]);
    std::erase_if(alive, [&](int32_t id) { return value(id) < threshold; });
  }
  if (params.top_p < 1.0F) {
    double total = 0;
    for (const int32_t id : alive) total += std::exp(value(id) - largest);
    double cumulative = 0;
    std::vector<int32_t> kept;
    for (const int32_t id : alive) {
      cumulative += std::exp(value(id) - largest) / total;
      if (cumulative > 1.0 - double{params.top_p} || id == alive.back()) kept.push_back(id);
    }
    alive = kept;
  }
  return {alive.begin(), alive.end()};
}

int32_t reference_pick(const std::vector<float>& logits, const SamplingParams& params, int64_t position) {
  double best = -std::numeric_limits<double>::infinity();
  int32_t best_id = -1;
  for (const int32_t id : reference_survivors(logits, params)) {
    const double noise = noise_gumbel(noise_bits(noise_key(params.seed, params.choice), position, id));
    const double score = logits[static_cast<std::size_t>(id)] / double{std::max(params.temperature, 0.01F)} + noise;
    if (score > best) {
      best = score;
      best_id = id;
    }
  }
  return best_id;
}

TEST(Sampler, GreedyTakesTheLowestIdOnTiesAndIgnoresFilters) {
  SamplingParams params = greedy();
  params.top_k = 1;
  params.top_p = 0.01F;
  EXPECT_EQ(pick({1, 3, 2, 3}, params), 1);
  EXPECT_EQ(pick({1, 3, 2, 3}, params, 0, {1}), 3);
  EXPECT_EQ(pick({-kInfinity, -5, -kInfinity}, params), 1);
  params.temperature = 0.9e-5F;
  EXPECT_EQ(pick({1, 3, 2, 3}, params), 1);
}

TEST(Sampler, RefusesRowsWithoutAnyToken) {
  for (const float temperature : {0.0F, 1.0F}) {
    const SamplingParams params = seeded(1, temperature);
    EXPECT_THROW(pick({-kInfinity, -kInfinity}, params), SamplingError);
    EXPECT_THROW(pick({1, 2}, params, 0, {0, 1}), SamplingError);
    EXPECT_THROW(pick({}, params), SamplingError);
    EXPECT_THROW(pick({1, std::nanf(""), 2}, params), SamplingError);
    EXPECT_THROW(pick({1, kInfinity, 2}, params), SamplingError);
    EXPECT_EQ(pick({1, std::nanf(""), -kInfinity}, params, 0, {1}), 0);  // a banned column is never read
    EXPECT_THROW(pick({1, 2}, params, 0, {2}), std::logic_error);
    EXPECT_THROW(pick({1, 2}, params, 0, {-1}), std::logic_error);
  }
}

TEST(Sampler, FollowsTheSoftmax) {
  const std::vector<float> logits = {0.0F, 1.0F, -1.0F, 2.0F, 0.5F, -kInfinity, 1.5F, -3.0F};
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    std::vector<double> expected;
    for (const float logit : logits) expected.push_back(std::exp(logit / temperature));
    const double total = std::accumulate(expected.begin(), expected.end(), 0.0);
    const int draws = 40000;
    std::vector<int> counts(logits.size());
    const SamplingParams params = seeded(1234, temperature);
    for (int position = 0; position < draws; ++position) {
      ++counts[static_cast<std::size_t>(pick(logits, params, position))];
    }
    double chi_square = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double mean = draws * expected[i] / total;
      if (mean == 0) {
        EXPECT_EQ(counts[i], 0);
      } else {
        chi_square += (counts[i] - mean) * (counts[i] - mean) / mean;
      }
    }
    EXPECT_LT(chi_square, 22.46);  // 6 degrees of freedom, p = 0.001
  }
}

TEST(Sampler, FollowsTheSoftmaxOverSeedsAndChoices) {
  const std::vector<float> logits = {0, 1, 2};
  const double total = 1 + std::exp(1.0) + std::exp(2.0);
  std::vector<int> counts(3);
  const int draws = 20000;
  for (int i = 0; i < draws; ++i) {
    SamplingParams params = seeded(static_cast<uint64_t>(i / 4));
    params.choice = static_cast<uint32_t>(i % 4);
    ++counts[static_cast<std::size_t>(pick(logits, params, 17))];
  }
  double chi_square = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const double mean = draws * std::exp(static_cast<double>(i)) / total;
    chi_square += (counts[i] - mean) * (counts[i] - mean) / mean;
  }
  EXPECT_LT(chi_square, 13.82);  // 2 degrees of freedom, p = 0.001
}

TEST(Sampler, EqualsTheReferenceUnderAllFilters) {
  std::mt19937 random(7);
  const std::vector<float> top_ps = {0.05F, 0.5F, 0.9F, 0.999F, 1.0F};
  const std::vector<int> top_ks = {0, 1, 5, 100, 5000};
  const std::vector<float> min_ps = {0.0F, 0.02F, 0.4F, 1.0F};
  const std::vector<float> temperatures = {1e-4F, 0.3F, 1.0F, 1.7F};
  int64_t position = 0;
  for (const int size : {1, 7, 700}) {
    for (const float spread : {0.1F, 3.0F}) {
      for (const float top_p : top_ps) {
        for (const int top_k : top_ks) {
          for (const float min_p : min_ps) {
            for (const float temperature : temperatures) {
              std::vector<float> logits = random_logits(random, size, spread);
              if (size > 100) logits[3] = logits[90] = logits[91] = -kInfinity;
              SamplingParams params = seeded(99, temperature);
              params.top_p = top_p;
              params.top_k = top_k;
              params.min_p = min_p;
              ++position;
              ASSERT_EQ(pick(logits, params, position), reference_pick(logits, params, position))
                  << size << " " << spread << " top_p " << top_p << " top_k " << top_k << " min_p " << min_p << " T "
                  << temperature;
            }
          }
        }
      }
    }
  }
}

/// Every id that can come up: the filters' survivors, seen by drawing often.
std::set<int32_t> drawn(const std::vector<float>& logits, const SamplingParams& params) {
  std::set<int32_t> ids;
  for (int position = 0; position < 400; ++position) ids.insert(pick(logits, params, position));
  return ids;
}

TEST(Sampler, TopKKeepsTiesAtTheThreshold) {
  SamplingParams params = seeded(3);
  params.top_k = 2;
  EXPECT_EQ(drawn({1, 2, 1, 0, 1, -1}, params), (std::set<int32_t>{0, 1, 2, 4}));
}

TEST(Sampler, TopPKeepsTheLargestAndCutsWhereTheSumReaches) {
  SamplingParams params = seeded(3);
  params.top_p = 0.5F;  // of four equal ones the two highest ids go: 0.25, 0.5 ≤ 0.5
  EXPECT_EQ(drawn({1, 1, 1, 1}, params), (std::set<int32_t>{0, 1}));
  params.top_p = 0.51F;
  EXPECT_EQ(drawn({1, 1, 1, 1}, params), (std::set<int32_t>{0, 1, 2}));
  params.top_p = 1e-6F;
  EXPECT_EQ(drawn({1, 1, 2, 1}, params), (std::set<int32_t>{2}));
}

TEST(Sampler, TopPRenormalisesOverWhatTopKLeft) {
  SamplingParams params = seeded(3);
  params.top_k = 2;
  params.top_p = 0.6F;  // of the two left, each has a half: the first alone does not reach 0.6
  EXPECT_EQ(drawn({2, 2, 1.9F, 1.9F, 1.9F}, params), (std::set<int32_t>{0, 1}));
}

TEST(Sampler, TopPOverAWideFlatRow) {
  // More survivors than one sorted run of keep_top_p holds.
  std::vector<float> logits(3000, 0.0F);
  SamplingParams params = seeded(5);
  params.top_p = 0.5F;
  for (int position = 0; position < 300; ++position) {
    const int32_t id = pick(logits, params, position);
    EXPECT_LT(id, 1500);
    EXPECT_EQ(id, reference_pick(logits, params, position));
  }
}

TEST(Sampler, VerySmallTemperaturesAreRaised) {
  const std::vector<float> logits = {0, 0.02F, 0.01F};
  for (int position = 0; position < 50; ++position) {
    EXPECT_EQ(pick(logits, seeded(8, 1e-5F), position), pick(logits, seeded(8, 0.01F), position));
  }
  EXPECT_GT(drawn(logits, seeded(8, 1e-5F)).size(), 1U);
  EXPECT_EQ(pick({-3e38F, 3e38F}, seeded(8, 0.01F)), 1);
}

TEST(Sampler, NoiseDependsOnSeedPositionChoiceAndTokenAlone) {
  const std::vector<float> flat(512, 0.0F);
  const SamplingParams params = seeded(42);
  SamplingParams other_choice = params;
  other_choice.choice = 1;
  const SamplingParams negative = seeded(static_cast<uint64_t>(int64_t{-42}));
  int same_seed = 0;
  int same_choice = 0;
  int same_negative = 0;
  int same_next = 0;
  for (int position = 0; position < 200; ++position) {
    const int32_t id = pick(flat, params, position);
    EXPECT_EQ(id, pick(flat, params, position));
    same_seed += id == pick(flat, seeded(43), position) ? 1 : 0;
    same_choice += id == pick(flat, other_choice, position) ? 1 : 0;
    same_negative += id == pick(flat, negative, position) ? 1 : 0;
    same_next += id == pick(flat, params, position + 1) ? 1 : 0;
    // Another token's ban does not move this one's noise.
    EXPECT_EQ(id, pick(flat, params, position, {(id + 1) % 512}));
  }
  for (const int same : {same_seed, same_choice, same_negative, same_next}) EXPECT_LE(same, 5);
}

TEST(Sampler, ReusedScratchChangesNothing) {
  std::mt19937 random(5);
  SamplerScratch scratch;
  for (int i = 0; i < 40; ++i) {
    const std::vector<float> logits = random_logits(random, i % 2 == 0 ? 900 : 30, 1.0F);
    SamplingParams params = seeded(6);
    params.top_k = i % 3 == 0 ? 0 : 7;
    params.top_p = 0.8F;
    const SampleRow row{.logits_row = 0, .position = i, .params = &params, .banned = {}};
    EXPECT_EQ(sample_row(logits, row, scratch), pick(logits, params, i));
  }
}

}  // namespace
}  // namespace glm53::cpu
