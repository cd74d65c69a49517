#include "kernels/router/router.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/common/cuda_check.h"
#include "tests/gpu/device_buffer.h"

namespace glm53::kernels {
namespace {

template <typename T>
std::vector<T> read_from(const T* from, size_t count) {
  std::vector<T> host(count);
  check_cuda(cudaMemcpy(host.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return host;
}

/// Tables in poisoned memory.
struct TestTables {
  TestTables(int rows, int topk, int experts)
      : memory(route_tables_bytes(rows, topk, experts)), tables(route_tables_at(memory.get(), rows, topk, experts)) {}
  DeviceBuffer<char> memory;
  RouteTables tables;
};

std::vector<__nv_bfloat16> random_bf16(size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<__nv_bfloat16> values(count);
  for (auto& v : values) v = __float2bfloat16(normal(random));
  return values;
}

struct Choice {
  std::vector<int> experts;
  std::vector<float> weights;
};

Choice choose(const float* logits, const float* bias, int experts, int topk, float scale) {
  std::vector<float> scores(static_cast<size_t>(experts));
  std::vector<int> order(scores.size());
  for (int e = 0; e < experts; ++e) scores[e] = static_cast<float>(1.0 / (1.0 + std::exp(-double{logits[e]})));
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](int e) {
    const float biased = scores[e] + bias[e];
    return std::isnan(biased) ? -std::numeric_limits<float>::infinity() : biased;
  };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key(a) > key(b); });
  Choice choice;
  double sum = 1e-20;
  for (int i = 0; i < topk; ++i) sum += scores[order[i]];
  for (int i = 0; i < topk; ++i) {
    choice.experts.push_back(order[i]);
    choice.weights.push_back(static_cast<float>(scores[order[i]] / sum * scale));
  }
  return choice;
}

/// Places, counts and segments against a stable sort of the slots.
void check_grouping(const RouteTables& tables, int rows, bool window) {
  const int topk = tables.topk;
  const auto slots = static_cast<size_t>(rows * topk);
  const auto expert_of_slot = read_from(tables.expert_of_slot, slots);
  const auto place_of_slot = read_from(tables.place_of_slot, slots);
  const auto first_place = read_from(tables.first_place, static_cast<size_t>(tables.experts) + 1);
  std::vector<int32_t> sorted;
  for (size_t s = 0; s < slots; ++s) {
    if (expert_of_slot[s] >= 0) {
      sorted.push_back(static_cast<int32_t>(s));
    } else {
      EXPECT_EQ(place_of_slot[s], -1);
    }
  }
  std::stable_sort(sorted.begin(), sorted.end(), [&](int a, int b) { return expert_of_slot[a] < expert_of_slot[b]; });
  EXPECT_EQ(read_from(tables.slot_of_place, sorted.size()), sorted);
  for (size_t p = 0; p < sorted.size(); ++p) ASSERT_EQ(place_of_slot[sorted[p]], static_cast<int>(p));
  std::vector<ExpertSegment> thin;
  std::vector<ExpertSegment> tiles;
  int place = 0;
  for (int e = 0; e < tables.experts; ++e) {
    ASSERT_EQ(first_place[e], place);
    const auto count = static_cast<int>(std::count(expert_of_slot.begin(), expert_of_slot.end(), e));
    if (window && count > 0 && count <= kThinExpertRows) {
      thin.push_back({e, place, count, 0});
    } else {
      for (int first = 0; first < count; first += kExpertTileRows) {
        tiles.push_back({e, place + first, std::min(kExpertTileRows, count - first), 0});
      }
    }
    place += count;
  }
  EXPECT_EQ(first_place[tables.experts], place);
  const auto counts = read_from(tables.counts, 2);
  ASSERT_EQ(counts[0], static_cast<int>(thin.size()));
  ASSERT_EQ(counts[1], static_cast<int>(tiles.size()));
  const auto same = [](const std::vector<ExpertSegment>& want, const ExpertSegment* device) {
    const auto got = read_from(device, want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got[i].expert, want[i].expert);
      ASSERT_EQ(got[i].first, want[i].first);
      ASSERT_EQ(got[i].rows, want[i].rows);
    }
  };
  same(thin, tables.thin);
  same(tiles, tables.tiles);
}

class RouterTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
  std::mt19937 random{20240607};
};

TEST_F(RouterTest, LogitsMatchDoubleAndDependOnTheRowAlone) {
  for (const auto& [hidden, experts] : {std::pair{256, 8}, std::pair{4096, 288}, std::pair{1160, 37}}) {
    const int rows = 70;
    const auto x = random_bf16(static_cast<size_t>(rows * hidden), random);
    const auto weight = random_bf16(static_cast<size_t>(experts * hidden), random);
    std::vector<float> weight_fp32(weight.size());
    for (size_t i = 0; i < weight.size(); ++i) weight_fp32[i] = __bfloat162float(weight[i]);
    const DeviceBuffer<__nv_bfloat16> device_x(x);
    const DeviceBuffer<__nv_bfloat16> device_weight(weight);
    const DeviceBuffer<float> device_weight_fp32(weight_fp32);
    const auto run = [&](int first, int count, bool fp32) {
      const DeviceBuffer<float> logits(static_cast<size_t>(count * experts));
      const __nv_bfloat16* from = device_x.get() + static_cast<int64_t>(first) * hidden;
      if (fp32) {
        router_logits(from, device_weight_fp32.get(), count, hidden, experts, logits.get(), nullptr);
      } else {
        router_logits(from, device_weight.get(), count, hidden, experts, logits.get(), nullptr);
      }
      return logits.read();
    };
    const auto all = run(0, rows, false);
    for (int r = 0; r < rows; ++r) {
      for (int e = 0; e < experts; ++e) {
        double sum = 0.0;
        double size = 0.0;
        for (int k = 0; k < hidden; ++k) {
          const double product = double{__bfloat162float(x[r * hidden + k])} * weight_fp32[e * hidden + k];
          sum += product;
          size += std::abs(product);
        }
        ASSERT_NEAR(all[r * experts + e], sum, 2e-7 * size) << hidden << " row " << r << " expert " << e;
      }
    }
    EXPECT_EQ(run(0, rows, true), all);
    for (const auto& [first, count] :
         {std::pair{0, 1}, std::pair{69, 1}, std::pair{5, 2}, std::pair{7, 16}, std::pair{3, 17}}) {
      const auto part = run(first, count, false);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + first * experts)) << first << " " << count;
    }
  }
}

TEST_F(RouterTest, ChoosesAndGroups) {
  struct Case {
    int rows, experts, topk;
    bool window;
  };
  for (const Case c : {Case{1, 288, 8, true}, Case{64, 288, 8, true}, Case{17, 8, 2, true}, Case{64, 8, 2, true},
                       Case{1, 288, 8, false}, Case{65, 8, 2, false}, Case{2048, 288, 8, false},
                       Case{1000, 384, 32, false}, Case{33, 5, 5, true}}) {
    std::normal_distribution<float> normal(0.0F, 2.0F);
    std::vector<float> logits(static_cast<size_t>(c.rows * c.experts));
    std::vector<float> bias(static_cast<size_t>(c.experts));
    for (float& v : logits) v = normal(random);
    for (float& v : bias) v = 0.1F * normal(random);
    const DeviceBuffer<float> device_logits(logits);
    const DeviceBuffer<float> device_bias(bias);
    const TestTables test(c.rows + 3, c.topk, c.experts);
    RouterOptions options;
    options.scale = 2.5F;
    options.window = c.window;
    route(device_logits.get(), device_bias.get(), c.rows, options, test.tables, nullptr);
    const auto slots = static_cast<size_t>(c.rows * c.topk);
    const auto experts = read_from(test.tables.expert_of_slot, slots);
    const auto weights = read_from(test.tables.weight_of_slot, slots);
    for (int r = 0; r < c.rows; ++r) {
      const Choice want = choose(logits.data() + r * c.experts, bias.data(), c.experts, c.topk, 2.5F);
      for (int i = 0; i < c.topk; ++i) {
        const int got = experts[r * c.topk + i];
        if (got != want.experts[i]) {  // legal only for biased scores that differ by a rounding of the sigmoid
          const auto biased = [&](int e) {
            return 1.0 / (1.0 + std::exp(-double{logits[r * c.experts + e]})) + bias[e];
          };
          ASSERT_NEAR(biased(got), biased(want.experts[i]), 1e-6) << "row " << r << " choice " << i;
          continue;
        }
        ASSERT_NEAR(weights[r * c.topk + i], want.weights[i], 2e-6F * want.weights[i]);
      }
    }
    check_grouping(test.tables, c.rows, c.window);
  }
}

