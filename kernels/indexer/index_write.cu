// Raw index keys into the ring, completed pools into the pages.
//
// Operation   kI = LayerNorm(wk row; weight, bias, eps 1e-6), γ = gate row; pool of kpool positions, channel by
// channel:
//             π_j = softmax_j(γ_j + ape_j), key = Σ_j π_j·kI_j
// Shapes      input [rows, 128 | 128 | heads] fp32; ring [slots, ring, 2, 128] bf16; pages of 64 / kpool pools
// Rounding    wk and gate rows to bf16 first; LayerNorm in fp32, kI to bf16; pool softmax and sum in fp32, one rounding
//             to bf16; fp8: Hadamard in fp32, rounded to bf16, then E4M3 of that
// Bound       memory (1 KiB a row in, 512 B of ring out). One warp a row; each LayerNorm is computed once for the ring
//             and once more for the pool, which costs less than passing it on.
#include <stdexcept>

#include "kernels/common/cuda_check.h"
#include "kernels/common/e4m3.h"
#include "kernels/common/hadamard.h"
#include "kernels/common/overlap.h"
#include "kernels/indexer/index_write.h"

namespace glm53::kernels {
namespace {

constexpr int kWarp = 32;
constexpr int kRowsPerBlock = 4;
constexpr int kChannels = kIndexDim / kWarp;  // a lane holds channels 4·lane..
constexpr float kLayerNormEps = 1e-6F;

struct Lane {
  float v[kChannels];
};

__device__ float round_bf16(float x) { return __bfloat162float(__float2bfloat16(x)); }

__device__ float warp_sum(float x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, step);
  return x;
}

/// Four consecutive fp32 values a lane.
__device__ Lane load(const float* from, int lane) {
  const auto* pairs = reinterpret_cast<const float2*>(from) + 2 * lane;  // rows need only even strides
  return {{pairs[0].x, pairs[0].y, pairs[1].x, pairs[1].y}};
}

__device__ Lane load(const __nv_bfloat16* from, int lane) {
  const uint2 raw = reinterpret_cast<const uint2*>(from)[lane];
  const float2 low = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.x));
  const float2 high = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.y));
  return {{low.x, low.y, high.x, high.y}};
}

__device__ void store(__nv_bfloat16* to, const Lane& values, int lane) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(values.v[0], values.v[1]);
  const __nv_bfloat162 high = __floats2bfloat162_rn(values.v[2], values.v[3]);
  reinterpret_cast<uint2*>(to)[lane] =
      make_uint2(*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high));
}

/// kI of an input row, rounded to bf16.
__device__ Lane index_key(const IndexWrite& write, int64_t row, int lane) {
  Lane x = load(write.input + row * write.input_stride, lane);
#pragma unroll
  for (float& v : x.v) v = round_bf16(v);
  const float mean = warp_sum((x.v[0] + x.v[1]) + (x.v[2] + x.v[3])) / kIndexDim;
  float squares = 0.0F;
#pragma unroll
  for (float& v : x.v) {
    v -= mean;
    squares = fmaf(v, v, squares);
  }
  const float scale = rsqrtf(warp_sum(squares) / kIndexDim + kLayerNormEps);
  const Lane weight = load(write.key_norm, lane);
  const Lane bias = load(write.key_bias, lane);
#pragma unroll
  for (int i = 0; i < kChannels; ++i) x.v[i] = round_bf16(fmaf(x.v[i] * scale, weight.v[i], bias.v[i]));
  return x;
}

__device__ Lane index_gate(const IndexWrite& write, int64_t row, int lane) {
  Lane x = load(write.input + row * write.input_stride + kIndexDim, lane);
#pragma unroll
  for (float& v : x.v) v = round_bf16(v);
  return x;
}

__device__ void store_pool_key(const IndexWrite& write, const int32_t* pages, int64_t pool, Lane key, int lane) {
  const int per_page = kPagePositions / write.kpool;
  uint8_t* page = write.pages + pages[pool / per_page] * index_page_bytes(write.format, write.kpool);
  const auto slot = static_cast<int>(pool % per_page);
  if (write.format == IndexFormat::kBf16) {
    store(reinterpret_cast<__nv_bfloat16*>(page) + slot * kIndexDim, key, lane);
    return;
  }
#pragma unroll
  for (float& v : key.v) v = round_bf16(v);
  hadamard_128(key.v, lane);
  float largest = 0.0F;
#pragma unroll
  for (float& v : key.v) {
    v = round_bf16(v);
    largest = fmaxf(largest, fabsf(v));
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, step));
  }
  const float scale = e4m3_scale(largest);
  const float inverse = 1.0F / scale;  // exact: a power of two
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) codes |= static_cast<uint32_t>(to_e4m3(key.v[i] * inverse)) << (8 * i);
  reinterpret_cast<uint32_t*>(page + slot * kIndexDim)[lane] = codes;
  if (lane == 0) reinterpret_cast<float*>(page + per_page * kIndexDim)[slot] = scale;
}

