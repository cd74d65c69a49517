// Dummy weights made on the device: the model that the CPU makes, and the real geometry on one large GPU.
#include <chrono>
#include <cmath>
#include <cstdio>

#include <gtest/gtest.h>

#include "checkpoint/config_json.h"
#include "model/backends_under_test.h"
#include "model/tiny_model.h"

namespace glm53::test {
namespace {

std::vector<int32_t> spread_ids(int count, int vocab) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>((int64_t{i} * 7919 + 13) % vocab));
  return ids;
}

/// |a − b| / |b|
double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

BackendFactory cuda_bf16() {
  return [](const Geometry& geometry) {
    CudaBackendOptions options;
    options.fp8_latents = options.fp8_index = false;
    return make_cuda_backend(geometry, options);
  };
}

TEST(DummyWeights, TheDeviceHasTheCpusModel) {
  if (!cuda_device_problem(0).empty()) GTEST_SKIP() << "no CUDA device: " << cuda_device_problem(0);
  const DummyOptions dummy{.experts_k = 2, .layer_k = {{4, 3}, {5, 6}}, .seed = 3};
  const BackendFactory serving = [](const Geometry& geometry) {
    CpuBackendOptions options;
    options.threads = 0;
    options.mode = CpuMode::kServing;
    options.latents = LatentFormat::kBf16;
    return make_cpu_backend(geometry, options);
  };
  TinyModel cpu(serving, dummy);
  TinyModel cuda(cuda_bf16(), dummy);
  EXPECT_GT(cuda.backend().plan_memory({}).weights, 0);
  const std::vector<int32_t> ids = spread_ids(200, cpu.geometry().vocab);
  const auto expected = cpu.prompt(ids);
  const auto actual = cuda.prompt(ids);
  std::vector<double> errors;
  for (size_t row = 0; row < ids.size(); ++row) errors.push_back(relative_error(actual[row], expected[row]));
  std::ranges::sort(errors);
  std::printf("relative error of logits: median %.4f, largest %.4f\n", errors[errors.size() / 2], errors.back());
  // Rows where rounding picked another expert, and those that see them, differ more; other weights would be at 1.4.
  EXPECT_LT(errors[errors.size() / 2], 0.06);
  EXPECT_LT(errors[errors.size() * 9 / 10], 0.5);
}

TEST(DummyWeights, RealGeometryOnOneGpu) {
  if (!cuda_device_problem(0).empty()) GTEST_SKIP() << "no CUDA device: " << cuda_device_problem(0);
  const Geometry geometry = load_geometry(GLM53_TEST_DATA "/../../configs/glm53-flash");
  const DummyOptions dummy{.experts_k = 2, .layer_k = {}, .seed = 0};
  constexpr int64_t kGiB = int64_t{1} << 30;
  int64_t planned = 0;
  {
    const CheckpointInventory inventory(geometry, dummy);
    const auto backend = cuda_bf16()(geometry);
    planned = plan_weights(inventory, geometry, {}, *backend);
  }
  const int64_t free_before = cuda_free_memory(0);
  // All weights are of two bits or bf16: 301 G in experts, 9 G elsewhere.
  EXPECT_LT(planned, 97 * kGiB);
  if (free_before < planned + 10 * kGiB) GTEST_SKIP() << (planned / kGiB) << " GiB of weights do not fit";

  const auto begin = std::chrono::steady_clock::now();
  TinyModel model(cuda_bf16(), geometry, dummy, 8192, 2048);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_EQ(model.backend().plan_memory({}).weights, planned);
  std::printf("loaded %.2f GiB of dummy weights in %.2f s; %.2f GiB free\n", static_cast<double>(planned) / kGiB,
              seconds, static_cast<double>(cuda_free_memory(0)) / kGiB);

  std::vector<std::vector<float>> rows;
  rows.push_back(model.prompt_last(spread_ids(2048, geometry.vocab)));
  rows.push_back(model.prompt_last(spread_ids(1001, geometry.vocab)));
  for (int step = 0; step < 8; ++step) {
    rows.push_back(model.window({argmax(rows.back())}).front());
    model.commit(1);
  }
  for (const std::vector<float>& logits : rows) {
    double squares = 0;
    for (const float value : logits) {
      ASSERT_TRUE(std::isfinite(value));
      squares += double{value} * value;
    }
    EXPECT_NEAR(squares / static_cast<double>(logits.size()), 1.0, 0.3);
  }
  EXPECT_GT(relative_error(rows[2], rows[5]), 0.1);
}

}  // namespace
}  // namespace glm53::test
