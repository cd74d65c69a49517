#include "kernels/sampler/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/sampler.h"
#include "glm53/core/philox.h"
#include "tests/gpu/device_buffer.h"

namespace glm53::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// What a request asks of one row, on the host.
struct Ask {
  SamplingParams params;
  int logits_row = 0;
  int64_t position = 0;
  std::vector<int32_t> banned;
  std::vector<LogitBias> biases;
  std::vector<LogitPenalty> penalties;
  float repetition = 1.0F;
  float frequency = 0.0F;
  float presence = 0.0F;
  std::vector<uint32_t> mask;  ///< empty: all allowed
  int logprobs = -1;
};

struct Picks {
  std::vector<int32_t> ids;
  std::vector<SamplerStatus> status;
  std::vector<float> logprobs;
  std::vector<int32_t> top_ids;
  std::vector<float> top_logprobs;
};

struct Logits {
  int vocab;
  int64_t stride;
  std::vector<float> values;
  /// Padding is larger than any logit, so that reading it shows.
  explicit Logits(int v, int rows) : vocab(v), stride((v + 3) / 4 * 4 + 4) {
    values.assign(static_cast<size_t>(stride * rows), 1e30F);
  }
  std::span<float> row(int r) { return {values.data() + static_cast<size_t>(r * stride), static_cast<size_t>(vocab)}; }
};

/// The lists of all rows on the device.
class Batch {
 public:
  Batch(const std::vector<Ask>& asks, int vocab)
      : rows_(asks.size()), masks_(1), banned_(1), biases_(1), penalties_(1), workspace_(1) {
    std::vector<uint32_t> masks;
    std::vector<int32_t> banned;
    std::vector<LogitBias> biases;
    std::vector<LogitPenalty> penalties;
    int slots = 0;
    for (size_t i = 0; i < asks.size(); ++i) {
      const Ask& ask = asks[i];
      SamplerRow row;
      row.logits_row = ask.logits_row;
      if (!ask.mask.empty()) row.mask = static_cast<int32_t>(masks.size() / ask.mask.size());
      masks.insert(masks.end(), ask.mask.begin(), ask.mask.end());
      row.logprobs = ask.logprobs;
      row.position = ask.position;
      const PhiloxKey key = noise_key(ask.params.seed, ask.params.choice);
      row.key[0] = key[0];
      row.key[1] = key[1];
      row.temperature = ask.params.temperature;
      row.top_p = ask.params.top_p;
      row.top_k = ask.params.top_k;
      row.lowest = sampler_lowest(ask.params.min_p);
      row.repetition = ask.repetition;
      row.frequency = ask.frequency;
      row.presence = ask.presence;
      row.banned = append(ask.banned, banned);
      row.biases = append(ask.biases, biases);
      row.penalties = append(ask.penalties, penalties);
      if (row.banned.count + row.biases.count + row.penalties.count > 0) row.patch_slot = slots++;
      rows.push_back(row);
    }
    rows_.write(rows);
    upload(masks, masks_);
    upload(banned, banned_);
    upload(biases, biases_);
    upload(penalties, penalties_);
    workspace_ = DeviceBuffer<char>(sampler_workspace_bytes(static_cast<int>(asks.size()), slots, vocab));
  }

  SamplerTables tables() const { return {rows_.get(), masks_.get(), banned_.get(), biases_.get(), penalties_.get()}; }
  void* workspace() const { return workspace_.get(); }
  void write_rows() { rows_.write(rows); }

  std::vector<SamplerRow> rows;

 private:
  template <typename T>
  static SamplerList append(const std::vector<T>& list, std::vector<T>& all) {
    const SamplerList range{static_cast<int32_t>(all.size()), static_cast<int32_t>(list.size())};
    all.insert(all.end(), list.begin(), list.end());
    return range;
  }
  template <typename T>
  static void upload(const std::vector<T>& values, DeviceBuffer<T>& buffer) {
    if (!values.empty()) buffer = DeviceBuffer<T>(values);
  }

  DeviceBuffer<SamplerRow> rows_;
  DeviceBuffer<uint32_t> masks_;
  DeviceBuffer<int32_t> banned_;
  DeviceBuffer<LogitBias> biases_;
  DeviceBuffer<LogitPenalty> penalties_;
  DeviceBuffer<char> workspace_;
};

