// Corners of the CPU operations that no golden value reaches (tests/data/golden/README.md lists them): each against the
// formula in double.
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"

namespace glm53::test {
namespace {

/// Owns the values behind a HostTensor.
struct StoredTensor {
  StoredTensor(std::string name, std::vector<int64_t> shape, std::vector<float> data) : values(std::move(data)) {
    tensor.name = std::move(name);
    tensor.shape = std::move(shape);
    tensor.bytes = std::as_bytes(std::span(values));
  }
  std::vector<float> values;
  HostTensor tensor;
};

Geometry one_layer_geometry() {
  Geometry g;
  g.vocab = 64;
  g.hidden = 32;
  g.layers = 1;
  g.attention = {AttentionKind::kSparse};
  g.mlp = {MlpKind::kMoe};
  g.kda_heads = 1;
  g.mla_heads = 1;
  g.q_lora = 16;
  g.latent = 16;
  g.qk_dim = 16;
  g.v_dim = 16;
  g.index_heads = 2;
  g.index_dim = 16;
  g.index_topk = 8;
  g.dense_intermediate = 32;
  g.moe_intermediate = 128;
  g.experts = 6;
  g.experts_per_token = 2;
  g.routed_scaling = 2.5F;
  return g;
}

class CpuOperations : public testing::Test {
 protected:
  CpuOperations() : geometry_(one_layer_geometry()), backend_(make_cpu_backend(geometry_, {.threads = 1})) {
    backend_->create_caches({.sequences = 1, .pages = 1, .max_rows = 8, .max_logit_rows = 1});
    backend_->reset_sequence(0);
  }

  Linear linear(int64_t out, int64_t in, std::vector<float> values) {
    const StoredTensor stored("w", {out, in}, std::move(values));
    const std::array parts = {LinearPart{&stored.tensor, nullptr, {0, out}, {0, in}, false}};
    return backend_->load_linear("w", LinearGroup::kMlp, parts);
  }

  Matrix matrix(int64_t rows, int64_t columns, std::vector<float> values) {
    const StoredTensor stored("m", {rows, columns}, std::move(values));
    return backend_->load_matrix("m", {&stored.tensor, nullptr, {0, rows}, {0, columns}, false}, Precision::kFp32);
  }

  Vector vector(std::vector<float> values) {
    const auto count = static_cast<int64_t>(values.size());
    const StoredTensor stored("v", {count}, std::move(values));
    const std::array parts = {VectorPart{&stored.tensor, {0, count}}};
    return backend_->load_vector("v", parts);
  }

  std::vector<float> random(int64_t count, float scale) {
    std::normal_distribution<float> normal(0.0F, scale);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(random_);
    return values;
  }

  /// Six random experts and a shared one.
  MoeWeights moe(std::vector<float> router, std::vector<float> bias) {
    const int64_t hidden = geometry_.hidden;
    MoeWeights weights;
    weights.router = matrix(6, hidden, std::move(router));
    weights.router_bias = vector(std::move(bias));
    const StoredTensor gate("gate", {128, hidden}, random(128 * hidden, 0.1F));
    const StoredTensor down("down", {hidden, 128}, random(128 * hidden, 0.1F));
    const LinearPart gate_part{&gate.tensor, nullptr, {0, 128}, {0, hidden}, false};
    const LinearPart down_part{&down.tensor, nullptr, {0, hidden}, {0, 128}, false};
    weights.experts = backend_->load_experts("experts", std::vector<ExpertParts>(6, {gate_part, gate_part, down_part}));
    weights.shared.width = 128;
    weights.shared.gate_up = linear(256, hidden, random(256 * hidden, 0.1F));
    weights.shared.down = linear(hidden, 128, random(128 * hidden, 0.1F));
    return weights;
  }

  /// Runs `body` inside a forward call of one prompt segment.
  template <typename Body>
  void forward(int rows, Body&& body) {
    const std::vector<int32_t> ids(static_cast<size_t>(rows), 1);
    const int32_t page = 0;
    Segment segment;
    segment.rows = rows;
    segment.pages = {&page, 1};
    backend_->begin_forward({ids, {&segment, 1}, {}});
    body();
    backend_->end_forward();
  }

  Tensor filled(int64_t width, const std::vector<float>& values) {
    const Tensor tensor = backend_->create_activations("t", width, Precision::kFp32);
    backend_->write_rows(tensor, 0, static_cast<int>(static_cast<int64_t>(values.size()) / width), values);
    return tensor;
  }

  std::vector<float> read(Tensor tensor, int rows) {
    std::vector<float> values(static_cast<size_t>(rows * tensor.width));
    backend_->read_rows(tensor, 0, rows, values);
    return values;
  }

