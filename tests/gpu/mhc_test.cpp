#include "kernels/mhc/mhc.h"

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
constexpr int kZ = 24;

double value(Bf16 x) { return __bfloat162float(x); }
double rounded(double x) { return value(__float2bfloat16(static_cast<float>(x))); }

std::vector<Bf16> random_bf16(size_t count, float scale, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<Bf16> values(count);
  for (Bf16& v : values) v = __float2bfloat16(normal(random));
  return values;
}

struct Site {
  std::vector<float> fn;  ///< what the kernel sees, as fp32
  std::vector<float> base, scale, norm;
};

/// `sharpness` scales the coefficient logits.
Site random_site(int hidden, bool fp32, float sharpness, std::mt19937& random) {
  std::normal_distribution<float> normal;
  Site site;
  site.fn.resize(static_cast<size_t>(kZ) * 4 * static_cast<size_t>(hidden));
  for (float& v : site.fn) {
    v = normal(random) / std::sqrt(4.0F * static_cast<float>(hidden));
    if (!fp32) v = __bfloat162float(__float2bfloat16(v));
  }
  site.base.resize(kZ);
  for (float& v : site.base) v = 0.5F * normal(random);
  site.scale = {0.7F * sharpness, 1.1F * sharpness, 0.9F * sharpness};
  site.norm.resize(static_cast<size_t>(hidden));
  for (float& v : site.norm) v = 1.0F + 0.2F * normal(random);
  return site;
}

struct DeviceSite {
  DeviceBuffer<float> fn32, base, scale, norm;
  DeviceBuffer<Bf16> fn16;
  MhcSiteWeights weights;

  static std::vector<Bf16> to_bf16(const std::vector<float>& values) {
    std::vector<Bf16> out;
    for (const float v : values) out.push_back(__float2bfloat16(v));
    return out;
  }
  DeviceSite(const Site& site, bool fp32)
      : fn32(site.fn), base(site.base), scale(site.scale), norm(site.norm), fn16(to_bf16(site.fn)) {
    weights = {fp32 ? static_cast<const void*>(fn32.get()) : fn16.get(), fp32, base.get(), scale.get(), norm.get()};
  }
};

/// One row, fp64, from spec 10 §3.3.
struct Oracle {
  std::vector<double> mix, normed, normed_slack;

  Oracle(const Site& site, const Bf16* x, int hidden) {
    const size_t width = 4 * static_cast<size_t>(hidden);
    double squares = 0;
    for (size_t i = 0; i < width; ++i) squares += value(x[i]) * value(x[i]);
    const double rms = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
    double z[kZ];
    for (size_t k = 0; k < kZ; ++k) {
      double sum = 0;
      for (size_t i = 0; i < width; ++i) sum += double{site.fn[k * width + i]} * value(x[i]);
      z[k] = sum * rms * double{site.scale[k < 4 ? 0 : k < 8 ? 1 : 2]} + double{site.base[k]};
    }
    const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
    double pre[4];
    for (int h = 0; h < 4; ++h) pre[h] = sigmoid(z[h]) + 1e-6;
    for (int h = 0; h < 4; ++h) mix.push_back(2 * sigmoid(z[4 + h]));
    double c[4][4];
    for (int i = 0; i < 4; ++i) {
      const double* row = z + 8 + 4 * i;
      const double largest = *std::max_element(row, row + 4);
      double sum = 0;
      for (int j = 0; j < 4; ++j) sum += c[i][j] = std::exp(row[j] - largest);
      for (int j = 0; j < 4; ++j) c[i][j] = c[i][j] / sum + 1e-6;
    }
    for (int iteration = 0; iteration < 20; ++iteration) {
      for (int i = 0; i < 4 && iteration > 0; ++i) {
        const double sum = c[i][0] + c[i][1] + c[i][2] + c[i][3] + 1e-6;
        for (int j = 0; j < 4; ++j) c[i][j] /= sum;
      }
      for (int j = 0; j < 4; ++j) {
        const double sum = c[0][j] + c[1][j] + c[2][j] + c[3][j] + 1e-6;
        for (int i = 0; i < 4; ++i) c[i][j] /= sum;
      }
    }
    mix.insert(mix.end(), &c[0][0], &c[0][0] + 16);

    std::vector<double> u(static_cast<size_t>(hidden));
    std::vector<double> terms(u.size());
    double mean = 0;
    for (size_t d = 0; d < u.size(); ++d) {
      for (size_t h = 0; h < 4; ++h) {
        const double term = pre[h] * value(x[h * u.size() + d]);
        u[d] += term;
        terms[d] += std::abs(term);
      }
      u[d] = rounded(u[d]);
      mean += u[d] * u[d] / hidden;
    }
    const double r = 1 / std::sqrt(mean + 1e-5);
    for (size_t d = 0; d < u.size(); ++d) {
      normed.push_back(u[d] * r * double{site.norm[d]});
      // One ulp of the collapse and one of the result; cancelling terms are off by fp32's own rounding.
      normed_slack.push_back(std::abs(normed[d]) * 0x1p-7 + 2e-5 * terms[d] * r * std::abs(double{site.norm[d]}) +
                             1e-30);
    }
  }
};

