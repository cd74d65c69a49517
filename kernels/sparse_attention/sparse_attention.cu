// Sparse MLA on absorbed queries: every head of a row reads the same latent rows as keys and as values.
//
// Operation   z[t][h] = Σ_j softmax_j(scale · a[t][h] · c_j) c_j over a row's list of up to 2,063 positions
// Shapes      a, z [rows, heads, 512] bf16; c_j cache rows of 512 bf16, or E4M3 codes and a power-of-two scale
// Rounding    scores, maxima, sums and z in fp32; p rounded to bf16 after the maximum is subtracted, the sum takes it
//             unrounded; z rounded once. A key's fp8 scale multiplies its score and its p, both exactly.
// Bound       one row: latency and memory (1 KiB or 528 bytes a key); prompts: tensor cores and shared-memory reads.
//
// A block of four warps holds 16 or 32 heads of one row. Each warp owns 128 of the 512 columns, of the scores' inner
// sum as well as of z, and keeps its slices of a and z in registers. A tile of 32 keys goes
//   global → shared (cp.async, one tile ahead), fp8 codes → bf16 in shared,
//   partial scores of the four warps → shared, added in warp order; softmax by the warp that owns the head,
//   p → shared, then p · c on every warp's columns.
// What a row computes depends on its list alone: tiles and splits start at fixed places of it.
#include <cmath>
#include <stdexcept>

#include "kernels/common/cp_async.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/dynamic_shared.h"
#include "kernels/common/e4m3.h"
#include "kernels/common/exp2_approx.h"
#include "kernels/common/ldmatrix.h"
#include "kernels/common/mma.h"
#include "kernels/common/opaque.h"
#include "kernels/common/overlap.h"
#include "kernels/sparse_attention/sparse_attention.h"

namespace glm53::kernels {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kLatent = 512;
constexpr int kColumns = kLatent / kWarps;  // of a warp
constexpr int kTileKeys = 32;
constexpr int kWarpKeys = kTileKeys / kWarps;  // keys a warp fetches
constexpr int kSplitKeys = 256;
constexpr int kMaxPool = 16;
constexpr int kMaxSelected = 2048;

// Row strides that keep 16-byte rows of eight consecutive keys (or heads) in different banks.
constexpr int kKeyStride = (kLatent + 8) * 2;  // bytes
constexpr int kProbStride = kTileKeys + 8;     // bf16
constexpr int kPartialStride = kTileKeys + 8;  // floats

/// Places in dynamic shared memory, bytes.
template <LatentFormat kFormat, int kTiles, bool kWindow>
struct SharedLayout {
  static constexpr int kHeads = 16 * kTiles;
  static constexpr int kRowBytes = static_cast<int>(kFormat == LatentFormat::kFp8 ? kLatent + 16 : 2 * kLatent);
  static constexpr int kValueChunks = (kFormat == LatentFormat::kFp8 ? kLatent : 2 * kLatent) / 16;
  static constexpr int kKeyBuffers = kFormat == LatentFormat::kFp8 ? 1 : 2;
  static constexpr int kRawBuffers = kFormat == LatentFormat::kFp8 ? 2 : 0;
  static constexpr int kListKeys = (kWindow ? kSplitKeys : kMaxSelected) + kMaxPool;

  static constexpr int kKeyBytes = kTileKeys * kKeyStride;
  static constexpr int kRawBytes = kTileKeys * kRowBytes;
  static constexpr int kRaw = kKeyBuffers * kKeyBytes;
  static constexpr int kPartial = kRaw + kRawBuffers * kRawBytes;
  static constexpr int kProb = kPartial + kWarps * kHeads * kPartialStride * 4;
  static constexpr int kRescale = kProb + kHeads * kProbStride * 2;
  static constexpr int kScale = kRescale + kHeads * 4;
  static constexpr int kList = kScale + kTileKeys * 4;
  static constexpr int kBytes = kList + kListKeys * 4;
  static_assert(kHeads * 8 <= kWarps * kHeads * kPartialStride * 4);  // m and l reuse the partial scores' place
};

/// Keys [begin, end) of a row's list.
struct KeyRange {
  int begin;
  int end;
};

/// A row's list: `full` positions of complete pools, then the `tail` of the incomplete one.
struct KeyList {
  const int32_t* pages;
  const int32_t* selected;  // null: all pools, in order
  int full;
  int tail;
  int pools;  // complete pools of the row

