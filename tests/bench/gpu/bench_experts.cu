// Speed of the routed experts at the real geometry: 288 experts of 4096 × 2048, top-8 uniform.
//
//   bench_experts [K ...] [-r ROWS ...]      (default: 4 3 2, and 1 to 64 and 2,048 rows)
//
// Prints, for each K and number of rows, µs of a whole call (rotation, both GEMMs, activation, weighted sum), of the
// GEMMs alone, T weights/s (weights of the distinct experts touched), and the share of two ceilings of the same run:
// decoding from registers and the copy rate. Calls are captured in a graph over many routings, so that the words read
// are far more than the L2 holds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "ceilings.h"
#include "graph_time.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/mma.h"
#include "kernels/experts/exl3_run.h"
#include "kernels/experts/trellis_gemm.h"
#include "kernels/router/router.h"

using namespace glm53::kernels;  // NOLINT: a program of one file
using glm53::bench::graph_microseconds;

namespace {

constexpr int kExperts = 288;
constexpr int kHidden = 4096;
constexpr int kWidth = 2048;
constexpr int kTopk = 8;
constexpr int64_t kExpertWeights = int64_t{3} * kHidden * kWidth;
constexpr int kRoutings = 16;

struct Free {
  void operator()(void* memory) const { cudaFree(memory); }
};

template <typename T>
std::unique_ptr<T, Free> device_array(size_t count) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, count * sizeof(T)), "cudaMalloc");
  return std::unique_ptr<T, Free>(static_cast<T*>(memory));
}

__device__ uint32_t mix(uint64_t i) {
  i = (i + 0x9E3779B97F4A7C15ULL) * 0xBF58476D1CE4E5B9ULL;
  i = (i ^ (i >> 31)) * 0x94D049BB133111EBULL;
  return static_cast<uint32_t>(i >> 32);
}

__global__ void fill_words(uint32_t* words, size_t count) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x) {
    words[i] = mix(i);
  }
}

/// ±scale · [0.75, 1.25).
__global__ void fill_halves(__half* values, size_t count, float scale) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x) {
    const uint32_t r = mix(i);
    values[i] = __float2half((r % 2 == 0 ? scale : -scale) * (0.75F + static_cast<float>(r >> 9) * 0x1p-24F));
  }
}

/// Decoding and mma with nothing from memory.
template <int K>
__global__ __launch_bounds__(256, 3) void decode_only(int steps, float* sink) {
  uint32_t run[K + 1];
  for (int j = 0; j <= K; ++j) run[j] = mix(threadIdx.x * 16 + j + blockIdx.x * 4096);
  const CodeHash hash = code_hash(steps > 0 ? 1 : 0);
  const RunInput x = {{run[0], run[1], 3, 4}, {5, 6, 7, 8}};
  float sum[4] = {};
  for (int s = 0; s < steps; ++s) {
    uint32_t a[4][4];
    decode_run<K, false, false>(run, hash, a);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t operand[2];
      run_operand(x, i, operand);
      mma_m16n8k16_f16(sum, a[i], operand);
    }
#pragma unroll
    for (int j = 0; j <= K; ++j) run[j] += 0x9E3779B9U;
  }
  if (sum[0] == 12345.0F) sink[threadIdx.x] = sum[1] + sum[2] + sum[3];
}

template <int K>
double decode_rate(float* sink) {
  constexpr int kSteps = 4000;
  int sms = 0;
  check_cuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "attribute");
  const double us =
      graph_microseconds(1, [&](int, cudaStream_t s) { decode_only<K><<<3 * sms, 256, 0, s>>>(kSteps, sink); });
  return 3.0 * sms * 256 * 32 * kSteps / us * 1e-6;
}

constexpr TrellisGemmLauncher kThinGemm[] = {thin_gemm_k2, thin_gemm_k3, thin_gemm_k4, thin_gemm_k5, thin_gemm_k6};

