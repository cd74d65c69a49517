#include "backend/cpu/vector_kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "glm53/core/float_convert.h"

namespace glm53::cpu {
namespace {

using Floats = std::vector<float>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kHead = 128;

class VectorKernelsTest : public ::testing::TestWithParam<const VectorKernels*> {
 protected:
  const VectorKernels& kernels() const { return *GetParam(); }

  Floats random(int64_t n, float low, float high) {
    std::uniform_real_distribution<float> uniform(low, high);
    Floats values(static_cast<size_t>(n));
    for (float& value : values) value = uniform(rng_);
    return values;
  }
  /// Both signs, magnitudes 2^-20 .. 2^20.
  Floats wide_random(int64_t n) {
    Floats values = random(n, -1, 1);
    for (float& value : values) value = std::ldexp(value, static_cast<int>(rng_() % 41) - 20);
    return values;
  }

  std::mt19937 rng_{7};
};

std::string variant_name(const ::testing::TestParamInfo<const VectorKernels*>& info) {
  return std::string(info.param->name);
}
INSTANTIATE_TEST_SUITE_P(Variants, VectorKernelsTest, ::testing::ValuesIn(available_vector_kernels()), variant_name);

bool same_bits(const float* a, const float* b, int64_t n) {
  return std::memcmp(a, b, static_cast<size_t>(n) * sizeof(float)) == 0;
}
bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && same_bits(a.data(), b.data(), static_cast<int64_t>(a.size()));
}

/// |got − want| in units of want's last place.
double ulp_error(float got, double want) {
  const auto rounded = static_cast<float>(want);
  const double unit = std::ldexp(1.0, std::max(std::ilogb(rounded), -126) - 23);
  return std::abs(static_cast<double>(got) - want) / unit;
}

TEST(VectorKernels, GenericVariantIsAlwaysThere) {
  const auto variants = available_vector_kernels();
  ASSERT_FALSE(variants.empty());
  EXPECT_EQ(&vector_kernels(), variants.front());
  const std::string_view baseline = variants.back()->name;
  EXPECT_TRUE(baseline == "generic" || baseline == "neon") << baseline;
}

TEST(PackPanels, LayoutAndRounding) {
  constexpr int64_t kIn = 5;
  constexpr int64_t kOut = 19;
  Floats w(kIn * kOut);
  for (size_t i = 0; i < w.size(); ++i) w[i] = 1.0F + static_cast<float>(i) / 128.0F;  // exact in bf16
  EXPECT_EQ(panel_bytes(PanelFormat::kF32, kIn, kOut), 2 * 5 * 16 * 4);
  EXPECT_EQ(panel_bytes(PanelFormat::kBF16, kIn, kOut), 2 * 5 * 16 * 2);
  Floats f32(2 * kIn * 16, 0.0F);
  std::vector<uint16_t> bf16(2 * kIn * 16, 0);
  // In two pieces, the cut inside a panel.
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 7}, std::pair<int64_t, int64_t>{7, 12}}) {
    pack_panels(w.data() + begin * kIn, kIn, begin, count, kIn, PanelFormat::kF32, f32.data());
    pack_panels(w.data() + begin * kIn, kIn, begin, count, kIn, PanelFormat::kBF16, bf16.data());
  }
  for (int64_t o = 0; o < 32; ++o) {
    for (int64_t i = 0; i < kIn; ++i) {
      const auto at = static_cast<size_t>(o / 16 * kIn * 16 + i * 16 + o % 16);
      const float want = o < kOut ? w[static_cast<size_t>(o * kIn + i)] : 0.0F;
      EXPECT_EQ(f32[at], want);
      EXPECT_EQ(bf16_to_float(bf16[at]), want);
    }
  }
  const float tie = 1.0F + 1.0F / 256.0F;  // halfway between bf16 neighbours: the even one
  std::vector<uint16_t> one(16, 0);
  pack_panels(&tie, 1, 0, 1, 1, PanelFormat::kBF16, one.data());
  EXPECT_EQ(bf16_to_float(one[0]), 1.0F);
}

// ---- linear ------------------------------------------------------------------------------------------------------