struct Outputs {
  DeviceBuffer<int32_t> ids;
  DeviceBuffer<SamplerStatus> status;
  DeviceBuffer<float> logprobs;
  DeviceBuffer<int32_t> top_ids;
  DeviceBuffer<float> top_logprobs;
  explicit Outputs(size_t rows)
      : ids(rows),
        status(rows),
        logprobs(rows),
        top_ids(rows * kernels::kMaxTopLogprobs),
        top_logprobs(rows * kernels::kMaxTopLogprobs) {}
  SamplerOutputs pointers() const {
    return {ids.get(), status.get(), logprobs.get(), top_ids.get(), top_logprobs.get()};
  }
  Picks read() const { return {ids.read(), status.read(), logprobs.read(), top_ids.read(), top_logprobs.read()}; }
};

Picks pick(const Logits& logits, const std::vector<Ask>& asks) {
  const DeviceBuffer<float> device(logits.values);
  const Batch batch(asks, logits.vocab);
  const Outputs outputs(asks.size());
  sample(device.get(), logits.stride, logits.vocab, batch.tables(), static_cast<int>(asks.size()), batch.workspace(),
         outputs.pointers(), nullptr);
  const std::vector<float> after = device.read();
  EXPECT_EQ(std::memcmp(after.data(), logits.values.data(), after.size() * sizeof(float)), 0) << "logits were changed";
  return outputs.read();
}

/// Steps 1, 3–5 of spec 40 §10.2 as written there.
std::vector<float> patched(std::span<const float> logits, const Ask& ask) {
  std::vector<float> l(logits.begin(), logits.end());
  for (size_t id = 0; id < l.size() && !ask.mask.empty(); ++id) {
    if ((ask.mask[id / 32] >> (id % 32) & 1) == 0) l[id] = -kInfinity;
  }
  for (const int32_t id : ask.banned) l[static_cast<size_t>(id)] = -kInfinity;
  for (const LogitBias& bias : ask.biases) l[static_cast<size_t>(bias.id)] += bias.value;
  for (const LogitPenalty& penalty : ask.penalties) {
    float& value = l[static_cast<size_t>(penalty.id)];
    value = value > 0 ? value / ask.repetition : value * ask.repetition;
    volatile const float product = ask.frequency * static_cast<float>(penalty.output_count);
    value -= product;
    if (penalty.output_count > 0) value -= ask.presence;
  }
  return l;
}

/// −1 where nothing can be drawn.
int32_t expected_id(std::span<const float> logits, const Ask& ask) {
  static cpu::SamplerScratch scratch;
  SampleRow row;
  row.position = ask.position;
  row.params = &ask.params;
  return cpu::sample_row(patched(logits, ask), row, scratch).id;
}

std::string describe(const Ask& ask) {
  return "T " + std::to_string(ask.params.temperature) + " top_p " + std::to_string(ask.params.top_p) + " top_k " +
         std::to_string(ask.params.top_k) + " min_p " + std::to_string(ask.params.min_p) + " lists " +
         std::to_string(ask.banned.size()) + ' ' + std::to_string(ask.biases.size()) + ' ' +
         std::to_string(ask.penalties.size()) + " mask " + std::to_string(ask.mask.size());
}

template <typename T>
T one_of(std::initializer_list<T> values, std::mt19937& random) {
  return values.begin()[random() % values.size()];
}

void fill_row(std::span<float> row, std::mt19937& random) {
  const float scale = one_of({0.05F, 1.0F, 3.0F, 10.0F}, random);
  const float shift = one_of({0.0F, -7.5F, 300.0F}, random);
  std::normal_distribution<float> normal(shift, scale);
  for (float& l : row) l = normal(random);
  switch (random() % 6) {
    case 0:  // many ties
      for (float& l : row) l = std::round(l * 2) / 2;
      break;
    case 1:  // all equal but a few
      std::fill(row.begin(), row.end(), shift);
      for (int i = 0; i < 5; ++i) row[random() % row.size()] = shift + one_of({1.0F, -1.0F, 0.0F}, random);
      break;
    case 2:  // a model that knows what it wants
      for (int i = 0; i < 20; ++i) row[random() % row.size()] += 8 * scale;
      break;
    case 3:  // both zeros, and holes
      for (float& l : row) {
        const unsigned dice = random() % 8;
        if (dice < 2) l = dice == 0 ? 0.0F : -0.0F;
        if (dice == 2) l = -kInfinity;
      }
      break;
    default:
      break;
  }
}

