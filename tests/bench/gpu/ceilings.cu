#include <cstdio>
#include <functional>

#include "ceilings.h"
#include "graph_time.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/mma.h"

namespace glm53::bench {
namespace {

using kernels::check_cuda;

constexpr int kThreads = 256;
constexpr int kChains = 8;  // independent sums of a warp
constexpr int kSteps = 4096;

__global__ void copy_kernel(const uint4* in, uint4* out, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += 4 * stride) {
    uint4 values[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j * stride < count) values[j] = in[i + j * stride];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j * stride < count) out[i + j * stride] = values[j];
    }
  }
}

__global__ void mma_kernel(float* sink, uint32_t bits) {
  float sums[kChains][4] = {};
  const uint32_t a[4] = {bits + threadIdx.x, bits * 3, bits * 5, bits * 7};
  for (int i = 0; i < kSteps; ++i) {
    const uint32_t b[2] = {bits * 11 + static_cast<uint32_t>(i), bits};
#pragma unroll
    for (auto& sum : sums) kernels::mma_m16n8k16_f16(sum, a, b);
  }
  float total = 0.0F;
  for (const auto& sum : sums) total += sum[0] + sum[1] + sum[2] + sum[3];
  if (total == 1.2345F) *sink = total;  // never; keeps the sums alive
}

__global__ void read_kernel(const uint4* data, int64_t count, uint32_t* sink) {
  uint32_t sum = 0;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += 8 * stride) {
    uint4 values[8] = {};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (i + j * stride < count) values[j] = __ldcs(data + i + j * stride);
    }
    for (const uint4& v : values) sum ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x12345678U) *sink = sum;  // never; keeps the loads alive
}

double median_seconds(const std::function<void(cudaStream_t)>& launch) {
  return 1e-6 * graph_microseconds(
                    1, [&](int, cudaStream_t stream) { launch(stream); }, 9);
}

Ceilings measure_ceilings() {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  const auto blocks = static_cast<unsigned>(4 * properties.multiProcessorCount);
  constexpr int64_t kBytes = int64_t{1} << 30;
  char* memory = nullptr;
  check_cuda(cudaMalloc(&memory, 2 * kBytes), "cudaMalloc");
  check_cuda(cudaMemset(memory, 0x5A, 2 * kBytes), "cudaMemset");
  const auto* from = reinterpret_cast<const uint4*>(memory);
  Ceilings ceilings;
  ceilings.card = properties.name;
  ceilings.copy_bytes =
      2.0 * kBytes / median_seconds([&](cudaStream_t stream) {
        copy_kernel<<<4096, 512, 0, stream>>>(from, reinterpret_cast<uint4*>(memory + kBytes), kBytes / 16);
      });
  ceilings.read_bytes =
      2.0 * kBytes / median_seconds([&](cudaStream_t stream) {
        read_kernel<<<blocks, 512, 0, stream>>>(from, 2 * kBytes / 16, reinterpret_cast<uint32_t*>(memory));
      });
  const double flops = 2.0 * 16 * 8 * 16 * kChains * kSteps * (kThreads / 32) * blocks;
  ceilings.mma_flops = flops / median_seconds([&](cudaStream_t stream) {
                         mma_kernel<<<blocks, kThreads, 0, stream>>>(reinterpret_cast<float*>(memory), 0x3C003C00U);
                       });
  check_cuda(cudaGetLastError(), "ceilings launch");
  check_cuda(cudaFree(memory), "cudaFree");
  return ceilings;
}

}  // namespace

Ceilings print_ceilings() {
  const Ceilings ceilings = measure_ceilings();
  std::printf("%s: copy %.2f TB/s (read + written), read %.2f TB/s, mma.sync %.0f TFLOP/s\n", ceilings.card.c_str(),
              ceilings.copy_bytes * 1e-12, ceilings.read_bytes * 1e-12, ceilings.mma_flops * 1e-12);
  return ceilings;
}

}  // namespace glm53::bench