struct Matrix {
  Floats weights;  // [out][in]
  Floats panels;   // packed, in either format
  int64_t in;
  int64_t out;
  PanelFormat format;
};

Matrix make_matrix(Floats weights, int64_t in, int64_t out, PanelFormat format) {
  if (format == PanelFormat::kBF16) {
    for (float& value : weights) value = bf16_to_float(float_to_bf16(value));
  }
  Matrix m{std::move(weights), Floats(static_cast<size_t>(panel_bytes(format, in, out) / 4), 0.0F), in, out, format};
  pack_panels(m.weights.data(), in, 0, out, in, format, m.panels.data());
  return m;
}

Floats run_linear(const VectorKernels& kernels, const Matrix& m, const float* x, int64_t x_stride, int rows) {
  Floats y(static_cast<size_t>(rows * m.out), kNan);
  kernels.linear(x, x_stride, rows, m.panels.data(), m.format, m.in, m.out, 0, (m.out + 15) / 16, y.data(), m.out);
  return y;
}

TEST_P(VectorKernelsTest, LinearAgainstDouble) {
  for (const PanelFormat format : {PanelFormat::kF32, PanelFormat::kBF16}) {
    for (const int64_t in : {1, 2, 31, 256, 1024}) {
      for (const int64_t out : {1, 15, 16, 17, 24, 100, 208}) {
        const Matrix m = make_matrix(wide_random(in * out), in, out, format);
        for (const int rows : {1, 2, 7, 13, 40}) {
          const int64_t stride = in + 3;
          const Floats x = wide_random(rows * stride);
          const Floats y = run_linear(kernels(), m, x.data(), stride, rows);
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t o = 0; o < out; ++o) {
              double sum = 0;
              double magnitude = 0;
              for (int64_t i = 0; i < in; ++i) {
                const double term = static_cast<double>(x[static_cast<size_t>(r * stride + i)]) *
                                    m.weights[static_cast<size_t>(o * in + i)];
                sum += term;
                magnitude += std::abs(term);
              }
              // Worst-case bound of a chain of `in` roundings.
              const double bound = magnitude * static_cast<double>(in + 1) * 0x1p-24;
              ASSERT_NEAR(y[static_cast<size_t>(r * out + o)], sum, bound) << in << "x" << out << " row " << r;
            }
          }
        }
      }
    }
  }
}

TEST_P(VectorKernelsTest, LinearRowBitsDoNotDependOnTheBatch) {
  constexpr int kRows = 33;
  constexpr int64_t kIn = 96;
  constexpr int64_t kOut = 200;  // 12.5 panels: every width of tile occurs
  for (const PanelFormat format : {PanelFormat::kF32, PanelFormat::kBF16}) {
    const Matrix m = make_matrix(wide_random(kIn * kOut), kIn, kOut, format);
    const Floats x = wide_random(kRows * kIn);
    Floats alone;
    for (int r = 0; r < kRows; ++r) {
      const Floats row = run_linear(kernels(), m, x.data() + r * kIn, kIn, 1);
      alone.insert(alone.end(), row.begin(), row.end());
    }
    for (int rows = 1; rows <= kRows; ++rows) {
      for (int first = 0; first + rows <= kRows; ++first) {
        const Floats y = run_linear(kernels(), m, x.data() + first * kIn, kIn, rows);
        ASSERT_TRUE(same_bits(y.data(), alone.data() + first * kOut, rows * kOut)) << rows << " rows from " << first;
      }
    }
  }
}

