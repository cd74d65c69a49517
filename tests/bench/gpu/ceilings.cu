#include <algorithm>
#include <array>

#include "ceilings.h"
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

/// Median seconds of what `launch` puts on the default stream.
template <typename Launch>
double median_seconds(const Launch& launch) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check_cuda(cudaEventCreate(&begin), "cudaEventCreate");
  check_cuda(cudaEventCreate(&end), "cudaEventCreate");
  launch();
  std::array<float, 9> times{};
  for (float& ms : times) {
    check_cuda(cudaEventRecord(begin), "cudaEventRecord");
    launch();
    check_cuda(cudaEventRecord(end), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(end), "cudaEventSynchronize");
    check_cuda(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
  }
  check_cuda(cudaEventDestroy(begin), "cudaEventDestroy");
  check_cuda(cudaEventDestroy(end), "cudaEventDestroy");
  std::sort(times.begin(), times.end());
  return 1e-3 * double{times[times.size() / 2]};
}

}  // namespace

Ceilings measure_ceilings() {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  constexpr int64_t kBytes = int64_t{1} << 30;
  char* memory = nullptr;
  check_cuda(cudaMalloc(&memory, 2 * kBytes), "cudaMalloc");
  check_cuda(cudaMemset(memory, 0x5A, 2 * kBytes), "cudaMemset");
  Ceilings ceilings;
  ceilings.card = properties.name;
  ceilings.copy_bytes = 2.0 * kBytes / median_seconds([&] {
                          copy_kernel<<<4096, 512>>>(reinterpret_cast<const uint4*>(memory),
                                                     reinterpret_cast<uint4*>(memory + kBytes), kBytes / 16);
                        });
  const int blocks = 4 * properties.multiProcessorCount;
  const double flops = 2.0 * 16 * 8 * 16 * kChains * kSteps * (kThreads / 32) * blocks;
  ceilings.mma_flops =
      flops / median_seconds([&] {
        mma_kernel<<<static_cast<unsigned>(blocks), kThreads>>>(reinterpret_cast<float*>(memory), 0x3C003C00U);
      });
  check_cuda(cudaGetLastError(), "ceilings launch");
  check_cuda(cudaFree(memory), "cudaFree");
  return ceilings;
}

}  // namespace glm53::bench
