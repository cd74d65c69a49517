// Backend::sample on every backend: the ids, the logprobs and the refusals of spec 40 §10.2, against a reference that
// takes its steps one by one in fp64, and against the CPU's sampler.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/sampler.h"
#include "backends_under_test.h"
#include "glm53/core/philox.h"

namespace glm53 {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kRows = 64;

/// What a request asks of one row.
struct Ask {
  SamplingParams params;
  int64_t position = 0;
  int logits_row = 0;
  int logprobs = -1;
  std::vector<uint32_t> mask;
  std::vector<int32_t> banned;
  std::vector<LogitBias> biases;
  std::vector<TokenCount> counts;

  SampleRow row() const { return {logits_row, position, &params, logprobs, mask, banned, biases, counts}; }
};

SamplingParams seeded(uint64_t seed, float temperature = 1.0F) {
  SamplingParams params;
  params.temperature = temperature;
  params.seed = seed;
  return params;
}

Ask ask_for(const SamplingParams& params, int64_t position = 0, std::vector<int32_t> banned = {}) {
  Ask ask;
  ask.params = params;
  ask.position = position;
  ask.banned = std::move(banned);
  return ask;
}

std::vector<uint32_t> mask_without(int vocab, std::initializer_list<int32_t> forbidden) {
  std::vector<uint32_t> mask((static_cast<size_t>(vocab) + 31) / 32, ~0U);
  for (const int32_t id : forbidden) mask[static_cast<size_t>(id) / 32] &= ~(1U << (id % 32));
  return mask;
}

class SamplingTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const test::BackendUnderTest backend = test::backends_under_test()[static_cast<size_t>(GetParam())];
    if (!backend.problem.empty()) GTEST_SKIP() << backend.problem;
    make_ = backend.make;
  }

  /// Writes the rows, each padded with −inf to the width of `vocab`, and samples.
  std::vector<SampledToken> sample(const std::vector<std::vector<float>>& rows, const std::vector<Ask>& asks,
                                   int vocab = 0) {
    int width = vocab;
    for (const auto& row : rows) width = std::max(width, static_cast<int>(row.size()));
    width = (width + 3) / 4 * 4;
    Instance& instance = at(width);
    for (size_t r = 0; r < rows.size(); ++r) {
      std::vector<float> padded = rows[r];
      padded.resize(static_cast<size_t>(width), -kInfinity);
      instance.backend->write_rows(instance.logits, static_cast<int>(r), 1, padded);
    }
    std::vector<SampledToken> out(asks.size());
    for (size_t first = 0; first < asks.size(); first += kRows) {
      const size_t count = std::min<size_t>(kRows, asks.size() - first);
      std::vector<SampleRow> call;
      for (size_t i = 0; i < count; ++i) call.push_back(asks[first + i].row());
      instance.backend->sample(instance.logits, call, std::span(out).subspan(first, count));
    }
    return out;
  }

  SampledToken sample_one(const std::vector<float>& logits, const Ask& ask) { return sample({logits}, {ask}).front(); }

  int32_t pick(const std::vector<float>& logits, const SamplingParams& params, int64_t position = 0,
               std::vector<int32_t> banned = {}) {
    const SampledToken token = sample_one(logits, ask_for(params, position, std::move(banned)));
    EXPECT_EQ(token.status, SampleStatus::kPicked);
    return token.id;
  }

  /// The ids drawn at positions 0, 1, …
  std::vector<int32_t> draws(const std::vector<float>& logits, const SamplingParams& params, int count) {
    std::vector<Ask> asks;
    for (int position = 0; position < count; ++position) asks.push_back(ask_for(params, position));
    std::vector<int32_t> ids;
    for (const SampledToken& token : sample({logits}, asks)) {
      EXPECT_EQ(token.status, SampleStatus::kPicked);
      ids.push_back(token.id);
    }
    return ids;
  }

  std::set<int32_t> drawn(const std::vector<float>& logits, const SamplingParams& params) {
    const std::vector<int32_t> ids = draws(logits, params, 400);
    return {ids.begin(), ids.end()};
  }

 private:
  struct Instance {
    std::unique_ptr<Backend> backend;
    Tensor logits;
  };

  Instance& at(int vocab) {
    Instance& instance = instances_[vocab];
    if (instance.backend == nullptr) {
      Geometry geometry = load_geometry(test::data_path("models/glm53-tiny"));
      geometry.vocab = vocab;
      instance.backend = make_(geometry);
      instance.backend->create_caches({.sequences = kRows, .pages = 1, .max_rows = 64, .max_logit_rows = kRows});
      instance.logits = instance.backend->create_logit_rows("logits", vocab, Precision::kFp32);
    }
    return instance;
  }

  test::BackendFactory make_;
  std::map<int, Instance> instances_;
};