TEST_P(VectorKernelsTest, LinearPanelRanges) {
  constexpr int64_t kIn = 40;
  constexpr int64_t kOut = 16 * 13 + 5;
  constexpr int64_t kPanels = 14;
  for (const PanelFormat format : {PanelFormat::kF32, PanelFormat::kBF16}) {
    const Matrix m = make_matrix(wide_random(kIn * kOut), kIn, kOut, format);
    for (const int rows : {1, 5, 14}) {
      const Floats x = wide_random(rows * kIn);
      const Floats whole = run_linear(kernels(), m, x.data(), kIn, rows);
      for (int64_t begin = 0; begin <= kPanels; ++begin) {
        for (int64_t end = begin; end <= kPanels; ++end) {
          constexpr int64_t kStride = kOut + 9;
          Floats y(static_cast<size_t>(rows * kStride), -7.0F);
          kernels().linear(x.data(), kIn, rows, m.panels.data(), format, kIn, kOut, begin, end, y.data(), kStride);
          Floats want(y.size(), -7.0F);  // outputs of other panels and the gap between rows stay as they are
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t o = begin * 16; o < std::min(end * 16, kOut); ++o) {
              want[static_cast<size_t>(r * kStride + o)] = whole[static_cast<size_t>(r * kOut + o)];
            }
          }
          ASSERT_TRUE(same_bits(y, want)) << rows << " rows, panels " << begin << ".." << end;
        }
      }
    }
  }
}

TEST_P(VectorKernelsTest, LinearKeepsNonFiniteValuesInTheirRow) {
  constexpr int64_t kIn = 20;
  constexpr int64_t kOut = 33;
  const Matrix m = make_matrix(random(kIn * kOut, 0.5F, 1), kIn, kOut, PanelFormat::kBF16);
  Floats x = random(14 * kIn, 0.5F, 1);
  x[3 * kIn + 7] = kNan;
  x[9 * kIn + 1] = kInf;
  const Floats y = run_linear(kernels(), m, x.data(), kIn, 14);
  for (int64_t r = 0; r < 14; ++r) {
    for (int64_t o = 0; o < kOut; ++o) {
      const float value = y[static_cast<size_t>(r * kOut + o)];
      if (r == 3) {
        EXPECT_TRUE(std::isnan(value));
      } else if (r == 9) {
        EXPECT_EQ(value, kInf);
      } else {
        EXPECT_TRUE(std::isfinite(value));
      }
    }
  }
}

// ---- elementwise -------------------------------------------------------------------------------------------------

TEST_P(VectorKernelsTest, ExpSweep) {
  // Every 4999th float of both signs, and every float around the ends of the range.
  Floats x;
  for (uint32_t bits = 0; bits < 0x7F800000U; bits += 4999) {
    x.push_back(std::bit_cast<float>(bits));
    x.push_back(-std::bit_cast<float>(bits));
  }
  for (const float centre : {88.7228317F, -87.3365402F, 0.34657359F, -0.34657359F, 1.0F}) {
    const uint32_t bits = std::bit_cast<uint32_t>(centre);
    for (uint32_t near = bits - 2000; near < bits + 2000; ++near) x.push_back(std::bit_cast<float>(near));
  }
  Floats y(x.size());
  kernels().exp(x.data(), y.data(), static_cast<int64_t>(x.size()));
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(x[i]));
    if (want < std::numeric_limits<float>::min()) {
      ASSERT_EQ(y[i], 0.0F) << x[i];
    } else if (want > std::numeric_limits<float>::max()) {
      ASSERT_EQ(y[i], kInf) << x[i];
    } else {
      ASSERT_TRUE(std::isfinite(y[i])) << x[i];
      worst = std::max(worst, ulp_error(y[i], want));
    }
  }
  EXPECT_LE(worst, 2.0);
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST_P(VectorKernelsTest, ExpSpecialValues) {
  const Floats x = {kInf, -kInf, kNan, 0.0F, -0.0F, 1e30F, -1e30F, std::numeric_limits<float>::denorm_min(), -1e-40F};
  Floats y(x.size());
  kernels().exp(x.data(), y.data(), static_cast<int64_t>(x.size()));
  EXPECT_EQ(y[0], kInf);
  EXPECT_EQ(y[1], 0.0F);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[5], kInf);
  EXPECT_EQ(y[6], 0.0F);
  for (const size_t one : {size_t{3}, size_t{4}, size_t{7}, size_t{8}}) EXPECT_EQ(y[one], 1.0F);
}

