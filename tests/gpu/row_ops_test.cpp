#include "kernels/row_ops/row_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/gpu/device_buffer.h"

namespace glm53::kernels {
namespace {

using Bf16 = __nv_bfloat16;

double value(Bf16 x) { return __bfloat162float(x); }

std::vector<Bf16> random_bf16(size_t count, float scale, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<Bf16> values(count);
  for (Bf16& v : values) v = __float2bfloat16(normal(random));
  return values;
}

std::vector<float> random_weight(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(1.0F, 0.2F);
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

bool same_bits(const Bf16* a, const Bf16* b, size_t count) { return std::memcmp(a, b, count * sizeof(Bf16)) == 0; }

class RowOps : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_F(RowOps, EmbedsIntoAllStreams) {
  for (const size_t hidden : {size_t{8}, size_t{256}, size_t{4096}}) {
    const size_t vocab = 50;
    const std::vector<Bf16> table = random_bf16(vocab * hidden, 1.0F, 1);
    const std::vector<int32_t> ids = {0, 49, -1, 7, 50, 7};
    const DeviceBuffer<Bf16> device_table(table);
    const DeviceBuffer<int32_t> device_ids(ids);
    const DeviceBuffer<Bf16> streams(ids.size() * 4 * hidden);
    embed(device_table.get(), static_cast<int64_t>(vocab), device_ids.get(), static_cast<int>(ids.size()),
          static_cast<int>(hidden), streams.get(), nullptr);
    const std::vector<Bf16> got = streams.read();
    const std::vector<Bf16> zeros(hidden, __float2bfloat16(0.0F));
    for (size_t i = 0; i < ids.size() * 4; ++i) {
      const int32_t id = ids[i / 4];
      const Bf16* expected = id < 0 || id >= 50 ? zeros.data() : table.data() + static_cast<size_t>(id) * hidden;
      EXPECT_TRUE(same_bits(got.data() + i * hidden, expected, hidden)) << "row " << i / 4 << " stream " << i % 4;
    }
  }
}

/// y within one bf16 ulp of x · rsqrt(mean x² + eps) · w.
void expect_normed(const std::vector<double>& x, const float* weight, const Bf16* y) {
  double mean = 0;
  for (const double v : x) mean += v * v / static_cast<double>(x.size());
  const double r = 1 / std::sqrt(mean + 1e-5);
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = x[i] * r * double{weight[i]};
    ASSERT_NEAR(value(y[i]), expected, std::abs(expected) * (0x1p-8 + 1e-5) + 1e-38) << "column " << i;
  }
}

TEST_F(RowOps, NormalisesStridedRowsAlsoInPlace) {
  for (const auto& [width, rows, scale] : {std::tuple{size_t{8}, size_t{3}, 1.0F},
                                           {1536, 65, 30.0F},
                                           {512, 7, 1e-3F},
                                           {4096, 33, 1.0F},
                                           {2056, 2, 1.0F}}) {
    const size_t stride = width + 24;
    std::vector<Bf16> x = random_bf16(rows * stride, scale, 2);
    std::fill_n(x.begin(), width, __float2bfloat16(0.0F));
    const std::vector<float> weight = random_weight(width, 3);
    const DeviceBuffer<Bf16> device_x(x);
    const DeviceBuffer<float> device_weight(weight);
    const DeviceBuffer<Bf16> y(rows * width);
    const auto w = static_cast<int>(width);
    rms_norm(device_x.get(), static_cast<int64_t>(stride), device_weight.get(), w, 1e-5F, static_cast<int>(rows),
             y.get(), w, nullptr);
    const std::vector<Bf16> got = y.read();
    const DeviceBuffer<Bf16> alone(width);
    for (size_t r = 0; r < rows; ++r) {
      std::vector<double> values;
      for (size_t i = 0; i < width; ++i) values.push_back(value(x[r * stride + i]));
      expect_normed(values, weight.data(), got.data() + r * width);
      rms_norm(device_x.get() + r * stride, static_cast<int64_t>(stride), device_weight.get(), w, 1e-5F, 1, alone.get(),
               w, nullptr);
      ASSERT_TRUE(same_bits(alone.read().data(), got.data() + r * width, width)) << "row " << r;
    }
    rms_norm(device_x.get(), static_cast<int64_t>(stride), device_weight.get(), w, 1e-5F, static_cast<int>(rows),
             device_x.get(), static_cast<int64_t>(stride), nullptr);
    const std::vector<Bf16> in_place = device_x.read();
    for (size_t r = 0; r < rows; ++r) {
      ASSERT_TRUE(same_bits(in_place.data() + r * stride, got.data() + r * width, width));
      ASSERT_TRUE(same_bits(in_place.data() + r * stride + width, x.data() + r * stride + width, 24)) << "padding";
    }
  }
}

TEST_F(RowOps, CollapsesChosenRows) {
  for (const size_t hidden : {size_t{256}, size_t{4096}}) {
    const std::vector<Bf16> streams = random_bf16(9 * 4 * hidden, 5.0F, 4);
    const std::vector<float> norm = random_weight(hidden, 5);
    const std::vector<int32_t> which = {8, 0, -1, 3, 3};
    const DeviceBuffer<Bf16> x(streams);
    const DeviceBuffer<float> device_norm(norm);
    const DeviceBuffer<int32_t> rows(which);
    const DeviceBuffer<Bf16> mean(which.size() * hidden);
    const DeviceBuffer<Bf16> normed(which.size() * hidden);
    collapse_streams(x.get(), rows.get(), 5, static_cast<int>(hidden), nullptr, 1e-5F, mean.get(), nullptr);
    collapse_streams(x.get(), rows.get(), 5, static_cast<int>(hidden), device_norm.get(), 1e-5F, normed.get(), nullptr);
    const std::vector<Bf16> got_mean = mean.read();
    const std::vector<Bf16> got = normed.read();
    for (size_t i = 0; i < which.size(); ++i) {
      std::vector<double> expected(hidden);
      for (size_t d = 0; d < hidden && which[i] >= 0; ++d) {
        const Bf16* row = streams.data() + static_cast<size_t>(which[i]) * 4 * hidden + d;
        // The four bf16 values of like size add exactly in fp32 but for the odd last bit.
        expected[d] = (value(row[0]) + value(row[hidden]) + value(row[2 * hidden]) + value(row[3 * hidden])) / 4;
        ASSERT_NEAR(value(got_mean[i * hidden + d]), expected[d], std::abs(expected[d]) * 0x1p-8 + 1e-6);
        expected[d] = value(got_mean[i * hidden + d]);
      }
      if (which[i] >= 0) {
        expect_normed(expected, norm.data(), got.data() + i * hidden);
      } else {
        for (size_t d = 0; d < hidden; ++d) ASSERT_EQ(value(got[i * hidden + d]), 0.0);
      }
    }
    EXPECT_TRUE(same_bits(got.data() + 3 * hidden, got.data() + 4 * hidden, hidden));
  }
}

TEST_F(RowOps, SwigluClampsAndPassesNan) {
  const size_t rows = 37;
  const size_t width = 72;
  std::vector<Bf16> x = random_bf16(rows * 2 * width, 8.0F, 6);
  const float corners[] = {10.0F, 10.0625F, -10.0F, -10.0625F, 3e38F, -3e38F, INFINITY, -INFINITY, 0.0F, -0.0F, NAN};
  for (size_t i = 0; i < std::size(corners); ++i) {
    x[i] = __float2bfloat16(corners[i]);
    x[2 * width + width + i] = __float2bfloat16(corners[i]);
  }
  const DeviceBuffer<Bf16> device_x(x);
  const DeviceBuffer<Bf16> h(rows * width);
  swiglu(device_x.get(), static_cast<int>(rows), static_cast<int>(width), 10.0F, h.get(), nullptr);
  const std::vector<Bf16> got = h.read();
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < width; ++c) {
      const double gate = std::min(value(x[r * 2 * width + c]), 10.0);
      const double up = std::clamp(value(x[r * 2 * width + width + c]), -10.0, 10.0);
      const double at = value(got[r * width + c]);
      const double expected = gate / (1 + std::exp(-gate)) * up;
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(at)) << gate << ' ' << up;
        continue;
      }
      ASSERT_NEAR(at, expected, std::abs(expected) * (0x1p-8 + 1e-5) + 1e-38) << gate << ' ' << up;
    }
  }
}

