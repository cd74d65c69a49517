// mHC site and sampler on the device: median time of graph replays.
//
// A graph holds many sites, each with its own fn (90 in the model, 71 MB: beyond L2), on streams that are the model's
// own working set. The ceiling is a copy measured in the same run.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <vector>

#include "ceilings.h"
#include "graph_time.h"
#include "kernels/common/cuda_check.h"
#include "kernels/mhc/mhc.h"
#include "kernels/row_ops/row_ops.h"
#include "kernels/sampler/sampler.h"

namespace {

using namespace glm53::kernels;
using glm53::bench::graph_microseconds;
using Bf16 = __nv_bfloat16;

template <typename T>
T* device_array(size_t count) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, count * sizeof(T)), "cudaMalloc");
  return static_cast<T*>(memory);
}

template <typename T>
T* upload(const std::vector<T>& values) {
  T* memory = device_array<T>(values.size());
  check_cuda(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  return memory;
}

Bf16* random_bf16(size_t count, float scale) {
  static std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-scale, scale);
  std::vector<Bf16> some(std::min<size_t>(count, 1'000'003));
  for (Bf16& v : some) v = __float2bfloat16(uniform(random));
  std::vector<Bf16> all(count);
  for (size_t i = 0; i < count; ++i) all[i] = some[i % some.size()];
  return upload(all);
}

void bench_mhc(double bandwidth) {
  constexpr int kHidden = 4096;
  constexpr int kSites = 90;
  const size_t fn_size = size_t{24} * 4 * kHidden;
  const Bf16* fn = random_bf16(kSites * fn_size, 0.01F);
  const float* base = upload(std::vector<float>(24, 0.1F));
  const float* scale = upload(std::vector<float>(3, 0.8F));
  const float* norm = upload(std::vector<float>(kHidden, 1.0F));
  constexpr int kMaxRows = 2048;
  Bf16* streams = random_bf16(size_t{kMaxRows} * 4 * kHidden, 1.0F);
  Bf16* y = random_bf16(size_t{kMaxRows} * 6144, 0.1F);
  auto* normed = device_array<Bf16>(size_t{kMaxRows} * kHidden);
  float* mix = upload(std::vector<float>(size_t{kMaxRows} * kMhcMix, 0.25F));
  void* workspace = device_array<char>(mhc_workspace_bytes(kMaxRows, kHidden));
  const MhcShape shape{.hidden = kHidden};
  std::printf("%-22s %6s %10s %8s %8s\n", "mHC, D = 4096", "rows", "us/site", "GB/s", "% copy");
  for (const int rows : {1, 4, 8, 16, 32, 64, 128, 512, 2048}) {
    const int sites = rows <= 64 ? kSites : 12;
    for (const bool post : {true, false}) {
      const double us = graph_microseconds(sites, [&](int i, cudaStream_t stream) {
        const MhcSiteWeights site{fn + i * fn_size, false, base, scale, norm};
        if (post) {
          mhc_post_pre(site, shape, y, rows, workspace, streams, mix, normed, stream);
        } else {
          mhc_pre(site, shape, streams, rows, workspace, mix, normed, stream);
        }
      });
      const double row_bytes = kHidden * 2.0 * (post ? 4 + 4 + 1 + 1 : 4 + 1);
      const double rate = (2.0 * fn_size + rows * row_bytes) / us * 1e6;
      std::printf("%-22s %6d %10.2f %8.0f %7.1f%%\n", post ? "post_pre" : "pre", rows, us, rate / 1e9,
                  100 * rate / bandwidth);
    }
  }
  const double us =
      graph_microseconds(12, [&](int, cudaStream_t stream) { mhc_post(mix, y, kMaxRows, kHidden, streams, stream); });
  const double rate = kMaxRows * kHidden * 2.0 * 9 / us * 1e6;
  std::printf("%-22s %6d %10.2f %8.0f %7.1f%%\n", "post", kMaxRows, us, rate / 1e9, 100 * rate / bandwidth);

  // The other row operations at a chunk of 2,048 rows; in and out together exceed L2.
  const auto report = [&](const char* name, int rows, double bytes,
                          const std::function<void(int, cudaStream_t)>& body) {
    const double each = graph_microseconds(12, body);
    std::printf("%-22s %6d %10.2f %8.0f %7.1f%%\n", name, rows, each, bytes / each * 1e-3,
                100 * bytes / each * 1e6 / bandwidth);
  };
  report("swiglu, width 6144", 2048, 2048.0 * 6144 * 6,
         [&](int, cudaStream_t stream) { swiglu(streams, 2048, 6144, 10.0F, y, stream); });
  report("rms_norm 4096", 2048, 2048.0 * 4096 * 4,
         [&](int, cudaStream_t stream) { rms_norm(streams, 4096, norm, 4096, 1e-5F, 2048, normed, 4096, stream); });
  report("rms_norm 1536", 8, 8.0 * 1536 * 4,
         [&](int, cudaStream_t stream) { rms_norm(streams, 4096, norm, 1536, 1e-5F, 8, normed, 4096, stream); });
}