TEST_P(VectorKernelsTest, SigmoidAndSilu) {
  Floats x = random(20000, -30, 30);
  for (float value = -86; value <= 100; value += 0.03125F) x.push_back(value);
  for (float magnitude = 1e-30F; magnitude < 1; magnitude *= 1.7F) {
    x.push_back(magnitude);
    x.push_back(-magnitude);
  }
  Floats sigmoid(x.size());
  Floats silu(x.size());
  kernels().sigmoid(x.data(), sigmoid.data(), static_cast<int64_t>(x.size()));
  kernels().silu(x.data(), silu.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = 1.0 / (1.0 + std::exp(-static_cast<double>(x[i])));
    ASSERT_LE(ulp_error(sigmoid[i], want), 4.0) << x[i];
    ASSERT_LE(ulp_error(silu[i], x[i] * want), 4.0) << x[i];
  }
  const Floats special = {kInf, -kInf, kNan, -1000.0F, 1000.0F};
  Floats y(special.size());
  kernels().sigmoid(special.data(), y.data(), static_cast<int64_t>(special.size()));
  EXPECT_EQ(y[0], 1.0F);
  EXPECT_EQ(y[1], 0.0F);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], 0.0F);
  EXPECT_EQ(y[4], 1.0F);
  kernels().silu(special.data(), y.data(), static_cast<int64_t>(special.size()));
  EXPECT_EQ(y[0], kInf);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], 0.0F);
  EXPECT_EQ(y[4], 1000.0F);
}

TEST_P(VectorKernelsTest, Swiglu) {
  constexpr float kLimit = 7.0F;
  Floats gate = random(1003, -20, 20);
  Floats up = random(1003, -20, 20);
  gate[5] = kInf;
  up[5] = -kInf;
  gate[6] = kNan;
  gate[7] = 1.0F;
  up[7] = kNan;
  Floats y(gate.size());
  kernels().swiglu(gate.data(), up.data(), kLimit, y.data(), static_cast<int64_t>(y.size()));
  for (size_t i = 0; i < y.size(); ++i) {
    if (i == 6 || i == 7) {
      EXPECT_TRUE(std::isnan(y[i]));
      continue;
    }
    const double a = std::min<double>(gate[i], kLimit);
    const double b = std::clamp<double>(up[i], -kLimit, kLimit);
    ASSERT_LE(ulp_error(y[i], a / (1 + std::exp(-a)) * b), 5.0) << gate[i] << " " << up[i];
  }
}

TEST_P(VectorKernelsTest, ElementwiseBitsDoNotDependOnPositionAndTailsAreKept) {
  constexpr int64_t kCount = 75;
  const Floats x = random(kCount, -10, 10);
  const Floats u = random(kCount, -10, 10);
  const auto apply = [&](int which, const float* a, const float* b, float* y, int64_t n) {
    if (which == 0) kernels().exp(a, y, n);
    if (which == 1) kernels().sigmoid(a, y, n);
    if (which == 2) kernels().silu(a, y, n);
    if (which == 3) kernels().swiglu(a, b, 7.0F, y, n);
    if (which == 4) {
      std::copy_n(b, n, y);
      kernels().axpy(0.3F, a, y, n);
    }
  };
  for (int which = 0; which < 5; ++which) {
    Floats whole(kCount);
    apply(which, x.data(), u.data(), whole.data(), kCount);
    for (int64_t begin = 0; begin < 20; ++begin) {
      for (int64_t n = 0; begin + n <= kCount; ++n) {
        Floats y(kCount + 1, -7.0F);
        apply(which, x.data() + begin, u.data() + begin, y.data(), n);
        ASSERT_TRUE(same_bits(y.data(), whole.data() + begin, n)) << which << " " << begin << " " << n;
        ASSERT_TRUE(std::all_of(y.begin() + n, y.end(), [](float value) { return value == -7.0F; }));
      }
    }
    Floats in_place = x;
    if (which < 4) {
      apply(which, in_place.data(), u.data(), in_place.data(), kCount);
      EXPECT_TRUE(same_bits(in_place, whole));
    }
  }
}

