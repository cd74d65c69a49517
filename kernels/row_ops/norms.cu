// RMSNorm of rows, and of the mean of the four streams.
//
// Operation   rms_norm: y = bf(x·rsqrt(mean(x²) + eps)·w); collapse_streams: the same of x = bf(¼ Σ_h X_h)
// Shapes      x, y [rows, width] bf16 with strides, w [width] fp32; X [·, 4, width] bf16
// Rounding    the mean to bf16 once; fp32 sums, a thread's columns in ascending order, then a fixed tree; y once
// Bound       memory; the second visit of a row finds it in L1
#include <stdexcept>

#include "kernels/common/cuda_check.h"
#include "kernels/common/overlap.h"
#include "kernels/common/sum.h"
#include "kernels/common/vector8.h"
#include "kernels/row_ops/row_ops.h"

namespace glm53::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kStreams = 4;

__device__ float add_squares(const float (&values)[8], float sum) {
#pragma unroll
  for (float v : values) sum = fmaf(v, v, sum);
  return sum;
}

/// y = values · r · weight for vector i.
__device__ uint4 scale8(const uint4& x, const float* weight, int i, float r) {
  float values[8];
  unpack8(x, values);
  const float4 low = __ldg(reinterpret_cast<const float4*>(weight) + 2 * i);
  const float4 high = __ldg(reinterpret_cast<const float4*>(weight) + 2 * i + 1);
  const float w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int e = 0; e < 8; ++e) values[e] = values[e] * r * w[e];
  return pack8(values);
}

__device__ float inverse_rms(float squares, int width, float eps) {
  return 1.0F / sqrtf(squares / static_cast<float>(width) + eps);
}

// x and y may be the same memory: every thread rereads and writes only what it read.
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const __nv_bfloat16* x, int64_t x_stride, const float* weight, int width, float eps,
                    __nv_bfloat16* y, int64_t y_stride) {
  __shared__ float scratch[kWarps];
  const auto* from = reinterpret_cast<const uint4*>(x + blockIdx.x * x_stride);
  auto* to = reinterpret_cast<uint4*>(y + blockIdx.x * y_stride);
  const int vectors = width / 8;
  float squares = 0.0F;
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kThreads) {
    float values[8];
    unpack8(from[i], values);
    squares = add_squares(values, squares);
  }
  const float r = inverse_rms(block_sum<kThreads>(squares, scratch), width, eps);
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kThreads) to[i] = scale8(from[i], weight, i, r);
}

__global__ void __launch_bounds__(kThreads)
    collapse_streams_kernel(const __nv_bfloat16* streams, const int32_t* which, int width, const float* norm, float eps,
                            __nv_bfloat16* y) {
  start_after_previous();
  __shared__ float scratch[kWarps];
  const int64_t row = which[blockIdx.x];
  const int vectors = width / 8;
  auto* to = reinterpret_cast<uint4*>(y) + static_cast<int64_t>(blockIdx.x) * vectors;
  if (row < 0) {
    for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kThreads) to[i] = uint4{};
    return;
  }
  const auto* from = reinterpret_cast<const uint4*>(streams) + row * kStreams * vectors;
  float squares = 0.0F;
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kThreads) {
    float x[kStreams][8];
#pragma unroll
    for (int h = 0; h < kStreams; ++h) unpack8(from[h * vectors + i], x[h]);
    float mean[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) mean[e] = 0.25F * ((x[0][e] + x[1][e]) + (x[2][e] + x[3][e]));
    const uint4 rounded = pack8(mean);
    to[i] = rounded;
    unpack8(rounded, mean);
    squares = add_squares(mean, squares);
  }
  if (norm == nullptr) return;
  const float r = inverse_rms(block_sum<kThreads>(squares, scratch), width, eps);
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kThreads) to[i] = scale8(to[i], norm, i, r);
}

}  // namespace

void rms_norm(const __nv_bfloat16* x, int64_t x_stride, const float* weight, int width, float eps, int rows,
              __nv_bfloat16* y, int64_t y_stride, cudaStream_t stream) {
  if (width < 8 || width % 8 != 0 || x_stride % 8 != 0 || y_stride % 8 != 0) {
    throw std::invalid_argument("rms_norm: width and strides must be multiples of 8");
  }
  if (rows < 1) return;
  rms_norm_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(x, x_stride, weight, width, eps, y, y_stride);
  check_cuda(cudaGetLastError(), "rms_norm launch");
}

void collapse_streams(const __nv_bfloat16* streams, const int32_t* which, int rows, int hidden, const float* norm,
                      float eps, __nv_bfloat16* y, cudaStream_t stream) {
  if (hidden < 8 || hidden % 8 != 0) throw std::invalid_argument("collapse_streams: hidden is not a multiple of 8");
  if (rows < 1) return;
  launch_overlapped("collapse_streams launch", collapse_streams_kernel, static_cast<unsigned>(rows), kThreads, 0,
                    stream, streams, which, hidden, norm, eps, y);
}

}  // namespace glm53::kernels