TEST_F(RouterTest, TiesTakeTheLowerIdAndNanLoses) {
  const int experts = 40;
  const int topk = 4;
  std::vector<float> logits(3 * experts, 0.25F);
  logits[experts + 39] = 0.5F;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int e = 0; e < experts; ++e) logits[2 * experts + e] = e == 7 || e == 38 || e == 39 ? 0.0F : nan;
  const DeviceBuffer<float> device_logits(logits);
  const DeviceBuffer<float> bias(std::vector<float>(experts, 0.0F));
  const TestTables test(3, topk, experts);
  route(device_logits.get(), bias.get(), 3, {}, test.tables, nullptr);
  EXPECT_EQ(read_from(test.tables.expert_of_slot, 3 * topk),
            (std::vector<int32_t>{0, 1, 2, 3, 39, 0, 1, 2, 7, 38, 39, 0}));
}

TEST_F(RouterTest, PaddingRowsAreNotRouted) {
  for (const bool window : {true, false}) {
    const int rows = window ? 12 : 200;
    const int experts = 24;
    const int topk = 3;
    std::vector<float> logits(static_cast<size_t>(rows * experts));
    std::normal_distribution<float> normal;
    for (float& v : logits) v = normal(random);
    std::vector<int32_t> row_segment(static_cast<size_t>(rows), 0);
    for (int r = 0; r < rows; ++r) row_segment[r] = r % 3 == 1 || r >= rows - 2 ? -1 : r % 5;
    const DeviceBuffer<float> device_logits(logits);
    const DeviceBuffer<float> bias(std::vector<float>(experts, 0.0F));
    const DeviceBuffer<int32_t> device_segments(row_segment);
    const TestTables test(rows, topk, experts);
    RouterOptions options;
    options.window = window;
    options.row_segment = device_segments.get();
    route(device_logits.get(), bias.get(), rows, options, test.tables, nullptr);
    const auto chosen = read_from(test.tables.expert_of_slot, static_cast<size_t>(rows * topk));
    for (int s = 0; s < rows * topk; ++s) EXPECT_EQ(chosen[s] < 0, row_segment[s / topk] < 0);
    check_grouping(test.tables, rows, window);
  }
}

TEST(Router, RefusesBadSizes) {
  EXPECT_THROW(route_tables_bytes(4, 8, 513), std::invalid_argument);
  EXPECT_THROW(route_tables_bytes(4, 9, 8), std::invalid_argument);
  EXPECT_THROW(router_logits(nullptr, static_cast<const float*>(nullptr), 1, 12, 8, nullptr, nullptr),
               std::invalid_argument);
  const RouteTables tables = route_tables_at(nullptr, 100, 2, 8);
  EXPECT_THROW(group_slots(65, true, tables, nullptr), std::invalid_argument);
  EXPECT_THROW(group_slots(101, false, tables, nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace glm53::kernels
