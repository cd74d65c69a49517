// Speed of linear_window and linear_prompt at the full model's shapes (one rank), beside ceilings of the same run.
//
// Window: µs a product from replayed graphs that rotate over copies of the weights larger than L2; GB/s of weight bytes
// and their share of the read-only streaming rate. Prompt: TFLOP/s and the share of the register-only mma.sync rate.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ceilings.h"
#include "graph_time.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/mma.h"
#include "kernels/linear/linear.h"

namespace glm53::kernels {
namespace {

using bench::graph_microseconds;

constexpr int64_t kRotation = 400LL << 20;  // bytes of weights between two uses of a copy

__global__ void fill_kernel(__nv_bfloat16* values, int64_t count, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    auto word = static_cast<uint32_t>(i) * 2654435761U + seed;
    word = (word ^ (word >> 15)) * 2246822519U;
    word = (word ^ (word >> 13)) * 3266489917U;
    values[i] = __float2bfloat16(static_cast<float>(static_cast<int32_t>(word ^ (word >> 16))) * 0x1p-31F);
  }
}

template <typename T>
T* allocate(int64_t count) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, static_cast<size_t>(count) * sizeof(T)), "cudaMalloc");
  return static_cast<T*>(memory);
}

const char* name_of(WeightFormat format) {
  return format == WeightFormat::bf16 ? "bf16" : format == WeightFormat::fp8 ? "fp8" : "q4";
}

int run() {
  if (cuda_device_count() == 0) {
    std::puts("no CUDA device");
    return 0;
  }
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreate(&stream), "cudaStreamCreate");
  cudaDeviceProp device{};
  check_cuda(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  const int processors = device.multiProcessorCount;

  const int64_t pool_bytes = 3LL << 30;
  auto* pool = allocate<uint8_t>(pool_bytes);
  const int64_t source_count = 154880LL * 4096;
  auto* source = allocate<__nv_bfloat16>(source_count);
  fill_kernel<<<4 * processors, 512, 0, stream>>>(source, source_count, 1);
  auto* x = allocate<__nv_bfloat16>(2048 * 16384);
  fill_kernel<<<4 * processors, 512, 0, stream>>>(x, 2048 * 16384, 2);
  auto* y = allocate<__nv_bfloat16>(2048 * 64 * 512);
  check_cuda(cudaMemsetAsync(pool, 1, static_cast<size_t>(pool_bytes), stream), "cudaMemsetAsync");

  const bench::Ceilings ceilings = bench::print_ceilings();
  const double read_rate = ceilings.read_bytes * 1e-9;  // GB/s
  const double mma_rate = ceilings.mma_flops * 1e-12;   // TFLOP/s

  struct Shape {
    int64_t out, in;
    int matrices;
    const char* what;
  };
  const Shape window_shapes[] = {
      {24896, 4096, 1, "KDA input"},  {4096, 8192, 1, "KDA output"}, {24576, 4096, 1, "MLP gate|up"},
      {4096, 12288, 1, "MLP down"},   {154880, 4096, 1, "head"},     {16384, 1536, 1, "MLA q_b"},
      {4096, 16384, 1, "MLA output"}, {2048, 4096, 1, "MLA q|kv_a"}, {4096, 2048, 1, "shared down"},
      {512, 256, 64, "absorb key"},   {288, 4096, 1, "router"},      {24, 16384, 1, "mHC fn"},
  };
  void* workspace = allocate<uint8_t>(64 << 20);
  check_cuda(cudaMemsetAsync(workspace, 0, 64U << 20, stream), "cudaMemsetAsync");
  std::puts("\nwindow: us (GB/s of weights, % of read rate) at 1, 8, 16, 32, 64 rows; time(8)/time(1)");
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::fp8, WeightFormat::q4}) {
    for (const Shape& shape : window_shapes) {
      const int64_t matrix = packed_bytes(format, shape.out, shape.in);
      const int64_t bytes = matrix * shape.matrices;
      const auto copies = static_cast<int>(std::clamp<int64_t>(kRotation / bytes + 1, 2, 32));
      for (int64_t i = 0; i < int64_t{copies} * shape.matrices; ++i) {
        pack_linear({source, SourceType::bf16, shape.out, shape.in, shape.in, 1}, format, shape.out, 0,
                    pool + i * matrix, stream);
      }
      std::printf("%-4s %-12s %6ld x %5ld x %2d", name_of(format), shape.what, static_cast<long>(shape.out),
                  static_cast<long>(shape.in), shape.matrices);
      double first = 0.0;
      double eight = 0.0;
      for (const int rows : {1, 8, 16, 32, 64}) {
        const int launches = std::max(20, copies);
        const double us = graph_microseconds(
            launches,
            [&](int i, cudaStream_t on) {
              const PackedWeight weight{format, shape.out, shape.in, pool + (i % copies) * bytes, shape.matrices};
              linear_window(weight,
                            LinearRows<__nv_bfloat16>{x, shape.in * shape.matrices, y, shape.out * shape.matrices, rows,
                                                      shape.in, shape.out},
                            workspace, on);
            },
            7);
        if (rows == 1) first = us;
        if (rows == 8) eight = us;
        const double rate = static_cast<double>(bytes) / us / 1e3;
        std::printf("  %7.1f (%4.0f %3.0f%%)", us, rate, 100.0 * rate / read_rate);
      }
      std::printf("  %.2f\n", eight / first);
    }
  }

  std::puts("\nprompt: us, TFLOP/s, % of mma.sync");
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::fp8, WeightFormat::q4}) {
    for (const Shape& shape : {Shape{12288, 4096, 1, ""}, Shape{24896, 4096, 1, ""}, Shape{4096, 8192, 1, ""},
                               Shape{16384, 1536, 1, ""}, Shape{2048, 4096, 1, ""}, Shape{512, 256, 64, ""}}) {
      const int64_t matrix = packed_bytes(format, shape.out, shape.in);
      for (int i = 0; i < shape.matrices; ++i) {
        pack_linear({source, SourceType::bf16, shape.out, shape.in, shape.in, 1}, format, shape.out, 0,
                    pool + i * matrix, stream);
      }
      std::printf("%-4s %6ld x %5ld x %2d", name_of(format), static_cast<long>(shape.out), static_cast<long>(shape.in),
                  shape.matrices);
      for (const int rows : {2048, 512, 64}) {
        const PackedWeight weight{format, shape.out, shape.in, pool, shape.matrices};
        const double us = graph_microseconds(
            4,
            [&](int, cudaStream_t on) {
              linear_prompt(weight,
                            LinearRows<__nv_bfloat16>{x, shape.in * shape.matrices, y, shape.out * shape.matrices, rows,
                                                      shape.in, shape.out},
                            on);
            },
            7);
        const double rate = 2.0 * rows * static_cast<double>(shape.out * shape.in * shape.matrices) / us / 1e6;
        std::printf("  rows %4d: %7.1f us %4.0f TFLOP/s %3.0f%%", rows, us, rate, 100.0 * rate / mma_rate);
      }
      std::puts("");
    }
  }
  return 0;
}

}  // namespace
}  // namespace glm53::kernels

int main() {
  try {
    return glm53::kernels::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_linear: %s\n", error.what());
    return 1;
  }
}