  __device__ int position(int index, int kpool) const {
    if (selected == nullptr) return index;
    return index < full ? selected[index / kpool] * kpool + index % kpool : pools * kpool + index - full;
  }
  __device__ int splits() const { return max(1, (full + kSplitKeys - 1) / kSplitKeys); }
  /// The last split also takes the tail, so that a few positions never make a split of their own.
  __device__ KeyRange split(int index) const {
    return {index * kSplitKeys, index + 1 == splits() ? full + tail : (index + 1) * kSplitKeys};
  }
};

__device__ KeyList key_list(const SparseAttention& args, int row, int segment) {
  const int64_t visible = args.tables.row_position[row] + 1;
  const auto pools = static_cast<int>(visible / args.kpool);
  const bool all = pools <= args.pools_per_query;
  return {args.tables.page_table + args.tables.segments[segment].pages_begin,
          all ? nullptr : args.selected + int64_t{row} * args.pools_per_query,
          (all ? pools : args.pools_per_query) * args.kpool, static_cast<int>(visible % args.kpool), pools};
}

/// Partial results of a split; workspace of the window kernel.
struct Partials {
  float* sums;   // [rows][splits][heads][512] Σ 2^(s - m) c
  float2* norm;  // [rows][splits][heads] m, l: base-2 maximum and Σ 2^(s - m)
  int splits;
};

__device__ int ordered(float x) {
  const int bits = __float_as_int(x);
  return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}
__device__ float from_ordered(int key) { return __int_as_float(key ^ ((key >> 31) & 0x7FFFFFFF)); }

template <LatentFormat kFormat, int kTiles, bool kWindow>
class Block {
 public:
  using Layout = SharedLayout<kFormat, kTiles, kWindow>;

  __device__ Block(const SparseAttention& args, uint8_t* shared, int row, int first_head)
      : args_(args), shared_(shared), row_(row), first_head_(first_head) {}

  __device__ void run(const KeyList& list, KeyRange range, const Partials& partials, int split) {
    count_ = range.end - range.begin;
    auto* rows = reinterpret_cast<int32_t*>(shared_ + Layout::kList);
    for (int i = thread(); i < count_; i += kThreads) {
      rows[i] = static_cast<int32_t>(latent_row(list.pages, list.position(range.begin + i, args_.kpool)));
    }
    __syncthreads();
    const int tiles = (count_ + kTileKeys - 1) / kTileKeys;
    fetch(0);
    if (kFormat == LatentFormat::kFp8) fetch(1);
    load_query();
    for (int tile = 0; tile < tiles; ++tile) {
      uint32_t keys = shared_address(shared_);
      if constexpr (kFormat == LatentFormat::kFp8) {
        cp_async_wait<1>();
        __syncthreads();  // the last tile's keys are no longer read
        widen(tile);
        __syncwarp();
        fetch(tile + 2);
        __syncthreads();
      } else {
        keys += tile % 2 * Layout::kKeyBytes;
        cp_async_wait<0>();
        __syncthreads();
        fetch(tile + 1);
      }
      scores(keys);
      __syncthreads();
      softmax(tile);
      __syncthreads();
      accumulate(keys);
    }
    __syncthreads();
    finish(partials, split);
  }

 private:
  static constexpr int kHeadsPerWarp = Layout::kHeads / kWarps;
  static constexpr int kHeadLanes = kWarp / kHeadsPerWarp;  // lanes that keep one head's maximum and sum

  __device__ static int thread() { return static_cast<int>(threadIdx.x); }

