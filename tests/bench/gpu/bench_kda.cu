// Speed of the KDA kernels: window step against the copy bandwidth of the same run, prompt in µs.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "ceilings.h"
#include "graph_time.h"
#include "kernels/common/cuda_check.h"
#include "kernels/kda/kda.h"

namespace {

using namespace glm53::kernels;
using glm53::bench::graph_microseconds;

/// Uninitialised unless filled; lives until the program ends.
template <typename T>
T* device_array(int64_t count) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, static_cast<size_t>(count) * sizeof(T)), "cudaMalloc");
  check_cuda(cudaMemset(memory, 0, static_cast<size_t>(count) * sizeof(T)), "cudaMemset");
  return static_cast<T*>(memory);
}

template <typename T>
T* upload(const std::vector<T>& values) {
  T* memory = device_array<T>(static_cast<int64_t>(values.size()));
  check_cuda(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  return memory;
}

__global__ void fill_bf16(__nv_bfloat16* to, int64_t count, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761U + seed;
    x ^= x >> 15;
    x *= 2246822519U;
    x ^= x >> 13;
    to[i] = __float2bfloat16(static_cast<float>(x & 0xffffU) / 32768.0F - 1.0F);
  }
}

__nv_bfloat16* random_bf16(int64_t count, uint32_t seed) {
  auto* memory = device_array<__nv_bfloat16>(count);
  fill_bf16<<<512, 256>>>(memory, count, seed);
  check_cuda(cudaGetLastError(), "fill");
  return memory;
}

std::vector<float> random_floats(int64_t count, float scale) {
  std::mt19937 random(3);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = scale * (static_cast<float>(random()) / 2147483648.0F - 1.0F);
  return values;
}

struct Bench {
  int heads;
  int slots;
  int64_t max_rows;
  int64_t width = int64_t{heads} * kKdaHeadDim;
  int64_t stride = 3 * width + heads + 256;
  KdaParameters parameters;
  KdaLayerState layer;
  KdaRows rows;
  KdaSlot* slot_table = nullptr;

  Bench(int h, int s, int64_t r) : heads(h), slots(s), max_rows(r) {
    parameters.conv = upload(random_floats(3 * width * 4, 0.5F));
    parameters.a_log = upload(random_floats(heads, 0.3F));
    parameters.dt_bias = upload(random_floats(width, 0.5F));
    parameters.output_norm = upload(random_floats(kKdaHeadDim, 1.0F));
    // Two random bf16 are a random fp32.
    layer.state = reinterpret_cast<float*>(random_bf16(2 * slots * width * kKdaHeadDim, 6));
    layer.conv_ring = device_array<__nv_bfloat16>(slots * kKdaConvRing * 3 * width);
    layer.log_key = random_bf16(slots * kKdaRows * width, 1);
    layer.log_value = random_bf16(slots * kKdaRows * width, 2);
    layer.log_decay = device_array<float>(slots * kKdaRows * width);
    layer.log_beta = device_array<float>(slots * kKdaRows * heads);
    const auto fill = [&](float* to, int byte, int64_t count) {
      check_cuda(cudaMemset(to, byte, static_cast<size_t>(count) * sizeof(float)), "cudaMemset");
    };
    fill(layer.log_decay, 0xbf, slots * kKdaRows * width);  // g = -1.5
    fill(layer.log_beta, 0x3e, slots * kKdaRows * heads);   // 0.19
    slot_table = device_array<KdaSlot>(slots);
    layer.slots = slot_table;
    layer.heads = heads;
    rows.projected = random_bf16(max_rows * stride, 3);
    rows.projected_stride = stride;
    rows.forget = random_bf16(max_rows * width, 4);
    rows.gate = random_bf16(max_rows * width, 5);
    rows.out = device_array<__nv_bfloat16>(max_rows * width);
  }
};

void bench_window(int sequences, int rows, int kept, double copy) {
  const int copies = std::max(2, 96 / sequences);  // > 380 MB of states
  Bench bench(64, copies * sequences, int64_t{sequences} * rows);
  std::vector<KdaSlot> slots(static_cast<size_t>(bench.slots));
  for (KdaSlot& slot : slots) {
    slot.state_position = 100;
    slot.log_kind = kKdaLogWindow;
    slot.logged = kKdaRows;
    slot.kept = kept;
  }
  check_cuda(cudaMemcpy(bench.slot_table, slots.data(), slots.size() * sizeof(KdaSlot), cudaMemcpyHostToDevice),
             "copy");
  std::vector<BatchTables> tables;
  for (int copy_index = 0; copy_index < copies; ++copy_index) {
    std::vector<DeviceSegment> segments;
    for (int i = 0; i < sequences; ++i) segments.push_back({copy_index * sequences + i, i * rows, rows, 0, 100 + kept});
    tables.push_back({upload(segments), sequences, nullptr, nullptr, nullptr});
  }
  const double us = graph_microseconds(copies, [&](int i, cudaStream_t stream) {
    kda_window(bench.rows, bench.parameters, bench.layer, tables[static_cast<size_t>(i)], stream);
  });
  const double state = 2.0 * static_cast<double>(bench.width) * kKdaHeadDim * 4;
  // q, k, v, three ring rows, p, γ, y; log out and in; ring out.
  const double row = static_cast<double>(bench.width) * (6 + 6 + 2 + 2 + 2 + 8);
  const double bytes = sequences * (state + rows * row + kept * 8.0 * static_cast<double>(bench.width) +
                                    18.0 * static_cast<double>(bench.width));
  std::printf("window  %d seq x %2d rows, %2d replayed: %7.2f us  %6.0f GB/s  %5.1f %% of copy\n", sequences, rows,
              kept, us, bytes / us / 1e3, 100.0 * bytes / us / 1e3 / copy);
}

void bench_prompt(int heads, int rows, int sequences, double copy) {
  Bench bench(heads, sequences, int64_t{rows} * sequences);
  std::vector<DeviceSegment> segments;
  for (int i = 0; i < sequences; ++i) segments.push_back({i, i * rows, rows, 0, 0});
  const BatchTables tables{upload(segments), sequences, nullptr, nullptr, nullptr};
  const double us = graph_microseconds(
      1, [&](int, cudaStream_t stream) { kda_prompt(bench.rows, bench.parameters, bench.layer, tables, stream); });
  const double bytes = 12.0 * static_cast<double>(bench.width) * rows * sequences;
  std::printf("prompt  %d heads, %d seq x %d rows: %8.1f us, %.2f us a sub-chunk, %5.1f %% of copy\n", heads, sequences,
              rows, us, us * 16 / rows, 100.0 * bytes / us / 1e3 / copy);
}

}  // namespace

int main() {
  const double copy = glm53::bench::print_ceilings().copy_bytes * 1e-9;  // GB/s
  for (const int sequences : {1, 4, 8}) {
    for (const auto& [rows, kept] : std::vector<std::pair<int, int>>{{1, 1}, {8, 4}, {16, 16}}) {
      bench_window(sequences, rows, kept, copy);
    }
  }
  bench_prompt(64, 2048, 1, copy);
  bench_prompt(32, 2048, 1, copy);
  bench_prompt(64, 2048, 2, copy);
  return 0;
}