Ask random_ask(int row, int vocab, std::mt19937& random) {
  Ask ask;
  ask.logits_row = row;
  ask.position = static_cast<int64_t>(random() % 1'000'000);
  ask.params.seed = uint64_t{random()} << 32 | random();
  ask.params.choice = random() % 4;
  ask.params.temperature = one_of({0.0F, 1e-5F, 0.003F, 0.1F, 0.6F, 1.0F, 1.0F, 1.0F, 2.0F}, random);
  ask.params.top_p = one_of({1.0F, 0.95F, 0.95F, 0.5F, 0.05F, 1e-5F, 0.9999F}, random);
  ask.params.top_k = one_of({0, 0, 1, 2, 40, 1000, 5000, vocab - 1, 1'000'000}, random);
  ask.params.min_p = one_of({0.0F, 0.0F, 0.05F, 0.5F, 1.0F, 1e-6F}, random);
  const auto id = [&] { return static_cast<int32_t>(random() % static_cast<unsigned>(vocab)); };
  if (random() % 4 == 0) {
    for (unsigned i = random() % 30; i > 0; --i) ask.banned.push_back(id());
    if (!ask.banned.empty()) ask.banned.push_back(ask.banned[0]);
  }
  const auto distinct_ids = [&](size_t count) {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < count; ++i) ids.push_back(id());
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
  };
  if (random() % 4 == 0) {
    for (const int32_t i : distinct_ids(random() % 50))
      ask.biases.push_back({i, one_of({-100.0F, 3.5F, 0.1F}, random)});
  }
  if (random() % 4 == 0) {
    for (const int32_t i : distinct_ids(random() % static_cast<unsigned>(vocab / 2 + 1))) {
      ask.penalties.push_back({i, static_cast<int32_t>(random() % 4)});
    }
    ask.repetition = one_of({1.0F, 1.1F, 0.7F}, random);
    ask.frequency = one_of({0.0F, 0.3F, -1.7F}, random);
    ask.presence = one_of({0.0F, 0.9F}, random);
  }
  if (random() % 4 == 0) {
    ask.mask.resize(static_cast<size_t>(vocab + 31) / 32);
    const bool few = random() % 2 == 0;
    for (uint32_t& word : ask.mask) word = few ? (random() % 16 == 0 ? 1U << (random() % 32) : 0) : random();
    ask.mask[0] |= 1;
    if (std::count(ask.banned.begin(), ask.banned.end(), 0) > 0) ask.banned.clear();
  }
  if (random() % 3 == 0) ask.logprobs = static_cast<int>(random() % 21);
  return ask;
}

/// 1e-5 of spec 70 is for values near 1; l − max of some 500 already carries fp32 rounding of that size.
double logprob_slack(double logprob) { return 2e-5 + 2e-7 * std::abs(logprob); }

void expect_logprobs(std::span<const float> logits, const Ask& ask, const Picks& picks, size_t entry) {
  Ask mask_only;
  mask_only.mask = ask.mask;
  const std::vector<float> raw = patched(logits, mask_only);
  const double max = *std::max_element(raw.begin(), raw.end());
  double sum = 0;
  for (const float l : raw) sum += std::exp(l - max);
  const auto logprob = [&](size_t id) { return raw[id] - max - std::log(sum); };
  const auto picked = static_cast<size_t>(picks.ids[entry]);
  ASSERT_NEAR(picks.logprobs[entry], logprob(picked), logprob_slack(logprob(picked)));

  std::vector<int32_t> order(raw.size());
  std::iota(order.begin(), order.end(), 0);
  const auto wanted = static_cast<size_t>(ask.logprobs);
  const auto before = [&](int32_t a, int32_t b) {
    const float la = raw[static_cast<size_t>(a)];
    const float lb = raw[static_cast<size_t>(b)];
    return la > lb || (la == lb && a < b);
  };
  const size_t sorted = std::min(wanted, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(sorted), order.end(), before);
  for (size_t i = 0; i < wanted; ++i) {
    const size_t at = entry * kernels::kMaxTopLogprobs + i;
    const bool present = i < order.size() && raw[static_cast<size_t>(order[i])] > -kInfinity;
    ASSERT_EQ(picks.top_ids[at], present ? order[i] : -1) << "top " << i;
    if (present) {
      const double expected = logprob(static_cast<size_t>(order[i]));
      ASSERT_NEAR(picks.top_logprobs[at], expected, logprob_slack(expected));
    } else {
      ASSERT_EQ(picks.top_logprobs[at], -kInfinity);
    }
  }
}