  /// Starts the copy of a tile's keys, each warp its own eight; zeros past the end, so that no stray NaN meets p = 0.
  __device__ void fetch(int tile) {
    const int self = opaque(thread());
    const int warp = self / kWarp;
    const int lane = self % kWarp;
    const auto* rows = reinterpret_cast<const int32_t*>(shared_ + Layout::kList);
    constexpr int kStride = kFormat == LatentFormat::kFp8 ? Layout::kRowBytes : kKeyStride;
    const uint32_t buffer =
        shared_address(shared_) +
        (kFormat == LatentFormat::kFp8 ? Layout::kRaw + tile % 2 * Layout::kRawBytes : tile % 2 * Layout::kKeyBytes);
    if (tile * kTileKeys < count_) {
#pragma unroll 2  // registers are short here
      for (int j = 0; j < kWarpKeys; ++j) {
        const int key = warp * kWarpKeys + j;
        const int index = tile * kTileKeys + key;
        const bool valid = index < count_;
        const uint8_t* row = args_.pages + int64_t{rows[valid ? index : 0]} * Layout::kRowBytes;
#pragma unroll
        for (int chunk = 0; chunk < Layout::kValueChunks; chunk += kWarp) {
          cp_async_16(buffer + key * kStride + (chunk + lane) * 16, row + (chunk + lane) * 16, valid);
        }
      }
      if (kFormat == LatentFormat::kFp8 && lane < kWarpKeys) {
        const int key = warp * kWarpKeys + lane;
        const int index = tile * kTileKeys + key;
        const bool valid = index < count_;
        const uint8_t* row = args_.pages + int64_t{rows[valid ? index : 0]} * Layout::kRowBytes;
        cp_async_16(buffer + key * kStride + kLatent, row + kLatent, valid);
      }
    }
    cp_async_commit();
  }

  /// fp8 codes of this warp's keys to bf16.
  __device__ void widen(int tile) {
    const int self = opaque(thread());
    const int warp = self / kWarp;
    const int lane = self % kWarp;
    __syncwarp();
    const uint8_t* raw = shared_ + Layout::kRaw + tile % 2 * Layout::kRawBytes;
#pragma unroll
    for (int j = 0; j < kWarpKeys; ++j) {
      const int key = warp * kWarpKeys + j;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2 codes = *reinterpret_cast<const uint2*>(raw + key * Layout::kRowBytes + 256 * half + 8 * lane);
        uint4 pairs;
        e4m3x4_to_bf16(codes.x, pairs.x, pairs.y);
        e4m3x4_to_bf16(codes.y, pairs.z, pairs.w);
        *reinterpret_cast<uint4*>(shared_ + key * kKeyStride + 512 * half + 16 * lane) = pairs;
      }
    }
    if (lane < kWarpKeys) {
      const int key = warp * kWarpKeys + lane;
      reinterpret_cast<float*>(shared_ + Layout::kScale)[key] =
          *reinterpret_cast<const float*>(raw + key * Layout::kRowBytes + kLatent);
    }
  }

  __device__ void load_query() {
    const int self = opaque(thread());
    const int warp = self / kWarp;
    const int lane = self % kWarp;
    const __nv_bfloat16* query = args_.query + (int64_t{row_} * args_.heads + first_head_) * kLatent;
    const int column = warp * kColumns + 2 * (lane % 4);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int step = 0; step < kColumns / 16; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int head = 16 * m + lane / 4 + 8 * (i % 2);
          const int at = column + 16 * step + 8 * (i / 2);
          query_[m][step][i] = first_head_ + head < args_.heads
                                   ? *reinterpret_cast<const uint32_t*>(query + int64_t{head} * kLatent + at)
                                   : 0;
        }
      }
    }