struct Routing {
  std::unique_ptr<char, Free> memory;
  RouteTables tables;
  double distinct = 0;
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> rates;
  std::vector<int> row_counts;
  bool is_rows = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "-r") == 0) {
      is_rows = true;
    } else {
      (is_rows ? row_counts : rates).push_back(std::atoi(argv[i]));
    }
  }
  if (rates.empty()) rates = {4, 3, 2};
  if (row_counts.empty()) row_counts = {1, 2, 4, 8, 16, 32, 64, 2048};
  for (const int bits : rates) {
    if (bits < 2 || bits > 6) {
      std::puts("bench_experts: K must be 2..6");
      return 2;
    }
  }
  if (cuda_device_count() == 0) {
    std::puts("no CUDA device");
    return 0;
  }
  const int max_rows = 2048;
  const auto x = device_array<__nv_bfloat16>(size_t{max_rows} * kHidden);
  const auto y = device_array<__nv_bfloat16>(size_t{max_rows} * kHidden);
  {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<__nv_bfloat16> host(size_t{max_rows} * kHidden);
    for (auto& v : host) v = __float2bfloat16(normal(random));
    check_cuda(cudaMemcpy(x.get(), host.data(), host.size() * 2, cudaMemcpyHostToDevice), "copy");
  }
  const double copy_rate = glm53::bench::print_ceilings().copy_bytes * 1e-12;  // TB/s
  const auto sink = device_array<float>(1024);

  for (const int bits : rates) {
    const double from_registers = bits == 2   ? decode_rate<2>(sink.get())
                                  : bits == 3 ? decode_rate<3>(sink.get())
                                  : bits == 4 ? decode_rate<4>(sink.get())
                                  : bits == 5 ? decode_rate<5>(sink.get())
                                              : decode_rate<6>(sink.get());
    const size_t matrix_words = size_t{kHidden} * kWidth * static_cast<size_t>(bits) / 32;
    const auto words = device_array<uint32_t>(3 * kExperts * matrix_words);
    const size_t vectors = 3 * (kHidden + kWidth);
    const auto halves = device_array<__half>(kExperts * vectors);
    fill_words<<<2048, 256>>>(words.get(), 3 * kExperts * matrix_words);
    fill_halves<<<512, 256>>>(halves.get(), kExperts * vectors, 0.1F);
    check_cuda(cudaGetLastError(), "fill");
    std::vector<ExpertRecord> host_records;
    const TrellisKind kind{bits, 1, 0};
    for (size_t e = 0; e < kExperts; ++e) {
      const uint32_t* w = words.get() + 3 * e * matrix_words;
      const __half* h = halves.get() + e * vectors;
      ExpertRecord record;
      record.gate = {w, h, h + kHidden, kind, 0};
      record.up = {w + matrix_words, h + kHidden + kWidth, h + 2 * kHidden + kWidth, kind, 0};
      record.down = {w + 2 * matrix_words, h + 2 * kHidden + 2 * kWidth, h + 2 * kHidden + 3 * kWidth, kind, 0};
      host_records.push_back(record);
    }
    const auto records = device_array<ExpertRecord>(kExperts);
    check_cuda(cudaMemcpy(records.get(), host_records.data(), sizeof(ExpertRecord) * kExperts, cudaMemcpyHostToDevice),
               "copy");
    ExpertBankView bank;
    bank.records = records.get();
    bank.experts = kExperts;
    bank.hidden = kHidden;
    bank.width = kWidth;
    bank.limit = 10.0F;
    bank.gate_up_kinds = {kind};
    bank.down_kinds = {kind};
    const auto workspace = device_array<char>(experts_workspace_bytes(bank, max_rows, kTopk));

    std::printf("K = %d: decode and mma from registers %.2f T weights/s (%.2f TB/s of words)\n", bits, from_registers,
                from_registers * bits / 8);
    std::printf("  rows  experts   call us  gate|up   down   T w/s  GEMM T w/s  of registers  TB/s  of copy\n");
    for (const int rows : row_counts) {
      const bool window = rows <= kWindowRows;
      const int routings = window ? kRoutings : 2;
      std::mt19937 random(static_cast<unsigned>(rows));
      std::vector<Routing> routing(static_cast<size_t>(routings));
      double distinct = 0.0;
      for (Routing& r : routing) {
        r.memory = device_array<char>(route_tables_bytes(rows, kTopk, kExperts));
        r.tables = route_tables_at(r.memory.get(), rows, kTopk, kExperts);
        std::vector<int32_t> ids(kExperts);
        std::vector<int32_t> chosen;
        std::iota(ids.begin(), ids.end(), 0);
        for (int row = 0; row < rows; ++row) {
          std::shuffle(ids.begin(), ids.end(), random);
          chosen.insert(chosen.end(), ids.begin(), ids.begin() + kTopk);
        }
        const std::vector<float> weights(chosen.size(), 0.3F);
        distinct += static_cast<double>(std::set<int32_t>(chosen.begin(), chosen.end()).size()) / routings;
        check_cuda(cudaMemcpy(r.tables.expert_of_slot, chosen.data(), 4 * chosen.size(), cudaMemcpyHostToDevice),
                   "copy");
        check_cuda(cudaMemcpy(r.tables.weight_of_slot, weights.data(), 4 * chosen.size(), cudaMemcpyHostToDevice),
                   "copy");
        group_slots(rows, window, r.tables, nullptr);
      }
      check_cuda(cudaDeviceSynchronize(), "group");
      ExpertsCall call;
      call.x = x.get();
      call.y_bf16 = y.get();
      call.rows = rows;
      call.window = window;
      const double call_us = graph_microseconds(1,
                                                [&](int, cudaStream_t s) {
                                                  for (const Routing& r : routing)
                                                    experts_forward(bank, r.tables, call, workspace.get(), s);
                                                }) /
                             routings;
      double gemm_us[2] = {};
      const bool timed_gemm = window;
      for (int stage = 0; stage < 2 && timed_gemm; ++stage) {
        TrellisGemm gemm{};
        gemm.records = bank.records;
        gemm.in = stage == 0 ? kHidden : kWidth;
        gemm.out = stage == 0 ? kWidth : kHidden;
        gemm.projections = stage == 0 ? 2 : 1;
        const int64_t places = int64_t{rows} * kTopk;
        gemm.input = reinterpret_cast<const __half*>(workspace.get());
        gemm.output = reinterpret_cast<float*>(workspace.get() + 4 * places * kHidden);
        gemm.input_stride = places * kHidden;
        gemm.output_stride = places * kWidth;
        gemm_us[stage] = graph_microseconds(1,
                                            [&](int, cudaStream_t s) {
                                              for (const Routing& r : routing) {
                                                gemm.segments = r.tables.thin;
                                                gemm.segment_count = r.tables.counts;
                                                gemm.segment_capacity = std::min(rows * kTopk, kExperts);
                                                kThinGemm[bits - 2](gemm, kind, s);
                                              }
                                            }) /
                         routings;
      }
      const double rate = distinct * static_cast<double>(kExpertWeights) / call_us * 1e-6;
      const double gemm_rate =
          timed_gemm ? distinct * static_cast<double>(kExpertWeights) / (gemm_us[0] + gemm_us[1]) * 1e-6 : 0.0;
      std::printf("  %4d  %7.1f  %8.1f  %7.1f  %5.1f  %6.2f  %10.2f  %11.0f%%  %.2f  %6.0f%%\n", rows, distinct,
                  call_us, gemm_us[0], gemm_us[1], rate, gemm_rate, 100 * rate / from_registers, rate * bits / 8,
                  100 * rate * bits / 8 / copy_rate);
      if (!window) {
        std::printf("        %.0f TFLOP/s of the rows' own products\n",
                    2.0 * rows * kTopk * static_cast<double>(kExpertWeights) / call_us * 1e-6);
      }
    }
  }

  const auto weight = device_array<__nv_bfloat16>(size_t{kExperts} * kHidden);
  const auto bias = device_array<float>(kExperts);
  const auto logits = device_array<float>(size_t{max_rows} * kExperts);
  check_cuda(cudaMemcpy(weight.get(), x.get(), size_t{kExperts} * kHidden * 2, cudaMemcpyDeviceToDevice), "copy");
  check_cuda(cudaMemset(bias.get(), 0, kExperts * 4), "memset");
  std::printf("router (weights in L2): rows, logits us, choice and grouping us\n");
  for (const int rows : {1, 8, 64, 2048}) {
    const auto memory = device_array<char>(route_tables_bytes(rows, kTopk, kExperts));
    const RouteTables tables = route_tables_at(memory.get(), rows, kTopk, kExperts);
    RouterOptions options;
    options.window = rows <= kWindowRows;
    const double logits_us =
        graph_microseconds(1,
                           [&](int, cudaStream_t s) {
                             for (int i = 0; i < 10; ++i) {
                               router_logits(x.get(), weight.get(), rows, kHidden, kExperts, logits.get(), s);
                             }
                           }) /
        10;
    const double route_us = graph_microseconds(1,
                                               [&](int, cudaStream_t s) {
                                                 for (int i = 0; i < 10; ++i)
                                                   route(logits.get(), bias.get(), rows, options, tables, s);
                                               }) /
                            10;
    std::printf("  %4d  %6.1f  %6.1f\n", rows, logits_us, route_us);
  }
  return 0;
}