TEST_P(VectorKernelsTest, DotSumSquaresAxpy) {
  for (int64_t n = 0; n < 300; ++n) {
    const Floats a = wide_random(n);
    const Floats b = wide_random(n);
    double dot = 0;
    double magnitude = 0;
    double squares = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      dot += static_cast<double>(a[i]) * b[i];
      magnitude += std::abs(static_cast<double>(a[i]) * b[i]);
      squares += static_cast<double>(a[i]) * a[i];
    }
    const float got = kernels().dot(a.data(), b.data(), n);
    ASSERT_NEAR(got, dot, magnitude * 30 * 0x1p-24);
    ASSERT_NEAR(kernels().sum_squares(a.data(), n), squares, squares * 30 * 0x1p-24);
    // The same bits wherever the data lie.
    for (size_t shift = 1; shift < 17; ++shift) {
      Floats moved_a(shift);
      Floats moved_b(17 - shift);
      moved_a.insert(moved_a.end(), a.begin(), a.end());
      moved_b.insert(moved_b.end(), b.begin(), b.end());
      const float moved = kernels().dot(moved_a.data() + shift, moved_b.data() + 17 - shift, n);
      ASSERT_EQ(std::bit_cast<uint32_t>(moved), std::bit_cast<uint32_t>(got));
    }
    Floats y = b;
    kernels().axpy(0.37F, a.data(), y.data(), n);
    for (size_t i = 0; i < a.size(); ++i) {
      const double term = static_cast<double>(0.37F) * a[i];
      ASSERT_NEAR(y[i], b[i] + term, (std::abs(term) + std::abs(b[i])) * 0x1p-23);
    }
  }
}

// ---- KDA ---------------------------------------------------------------------------------------------------------

enum class Gates { kRandom, kAllMinusFive, kNearZero, kZero, kMixed, kFarBelow };
constexpr std::array kAllGates = {Gates::kRandom, Gates::kAllMinusFive, Gates::kNearZero,
                                  Gates::kZero,   Gates::kMixed,        Gates::kFarBelow};

/// One head's sub-chunk with the strides a packed [q|k|v] row would have.
struct KdaInput {
  static constexpr int64_t kStride = 3 * kHead + 5;
  static constexpr int64_t kGateStride = kHead + 1;
  static constexpr int64_t kBetaStride = 2;
  Floats qkv;    // [16][kStride]
  Floats g;      // [16][kGateStride]
  Floats beta;   // [16 · kBetaStride]
  Floats state;  // [128][128]

  const float* q(int64_t row) const { return qkv.data() + row * kStride; }
  const float* k(int64_t row) const { return q(row) + kHead; }
  const float* v(int64_t row) const { return q(row) + 2 * kHead; }
  const float* gate(int64_t row) const { return g.data() + row * kGateStride; }
  float b(int64_t row) const { return beta[static_cast<size_t>(row * kBetaStride)]; }
};

class KdaTest : public VectorKernelsTest {
 protected:
  KdaInput make_input(Gates gates) {
    KdaInput in;
    in.qkv = random(16 * KdaInput::kStride, -1, 1);
    for (int64_t row = 0; row < 16; ++row) {
      float* const q = in.qkv.data() + row * KdaInput::kStride;
      normalise(q, 1.0 / std::sqrt(128.0));
      normalise(q + kHead, 1.0);
    }
    in.g = random(16 * KdaInput::kGateStride, -5, 0);
    for (float& g : in.g) {
      if (gates == Gates::kAllMinusFive) g = -5.0F;
      if (gates == Gates::kNearZero) g *= 1e-6F;
      if (gates == Gates::kZero) g = 0.0F;
      if (gates == Gates::kMixed) g = rng_() % 2 != 0 ? -4.999F : -1e-5F;
      if (gates == Gates::kFarBelow) g *= 40.0F;  // whole decays underflow to zero
    }
    in.beta = random(16 * KdaInput::kBetaStride, 0, 1);
    in.state = random(kHead * kHead, -1, 1);
    return in;
  }

  struct Result {
    Floats out;  // [16][128]; NaN where not written
    Floats state;
  };