// -------------------------------------------------------------------------------------------- the reference

/// Steps 3 to 5, after the mask.
std::vector<float> patched(std::vector<float> l, const Ask& ask) {
  for (const int32_t id : ask.banned) l[static_cast<size_t>(id)] = -kInfinity;
  for (const LogitBias& bias : ask.biases) l[static_cast<size_t>(bias.id)] += bias.value;
  for (const TokenCount& count : ask.counts) {
    float& value = l[static_cast<size_t>(count.id)];
    value = value > 0 ? value / ask.params.repetition : value * ask.params.repetition;
    volatile const float frequency = ask.params.frequency * static_cast<float>(count.output);  // never fused
    value -= frequency;
    if (count.output > 0) value -= ask.params.presence;
  }
  return l;
}

std::vector<float> masked(std::vector<float> l, const Ask& ask) {
  for (size_t id = 0; id < l.size() && !ask.mask.empty(); ++id) {
    if ((ask.mask[id / 32] >> (id % 32) & 1) == 0) l[id] = -kInfinity;
  }
  return l;
}

/// Steps 7 to 9 as the spec writes them: probabilities, full sorts, no shortcut.
std::vector<int32_t> reference_survivors(const std::vector<float>& logits, const SamplingParams& params) {
  const double temperature = std::max(params.temperature, 0.01F);
  std::vector<double> scaled;
  for (const float logit : logits) scaled.push_back(logit / temperature);
  const double largest = *std::max_element(scaled.begin(), scaled.end());
  std::vector<int32_t> alive;
  for (size_t i = 0; i < scaled.size(); ++i) {
    if (scaled[i] > -kInfinity && std::exp(scaled[i] - largest) >= params.min_p) {
      alive.push_back(static_cast<int32_t>(i));
    }
  }
  const auto value = [&](int32_t id) { return scaled[static_cast<size_t>(id)]; };
  // Ascending; among equal ones the higher id first.
  std::sort(alive.begin(), alive.end(),
            [&](int32_t a, int32_t b) { return value(a) < value(b) || (value(a) == value(b) && a > b); });
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < alive.size()) {
    const double threshold = value(alive[alive.size() - static_cast<size_t>(params.top_k)]);
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
  return alive;
}

int32_t reference_pick(const std::vector<float>& logits, const Ask& ask) {
  const std::vector<float> l = patched(masked(logits, ask), ask);
  const auto largest = std::max_element(l.begin(), l.end());
  if (*largest == -kInfinity) return -1;
  if (ask.params.temperature < kGreedyTemperature) return static_cast<int32_t>(largest - l.begin());
  double best = -std::numeric_limits<double>::infinity();
  int32_t best_id = -1;
  for (const int32_t id : reference_survivors(l, ask.params)) {
    const double noise = noise_gumbel(noise_bits(noise_key(ask.params.seed, ask.params.choice), ask.position, id));
    const double score = l[static_cast<size_t>(id)] / double{std::max(ask.params.temperature, 0.01F)} + noise;
    if (score > best) {
      best = score;
      best_id = id;
    }
  }
  return best_id;
}

/// 1e-5 of spec 70 is for values near 1; l − max of some hundreds already carries fp32 rounding of that size.
double logprob_slack(double logprob) { return 2e-5 + 2e-7 * std::abs(logprob); }