TEST_F(RowOps, CopiesListedRowsOnly) {
  const size_t width = 24;
  const std::vector<Bf16> source = random_bf16(6 * width, 1.0F, 7);
  const std::vector<Bf16> before = random_bf16(5 * width, 1.0F, 8);
  const DeviceBuffer<Bf16> from(source);
  DeviceBuffer<Bf16> to(before);
  const DeviceBuffer<int32_t> from_rows(std::vector<int32_t>{5, -1, 2, 0});
  const DeviceBuffer<int32_t> to_rows(std::vector<int32_t>{1, 2, -1, 4});
  const int64_t bytes = width * sizeof(Bf16);
  copy_rows(from.get(), bytes, from_rows.get(), to.get(), bytes, to_rows.get(), 4, bytes, nullptr);
  std::vector<Bf16> got = to.read();
  const int expected_row[] = {-1, 5, -1, -1, 0};
  for (size_t r = 0; r < 5; ++r) {
    const Bf16* expected =
        expected_row[r] < 0 ? before.data() + r * width : source.data() + static_cast<size_t>(expected_row[r]) * width;
    EXPECT_TRUE(same_bits(got.data() + r * width, expected, width)) << "row " << r;
  }
  // Without lists, and part of a row.
  to.write(before);
  copy_rows(from.get(), bytes, nullptr, to.get(), bytes, nullptr, 3, 16, nullptr);
  got = to.read();
  for (size_t r = 0; r < 5; ++r) {
    EXPECT_TRUE(same_bits(got.data() + r * width, (r < 3 ? source : before).data() + r * width, 8));
    EXPECT_TRUE(same_bits(got.data() + r * width + 8, before.data() + r * width + 8, width - 8));
  }
  zero_fill(to.get(), to.size() * sizeof(Bf16), nullptr);
  for (const Bf16 v : to.read()) EXPECT_EQ(value(v), 0.0);
}

TEST(RowOpsArguments, RefusesOddWidths) {
  EXPECT_THROW(embed(nullptr, 1, nullptr, 1, 12, nullptr, nullptr), std::invalid_argument);
  EXPECT_THROW(rms_norm(nullptr, 20, nullptr, 16, 1e-5F, 1, nullptr, 16, nullptr), std::invalid_argument);
  EXPECT_THROW(collapse_streams(nullptr, nullptr, 1, 4, nullptr, 0, nullptr, nullptr), std::invalid_argument);
  EXPECT_THROW(swiglu(nullptr, 1, 12, 10, nullptr, nullptr), std::invalid_argument);
  EXPECT_THROW(copy_rows(nullptr, 16, nullptr, nullptr, 16, nullptr, 1, 8, nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace glm53::kernels