  Result chunk(const KdaInput& in, int rows, int first_output, bool with_state = true) {
    Result result{Floats(16 * kHead, kNan), Floats(kHead * kHead, kNan)};
    kernels().kda_chunk(in.q(0), in.k(0), in.v(0), KdaInput::kStride, in.g.data(), KdaInput::kGateStride,
                        in.beta.data(), KdaInput::kBetaStride, rows, first_output, in.state.data(),
                        with_state ? result.state.data() : nullptr, result.out.data(), kHead);
    return result;
  }

  Result steps(const KdaInput& in, int rows, bool with_output = true) {
    Result result{Floats(16 * kHead, kNan), in.state};
    for (int row = 0; row < rows; ++row) {
      kernels().kda_step(with_output ? in.q(row) : nullptr, in.k(row), in.v(row), in.gate(row), in.b(row),
                         result.state.data(), with_output ? result.out.data() + row * kHead : nullptr);
    }
    return result;
  }

 private:
  void normalise(float* row, double scale) {
    double squares = 0;
    for (int64_t c = 0; c < kHead; ++c) squares += static_cast<double>(row[c]) * row[c];
    for (int64_t c = 0; c < kHead; ++c) row[c] = static_cast<float>(row[c] * scale / std::sqrt(squares));
  }
};
INSTANTIATE_TEST_SUITE_P(Variants, KdaTest, ::testing::ValuesIn(available_vector_kernels()), variant_name);

struct KdaReference {
  std::vector<double> out;
  std::vector<double> state;
  std::vector<double> scale;  // of each output row: ‖q‖ · max_v ‖S[:, v]‖, before cancellation in Sᵀq
};

/// The recurrence in double.
KdaReference reference(const KdaInput& in, int rows) {
  KdaReference ref{std::vector<double>(16 * kHead), {in.state.begin(), in.state.end()}, std::vector<double>(16)};
  for (int64_t row = 0; row < rows; ++row) {
    double& scale = ref.scale[static_cast<size_t>(row)];
    double q_squares = 0;
    for (int64_t c = 0; c < kHead; ++c) q_squares += static_cast<double>(in.q(row)[c]) * in.q(row)[c];
    for (int64_t v = 0; v < kHead; ++v) {
      double read = 0;
      for (int64_t c = 0; c < kHead; ++c) {
        double& s = ref.state[static_cast<size_t>(c * kHead + v)];
        s *= std::exp(static_cast<double>(in.gate(row)[c]));
        read += s * in.k(row)[c];
      }
      const double delta = in.b(row) * (in.v(row)[v] - read);
      double out = 0;
      double squares = 0;
      for (int64_t c = 0; c < kHead; ++c) {
        double& s = ref.state[static_cast<size_t>(c * kHead + v)];
        s += in.k(row)[c] * delta;
        out += s * in.q(row)[c];
        squares += s * s;
      }
      scale = std::max(scale, std::sqrt(q_squares * squares));
      ref.out[static_cast<size_t>(row * kHead + v)] = out;
    }
  }
  return ref;
}

template <typename Want>
double largest_difference(const float* got, const Want* want, int64_t n) {
  double error = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(got[i])) return std::numeric_limits<double>::infinity();
    error = std::max(error, std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i])));
  }
  return error;
}

TEST_P(KdaTest, ChunkAndStepsAgainstDouble) {
  for (const Gates gates : kAllGates) {
    for (const int rows : {1, 2, 9, 15, 16}) {
      const KdaInput in = make_input(gates);
      const KdaReference want = reference(in, rows);
      const Result by_chunk = chunk(in, rows, 0);
      const Result by_steps = steps(in, rows);
      double largest = 0;
      for (int64_t row = 0; row < rows; ++row) {
        const float* const chunk_row = by_chunk.out.data() + row * kHead;
        const float* const step_row = by_steps.out.data() + row * kHead;
        const double* const want_row = want.out.data() + row * kHead;
        const double bound = 1e-6 * want.scale[static_cast<size_t>(row)];
        ASSERT_LE(largest_difference(chunk_row, want_row, kHead), bound) << rows << " row " << row;
        ASSERT_LE(largest_difference(step_row, want_row, kHead), bound) << rows << " row " << row;
        for (int64_t v = 0; v < kHead; ++v) largest = std::max(largest, std::abs(want_row[v]));
      }
      ASSERT_LE(largest_difference(by_chunk.out.data(), by_steps.out.data(), rows * kHead), 1e-5 * largest) << rows;
      const double state_bound = 2e-6;  // the values are of order 1
      ASSERT_LE(largest_difference(by_chunk.state.data(), want.state.data(), kHead * kHead), state_bound) << rows;
      ASSERT_LE(largest_difference(by_steps.state.data(), want.state.data(), kHead * kHead), state_bound) << rows;
    }
  }
}