void expect_logprobs(const std::vector<float>& logits, const Ask& ask, const SampledToken& token) {
  if (ask.logprobs < 0) {
    EXPECT_TRUE(std::isnan(token.logprob));
    EXPECT_EQ(token.top_count, 0);
    return;
  }
  const std::vector<float> raw = masked(logits, ask);
  const double max = *std::max_element(raw.begin(), raw.end());
  double sum = 0;
  for (const float l : raw) sum += std::exp(l - max);
  const auto expect = [&](int32_t id, float got) {
    const double wanted = raw[static_cast<size_t>(id)] - max - std::log(sum);
    EXPECT_NEAR(got, wanted, logprob_slack(wanted));
  };
  expect(token.id, token.logprob);

  std::vector<int32_t> order(raw.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int32_t id) { return raw[static_cast<size_t>(id)] == -kInfinity; });
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return raw[static_cast<size_t>(a)] > raw[static_cast<size_t>(b)]; });
  ASSERT_EQ(static_cast<size_t>(token.top_count), std::min<size_t>(order.size(), static_cast<size_t>(ask.logprobs)));
  for (size_t i = 0; i < static_cast<size_t>(token.top_count); ++i) {
    EXPECT_EQ(token.top[i].id, order[i]) << "top " << i;
    expect(order[i], token.top[i].logprob);
  }
}

// -------------------------------------------------------------------------------------------- random rows

template <typename T>
T one_of(std::initializer_list<T> values, std::mt19937& random) {
  return values.begin()[random() % values.size()];
}

std::vector<float> random_logits(std::mt19937& random, int size, float spread, float shift = 0.0F) {
  std::normal_distribution<float> normal(shift, spread);
  std::vector<float> logits(static_cast<size_t>(size));
  for (float& logit : logits) logit = normal(random);
  return logits;
}

std::vector<float> random_row(std::mt19937& random, int vocab) {
  const float scale = one_of({0.05F, 1.0F, 3.0F, 10.0F}, random);
  std::vector<float> row = random_logits(random, vocab, scale, one_of({0.0F, -7.5F, 90.0F}, random));
  switch (random() % 4) {
    case 0:  // many ties
      for (float& l : row) l = std::round(l * 2) / 2;
      break;
    case 1:  // a model that knows what it wants
      for (int i = 0; i < 20; ++i) row[random() % row.size()] += 8 * scale;
      break;
    case 2:  // holes
      for (float& l : row) l = random() % 8 == 0 ? -kInfinity : l;
      break;
    default:
      break;
  }
  return row;
}

Ask random_ask(std::mt19937& random, int row, int vocab) {
  Ask ask;
  ask.logits_row = row;
  ask.position = static_cast<int64_t>(random() % 1'000'000);
  SamplingParams& params = ask.params;
  params.seed = uint64_t{random()} << 32 | random();
  params.choice = random() % 4;
  params.temperature = one_of({0.0F, 0.003F, 0.1F, 0.6F, 1.0F, 1.0F, 2.0F}, random);
  params.top_p = one_of({1.0F, 0.95F, 0.83F, 0.05F, 1e-5F, 0.9999F}, random);
  params.top_k = one_of({0, 0, 1, 2, 40, 1000, vocab - 1, 1'000'000}, random);
  params.min_p = one_of({0.0F, 0.0F, 0.05F, 0.5F, 1.0F, 1e-6F}, random);
  const auto ids = [&](unsigned most) {
    std::set<int32_t> set;
    for (unsigned i = random() % (most + 1); i > 0; --i) set.insert(static_cast<int32_t>(random()) & (vocab - 1));
    return set;
  };
  if (random() % 3 == 0) {
    const auto set = ids(30);
    ask.banned.assign(set.begin(), set.end());
  }
  if (random() % 3 == 0) {
    for (const int32_t id : ids(50)) ask.biases.push_back({id, one_of({-100.0F, 3.5F, 0.1F, 100.0F}, random)});
  }
  if (random() % 3 == 0) {
    for (const int32_t id : ids(static_cast<unsigned>(vocab / 2))) {
      ask.counts.push_back({id, static_cast<int32_t>(random() % 4)});
    }
    params.repetition = one_of({1.0F, 1.1F, 0.7F}, random);
    params.frequency = one_of({0.0F, 0.3F, -1.7F}, random);
    params.presence = one_of({0.0F, 0.9F}, random);
  }
  if (random() % 3 == 0) {
    ask.mask.resize(static_cast<size_t>(vocab + 31) / 32);
    const bool few = random() % 2 == 0;
    for (uint32_t& word : ask.mask) word = few ? (random() % 16 == 0 ? 1U << (random() % 32) : 0) : random();
  }
  if (random() % 2 == 0) ask.logprobs = static_cast<int>(random() % (kMaxTopLogprobs + 1));
  return ask;
}