void bench_sampler() {
  constexpr int kVocab = 154'880;
  constexpr int kMaxRows = 64;
  std::mt19937 random(2);
  std::vector<float> peaked(size_t{kMaxRows} * kVocab);
  std::vector<float> flat(peaked.size());
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> rank(1, kVocab);
  for (size_t i = 0; i < peaked.size(); ++i) {
    // Zipf's tail around a few likely ids.
    peaked[i] = 18.0F - 2.0F * std::log(static_cast<float>(rank(random))) + normal(random);
    flat[i] = normal(random);
  }
  const float* logits[] = {upload(peaked), upload(flat)};
  std::vector<LogitPenalty> penalties;
  for (int i = 0; i < 4000; ++i) penalties.push_back({i * 37, i % 3});
  const LogitPenalty* device_penalties = upload(penalties);
  const uint32_t* masks = upload(std::vector<uint32_t>(kVocab / 32, 0xFFFFFFFEU));
  auto* rows = device_array<SamplerRow>(kMaxRows);
  void* workspace = device_array<char>(sampler_workspace_bytes(kMaxRows, kMaxRows, kVocab));
  const SamplerOutputs outputs{device_array<int32_t>(kMaxRows), device_array<SamplerStatus>(kMaxRows),
                               device_array<float>(kMaxRows), device_array<int32_t>(kMaxRows * kMaxTopLogprobs),
                               device_array<float>(kMaxRows * kMaxTopLogprobs)};
  struct Kind {
    const char* name;
    float temperature, top_p;
    int top_k;
    float min_p;
    bool penalties, mask;
    int logprobs;
  };
  const Kind kinds[] = {{"greedy", 0, 1, 0, 0, false, false, -1},
                        {"T 1", 1, 1, 0, 0, false, false, -1},
                        {"T 1, top_p 0.95", 1, 0.95F, 0, 0, false, false, -1},
                        {"T 1, top_k 40", 1, 1, 40, 0, false, false, -1},
                        {"top_k, top_p, min_p", 0.7F, 0.95F, 40, 0.05F, false, false, -1},
                        {"top_p, mask, penalties", 1, 0.95F, 0, 0, true, true, -1},
                        {"greedy, 20 logprobs", 0, 1, 0, 0, false, false, 20}};
  std::printf("\n%-24s %6s %12s %12s\n", "sampler, V = 154,880", "rows", "us peaked", "us flat");
  for (const Kind& kind : kinds) {
    for (const int count : {1, 8, 64}) {
      std::vector<SamplerRow> host(kMaxRows);
      for (int r = 0; r < count; ++r) {
        SamplerRow& row = host[static_cast<size_t>(r)];
        row.logits_row = r;
        row.position = 1000 + r;
        row.key[0] = 12345;
        row.temperature = kind.temperature;
        row.top_p = kind.top_p;
        row.top_k = kind.top_k;
        row.lowest = sampler_lowest(kind.min_p);
        row.logprobs = kind.logprobs;
        if (kind.mask) row.mask = 0;
        if (kind.penalties) {
          row.patch_slot = r;
          row.penalties = {0, 4000};
          row.repetition = 1.1F;
        }
      }
      check_cuda(cudaMemcpy(rows, host.data(), host.size() * sizeof(host[0]), cudaMemcpyHostToDevice), "cudaMemcpy");
      double us[2];
      for (int which = 0; which < 2; ++which) {
        us[which] = graph_microseconds(5, [&](int, cudaStream_t stream) {
          sample(logits[which], kVocab, kVocab, {rows, masks, nullptr, nullptr, device_penalties}, count, workspace,
                 outputs, stream);
        });
      }
      std::printf("%-24s %6d %12.1f %12.1f\n", kind.name, count, us[0], us[1]);
    }
  }
}

}  // namespace

int main() {
  bench_mhc(glm53::bench::print_ceilings().copy_bytes);
  bench_sampler();
}