template <int kPool>
__device__ void write_pool(const IndexWrite& write, const DeviceSegment& segment, int64_t position, int row, int lane) {
  const __nv_bfloat16* ring = write.rings + int64_t{segment.slot} * write.ring * kIndexRingEntry;
  // Gates first: the softmax needs the largest before any sum.
  Lane gates[kPool];
  Lane largest{{-INFINITY, -INFINITY, -INFINITY, -INFINITY}};
#pragma unroll
  for (int j = 0; j < kPool; ++j) {
    const int back = kPool - 1 - j;
    const int64_t at = position - back;
    gates[j] = at >= segment.first_position ? index_gate(write, row - back, lane)
                                            : load(ring + at % write.ring * kIndexRingEntry + kIndexDim, lane);
    const Lane ape = load(write.pool_position + j * kIndexDim, lane);
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      gates[j].v[i] += ape.v[i];
      largest.v[i] = fmaxf(largest.v[i], gates[j].v[i]);
    }
  }
  Lane sum{};
  Lane key{};
#pragma unroll
  for (int j = 0; j < kPool; ++j) {
    const int back = kPool - 1 - j;
    const int64_t at = position - back;
    const Lane raw = at >= segment.first_position ? index_key(write, row - back, lane)
                                                  : load(ring + at % write.ring * kIndexRingEntry, lane);
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      const float weight = expf(gates[j].v[i] - largest.v[i]);
      sum.v[i] += weight;
      key.v[i] = fmaf(weight, raw.v[i], key.v[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kChannels; ++i) key.v[i] /= sum.v[i];
  store_pool_key(write, write.tables.page_table + segment.pages_begin, position / kPool, key, lane);
}

enum class Part { kPools, kRing, kBoth };

template <int kPool, Part kPart>
__global__ void __launch_bounds__(kRowsPerBlock* kWarp) index_write_kernel(const IndexWrite write) {
  start_after_previous();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = static_cast<int>(blockIdx.x) * kRowsPerBlock + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= write.rows) return;
  const int segment_index = write.tables.row_segment[row];
  if (segment_index < 0) return;
  const DeviceSegment segment = write.tables.segments[segment_index];
  const int64_t position = segment.first_position + (row - segment.first_row);

  if (kPart != Part::kRing && (position + 1) % kPool == 0) write_pool<kPool>(write, segment, position, row, lane);
  // Of two rows that share an entry only the later one may write it.
  if (kPart != Part::kPools && segment.first_row + segment.rows - row <= write.ring) {
    __nv_bfloat16* entry = write.rings + (int64_t{segment.slot} * write.ring + position % write.ring) * kIndexRingEntry;
    store(entry, index_key(write, row, lane), lane);
    store(entry + kIndexDim, index_gate(write, row, lane), lane);
  }
}

template <int kPool>
void launch(const IndexWrite& write, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((write.rows + kRowsPerBlock - 1) / kRowsPerBlock);
  const int threads = kRowsPerBlock * kWarp;
  if (!write.prompt) {
    // Window rows never overwrite an entry that a pool of the same window reads: ring >= rows + kpool - 1.
    launch_overlapped("index_write launch", index_write_kernel<kPool, Part::kBoth>, blocks, threads, 0, stream, write);
  } else {
    launch_overlapped("index_write launch", index_write_kernel<kPool, Part::kPools>, blocks, threads, 0, stream, write);
    launch_overlapped("index_write launch", index_write_kernel<kPool, Part::kRing>, blocks, threads, 0, stream, write);
  }
}

}  // namespace

void index_write(const IndexWrite& write, cudaStream_t stream) {
  if (write.rows < 1 || write.input_stride < 2 * kIndexDim || write.input_stride % 2 != 0) {
    throw std::invalid_argument("index_write: rows >= 1 and an even input stride of >= 256 required");
  }
  if (write.ring < write.kpool) throw std::invalid_argument("index_write: the ring must hold at least kpool entries");
  switch (write.kpool) {
    case 4:
      return launch<4>(write, stream);
    case 16:
      return launch<16>(write, stream);
    default:
      throw std::invalid_argument("index_write: kpool must be 4 or 16");
  }
}

}  // namespace glm53::kernels