class Sampler : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

void compare_with_cpu(int vocab, int rows, unsigned seed) {
  std::mt19937 random(seed);
  Logits logits(vocab, rows);
  std::vector<Ask> asks;
  for (int r = 0; r < rows; ++r) {
    fill_row(logits.row(r), random);
    asks.push_back(random_ask(r, vocab, random));
  }
  const Picks picks = pick(logits, asks);
  for (size_t i = 0; i < asks.size(); ++i) {
    const std::span<const float> row = logits.row(asks[i].logits_row);
    const int32_t expected = expected_id(row, asks[i]);
    if (expected < 0) {
      ASSERT_EQ(picks.status[i], SamplerStatus::kNothingAllowed);
      ASSERT_EQ(picks.ids[i], -1);
      continue;
    }
    ASSERT_EQ(picks.status[i], SamplerStatus::kPicked);
    ASSERT_EQ(picks.ids[i], expected) << "row " << i << " of " << vocab << ": " << describe(asks[i]);
    if (asks[i].logprobs >= 0) expect_logprobs(row, asks[i], picks, i);
  }
}

TEST_F(Sampler, PicksTheIdsOfTheCpu) {
  compare_with_cpu(4096, 3000, 1);
  compare_with_cpu(37, 1000, 2);
  compare_with_cpu(1, 20, 3);
  compare_with_cpu(20'001, 300, 4);
}

TEST_F(Sampler, PicksTheIdsOfTheCpuFromAWholeVocabulary) { compare_with_cpu(154'880, 120, 5); }

TEST_F(Sampler, ARowDependsOnItsEntryAlone) {
  std::mt19937 random(6);
  const int rows = 40;
  Logits logits(20'000, rows);
  std::vector<Ask> asks;
  for (int r = 0; r < rows; ++r) {
    fill_row(logits.row(r), random);
    asks.push_back(random_ask(r / 2, logits.vocab, random));  // pairs share a row
    asks.back().logprobs = 5;
  }
  const Picks together = pick(logits, asks);
  for (size_t i = 0; i < asks.size(); ++i) {
    const Picks alone = pick(logits, {asks[i]});
    ASSERT_EQ(alone.ids[0], together.ids[i]);
    ASSERT_EQ(std::memcmp(alone.logprobs.data(), together.logprobs.data() + i, sizeof(float)), 0);
    ASSERT_EQ(std::memcmp(alone.top_logprobs.data(), together.top_logprobs.data() + i * kernels::kMaxTopLogprobs,
                          5 * sizeof(float)),
              0);
  }
}

TEST_F(Sampler, ReportsRowsFromWhichNothingCanBeDrawn) {
  const int vocab = 5000;
  Logits logits(vocab, 5);
  for (int r = 0; r < 5; ++r) std::fill(logits.row(r).begin(), logits.row(r).end(), static_cast<float>(-r));
  logits.row(0)[4999] = kNan;
  logits.row(1)[17] = kInfinity;
  std::fill(logits.row(2).begin(), logits.row(2).end(), -kInfinity);
  std::vector<Ask> asks(9);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].params.temperature = i % 2 == 0 ? 1.0F : 0.0F;
  for (int i = 0; i < 5; ++i) asks[static_cast<size_t>(i)].logits_row = i;
  // NaN and infinity under a ban or a mask do no harm.
  asks[5].logits_row = 0;
  asks[5].banned = {4999};
  asks[6].logits_row = 1;
  asks[6].mask.assign((vocab + 31) / 32, ~0U);
  asks[6].mask[0] &= ~(1U << 17);
  asks[7].logits_row = 3;
  asks[7].mask.assign((vocab + 31) / 32, 0);
  asks[8].logits_row = 4;
  for (int32_t id = 0; id < vocab; ++id) asks[8].banned.push_back(id);
  for (const int logprobs : {-1, 20}) {
    for (Ask& ask : asks) ask.logprobs = logprobs;
    const Picks picks = pick(logits, asks);
    const auto ok = SamplerStatus::kPicked;
    const auto nan = SamplerStatus::kNotFinite;
    const auto none = SamplerStatus::kNothingAllowed;
    EXPECT_EQ(picks.status, (std::vector{nan, nan, none, ok, ok, ok, ok, none, none}));
    for (size_t i = 0; i < asks.size(); ++i) {
      EXPECT_EQ(picks.ids[i], picks.status[i] == ok ? expected_id(logits.row(asks[i].logits_row), asks[i]) : -1);
    }
  }
}

// Flat rows never fit the sorting buffer: the cut lies among equal logits.
TEST_F(Sampler, CutsAmongEqualLogits) {
  const int vocab = 154'880;
  Logits logits(vocab, 2);
  std::fill(logits.row(0).begin(), logits.row(0).end(), 3.25F);
  for (int id = 0; id < vocab; ++id) logits.row(1)[static_cast<size_t>(id)] = id % 3 == 0 ? 1.0F : 0.0F;
  std::vector<Ask> asks;
  for (int i = 0; i < 24; ++i) {
    Ask ask;
    ask.logits_row = i % 2;
    ask.position = i;
    ask.params.top_p = i % 4 < 2 ? 0.3F : 0.77F;
    ask.params.top_k = i % 3 == 0 ? 60'000 : 0;
    ask.params.seed = 5;
    ask.logprobs = 20;
    asks.push_back(ask);
  }
  const Picks picks = pick(logits, asks);
  for (size_t i = 0; i < asks.size(); ++i) {
    ASSERT_EQ(picks.ids[i], expected_id(logits.row(asks[i].logits_row), asks[i])) << describe(asks[i]);
    expect_logprobs(logits.row(asks[i].logits_row), asks[i], picks, i);
  }
}

TEST_F(Sampler, SkipsAbsentEntriesAndFollowsItsTablesInAGraph) {
  std::mt19937 random(7);
  const int vocab = 4096;
  const int rows = 6;
  Logits logits(vocab, rows);
  std::vector<Ask> asks;
  for (int r = 0; r < rows; ++r) {
    fill_row(logits.row(r), random);
    asks.push_back(random_ask(r, vocab, random));
    asks.back().params.temperature = 1.0F;
    asks.back().mask.clear();
  }
  const DeviceBuffer<float> device(logits.values);
  Batch batch(asks, vocab);
  Outputs outputs(asks.size());
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreate(&stream), "cudaStreamCreate");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t run = nullptr;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  sample(device.get(), logits.stride, vocab, batch.tables(), rows, batch.workspace(), outputs.pointers(), stream);
  check_cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check_cuda(cudaGraphInstantiate(&run, graph, 0), "cudaGraphInstantiate");
  for (int round = 0; round < 4; ++round) {
    outputs.ids.poison();
    batch.rows[2].logits_row = round % 2 == 0 ? -1 : 2;
    for (size_t r = 0; r < asks.size(); ++r) batch.rows[r].position = asks[r].position = 100 * round;
    batch.write_rows();
    check_cuda(cudaGraphLaunch(run, stream), "cudaGraphLaunch");
    check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    const std::vector<int32_t> ids = outputs.ids.read();
    for (size_t r = 0; r < asks.size(); ++r) {
      if (r == 2 && round % 2 == 0) {
        EXPECT_EQ(ids[r], -1) << "the poison";
      } else {
        EXPECT_EQ(ids[r], expected_id(logits.row(static_cast<int>(r)), asks[r]));
      }
    }
  }
  cudaGraphExecDestroy(run);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(SamplerArguments, RefusesBadShapes) {
  EXPECT_THROW(sample(nullptr, 4, 5, {}, 1, nullptr, {}, nullptr), std::invalid_argument);
  EXPECT_THROW(sample(nullptr, 6, 5, {}, 1, nullptr, {}, nullptr), std::invalid_argument);
  EXPECT_THROW(sample(nullptr, 1 << 19, (1 << 18) + 1, {}, 1, nullptr, {}, nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace glm53::kernels