#pragma unroll
    for (auto& m : output_) {
#pragma unroll
      for (auto& n : m) {
#pragma unroll
        for (float& x : n) x = 0.0F;
      }
    }
  }

  /// This warp's share of the tile's scores, [head][key] fp32.
  __device__ void scores(uint32_t keys) {
    const int self = opaque(thread());
    const int warp = self / kWarp;
    const int lane = self % kWarp;
    auto* partial = reinterpret_cast<float*>(shared_ + Layout::kPartial) + warp * Layout::kHeads * kPartialStride;
    const uint32_t base = keys + (lane % 8 + lane / 16 * 8) * kKeyStride + warp * kColumns * 2 + lane / 8 % 2 * 16;
#pragma unroll
    for (int pair = 0; pair < kTileKeys / 16; ++pair) {
      float d[kTiles][2][4] = {};
#pragma unroll
      for (int step = 0; step < kColumns / 16; ++step) {
        uint32_t b[4];
        ldmatrix_x4(b, base + pair * 16 * kKeyStride + step * 32);
        const uint32_t low[2] = {b[0], b[1]};
        const uint32_t high[2] = {b[2], b[3]};
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          mma_m16n8k16_bf16(d[m][0], query_[m][step], low);
          mma_m16n8k16_bf16(d[m][1], query_[m][step], high);
        }
      }
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          float* at = partial + (16 * m + lane / 4) * kPartialStride + 16 * pair + 8 * n + 2 * (lane % 4);
          *reinterpret_cast<float2*>(at) = make_float2(d[m][n][0], d[m][n][1]);
          *reinterpret_cast<float2*>(at + 8 * kPartialStride) = make_float2(d[m][n][2], d[m][n][3]);
        }
      }
    }
  }

  /// One step of the online softmax for this warp's heads; a lane is a key.
  __device__ void softmax(int tile) {
    const int self = opaque(thread());
    const int warp = self / kWarp;
    const int lane = self % kWarp;
    const auto* partial = reinterpret_cast<const float*>(shared_ + Layout::kPartial);
    auto* prob = reinterpret_cast<__nv_bfloat16*>(shared_ + Layout::kProb);
    auto* rescale = reinterpret_cast<float*>(shared_ + Layout::kRescale);
    const bool valid = tile * kTileKeys + lane < count_;
    float key_scale = 1.0F;
    if (kFormat == LatentFormat::kFp8) key_scale = reinterpret_cast<const float*>(shared_ + Layout::kScale)[lane];
    const float scale = args_.scale * 1.4426950408889634F * key_scale;  // in base 2
    float p[kHeadsPerWarp];
    float own_shrink = 0.0F;
#pragma unroll
    for (int i = 0; i < kHeadsPerWarp; ++i) {
      const int head = warp * kHeadsPerWarp + i;
      float score = partial[head * kPartialStride + lane];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) score += partial[(w * Layout::kHeads + head) * kPartialStride + lane];
      score = valid ? score * scale : -INFINITY;
      const float before = __shfl_sync(0xFFFFFFFFU, maximum_, i * kHeadLanes);
      const float largest = fmaxf(before, from_ordered(__reduce_max_sync(0xFFFFFFFFU, ordered(score))));
      const float shrink = exp2_approx(before - largest);
      p[i] = exp2_approx(score - largest);
      prob[head * kProbStride + lane] = __float2bfloat16(valid ? p[i] * key_scale : 0.0F);
      if (lane == 0) rescale[head] = shrink;
      if (lane / kHeadLanes == i) {
        maximum_ = largest;
        own_shrink = shrink;
      }
    }
    // All heads' sums at once: each step halves the lanes of a value and the values of a lane.
    int step = kWarp / 2;
#pragma unroll
    for (int half = kHeadsPerWarp / 2; half > 0; half /= 2, step /= 2) {
      const bool upper = (lane & step) != 0;
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const float received = __shfl_xor_sync(0xFFFFFFFFU, upper ? p[i] : p[i + half], step);
        p[i] = (upper ? p[i + half] : p[i]) + received;
      }
    }
#pragma unroll
    for (; step > 0; step /= 2) p[0] += __shfl_xor_sync(0xFFFFFFFFU, p[0], step);
    sum_ = fmaf(sum_, own_shrink, p[0]);
  }

  /// z = z · shrink + p · c on this warp's columns.
  __device__ void accumulate(uint32_t keys) {
    const int self = opaque(thread());
    const int warp = self / kWarp;
    const int lane = self % kWarp;
    const auto* rescale = reinterpret_cast<const float*>(shared_ + Layout::kRescale);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const float low = rescale[16 * m + lane / 4];
      const float high = rescale[16 * m + lane / 4 + 8];
      if (__any_sync(0xFFFFFFFFU, low != 1.0F || high != 1.0F)) {
#pragma unroll
        for (auto& z : output_[m]) {
          z[0] *= low;
          z[1] *= low;
          z[2] *= high;
          z[3] *= high;
        }
      }
    }
    const uint32_t prob = shared_address(shared_ + Layout::kProb) + ((lane % 16) * kProbStride + lane / 16 * 8) * 2;
    const uint32_t base = keys + (lane % 16) * kKeyStride + warp * kColumns * 2 + lane / 16 * 16;
