// Router logits.
//
// Operation   logits[r][e] = Σ_k x[r][k] · weight[e][k]
// Shapes      x [rows, hidden] bf16, weight [experts, hidden] bf16 or fp32, logits [rows, experts] fp32
// Rounding    fp32 fused multiply-adds, not tensor cores: their accumulators keep fewer bits, and the choice of experts
//             hangs on these values. A sum is split over 4 warps × 32 lanes by k alone, so its order is the same for
//             any number of rows and any tile.
// Bound       one row: the weights, 2 bytes each; prompts: fp32 multiply-adds (2.4 G for 2,048 rows of 4096 × 288)
#include <stdexcept>

#include "kernels/common/cuda_check.h"
#include "kernels/common/overlap.h"
#include "kernels/router/router.h"

namespace glm53::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kPerLane = 8;  // consecutive k of one lane
constexpr int kStep = 32 * kPerLane;

__device__ void load8(const __nv_bfloat16* from, float (&values)[kPerLane]) {
  const uint4 raw = *reinterpret_cast<const uint4*>(from);
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
  }
}

__device__ void load8(const float* from, float (&values)[kPerLane]) {
  const float4 a = reinterpret_cast<const float4*>(from)[0];
  const float4 b = reinterpret_cast<const float4*>(from)[1];
  const float all[kPerLane] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) values[i] = all[i];
}

template <typename Weight, int kRows, int kExperts>
__global__ __launch_bounds__(32 * kWarps) void router_logits_kernel(const __nv_bfloat16* x, const Weight* weight,
                                                                    int rows, int hidden, int experts, float* logits) {
  start_after_previous();
  __shared__ float partial[kWarps][kRows * kExperts];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first_expert = static_cast<int>(blockIdx.x) * kExperts;
  const int first_row = static_cast<int>(blockIdx.y) * kRows;
  float sums[kRows][kExperts] = {};
  for (int k = warp * kStep + lane * kPerLane; k < hidden; k += kWarps * kStep) {
    float w[kExperts][kPerLane];
#pragma unroll
    for (int e = 0; e < kExperts; ++e) {
      load8(weight + static_cast<int64_t>(min(first_expert + e, experts - 1)) * hidden + k, w[e]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float row[kPerLane];
      load8(x + static_cast<int64_t>(min(first_row + r, rows - 1)) * hidden + k, row);
#pragma unroll
      for (int e = 0; e < kExperts; ++e) {
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) sums[r][e] = fmaf(row[i], w[e][i], sums[r][e]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int e = 0; e < kExperts; ++e) {
      float sum = sums[r][e];
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, step);
      if (lane == 0) partial[warp][r * kExperts + e] = sum;
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kExperts; i += 32 * kWarps) {
    const int row = first_row + i / kExperts;
    const int expert = first_expert + i % kExperts;
    float sum = partial[0][i];
    for (int w = 1; w < kWarps; ++w) sum += partial[w][i];
    if (row < rows && expert < experts) logits[static_cast<int64_t>(row) * experts + expert] = sum;
  }
}

template <typename Weight, int kRows, int kExperts>
void launch(const __nv_bfloat16* x, const Weight* weight, int rows, int hidden, int experts, float* logits,
            cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((experts + kExperts - 1) / kExperts),
                  static_cast<unsigned>((rows + kRows - 1) / kRows));
  launch_overlapped("router_logits launch", router_logits_kernel<Weight, kRows, kExperts>, grid, 32 * kWarps, 0, stream,
                    x, weight, rows, hidden, experts, logits);
}

template <typename Weight>
void router_logits_any(const __nv_bfloat16* x, const Weight* weight, int rows, int hidden, int experts, float* logits,
                       cudaStream_t stream) {
  if (rows < 0 || experts < 1 || hidden < kPerLane || hidden % kPerLane != 0) {
    throw std::invalid_argument("router_logits: hidden must be a multiple of 8");
  }
  if (rows == 0) return;
  if (rows <= 2) {
    launch<Weight, 1, 2>(x, weight, rows, hidden, experts, logits, stream);
  } else if (rows <= 16) {
    launch<Weight, 4, 4>(x, weight, rows, hidden, experts, logits, stream);
  } else {
    launch<Weight, 8, 8>(x, weight, rows, hidden, experts, logits, stream);
  }
}

}  // namespace

void router_logits(const __nv_bfloat16* x, const __nv_bfloat16* weight, int rows, int hidden, int experts,
                   float* logits, cudaStream_t stream) {
  router_logits_any(x, weight, rows, hidden, experts, logits, stream);
}

void router_logits(const __nv_bfloat16* x, const float* weight, int rows, int hidden, int experts, float* logits,
                   cudaStream_t stream) {
  router_logits_any(x, weight, rows, hidden, experts, logits, stream);
}

}  // namespace glm53::kernels
