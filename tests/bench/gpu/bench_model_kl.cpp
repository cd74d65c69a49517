// What storage formats cost in quality: KL divergence of the tiny model's next-token distributions, over every row of
// the golden prompts, from the CPU's fp32 mode and between pairs of formats. Without a GPU only the CPU's serving mode
// is measured. Run from the repository's root.
//
// KL(P ‖ Q) = Σ p (ln p − ln q) in nats, P the reference. "held" are the rows in which no router had a closer call than
// kRouterGap in fp32 arithmetic: elsewhere rounding of any kind may send the row to other experts.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "backend/cuda/cuda_backend.h"
#include "router_gaps.h"
#include "tiny_model.h"

namespace glm53::test {
namespace {

using Logits = std::vector<std::vector<float>>;

std::vector<double> log_softmax(std::span<const float> logits) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (float value : logits) sum += std::exp(value - largest);
  std::vector<double> result;
  for (float value : logits) result.push_back(value - largest - std::log(sum));
  return result;
}

double divergence(std::span<const float> reference, std::span<const float> other) {
  const std::vector<double> p = log_softmax(reference);
  const std::vector<double> q = log_softmax(other);
  double sum = 0.0;
  for (size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
  return std::max(sum, 0.0);
}

struct Prompts {
  std::vector<std::vector<int32_t>> ids;
  std::vector<bool> held;  ///< of each row of all prompts
};

Logits run(const Prompts& prompts, const BackendFactory& make) {
  TinyModel tiny(make);
  Logits all;
  for (const std::vector<int32_t>& ids : prompts.ids) {
    tiny.reset();
    std::ranges::move(tiny.prompt(ids), std::back_inserter(all));
  }
  return all;
}

void print_row(const char* rows, std::vector<double> nats, int same) {
  std::ranges::sort(nats);
  double sum = 0.0;
  for (double value : nats) sum += value;
  const auto count = static_cast<double>(nats.size());
  std::printf("  %-5s %5zu rows  mean %.2e  median %.2e  90 %% %.2e  max %.2e nats, argmax %.2f %% the same\n", rows,
              nats.size(), sum / count, nats[nats.size() / 2], nats[nats.size() * 9 / 10], nats.back(),
              100.0 * same / count);
}

void compare(const char* title, const Prompts& prompts, const Logits& reference, const Logits& other) {
  std::printf("%s\n", title);
  std::vector<double> all, held;
  int same = 0;
  int same_held = 0;
  for (size_t r = 0; r < reference.size(); ++r) {
    all.push_back(divergence(reference[r], other[r]));
    const int agrees = argmax(reference[r]) == argmax(other[r]) ? 1 : 0;
    same += agrees;
    if (!prompts.held[r]) continue;
    held.push_back(all.back());
    same_held += agrees;
  }
  print_row("all", all, same);
  print_row("held", held, same_held);
  // Which rows make the mean.
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) { return all[a] > all[b]; });
  double sum = 0.0;
  for (double value : all) sum += value;
  double largest = 0.0;
  const size_t few = all.size() / 100;
  for (size_t i = 0; i < few; ++i) largest += all[order[i]];
  std::printf("  the largest %zu rows hold %.0f %% of the sum\n", few, 100.0 * largest / sum);
  std::fflush(stdout);
}

BackendFactory cpu(CpuMode mode, bool fp8) {
  return [=](const Geometry& geometry) {
    CpuBackendOptions options;
    options.mode = mode;
    options.latents = fp8 ? LatentFormat::kFp8 : LatentFormat::kBf16;
    options.fp8_index = fp8;
    return make_cpu_backend(geometry, options);
  };
}

BackendFactory cuda(bool fp8_latents, bool fp8_index, DenseFormats dense) {
  return [=](const Geometry& geometry) {
    CudaBackendOptions options;
    options.fp8_latents = fp8_latents;
    options.fp8_index = fp8_index;
    options.dense = dense;
    return make_cuda_backend(geometry, options);
  };
}

int report() {
  Prompts prompts;
  for (const auto& prompt : golden_json("text.json")) prompts.ids.push_back(prompt.at("ids"));
  Logits exact;
  {
    TinyModel tiny(cpu(CpuMode::kFp32, false));
    for (const std::vector<int32_t>& ids : prompts.ids) {
      RouterGaps router;
      tiny.reset();
      tiny.backend().set_trace(&router);
      std::ranges::move(tiny.prompt(ids), std::back_inserter(exact));
      for (float gap : router.gaps) prompts.held.push_back(gap > kRouterGap);
    }
  }
  std::printf("%zu rows of %zu prompts\n", exact.size(), prompts.ids.size());

  const Logits cpu_bf16 = run(prompts, cpu(CpuMode::kServing, false));
  const Logits cpu_fp8 = run(prompts, cpu(CpuMode::kServing, true));
  compare("CPU serving mode, to fp32", prompts, exact, cpu_bf16);
  compare("CPU serving mode, fp8 latents and pool keys, to fp32", prompts, exact, cpu_fp8);
  compare("CPU serving mode, fp8 to bf16 latents and pool keys", prompts, cpu_bf16, cpu_fp8);
  const std::string problem = cuda_device_problem(0);
  if (!problem.empty()) {
    std::printf("no CUDA device: %s\n", problem.c_str());
    return 0;
  }
  const Logits bf16 = run(prompts, cuda(false, false, {}));
  const Logits latents = run(prompts, cuda(true, false, {}));
  const Logits caches = run(prompts, cuda(true, true, {}));
  compare("CUDA bf16, to fp32", prompts, exact, bf16);
  compare("CUDA fp8 latents, to fp32", prompts, exact, latents);
  compare("CUDA fp8 latents and pool keys, to fp32", prompts, exact, caches);
  compare("CUDA bf16, to the CPU's serving mode", prompts, cpu_bf16, bf16);
  compare("CUDA fp8 latents, to CUDA bf16", prompts, bf16, latents);
  compare("CUDA fp8 latents and pool keys, to CUDA bf16", prompts, bf16, caches);
  const auto dense = [&](const char* title, const DenseFormats& formats) {
    compare(title, prompts, exact, run(prompts, cuda(false, false, formats)));
  };
  dense("CUDA dense.format fp8, to fp32", dense_formats(DenseFormat::kFp8));
  dense("CUDA dense.format q4, to fp32", dense_formats(DenseFormat::kQ4));
  constexpr std::pair<const char*, LinearGroup> kGroups[] = {
      {"kda", LinearGroup::kKda}, {"mla", LinearGroup::kMla},       {"kv_b", LinearGroup::kKvB},
      {"mlp", LinearGroup::kMlp}, {"shared", LinearGroup::kShared}, {"head", LinearGroup::kHead}};
  for (const auto& [name, group] : kGroups) {
    DenseFormats one;
    one[group] = DenseFormat::kQ4;
    dense((std::string("CUDA dense.groups ") + name + ": q4 alone, to fp32").c_str(), one);
  }
  return 0;
}

}  // namespace
}  // namespace glm53::test

int main() { return glm53::test::report(); }