#pragma unroll
    for (int step = 0; step < kTileKeys / 16; ++step) {
      uint32_t p[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) ldmatrix_x4(p[m], prob + (16 * m * kProbStride + 16 * step) * 2);
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        uint32_t b[4];
        ldmatrix_x4_transposed(b, base + step * 16 * kKeyStride + n * 32);
        const uint32_t low[2] = {b[0], b[1]};
        const uint32_t high[2] = {b[2], b[3]};
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          mma_m16n8k16_bf16(output_[m][2 * n], p[m], low);
          mma_m16n8k16_bf16(output_[m][2 * n + 1], p[m], high);
        }
      }
    }
  }

  __device__ void finish(const Partials& partials, int split) {
    const int self = opaque(thread());
    const int warp = self / kWarp;
    const int lane = self % kWarp;
    auto* norm = reinterpret_cast<float2*>(shared_ + Layout::kPartial);  // [head] m, l
    if (lane % kHeadLanes == 0) {
      norm[warp * kHeadsPerWarp + lane / kHeadLanes] = make_float2(maximum_, sum_);
    }
    __syncthreads();
    const int64_t first = kWindow ? (int64_t{row_} * partials.splits + split) * args_.heads + first_head_
                                  : int64_t{row_} * args_.heads + first_head_;
    if (kWindow && thread() < Layout::kHeads && first_head_ + thread() < args_.heads) {
      partials.norm[first + thread()] = norm[thread()];
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int head = 16 * m + 8 * half + lane / 4;
        if (first_head_ + head >= args_.heads) continue;
        const int64_t at = (first + head) * kLatent + warp * kColumns + 2 * (lane % 4);
        const float inverse = 1.0F / norm[head].y;
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
          const float x = output_[m][n][2 * half];
          const float y = output_[m][n][2 * half + 1];
          if constexpr (kWindow) {
            *reinterpret_cast<float2*>(partials.sums + at + 8 * n) = make_float2(x, y);
          } else {
            *reinterpret_cast<__nv_bfloat162*>(args_.output + at + 8 * n) =
                __floats2bfloat162_rn(x * inverse, y * inverse);
          }
        }
      }
    }
  }

  const SparseAttention& args_;
  uint8_t* shared_;
  int row_;
  int first_head_;
  int count_ = 0;
  uint32_t query_[kTiles][kColumns / 16][4];
  float output_[kTiles][kColumns / 8][4];
  float maximum_ = -INFINITY;  // base 2, of this warp's head lane / kHeadLanes
  float sum_ = 0.0F;           // the same head's
};

__device__ void zero_row(const SparseAttention& args, int row) {
  auto* out = reinterpret_cast<uint4*>(args.output + int64_t{row} * args.heads * kLatent);
  for (int i = static_cast<int>(threadIdx.x); i < args.heads * kLatent / 8; i += static_cast<int>(blockDim.x)) {
    out[i] = make_uint4(0, 0, 0, 0);
  }
}

template <LatentFormat kFormat, int kTiles, bool kWindow>
__global__ void __launch_bounds__(kThreads, 2)
    sparse_attention_kernel(SparseAttention args, Partials partials, int head_groups) {
  start_after_previous();
  extern __shared__ uint4 shared[];
  // The head groups of a row are neighbours: they read the same keys.
  const auto row = static_cast<int>(blockIdx.x) / head_groups;
  const int group = static_cast<int>(blockIdx.x) % head_groups;
  const auto split = static_cast<int>(blockIdx.y);
  const int segment = args.tables.row_segment[row];
  if (segment < 0) {
    if (!kWindow && group == 0) zero_row(args, row);
    return;
  }
  const KeyList list = key_list(args, row, segment);
  KeyRange range{0, list.full + list.tail};
  if (kWindow) {
    if (split >= list.splits()) return;
    range = list.split(split);
  }
  Block<kFormat, kTiles, kWindow> block(args, reinterpret_cast<uint8_t*>(shared), row, group * 16 * kTiles);
  block.run(list, range, partials, split);
}

