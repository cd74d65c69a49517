// Gate cuda_close_to_cpu: the tiny model on the GPU against the CPU's fp32 mode, within the Mode S bands of
// tests/data/golden/README.md, and against the CPU's serving mode.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "model/backends_under_test.h"
#include "model/router_gaps.h"
#include "model/tiny_model.h"

namespace glm53::test {
namespace {

constexpr double kNll = 2e-3;
constexpr float kStableMargin = 0.1F;
constexpr float kGreedyMargin = 0.05F;

double negative_log_likelihood(std::span<const float> logits, int32_t id) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (float value : logits) sum += std::exp(value - largest);
  return largest + std::log(sum) - logits[static_cast<size_t>(id)];
}

/// Of the largest error of each row.
struct RowErrors {
  std::vector<double> values;
  double quantile(double q) {
    std::ranges::sort(values);
    return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
  }
};

class CudaCloseToCpu : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override {
    if (!GetParam().problem.empty()) GTEST_SKIP() << "no CUDA device: " << GetParam().problem;
  }
};

/// Quantised dense weights are another model, whose distance tests/bench/gpu/bench_model_kl.cpp reports.
std::vector<BackendUnderTest> backends_with_stored_weights() {
  std::vector<BackendUnderTest> backends = backends_under_test();
  std::erase_if(backends, [](const BackendUnderTest& backend) { return backend.name.ends_with("_dense"); });
  return backends;
}

INSTANTIATE_TEST_SUITE_P(Backends, CudaCloseToCpu, testing::ValuesIn(backends_with_stored_weights()),
                         [](const auto& param) { return param.param.name; });

TEST_P(CudaCloseToCpu, every_golden_prompt) {
  RowErrors to_exact;
  RowErrors to_serving;
  int argmax_differences = 0;
  for (const auto& prompt : golden_json("text.json")) {
    SCOPED_TRACE(prompt.at("name").get<std::string>());
    const auto ids = prompt.at("ids").get<std::vector<int32_t>>();
    const auto greedy = prompt.at("greedy").get<std::vector<int32_t>>();
    CpuBackendOptions serving;
    serving.mode = CpuMode::kServing;
    serving.fp8_index = GetParam().name == "cuda_fp8";
    serving.latents = serving.fp8_index ? LatentFormat::kFp8 : LatentFormat::kBf16;
    TinyModel exact(0);
    TinyModel rounded(serving);
    TinyModel cuda(GetParam().make);
    RouterGaps router;
    exact.backend().set_trace(&router);
    const auto expected = exact.prompt(ids);
    exact.backend().set_trace(nullptr);
    const auto rounded_logits = rounded.prompt(ids);
    const auto logits = cuda.prompt(ids);

    double nll = 0.0;
    double expected_nll = 0.0;
    int predictions = 0;
    for (size_t t = 0; t < ids.size(); ++t) {
      to_exact.values.push_back(difference(logits[t], expected[t]).largest);
      to_serving.values.push_back(difference(logits[t], rounded_logits[t]).largest);
      if (argmax(logits[t]) != argmax(expected[t])) {
        ++argmax_differences;
        EXPECT_LE(top_margin(expected[t]), kStableMargin) << "position " << t;
      }
      if (t + 1 == ids.size()) break;
      // Mean over the rows that rounding leaves alone.
      if (router.gaps[t] <= kRouterGap) continue;
      ++predictions;
      nll += negative_log_likelihood(logits[t], ids[t + 1]);
      expected_nll += negative_log_likelihood(expected[t], ids[t + 1]);
    }
    if (predictions > 0) {
      EXPECT_NEAR(nll / predictions, expected_nll / predictions, kNll);
    }

    auto exact_row = expected.back();
    auto cuda_row = logits.back();
    for (int32_t id : greedy) {
      if (top_margin(exact_row) < kGreedyMargin) break;
      ASSERT_EQ(argmax(cuda_row), id);
      exact_row = exact.window({id}).front();
      cuda_row = cuda.window({id}).front();
      exact.commit(1);
      cuda.commit(1);
    }
  }
  const auto rows = static_cast<int>(to_exact.values.size());
  std::printf(
      "largest logit error of a row, %d rows: median %.4f, 90 %% %.4f to fp32; median %.4f, 90 %% %.4f to the "
      "CPU's serving mode; %d argmaxes differ from fp32\n",
      rows, to_exact.quantile(0.5), to_exact.quantile(0.9), to_serving.quantile(0.5), to_serving.quantile(0.9),
      argmax_differences);
  EXPECT_LE(to_exact.quantile(0.5), 0.05);
  EXPECT_LE(to_exact.quantile(0.9), 0.15);
  EXPECT_LE(to_serving.quantile(0.5), 0.05);
  EXPECT_LE(argmax_differences, rows / 100);
}

}  // namespace
}  // namespace glm53::test