TEST_P(KdaTest, ChunkBitsDoNotDependOnWhereItIsCut) {
  for (const Gates gates : kAllGates) {
    const KdaInput in = make_input(gates);
    const Result whole = chunk(in, 16, 0);
    for (int cut = 0; cut <= 16; ++cut) {
      Floats pieced(16 * kHead, kNan);
      if (cut > 0) {
        const Result head = chunk(in, cut, 0, false);
        std::copy_n(head.out.begin(), cut * kHead, pieced.begin());
        for (size_t i = static_cast<size_t>(cut * kHead); i < head.out.size(); ++i) {
          ASSERT_TRUE(std::isnan(head.out[i]));
        }
        for (const float value : head.state) ASSERT_TRUE(std::isnan(value));
      }
      KdaInput rest = in;  // q of earlier rows may be anything
      for (int row = 0; row < cut; ++row) std::fill_n(rest.qkv.begin() + row * KdaInput::kStride, kHead, kNan);
      const Result tail = chunk(rest, 16, cut);
      for (int64_t i = 0; i < cut * kHead; ++i) ASSERT_TRUE(std::isnan(tail.out[static_cast<size_t>(i)]));
      std::copy(tail.out.begin() + cut * kHead, tail.out.end(), pieced.begin() + cut * kHead);
      ASSERT_TRUE(same_bits(pieced, whole.out)) << "cut at " << cut;
      ASSERT_TRUE(same_bits(tail.state, whole.state)) << "cut at " << cut;
    }
    // Three pieces.
    const Result middle = chunk(in, 11, 4, false);
    ASSERT_TRUE(same_bits(middle.out.data() + 4 * kHead, whole.out.data() + 4 * kHead, 7 * kHead));
  }
}

TEST_P(KdaTest, ChunkStateInPlace) {
  for (const int rows : {1, 5, 16}) {
    KdaInput in = make_input(Gates::kRandom);
    const Result apart = chunk(in, rows, 0);
    const Floats before = in.state;
    Floats out(16 * kHead, kNan);
    ASSERT_TRUE(same_bits(in.state, before));
    kernels().kda_chunk(in.q(0), in.k(0), in.v(0), KdaInput::kStride, in.g.data(), KdaInput::kGateStride,
                        in.beta.data(), KdaInput::kBetaStride, rows, 0, in.state.data(), in.state.data(), out.data(),
                        kHead);
    EXPECT_TRUE(same_bits(in.state, apart.state));
    EXPECT_TRUE(same_bits(out.data(), apart.out.data(), rows * kHead));
  }
}

TEST_P(KdaTest, StepWithoutOutputLeavesTheSameState) {
  for (const Gates gates : kAllGates) {
    const KdaInput in = make_input(gates);
    EXPECT_TRUE(same_bits(steps(in, 16, true).state, steps(in, 16, false).state));
  }
}

/// Padding rows as the specification defines them: k = v = 0, beta = 0, g = 0.
TEST_P(KdaTest, PaddingRowsDoNotChangeTheState) {
  KdaInput in = make_input(Gates::kMixed);
  const Result shorter = chunk(in, 10, 0);
  for (int64_t row = 10; row < 16; ++row) {
    std::fill_n(in.qkv.begin() + row * KdaInput::kStride, 3 * kHead, 0.0F);
    std::fill_n(in.g.begin() + row * KdaInput::kGateStride, kHead, 0.0F);
    in.beta[static_cast<size_t>(row * KdaInput::kBetaStride)] = 0.0F;
  }
  EXPECT_TRUE(same_bits(chunk(in, 16, 0).state, shorter.state));
}

}  // namespace
}  // namespace glm53::cpu