TEST_P(SamplingTest, RandomRowsGiveTheIdsOfTheReferenceAndOfTheCpu) {
  std::mt19937 random(11);
  cpu::SamplerScratch scratch;
  for (const int vocab : {4, 64, 4096}) {
    for (int round = 0; round < 4; ++round) {
      std::vector<std::vector<float>> rows;
      std::vector<Ask> asks;
      for (int r = 0; r < kRows; ++r) {
        rows.push_back(random_row(random, vocab));
        asks.push_back(random_ask(random, r, vocab));
      }
      const std::vector<SampledToken> tokens = sample(rows, asks);
      for (size_t i = 0; i < asks.size(); ++i) {
        SCOPED_TRACE("vocabulary " + std::to_string(vocab) + ", row " + std::to_string(i));
        const int32_t expected = reference_pick(rows[i], asks[i]);
        ASSERT_EQ(tokens[i].id, expected);
        ASSERT_EQ(tokens[i].status, expected < 0 ? SampleStatus::kNothingAllowed : SampleStatus::kPicked);
        ASSERT_EQ(cpu::sample_row(rows[i], asks[i].row(), scratch).id, expected);
        if (expected >= 0) expect_logprobs(rows[i], asks[i], tokens[i]);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(SamplingTest, ARowDependsOnItsOwnListsAlone) {
  std::mt19937 random(12);
  const int vocab = 512;
  std::vector<std::vector<float>> rows;
  std::vector<Ask> asks;
  for (int r = 0; r < 24; ++r) {
    rows.push_back(random_row(random, vocab));
    asks.push_back(random_ask(random, r, vocab));
    asks.back().logprobs = 5;
  }
  const std::vector<SampledToken> together = sample(rows, asks);
  for (size_t i = asks.size(); i-- > 0;) {
    const SampledToken alone = sample(rows, {asks[i]}).front();
    EXPECT_EQ(alone.id, together[i].id);
    if (alone.status != SampleStatus::kPicked) continue;
    EXPECT_EQ(alone.logprob, together[i].logprob);
    for (size_t k = 0; k < 5; ++k) EXPECT_EQ(alone.top[k].logprob, together[i].top[k].logprob);
  }
}

TEST_P(SamplingTest, FollowsAMaskThatChangesInPlace) {
  std::vector<uint32_t> mask = mask_without(64, {9});
  std::vector<float> logits(64, 0.0F);
  logits[9] = 2;
  logits[40] = 1;
  Ask ask = ask_for(seeded(1, 0.0F));
  ask.mask = mask;
  EXPECT_EQ(sample_one(logits, ask).id, 40);
  ask.mask = mask_without(64, {40});
  EXPECT_EQ(sample_one(logits, ask).id, 9);
  ask.mask = mask_without(64, {9, 40});
  EXPECT_EQ(sample_one(logits, ask).id, 0);
  ask.mask.clear();
  EXPECT_EQ(sample_one(logits, ask).id, 9);
}

// -------------------------------------------------------------------------------------------- single rules

TEST_P(SamplingTest, GreedyTakesTheLowestIdOnTiesAndIgnoresFilters) {
  SamplingParams params = seeded(0, 0.0F);
  params.top_k = 1;
  params.top_p = 0.01F;
  EXPECT_EQ(pick({1, 3, 2, 3}, params), 1);
  EXPECT_EQ(pick({1, 3, 2, 3}, params, 0, {1}), 3);
  EXPECT_EQ(pick({-kInfinity, -5, -kInfinity}, params), 1);
  params.temperature = 0.9e-5F;
  EXPECT_EQ(pick({1, 3, 2, 3}, params), 1);
}

TEST_P(SamplingTest, ReportsRowsFromWhichNothingCanBeDrawn) {
  const float nan = std::nanf("");
  for (const float temperature : {0.0F, 1.0F}) {
    for (const int logprobs : {-1, 5}) {
      const auto status = [&](const std::vector<float>& logits, std::vector<int32_t> banned = {},
                              std::vector<uint32_t> mask = {}) {
        Ask ask = ask_for(seeded(1, temperature), 0, std::move(banned));
        ask.mask = std::move(mask);
        ask.logprobs = logprobs;
        const SampledToken token = sample_one(logits, ask);
        EXPECT_EQ(token.id >= 0, token.status == SampleStatus::kPicked);
        return token.status;
      };
      EXPECT_EQ(status({-kInfinity, -kInfinity}), SampleStatus::kNothingAllowed);
      EXPECT_EQ(status({1, 2}, {0, 1}), SampleStatus::kNothingAllowed);
      EXPECT_EQ(status({1, 2, 3, 4}, {}, {0U}), SampleStatus::kNothingAllowed);
      EXPECT_EQ(status({1, nan, 2}), SampleStatus::kNotFinite);
      EXPECT_EQ(status({1, kInfinity, 2}), SampleStatus::kNotFinite);
      // What a mask or a ban covers is never read.
      EXPECT_EQ(status({1, nan, -kInfinity}, {1}), SampleStatus::kPicked);
      EXPECT_EQ(status({1, kInfinity, 2}, {}, mask_without(4, {1})), SampleStatus::kPicked);
    }
  }
}

TEST_P(SamplingTest, RefusesCallersMistakes) {
  const auto refused = [&](auto&& change) {
    Ask ask = ask_for(seeded(1));
    change(ask);
    EXPECT_THROW(sample({{1, 2, 3, 4}}, {ask}), std::logic_error);
  };
  refused([](Ask& ask) { ask.banned = {4}; });
  refused([](Ask& ask) { ask.banned = {-1}; });
  refused([](Ask& ask) { ask.biases = {{4, 1.0F}}; });
  refused([](Ask& ask) { ask.counts = {{-1, 1}}; });
  refused([](Ask& ask) { ask.mask = {1, 1}; });
  refused([](Ask& ask) { ask.logprobs = kMaxTopLogprobs + 1; });
  refused([](Ask& ask) { ask.logits_row = kRows; });
  refused([](Ask& ask) { ask.banned.assign(4 * kRows + 1, 0); });
}

/// Ids that may come up, the counts of `ids` against the shares `expected`.
double chi_square(const std::vector<int32_t>& ids, const std::vector<double>& expected) {
  const double total = std::accumulate(expected.begin(), expected.end(), 0.0);
  std::vector<int> counts(expected.size());
  for (const int32_t id : ids) ++counts[static_cast<size_t>(id)];
  double sum = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double mean = static_cast<double>(ids.size()) * expected[i] / total;
    if (mean == 0) {
      EXPECT_EQ(counts[i], 0);
    } else {
      sum += (counts[i] - mean) * (counts[i] - mean) / mean;
    }
  }
  return sum;
}

TEST_P(SamplingTest, FollowsTheSoftmax) {
  const std::vector<float> logits = {0.0F, 1.0F, -1.0F, 2.0F, 0.5F, -kInfinity, 1.5F, -3.0F};
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    std::vector<double> expected;
    for (const float logit : logits) expected.push_back(std::exp(logit / temperature));
    EXPECT_LT(chi_square(draws(logits, seeded(1234, temperature), 40000), expected), 22.46);  // 6 degrees, p = 0.001
  }
}

TEST_P(SamplingTest, FollowsTheSoftmaxOverSeedsAndChoices) {
  std::vector<Ask> asks;
  for (int i = 0; i < 20000; ++i) {
    asks.push_back(ask_for(seeded(static_cast<uint64_t>(i / 4)), 17));
    asks.back().params.choice = static_cast<uint32_t>(i % 4);
  }
  std::vector<int32_t> ids;
  for (const SampledToken& token : sample({{0, 1, 2}}, asks)) ids.push_back(token.id);
  EXPECT_LT(chi_square(ids, {1, std::exp(1.0), std::exp(2.0)}), 13.82);  // 2 degrees of freedom, p = 0.001
}

TEST_P(SamplingTest, EqualsTheReferenceUnderAllFilters) {
  std::mt19937 random(7);
  int64_t position = 0;
  for (const int size : {1, 7, 700}) {
    for (const float spread : {0.1F, 3.0F}) {
      std::vector<Ask> asks;
      std::vector<float> logits = random_logits(random, size, spread);
      if (size > 100) logits[3] = logits[90] = logits[91] = -kInfinity;
      for (const float top_p : {0.05F, 0.5F, 0.9F, 0.999F, 1.0F}) {
        for (const int top_k : {0, 1, 5, 100, 5000}) {
          for (const float min_p : {0.0F, 0.02F, 0.4F, 1.0F}) {
            for (const float temperature : {1e-4F, 0.3F, 1.0F, 1.7F}) {
              asks.push_back(ask_for(seeded(99, temperature), ++position));
              asks.back().params.top_p = top_p;
              asks.back().params.top_k = top_k;
              asks.back().params.min_p = min_p;
            }
          }
        }
      }
      const std::vector<SampledToken> tokens = sample({logits}, asks);
      for (size_t i = 0; i < asks.size(); ++i) {
        const SamplingParams& params = asks[i].params;
        ASSERT_EQ(tokens[i].id, reference_pick(logits, asks[i]))
            << size << " " << spread << " top_p " << params.top_p << " top_k " << params.top_k << " min_p "
            << params.min_p << " T " << params.temperature;
      }
    }
  }
}

TEST_P(SamplingTest, TopKKeepsTiesAtTheThreshold) {
  SamplingParams params = seeded(3);
  params.top_k = 2;
  EXPECT_EQ(drawn({1, 2, 1, 0, 1, -1}, params), (std::set<int32_t>{0, 1, 2, 4}));
}

TEST_P(SamplingTest, TopPKeepsTheLargestAndCutsWhereTheSumReaches) {
  SamplingParams params = seeded(3);
  params.top_p = 0.5F;  // of four equal ones the two highest ids go: 0.25, 0.5 ≤ 0.5
  EXPECT_EQ(drawn({1, 1, 1, 1}, params), (std::set<int32_t>{0, 1}));
  params.top_p = 0.51F;
  EXPECT_EQ(drawn({1, 1, 1, 1}, params), (std::set<int32_t>{0, 1, 2}));
  params.top_p = 1e-6F;
  EXPECT_EQ(drawn({1, 1, 2, 1}, params), (std::set<int32_t>{2}));
}

TEST_P(SamplingTest, TopPRenormalisesOverWhatTopKLeft) {
  SamplingParams params = seeded(3);
  params.top_k = 2;
  params.top_p = 0.6F;  // of the two left, each has a half: the first alone does not reach 0.6
  EXPECT_EQ(drawn({2, 2, 1.9F, 1.9F, 1.9F}, params), (std::set<int32_t>{0, 1}));
}

TEST_P(SamplingTest, TopPOverAWideFlatRow) {
  // More survivors than one sorted run of the CPU's filter holds.
  SamplingParams params = seeded(5);
  params.top_p = 0.5F;
  const std::vector<float> logits(3000, 0.0F);
  const std::vector<int32_t> ids = draws(logits, params, 100);
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_LT(ids[i], 1500);
    EXPECT_EQ(ids[i], reference_pick(logits, ask_for(params, static_cast<int64_t>(i))));
  }
}

TEST_P(SamplingTest, VerySmallTemperaturesAreRaised) {
  const std::vector<float> logits = {0, 0.02F, 0.01F};
  EXPECT_EQ(draws(logits, seeded(8, 1e-5F), 50), draws(logits, seeded(8, 0.01F), 50));
  EXPECT_GT(drawn(logits, seeded(8, 1e-5F)).size(), 1U);
  EXPECT_EQ(pick({-3e38F, 3e38F}, seeded(8, 0.01F)), 1);
}

TEST_P(SamplingTest, NoiseDependsOnSeedPositionChoiceAndTokenAlone) {
  const std::vector<float> flat(512, 0.0F);
  const int count = 200;
  SamplingParams params = seeded(42);
  const std::vector<int32_t> ids = draws(flat, params, count + 1);
  EXPECT_EQ(draws(flat, params, count + 1), ids);
  const auto same = [&](const std::vector<int32_t>& other, size_t shift = 0) {
    int number = 0;
    for (size_t i = 0; i < count; ++i) number += ids[i] == other[i + shift] ? 1 : 0;
    return number;
  };
  EXPECT_LE(same(draws(flat, seeded(43), count)), 5);
  EXPECT_LE(same(draws(flat, seeded(static_cast<uint64_t>(int64_t{-42})), count)), 5);
  EXPECT_LE(same(ids, 1), 5);
  params.choice = 1;
  EXPECT_LE(same(draws(flat, params, count)), 5);
  // Another token's ban does not move this one's noise.
  std::vector<Ask> asks;
  for (int i = 0; i < count; ++i) asks.push_back(ask_for(seeded(42), i, {(ids[static_cast<size_t>(i)] + 1) % 512}));
  const std::vector<SampledToken> tokens = sample({flat}, asks);
  for (size_t i = 0; i < count; ++i) EXPECT_EQ(tokens[i].id, ids[i]);
}

TEST_P(SamplingTest, BansComeAfterTheRawLogprobsAndBeforeBiases) {
  Ask ask = ask_for(seeded(1, 0.0F), 0, {1});
  ask.biases = {{1, 100.0F}, {2, 0.5F}};  // a bias does not lift a ban
  ask.logprobs = 3;
  const std::vector<float> logits = {1.0F, 3.0F, 0.75F};
  const SampledToken token = sample_one(logits, ask);
  EXPECT_EQ(token.id, 2);
  const double total = std::exp(1.0) + std::exp(3.0) + std::exp(0.75);
  EXPECT_NEAR(token.logprob, 0.75 - std::log(total), 1e-6);
  ASSERT_EQ(token.top_count, 3);
  EXPECT_EQ(token.top[0].id, 1);
  EXPECT_NEAR(token.top[0].logprob, 3.0 - std::log(total), 1e-6);
}

TEST_P(SamplingTest, TheMaskComesBeforeTheRawLogprobs) {
  Ask ask = ask_for(seeded(1, 0.0F));
  ask.mask = mask_without(4, {1});
  ask.logprobs = 20;
  const SampledToken token = sample_one({1.0F, 3.0F, 0.5F}, ask);
  EXPECT_EQ(token.id, 0);
  EXPECT_EQ(token.top_count, 2);
  EXPECT_NEAR(std::exp(token.top[0].logprob) + std::exp(token.top[1].logprob), 1.0, 1e-6);
}

TEST_P(SamplingTest, RepetitionDividesPositiveAndMultipliesNegativeLogits) {
  Ask ask = ask_for(seeded(1, 0.0F));
  ask.params.repetition = 2.0F;
  ask.counts = {{0, 0}, {2, 3}};  // of the prompt alone, and of the output
  EXPECT_EQ(sample_one({3.0F, 1.6F, 3.1F}, ask).id, 1);
  EXPECT_EQ(sample_one({3.0F, 1.4F, 2.9F}, ask).id, 0);
  EXPECT_EQ(sample_one({-1.0F, -1.9F, -1.0F}, ask).id, 1);
  ask.counts.clear();
  EXPECT_EQ(sample_one({3.0F, 1.6F, 3.1F}, ask).id, 2);
}

TEST_P(SamplingTest, FrequencyCountsTheOutputAndPresenceItsFirst) {
  Ask ask = ask_for(seeded(1, 0.0F));
  ask.counts = {{0, 0}, {1, 1}, {2, 4}};
  ask.params.frequency = 0.5F;
  EXPECT_EQ(sample_one({1.0F, 1.4F, 2.9F}, ask).id, 0);  // 1.0, 0.9, 0.9
  EXPECT_EQ(sample_one({1.0F, 1.4F, 3.1F}, ask).id, 2);
  ask.params.frequency = 0;
  ask.params.presence = 1.0F;
  EXPECT_EQ(sample_one({1.0F, 1.9F, 1.8F}, ask).id, 0);
  EXPECT_EQ(sample_one({1.0F, 1.9F, 2.1F}, ask).id, 2);
  ask.params.presence = -1.0F;
  EXPECT_EQ(sample_one({1.0F, 0.3F, 0.2F}, ask).id, 1);
}

std::string backend_name(const ::testing::TestParamInfo<int>& info) {
  return test::backends_under_test()[static_cast<size_t>(info.param)].name;
}

// The caches' formats make no difference to the sampler: one backend a device is enough.
INSTANTIATE_TEST_SUITE_P(Backends, SamplingTest, ::testing::Values(0), backend_name);

}  // namespace
}  // namespace glm53
