// What the KDA kernels do to one row before and after the recurrence. Every multiply-add is written out, so that the
// bits do not depend on where the compiler would fuse.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "kernels/common/exp2_approx.h"
#include "kernels/common/reciprocal_approx.h"
#include "kernels/kda/kda.h"

namespace glm53::kernels {

inline constexpr float kKdaL2Eps = 1e-6F;

__device__ inline float2 unpack_bf16(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U)};
}

__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <int kWords>
__device__ inline void unpack_bf16(const uint32_t (&words)[kWords], float (&x)[2 * kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const float2 pair = unpack_bf16(words[i]);
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}

inline constexpr float kLog2E = 1.44269504F;

// Both limits of x come out right: 2^x overflows to inf, whose reciprocal is 0.
__device__ inline float kda_sigmoid(float x) {
  return reciprocal_approx(__fadd_rn(1.0F, exp2_approx(__fmul_rn(x, -kLog2E))));
}
__device__ inline float kda_silu(float x) { return __fmul_rn(x, kda_sigmoid(x)); }

/// silu of the convolution; x oldest row first.
__device__ inline float kda_conv(float4 w, float x0, float x1, float x2, float x3) {
  return kda_silu(__fmaf_rn(w.w, x3, __fmaf_rn(w.z, x2, __fmaf_rn(w.y, x1, __fmul_rn(w.x, x0)))));
}

/// g; rate = exp(A_log).
__device__ inline float kda_log_decay(float p, float rate, float dt_bias, float lower_bound) {
  return __fmul_rn(lower_bound, kda_sigmoid(__fmul_rn(rate, __fadd_rn(p, dt_bias))));
}

/// Sum of squares of 128 values, N a lane in 128 / N consecutive lanes. All lanes of the warp call it.
template <int N>
__device__ inline float kda_sum_squares(const float (&x)[N]) {
  float sum = 0.0F;
#pragma unroll
  for (float value : x) sum = __fmaf_rn(value, value, sum);
#pragma unroll
  for (int offset = kKdaHeadDim / N / 2; offset > 0; offset /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffU, sum, offset));
  }
  return sum;
}

__device__ inline float kda_key_scale(float sum_squares) { return 1.0F / sqrtf(__fadd_rn(sum_squares, kKdaL2Eps)); }
/// Includes the 128^-1/2 of the read-out.
__device__ inline float kda_query_scale(float sum_squares) {
  return 1.0F / sqrtf(__fmul_rn(__fadd_rn(sum_squares, kKdaL2Eps), static_cast<float>(kKdaHeadDim)));
}

/// y = bf16(o · rsqrt(mean(o²) + eps) · w · sigmoid(γ)) of one row and head, one warp. Lane l holds elements 4·l..4·l+3
/// of o and, as bf16, of γ.
__device__ inline uint2 kda_gated_norm(float4 o, uint2 gate, float4 weight, float eps) {
  float sum = __fmaf_rn(o.w, o.w, __fmaf_rn(o.z, o.z, __fmaf_rn(o.y, o.y, __fmul_rn(o.x, o.x))));
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffU, sum, offset));
  const float scale = rsqrtf(__fmaf_rn(sum, 1.0F / kKdaHeadDim, eps));
  const float2 low = unpack_bf16(gate.x);
  const float2 high = unpack_bf16(gate.y);
  const auto element = [scale](float value, float w, float g) {
    return __fmul_rn(__fmul_rn(__fmul_rn(value, scale), w), kda_sigmoid(g));
  };
  return {pack_bf16(element(o.x, weight.x, low.x), element(o.y, weight.y, low.y)),
          pack_bf16(element(o.z, weight.z, high.x), element(o.w, weight.w, high.y))};
}

/// Rows of the log that count.
__device__ inline int kda_kept_rows(const KdaSlot& slot) { return max(0, min(slot.kept, min(slot.logged, kKdaRows))); }

/// Row of `conv_ring` that holds a segment's row (3 before its first to 15 after it); first_ring_row is that of its
/// first row, first_position mod 19: one 64-bit remainder a block, not one a load.
__device__ inline int kda_ring_row(int first_ring_row, int row) {
  return (first_ring_row + row + kKdaConvRing) % kKdaConvRing;
}

/// Throws std::invalid_argument when the launch cannot be what its caller means.
void kda_check(const KdaRows& rows, const KdaParameters& parameters, const KdaLayerState& layer,
               const BatchTables& tables);
/// kda_settle for the slots of the segments whose log is a window's.
void kda_settle_windows(const KdaLayerState& layer, const BatchTables& tables, cudaStream_t stream);

}  // namespace glm53::kernels