/// Outputs as bits.
struct Result {
  std::vector<Bf16> streams, normed;
  std::vector<float> mix;
};

template <typename T>
bool same_bits(const std::vector<T>& a, size_t a_at, const std::vector<T>& b, size_t b_at, size_t count) {
  return std::memcmp(a.data() + a_at, b.data() + b_at, count * sizeof(T)) == 0;
}

Result run_pre(const DeviceSite& site, int hidden, const std::vector<Bf16>& streams, int rows) {
  const DeviceBuffer<Bf16> x(streams);
  const DeviceBuffer<char> workspace(mhc_workspace_bytes(rows, hidden));
  const DeviceBuffer<float> mix(static_cast<size_t>(rows) * kMhcMix);
  const DeviceBuffer<Bf16> normed(static_cast<size_t>(rows * hidden));
  mhc_pre(site.weights, {.hidden = hidden}, x.get(), rows, workspace.get(), mix.get(), normed.get(), nullptr);
  return {x.read(), normed.read(), mix.read()};
}

Result run_post_pre(const DeviceSite& site, int hidden, const std::vector<Bf16>& streams,
                    const std::vector<float>& old_mix, const std::vector<Bf16>& update, int rows, bool fused) {
  const DeviceBuffer<Bf16> x(streams);
  const DeviceBuffer<Bf16> y(update);
  const DeviceBuffer<char> workspace(mhc_workspace_bytes(rows, hidden));
  const DeviceBuffer<float> mix(old_mix);
  const DeviceBuffer<Bf16> normed(static_cast<size_t>(rows * hidden));
  const MhcShape shape{.hidden = hidden};
  if (fused) {
    mhc_post_pre(site.weights, shape, y.get(), rows, workspace.get(), x.get(), mix.get(), normed.get(), nullptr);
  } else {
    mhc_post(mix.get(), y.get(), rows, hidden, x.get(), nullptr);
    mhc_pre(site.weights, shape, x.get(), rows, workspace.get(), mix.get(), normed.get(), nullptr);
  }
  return {x.read(), normed.read(), mix.read()};
}

struct Case {
  int hidden;
  int rows;
  bool fp32;
  float stream_scale;
  float sharpness;
};

class Mhc : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_P(Mhc, AgreesWithTheFormulaWhateverTheRowsAround) {
  const auto [hidden, rows, fp32, stream_scale, sharpness] = GetParam();
  std::mt19937 random(static_cast<unsigned>(hidden + rows));
  const Site site = random_site(hidden, fp32, sharpness, random);
  const DeviceSite device(site, fp32);
  const auto width = static_cast<size_t>(hidden);
  std::vector<Bf16> streams = random_bf16(static_cast<size_t>(rows) * 4 * width, stream_scale, random);
  // A row of zeros meets the epsilons; a stream that dwarfs the others, the softmax.
  if (rows > 2) std::fill_n(streams.begin() + static_cast<ptrdiff_t>(4 * width), 4 * width, __float2bfloat16(0.0F));
  if (rows > 3) {
    for (size_t i = 0; i < width; ++i) {
      Bf16& v = streams[2 * 4 * width + width + i];
      v = __float2bfloat16(__bfloat162float(v) * 1000.0F);
    }
  }
  const Result got = run_pre(device, hidden, streams, rows);

  const int step = std::max(1, rows / 12);
  for (int r = 0; r < rows; r += r < 3 ? 1 : step) {
    const auto row = static_cast<size_t>(r);
    const Oracle expected(site, streams.data() + row * 4 * width, hidden);
    for (size_t i = 0; i < kMhcMix; ++i) {
      ASSERT_NEAR(got.mix[row * kMhcMix + i], expected.mix[i], 1e-5 * static_cast<double>(std::max(1.0F, sharpness)))
          << "row " << r << " mix " << i;
    }
    for (size_t j = 0; j < 4; ++j) {
      float column = 0;
      for (size_t i = 0; i < 4; ++i) column += got.mix[row * kMhcMix + 4 + 4 * i + j];
      ASSERT_NEAR(column, 1.0F, 1e-3F);
    }
    size_t exact = 0;
    for (size_t d = 0; d < width; ++d) {
      const double at = value(got.normed[row * width + d]);
      ASSERT_NEAR(at, expected.normed[d], expected.normed_slack[d]) << "row " << r << " column " << d;
      exact += at == rounded(expected.normed[d]) ? 1 : 0;
    }
    ASSERT_GT(exact, width * 97 / 100) << "row " << r;

    const std::vector<Bf16> alone(streams.begin() + static_cast<ptrdiff_t>(row * 4 * width),
                                  streams.begin() + static_cast<ptrdiff_t>((row + 1) * 4 * width));
    const Result single = run_pre(device, hidden, alone, 1);
    ASSERT_TRUE(same_bits(single.normed, 0, got.normed, row * width, width)) << "row " << r;
    ASSERT_TRUE(same_bits(single.mix, 0, got.mix, row * kMhcMix, kMhcMix)) << "row " << r;
  }
  ASSERT_TRUE(same_bits(got.streams, 0, streams, 0, streams.size()));
}

