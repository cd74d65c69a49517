// Speed of the CPU kernels and of the thread pool: medians, one line a case, for every variant this processor runs.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include <time.h>

#include "backend/cpu/thread_pool.h"
#include "backend/cpu/vector_kernels.h"

using glm53::cpu::PanelFormat;
using glm53::cpu::VectorKernels;

namespace {

enum class Clock { kWall, kThread };

double seconds_now(Clock clock) {
  timespec t{};
  clock_gettime(clock == Clock::kWall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

/// Median seconds of one call, over 25 samples of at least 1 ms each. The clock of the thread leaves out the time that
/// other programs had the core.
template <typename F>
double median_seconds(F&& f, Clock clock = Clock::kThread) {
  const auto seconds = [&](int64_t calls) {
    const double start = seconds_now(clock);
    for (int64_t i = 0; i < calls; ++i) f();
    return seconds_now(clock) - start;
  };
  int64_t calls = 1;
  while (seconds(calls) < 1e-3) calls *= 2;
  std::vector<double> samples;
  for (int i = 0; i < 25; ++i) samples.push_back(seconds(calls) / static_cast<double>(calls));
  std::nth_element(samples.begin(), samples.begin() + 12, samples.end());
  return samples[12];
}

std::vector<float> random_floats(int64_t n, float low, float high) {
  static std::mt19937 rng(1);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = uniform(rng);
  return values;
}

void bench_linear(const VectorKernels& kernels, int rows, int64_t in, int64_t out, PanelFormat format) {
  const std::vector<float> weights = random_floats(in * out, -1, 1);
  const std::vector<float> x = random_floats(rows * in, -1, 1);
  std::vector<float> y(static_cast<size_t>(rows * out));
  const int64_t bytes = glm53::cpu::panel_bytes(format, in, out);
  std::vector<float> panels(static_cast<size_t>(bytes / 4));
  glm53::cpu::pack_panels(weights.data(), in, 0, out, in, format, panels.data());
  const double t = median_seconds(
      [&] { kernels.linear(x.data(), in, rows, panels.data(), format, in, out, 0, (out + 15) / 16, y.data(), out); });
  const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
  std::printf("%-8s linear %-4s rows %4d in %5ld out %5ld  %9.2f us  %7.1f GFLOP/s  %6.1f GB/s of weights\n",
              std::string(kernels.name).c_str(), format == PanelFormat::kBF16 ? "bf16" : "fp32", rows,
              static_cast<long>(in), static_cast<long>(out), t * 1e6, flops / t * 1e-9,
              static_cast<double>(bytes) / t * 1e-9);
}

void bench_elementwise(const VectorKernels& kernels) {
  constexpr int64_t kCount = 4096;
  const std::vector<float> x = random_floats(kCount, -10, 10);
  const std::vector<float> u = random_floats(kCount, -10, 10);
  std::vector<float> y(kCount);
  const auto report = [&](const char* name, double t) {
    std::printf("%-8s %-11s %ld values  %7.3f us  %5.2f G values/s\n", std::string(kernels.name).c_str(), name,
                static_cast<long>(kCount), t * 1e6, kCount / t * 1e-9);
  };
  report("exp", median_seconds([&] { kernels.exp(x.data(), y.data(), kCount); }));
  report("sigmoid", median_seconds([&] { kernels.sigmoid(x.data(), y.data(), kCount); }));
  report("silu", median_seconds([&] { kernels.silu(x.data(), y.data(), kCount); }));
  report("swiglu", median_seconds([&] { kernels.swiglu(x.data(), u.data(), 7.0F, y.data(), kCount); }));
  report("axpy", median_seconds([&] { kernels.axpy(1e-6F, x.data(), y.data(), kCount); }));
  volatile float sink = 0;
  report("dot", median_seconds([&] { sink = kernels.dot(x.data(), u.data(), kCount); }));
}

void bench_kda(const VectorKernels& kernels) {
  const std::vector<float> q = random_floats(16 * 128, -0.01F, 0.01F);
  const std::vector<float> k = random_floats(16 * 128, -0.1F, 0.1F);
  const std::vector<float> v = random_floats(16 * 128, -1, 1);
  const std::vector<float> g = random_floats(16 * 128, -5, 0);
  const std::vector<float> beta = random_floats(16, 0, 1);
  std::vector<float> state = random_floats(128 * 128, -1, 1);
  std::vector<float> out(16 * 128);
  const auto chunk = [&](int rows, int first_output, float* state_out) {
    const double t = median_seconds([&] {
      kernels.kda_chunk(q.data(), k.data(), v.data(), 128, g.data(), 128, beta.data(), 1, rows, first_output,
                        state.data(), state_out, out.data(), 128);
    });
    std::printf("%-8s kda_chunk rows %2d first_output %2d %s  %6.2f us\n", std::string(kernels.name).c_str(), rows,
                first_output, state_out != nullptr ? "with state" : "no state  ", t * 1e6);
  };
  chunk(16, 0, state.data());
  chunk(16, 16, state.data());
  chunk(8, 0, nullptr);
  chunk(1, 0, nullptr);
  const double t = median_seconds(
      [&] { kernels.kda_step(q.data(), k.data(), v.data(), g.data(), beta[0], state.data(), out.data()); });
  std::printf("%-8s kda_step  %6.2f us\n", std::string(kernels.name).c_str(), t * 1e6);
}

void bench_pool() {
  for (const int threads : {1, 2}) {
    glm53::cpu::ThreadPool pool(threads);
    std::vector<float> y(1024);
    const auto region = [&] {
      pool.parallel_for(64, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) y[static_cast<size_t>(i) * 16] += 1.0F;
      });
    };
    const double t = median_seconds(region, Clock::kWall);
    std::printf("pool     %d threads: %6.2f us a region of 64 tiny indices\n", threads, t * 1e6);
  }
}

}  // namespace

int main() {
  for (const VectorKernels* kernels : glm53::cpu::available_vector_kernels()) {
    bench_linear(*kernels, 512, 256, 1024, PanelFormat::kBF16);
    bench_linear(*kernels, 512, 256, 1024, PanelFormat::kF32);
    bench_linear(*kernels, 64, 4096, 1024, PanelFormat::kBF16);
    for (const int rows : {1, 2, 3, 4, 5, 8, 13, 16}) bench_linear(*kernels, rows, 256, 1024, PanelFormat::kBF16);
    bench_linear(*kernels, 1, 256, 4096, PanelFormat::kBF16);
    bench_linear(*kernels, 1, 1024, 24, PanelFormat::kBF16);
    bench_linear(*kernels, 1, 256, 1024, PanelFormat::kF32);
    bench_elementwise(*kernels);
    bench_kda(*kernels);
  }
  bench_pool();
  return 0;
}