/// One head of one row: the splits' sums in order, on a common maximum.
__global__ void __launch_bounds__(kThreads) merge_kernel(const SparseAttention args, const Partials partials) {
  start_after_previous();
  const auto row = static_cast<int>(blockIdx.x);
  const auto head = static_cast<int>(blockIdx.y);
  const int segment = args.tables.row_segment[row];
  if (segment < 0) {
    if (head == 0) zero_row(args, row);
    return;
  }
  const int splits = key_list(args, row, segment).splits();
  const auto at = [&](int split) { return (int64_t{row} * partials.splits + split) * args.heads + head; };
  float largest = -INFINITY;
  for (int s = 0; s < splits; ++s) largest = fmaxf(largest, partials.norm[at(s)].x);
  float total = 0.0F;
  float4 z = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  for (int s = 0; s < splits; ++s) {
    const float2 norm = partials.norm[at(s)];
    const float shrink = exp2_approx(norm.x - largest);
    const float4 part = reinterpret_cast<const float4*>(partials.sums + at(s) * kLatent)[threadIdx.x];
    total = fmaf(norm.y, shrink, total);
    z.x = fmaf(part.x, shrink, z.x);
    z.y = fmaf(part.y, shrink, z.y);
    z.z = fmaf(part.z, shrink, z.z);
    z.w = fmaf(part.w, shrink, z.w);
  }
  const float inverse = 1.0F / total;
  const __nv_bfloat162 low = __floats2bfloat162_rn(z.x * inverse, z.y * inverse);
  const __nv_bfloat162 high = __floats2bfloat162_rn(z.z * inverse, z.w * inverse);
  reinterpret_cast<uint2*>(args.output + (int64_t{row} * args.heads + head) * kLatent)[threadIdx.x] =
      make_uint2(*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high));
}

int max_splits(int kpool, int pools_per_query) {
  const int splits = (kpool * pools_per_query + kSplitKeys - 1) / kSplitKeys;
  return splits < 1 ? 1 : splits;
}

void check(const SparseAttention& args) {
  if (args.rows < 1 || args.heads < 1)
    throw std::invalid_argument("sparse_attention: rows and heads must be at least 1");
  if (args.kpool != 4 && args.kpool != 16) throw std::invalid_argument("sparse_attention: kpool must be 4 or 16");
  if (args.pools_per_query < 1 || args.pools_per_query * args.kpool > kMaxSelected) {
    throw std::invalid_argument("sparse_attention: at most 2048 selected positions a query");
  }
}

template <LatentFormat kFormat, int kTiles, bool kWindow>
void launch(const SparseAttention& args, const Partials& partials, cudaStream_t stream) {
  constexpr int kBytes = SharedLayout<kFormat, kTiles, kWindow>::kBytes;
  const int groups = (args.heads + 16 * kTiles - 1) / (16 * kTiles);
  constexpr auto kKernel = sparse_attention_kernel<kFormat, kTiles, kWindow>;
  allow_dynamic_shared<kKernel, kBytes>("sparse_attention shared memory");
  const dim3 grid(static_cast<unsigned>(args.rows * groups), kWindow ? static_cast<unsigned>(partials.splits) : 1U);
  launch_overlapped("sparse_attention launch", kKernel, grid, kThreads, kBytes, stream, args, partials, groups);
}

template <bool kWindow>
void dispatch(const SparseAttention& args, const Partials& partials, cudaStream_t stream) {
  const bool fp8 = args.format == LatentFormat::kFp8;
  if (args.heads <= 16) {
    fp8 ? launch<LatentFormat::kFp8, 1, kWindow>(args, partials, stream)
        : launch<LatentFormat::kBf16, 1, kWindow>(args, partials, stream);
  } else {
    fp8 ? launch<LatentFormat::kFp8, 2, kWindow>(args, partials, stream)
        : launch<LatentFormat::kBf16, 2, kWindow>(args, partials, stream);
  }
}

}  // namespace

int64_t sparse_attention_workspace(int rows, int heads, int kpool, int pools_per_query) {
  return int64_t{rows} * max_splits(kpool, pools_per_query) * heads * (kLatent * 4 + 8);
}

void sparse_attention_window(const SparseAttention& attention, cudaStream_t stream) {
  check(attention);
  Partials partials{};
  partials.splits = max_splits(attention.kpool, attention.pools_per_query);
  partials.sums = static_cast<float*>(attention.workspace);
  partials.norm =
      reinterpret_cast<float2*>(partials.sums + int64_t{attention.rows} * partials.splits * attention.heads * kLatent);
  dispatch<true>(attention, partials, stream);
  launch_overlapped("sparse_attention merge launch", merge_kernel,
                    dim3(static_cast<unsigned>(attention.rows), static_cast<unsigned>(attention.heads)), kThreads, 0,
                    stream, attention, partials);
}

void sparse_attention_prompt(const SparseAttention& attention, cudaStream_t stream) {
  check(attention);
  dispatch<false>(attention, Partials{}, stream);
}

}  // namespace glm53::kernels