  Geometry geometry_;
  std::unique_ptr<Backend> backend_;
  std::mt19937 random_{7};
};

/// Spec 10 §3.3 steps 1–8 in double. Large logits make rows of C nearly one-hot, so that columns almost vanish and the
/// 1e-6 of every denominator counts.
TEST_F(CpuOperations, mhc_mixes_with_every_epsilon_in_place) {
  constexpr int kRows = 5;
  const int64_t hidden = geometry_.hidden;
  const int64_t width = 4 * hidden;
  const std::vector<float> fn = random(24 * width, 0.3F);
  const std::vector<float> base = random(24, 6.0F);
  const std::vector<float> scale = {0.7F, 1.3F, 9.0F};
  const std::vector<float> norm = random(hidden, 1.0F);
  const std::vector<float> x = random(kRows * width, 1.0F);

  MhcSite site;
  site.fn = matrix(24, width, fn);
  site.base = vector(base);
  site.scale = vector(scale);
  site.norm = vector(norm);
  const Tensor streams = filled(width, x);
  const Tensor mix = backend_->create_activations("mix", 20, Precision::kFp32);
  const Tensor normed = backend_->create_activations("normed", hidden, Precision::kFp32);
  forward(kRows, [&] { backend_->mhc_pre(site, streams, mix, normed); });
  const std::vector<float> actual_mix = read(mix, kRows);
  const std::vector<float> actual = read(normed, kRows);

  const auto sigmoid = [](double v) { return 1.0 / (1.0 + std::exp(-v)); };
  for (int r = 0; r < kRows; ++r) {
    const float* row = x.data() + r * width;
    double squares = 0.0;
    for (int64_t i = 0; i < width; ++i) squares += static_cast<double>(row[i]) * row[i];
    const double rms = 1.0 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
    std::array<double, 24> z{};
    for (int m = 0; m < 24; ++m) {
      for (int64_t i = 0; i < width; ++i) z[m] += static_cast<double>(fn[m * width + i]) * row[i] * rms;
    }
    double c[4][4];
    for (int i = 0; i < 4; ++i) {
      double largest = -1e300;
      double sum = 0.0;
      for (int j = 0; j < 4; ++j) {
        c[i][j] = z[8 + 4 * i + j] * scale[2] + base[8 + 4 * i + j];
        largest = std::max(largest, c[i][j]);
      }
      for (double& v : c[i]) sum += v = std::exp(v - largest);
      for (double& v : c[i]) v = v / sum + 1e-6;
    }
    for (int iteration = 0; iteration < 20; ++iteration) {
      if (iteration > 0) {
        for (auto& line : c) {
          const double sum = line[0] + line[1] + line[2] + line[3] + 1e-6;
          for (double& v : line) v /= sum;
        }
      }
      for (int j = 0; j < 4; ++j) {
        const double sum = c[0][j] + c[1][j] + c[2][j] + c[3][j] + 1e-6;
        for (auto& line : c) line[j] /= sum;
      }
    }
    for (int h = 0; h < 4; ++h) {
      EXPECT_NEAR(actual_mix[r * 20 + h], 2.0 * sigmoid(z[4 + h] * scale[1] + base[4 + h]), 2e-6) << "post " << h;
      for (int j = 0; j < 4; ++j) {
        // Relative: without an epsilon small entries are off by far more than this.
        EXPECT_NEAR(actual_mix[r * 20 + 4 + 4 * h + j] / c[h][j], 1.0, 2e-5) << "row " << r << " C " << h << "," << j;
      }
    }
    std::vector<double> collapsed(static_cast<size_t>(hidden));
    double mean_square = 0.0;
    for (int64_t d = 0; d < hidden; ++d) {
      for (int h = 0; h < 4; ++h) {
        collapsed[d] += (sigmoid(z[h] * scale[0] + base[h]) + 1e-6) * row[h * hidden + d];
      }
      mean_square += collapsed[d] * collapsed[d] / static_cast<double>(hidden);
    }
    for (int64_t d = 0; d < hidden; ++d) {
      EXPECT_NEAR(actual[r * hidden + d], collapsed[d] / std::sqrt(mean_square + 1e-5) * norm[d], 2e-5);
    }
  }
}

TEST_F(CpuOperations, gate_is_clamped_above_only_and_up_on_both_sides) {
  // Identity weights: gate = x[0..15], up = x[16..31], and down passes the product on.
  std::vector<float> gate_up(32 * 32);
  for (int i = 0; i < 32; ++i) gate_up[i * 32 + i] = 1.0F;
  std::vector<float> down(32 * 16);
  for (int i = 0; i < 16; ++i) down[i * 16 + i] = 1.0F;
  MlpWeights weights;
  weights.width = 16;
  weights.gate_up = linear(32, 32, gate_up);
  weights.down = linear(32, 16, down);
  std::vector<float> x(32);
  const std::array<std::array<float, 2>, 6> cases = {
      {{-30.0F, 3.0F}, {-12.0F, -25.0F}, {25.0F, 2.0F}, {25.0F, 25.0F}, {1.0F, -11.0F}, {-0.5F, 0.25F}}};
  for (size_t i = 0; i < cases.size(); ++i) {
    x[i] = cases[i][0];
    x[16 + i] = cases[i][1];
  }
  const Tensor in = filled(32, x);
  const Tensor out = backend_->create_activations("out", 32, Precision::kFp32);
  forward(1, [&] { backend_->dense_mlp(weights, in, out); });
  const std::vector<float> actual = read(out, 1);
  for (size_t i = 0; i < cases.size(); ++i) {
    const double gate = std::min(static_cast<double>(cases[i][0]), 10.0);
    const double up = std::clamp(static_cast<double>(cases[i][1]), -10.0, 10.0);
    const double expected = gate / (1.0 + std::exp(-gate)) * up;
    EXPECT_NEAR(actual[i], expected, 1e-6 * std::abs(expected) + 1e-30) << "case " << i;
  }
}

/// Receives the router's choice.
class RouterTrace final : public TraceSink {
 public:
  void record(std::string_view name, std::span<const float> values, int) override {
    if (name == "layer0.router.out1") weights.assign(values.begin(), values.end());
    if (name == "layer0.router.out2") experts.assign(values.begin(), values.end());
  }
  void record_selection(int, int, std::span<const int32_t>) override {}
  void record_probabilities(int, int, int, std::span<const int32_t>, std::span<const float>) override {}
  std::vector<float> weights;
  std::vector<float> experts;
};

TEST_F(CpuOperations, router_ties_go_to_the_lower_expert_and_bias_only_selects) {
  const int64_t hidden = geometry_.hidden;
  const auto moe_with_bias = [&](std::vector<float> bias) {
    return moe(std::vector<float>(static_cast<size_t>(6 * hidden)), std::move(bias));  // every score is 0.5
  };
  const Tensor in = filled(hidden, random(hidden, 1.0F));
  const Tensor out = backend_->create_activations("out", hidden, Precision::kFp32);
  RouterTrace trace;
  backend_->set_trace(&trace);
  const auto run = [&](const MoeWeights& weights) {
    backend_->reset_sequence(0);
    forward(1, [&] { backend_->moe(weights, in, out); });
  };
  run(moe_with_bias(std::vector<float>(6)));
  EXPECT_EQ(trace.experts, (std::vector<float>{0, 1}));
  EXPECT_EQ(trace.weights, (std::vector<float>{1.25F, 1.25F}));
  run(moe_with_bias({0.0F, 0.0F, 0.0F, 0.25F, 0.0F, 0.5F}));
  EXPECT_EQ(trace.experts, (std::vector<float>{5, 3}));
  EXPECT_EQ(trace.weights, (std::vector<float>{1.25F, 1.25F}));  // unbiased scores
}

// Sums that overflow make NaN scores; experts with one rank last, and the other rows keep their bits.
TEST_F(CpuOperations, router_ranks_nan_last) {
  const int64_t hidden = geometry_.hidden;
  std::vector<float> router = random(6 * hidden, 0.5F);
  for (int e : {0, 2, 5})
    router[static_cast<size_t>(e * hidden)] = 0.0F;  // 0 · inf: NaN for a row that begins with inf
  for (int e : {1, 3, 4}) router[static_cast<size_t>(e * hidden)] = 1.0F;
  const MoeWeights weights = moe(router, {0.0F, 0.1F, 0.0F, 0.3F, 0.2F, 0.0F});
  std::vector<float> rows = random(2 * hidden, 1.0F);
  const Tensor out = backend_->create_activations("out", hidden, Precision::kFp32);
  const auto run = [&] {
    RouterTrace trace;
    backend_->set_trace(&trace);
    backend_->reset_sequence(0);
    const Tensor in = filled(hidden, rows);
    forward(2, [&] { backend_->moe(weights, in, out); });
    backend_->set_trace(nullptr);
    return trace.experts;
  };
  const std::vector<float> sound = run();
  const std::vector<float> second = read(out, 2);
  rows[0] = INFINITY;
  EXPECT_EQ(run(), (std::vector<float>{3, 4, sound[2], sound[3]}));
  const std::vector<float> beside = read(out, 2);
  EXPECT_TRUE(std::equal(second.begin() + hidden, second.end(), beside.begin() + hidden));
}

}  // namespace
}  // namespace glm53::test
