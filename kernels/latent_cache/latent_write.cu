// Norms of the low-rank query and of the latent, and the latent's cache row.
//
// Operation   qr = RMSNorm(low[:, :q_lora]) · w;  c = RMSNorm(low[:, q_lora:]) · w  → page row of the position
// Shapes      low [rows, q_lora + latent] bf16, qr [rows, q_lora] bf16, page rows bf16 or E4M3 + scale
// Rounding    sums in fp32; x · r · w in fp32, one rounding to bf16; fp8 rows quantise that bf16 value (spec 70 §2.4)
// Bound       memory: 2 · (2·q_lora + latent) + row bytes a row. One warp a norm; a row's sums depend on its width
// only.
#include <cmath>
#include <stdexcept>

#include "kernels/common/cuda_check.h"
#include "kernels/common/e4m3.h"
#include "kernels/common/overlap.h"
#include "kernels/latent_cache/latent_write.h"

namespace glm53::kernels {
namespace {

constexpr int kWarp = 32;
constexpr int kVector = 8;  // bf16 values a 16-byte access
constexpr int kRowsPerBlock = 4;

struct Values {
  float v[kVector];
};

__device__ Values load(const __nv_bfloat16* from) {
  const uint4 raw = *reinterpret_cast<const uint4*>(from);
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  Values out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&words[i]));
    out.v[2 * i] = pair.x;
    out.v[2 * i + 1] = pair.y;
  }
  return out;
}

__device__ void store(__nv_bfloat16* to, const Values& values) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(values.v[2 * i], values.v[2 * i + 1]);
    words[i] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}

/// 1 / rms of `width` values, the same in every lane.
__device__ float inverse_rms(const __nv_bfloat16* x, int width, float eps, int lane) {
  float sum = 0.0F;
  for (int c = lane * kVector; c < width; c += kWarp * kVector) {
    const Values values = load(x + c);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum = fmaf(values.v[i], values.v[i], sum);
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, step);
  return rsqrtf(sum / static_cast<float>(width) + eps);
}

/// x · r · w of 8 columns, rounded to bf16 and held as fp32.
__device__ Values normalised(const __nv_bfloat16* x, const float* weight, float r, int column) {
  Values values = load(x + column);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    values.v[i] = __bfloat162float(__float2bfloat16(values.v[i] * r * weight[column + i]));
  }
  return values;
}

__device__ void write_fp8(uint8_t* row, const __nv_bfloat16* x, const float* weight, float r, int width, int lane) {
  float largest = 0.0F;
  for (int c = lane * kVector; c < width; c += kWarp * kVector) {
    const Values values = normalised(x, weight, r, c);
#pragma unroll
    for (int i = 0; i < kVector; ++i) largest = fmaxf(largest, fabsf(values.v[i]));
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, step));
  }
  const float scale = e4m3_scale(largest);
  const float inverse = 1.0F / scale;  // exact: a power of two
  for (int c = lane * kVector; c < width; c += kWarp * kVector) {
    const Values values = normalised(x, weight, r, c);
    uint32_t words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      words[i / 4] |= static_cast<uint32_t>(to_e4m3(values.v[i] * inverse)) << (8 * (i % 4));
    }
    *reinterpret_cast<uint2*>(row + c) = make_uint2(words[0], words[1]);
  }
  if (lane == 0) *reinterpret_cast<uint4*>(row + width) = make_uint4(__float_as_uint(scale), 0, 0, 0);
}

__global__ void __launch_bounds__(2 * kRowsPerBlock * kWarp) latent_write_kernel(const LatentWrite write) {
  start_after_previous();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = static_cast<int>(blockIdx.x) * kRowsPerBlock + warp / 2;
  if (row >= write.rows) return;
  const int segment_index = write.tables.row_segment[row];
  if (segment_index < 0) return;

  const __nv_bfloat16* x = write.low + int64_t{row} * (write.q_lora + write.latent);
  if (warp % 2 == 0) {
    const float r = inverse_rms(x, write.q_lora, write.eps, lane);
    for (int c = lane * kVector; c < write.q_lora; c += kWarp * kVector) {
      store(write.query_low + int64_t{row} * write.q_lora + c, normalised(x, write.query_norm, r, c));
    }
    return;
  }
  x += write.q_lora;
  const float r = inverse_rms(x, write.latent, write.eps, lane);
  const int32_t* pages = write.tables.page_table + write.tables.segments[segment_index].pages_begin;
  uint8_t* out =
      write.pages + latent_row(pages, write.tables.row_position[row]) * latent_row_bytes(write.format, write.latent);
  if (write.format == LatentFormat::kFp8) {
    write_fp8(out, x, write.latent_norm, r, write.latent, lane);
  } else {
    for (int c = lane * kVector; c < write.latent; c += kWarp * kVector) {
      store(reinterpret_cast<__nv_bfloat16*>(out) + c, normalised(x, write.latent_norm, r, c));
    }
  }
}

}  // namespace

void latent_write(const LatentWrite& write, cudaStream_t stream) {
  if (write.rows < 1 || write.q_lora < kVector || write.q_lora % kVector != 0 || write.latent < 16 ||
      write.latent % 16 != 0) {
    throw std::invalid_argument("latent_write: rows >= 1, q_lora a multiple of 8 and latent a multiple of 16 required");
  }
  const auto blocks = static_cast<unsigned>((write.rows + kRowsPerBlock - 1) / kRowsPerBlock);
  launch_overlapped("latent_write launch", latent_write_kernel, blocks, 2 * kRowsPerBlock * kWarp, 0, stream, write);
}

}  // namespace glm53::kernels