TEST_P(Mhc, FusedIsPostThenPre) {
  const auto [hidden, rows, fp32, stream_scale, sharpness] = GetParam();
  std::mt19937 random(static_cast<unsigned>(hidden * 3 + rows));
  const Site site = random_site(hidden, fp32, sharpness, random);
  const DeviceSite device(site, fp32);
  const auto width = static_cast<size_t>(hidden);
  const auto count = static_cast<size_t>(rows);
  const std::vector<Bf16> streams = random_bf16(count * 4 * width, stream_scale, random);
  const std::vector<Bf16> y = random_bf16(count * width, 2 * stream_scale, random);
  std::vector<float> mix(count * kMhcMix);
  std::uniform_real_distribution<float> uniform(0.0F, 1.5F);
  for (float& v : mix) v = uniform(random);

  const Result fused = run_post_pre(device, hidden, streams, mix, y, rows, true);
  const Result apart = run_post_pre(device, hidden, streams, mix, y, rows, false);
  ASSERT_TRUE(same_bits(fused.streams, 0, apart.streams, 0, streams.size()));
  ASSERT_TRUE(same_bits(fused.mix, 0, apart.mix, 0, mix.size()));
  ASSERT_TRUE(same_bits(fused.normed, 0, apart.normed, 0, y.size()));

  size_t exact = 0;
  size_t seen = 0;
  for (size_t r = 0; r < count; r += std::max<size_t>(1, count / 12)) {
    const float* m = mix.data() + r * kMhcMix;
    for (size_t j = 0; j < 4; ++j) {
      for (size_t d = 0; d < width; ++d) {
        double expected = double{m[j]} * value(y[r * width + d]);
        double terms = std::abs(expected);
        for (size_t i = 0; i < 4; ++i) {
          const double term = double{m[4 + 4 * i + j]} * value(streams[(r * 4 + i) * width + d]);
          expected += term;
          terms += std::abs(term);
        }
        const double at = value(fused.streams[(r * 4 + j) * width + d]);
        ASSERT_NEAR(at, expected, std::abs(expected) * 0x1p-8 + 1e-6 * terms) << "row " << r;
        exact += at == rounded(expected) ? 1 : 0;
        ++seen;
      }
    }
    const std::vector<Bf16> x1(streams.begin() + static_cast<ptrdiff_t>(r * 4 * width),
                               streams.begin() + static_cast<ptrdiff_t>((r + 1) * 4 * width));
    const std::vector<Bf16> y1(y.begin() + static_cast<ptrdiff_t>(r * width),
                               y.begin() + static_cast<ptrdiff_t>((r + 1) * width));
    const Result single = run_post_pre(device, hidden, x1, std::vector<float>(m, m + kMhcMix), y1, 1, true);
    ASSERT_TRUE(same_bits(single.streams, 0, fused.streams, r * 4 * width, 4 * width));
    ASSERT_TRUE(same_bits(single.normed, 0, fused.normed, r * width, width));
    ASSERT_TRUE(same_bits(single.mix, 0, fused.mix, r * kMhcMix, kMhcMix));
  }
  EXPECT_GT(exact, seen * 999 / 1000);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Mhc,
                         testing::Values(Case{256, 1, false, 1.0F, 1.0F}, Case{256, 70, false, 0.02F, 1.0F},
                                         Case{256, 1100, true, 1.0F, 1.0F}, Case{4096, 1, false, 1.0F, 1.0F},
                                         Case{4096, 7, true, 1.0F, 1.0F}, Case{4096, 8, false, 300.0F, 8.0F},
                                         Case{4096, 64, false, 1.0F, 1.0F}, Case{4096, 65, false, 0.001F, 1.0F},
                                         Case{4096, 531, false, 1.0F, 3.0F}));

TEST(MhcArguments, RefusesOtherWidths) {
  EXPECT_THROW(mhc_workspace_bytes(1, 128), std::invalid_argument);
  EXPECT_THROW(mhc_post(nullptr, nullptr, 1, 300, nullptr, nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace glm53::kernels
