// Indexer scores.
//
// Operation   score[t][P] = key scale · Σ_h w[t][h] · relu(q[t][h] · key[P]), P < n(t) = (position + 1) / kpool
// Shapes      q [rows, heads, 128] bf16, w [rows, heads] fp32, keys in pages, scores [rows, pool_capacity] fp32
// Rounding    none after the inputs: bf16 (or E4M3, exact in bf16) products, fp32 sums. The 128 channels are summed by
//             eight tensor-core steps in a fixed order, heads by lane, then over the four lanes of a quad.
// Bound       window: memory, 132 or 256 bytes a pool; prompt: tensor cores, 8,192 flop a row and pool at 32 heads.
//             A warp keeps 32 pools in registers as the A operand and passes the rows' heads by; up to 8 rows of a
//             segment share one load of the keys.
#include <cmath>
#include <stdexcept>

#include "kernels/common/cuda_check.h"
#include "kernels/common/dynamic_shared.h"
#include "kernels/common/e4m3.h"
#include "kernels/common/hadamard.h"
#include "kernels/common/mma.h"
#include "kernels/common/overlap.h"
#include "kernels/indexer/index_score.h"

namespace glm53::kernels {
namespace {

constexpr int kWarp = 32;

// ---- queries

constexpr int kVectorsPerBlock = 8;

__global__ void __launch_bounds__(kVectorsPerBlock* kWarp) index_query_kernel(const IndexQuery args, float scale) {
  start_after_previous();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t vector = int64_t{blockIdx.x} * kVectorsPerBlock + threadIdx.x / kWarp;
  if (vector >= int64_t{args.rows} * args.heads) return;
  const int64_t row = vector / args.heads;
  const auto head = static_cast<int>(vector % args.heads);
  if (args.tables.row_segment[row] < 0) return;
  float weight = args.head_weight[row * args.head_weight_stride + head] * scale;

  if (args.format == IndexFormat::kFp8) {
    const uint2 raw = reinterpret_cast<const uint2*>(args.query + vector * kIndexDim)[lane];
    const float2 low = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.x));
    const float2 high = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.y));
    float v[4] = {low.x, low.y, high.x, high.y};
    hadamard_128(v, lane);
    float largest = 0.0F;
#pragma unroll
    for (float& x : v) {
      x = __bfloat162float(__float2bfloat16(x));
      largest = fmaxf(largest, fabsf(x));
    }
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, step));
    }
    const float query_scale = e4m3_scale(largest);
    const float inverse = 1.0F / query_scale;
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) codes |= static_cast<uint32_t>(to_e4m3(v[i] * inverse)) << (8 * i);
    uint2 out;
    e4m3x4_to_bf16(codes, out.x, out.y);
    reinterpret_cast<uint2*>(args.prepared_query + vector * kIndexDim)[lane] = out;
    weight *= query_scale;
  }
  if (lane == 0) args.prepared_weight[vector] = weight;
}

// ---- scores

constexpr int kWarps = 8;
constexpr int kWarpPools = 32;  // two m16 tiles
constexpr int kTilePools = kWarps * kWarpPools;
constexpr int kHeadTile = 16;       // heads a step: two n8 tiles
constexpr int kGroupVectors = 256;  // query vectors in shared memory
constexpr int kMaxGroupRows = 8;
constexpr int kChunks = kIndexDim * 2 / 16;  // 16-byte chunks a bf16 vector
// Two blocks share an H200 processor; GB10's shared memory takes one, which may then use more registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int kBlocksPerSm = 1;
#else
constexpr int kBlocksPerSm = 2;
#endif
constexpr int kSharedBytes = kGroupVectors * (kIndexDim * 2 + 4);
static_assert(kSharedBytes + 64 <= kMaxSharedBytes);

/// Keys of a warp's 32 pools as A fragments. Quad lane q owns channels 64·b + 16·q .. + 15 of each half b: the four
/// steps of a half take them four at a time, and the query's B fragments are cut alike, so the sum is the same.
struct KeyFragments {
  uint32_t a[2][8][4];  // [m16 tile][step][register]
};

struct PoolAddress {
  const uint8_t* page;
  int slot;
};

template <IndexFormat kFormat, int kPool>
__device__ PoolAddress pool_address(const IndexScore& args, const int32_t* pages, int pool) {
  constexpr int kPerPage = kPagePositions / kPool;
  constexpr int64_t kPageBytes = index_page_bytes(kFormat, kPool);
  const auto index = static_cast<unsigned>(pool);
  return {args.pages + pages[index / kPerPage] * kPageBytes, static_cast<int>(index % kPerPage)};
}

template <IndexFormat kFormat, int kPool>
__device__ void load_keys(const IndexScore& args, const int32_t* pages, int first, int last, int lane,
                          KeyFragments& keys) {
  const int quad = lane % 4;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Past the end the last pool stands in; its score is not written.
      const int wanted = first + 16 * tile + 8 * half + lane / 4;
      const auto at = pool_address<kFormat, kPool>(args, pages, wanted < last ? wanted : last - 1);
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        uint32_t words[8];
        if constexpr (kFormat == IndexFormat::kBf16) {
          const auto* chunk =
              reinterpret_cast<const uint4*>(at.page + at.slot * (2 * kIndexDim) + 128 * block + 32 * quad);
          const uint4 low = *chunk;
          const uint4 high = chunk[1];
          words[0] = low.x, words[1] = low.y, words[2] = low.z, words[3] = low.w;
          words[4] = high.x, words[5] = high.y, words[6] = high.z, words[7] = high.w;
        } else {
          const uint4 codes = *reinterpret_cast<const uint4*>(at.page + at.slot * kIndexDim + 64 * block + 16 * quad);
          e4m3x4_to_bf16(codes.x, words[0], words[1]);
          e4m3x4_to_bf16(codes.y, words[2], words[3]);
          e4m3x4_to_bf16(codes.z, words[4], words[5]);
          e4m3x4_to_bf16(codes.w, words[6], words[7]);
        }
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          keys.a[tile][4 * block + step][half] = words[2 * step];
          keys.a[tile][4 * block + step][half + 2] = words[2 * step + 1];
        }
      }
    }
  }
}

/// B fragments of one head for the four steps of half `block`; `vector` is its place in shared memory.
__device__ void load_query(const uint4* shared_query, int vector, int quad, int block, uint32_t (&b)[4][2]) {
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int chunk = 8 * block + 2 * quad + part;
    const uint4 words = shared_query[vector * kChunks + (chunk ^ (vector & 1))];
    b[2 * part][0] = words.x;
    b[2 * part][1] = words.y;
    b[2 * part + 1][0] = words.z;
    b[2 * part + 1][1] = words.w;
  }
}

/// Rows of one segment that share the keys, within the launch's row range.
struct Group {
  const int32_t* pages;
  int first_row;
  int rows;
  int64_t first_position;
  __device__ int pools(int row, int kpool) const { return static_cast<int>((first_position + row + 1) / kpool); }
};

/// The work of a launch is a list: segments, their groups, the groups' pool tiles. A block takes an even share of it.
struct WorkList {
  const IndexScore& args;
  int group_rows;

  __device__ Group clip(const DeviceSegment& segment) const {
    const int begin = max(segment.first_row, args.first_row);
    const int end = min(segment.first_row + segment.rows, args.first_row + args.rows);
    return {args.tables.page_table + segment.pages_begin, begin, max(end - begin, 0),
            segment.first_position + (begin - segment.first_row)};
  }
  __device__ int tiles(const Group& whole) const {
    if (whole.rows == 0) return 0;
    const int pools = whole.pools(whole.rows - 1, args.kpool);
    return pools <= args.pools_per_query ? 0 : (pools + kTilePools - 1) / kTilePools;
  }
  __device__ int groups(const Group& whole) const { return (whole.rows + group_rows - 1) / group_rows; }
  __device__ int size() const {
    int total = 0;
    for (int s = 0; s < args.tables.segment_capacity; ++s) {
      const Group whole = clip(args.tables.segments[s]);
      total += tiles(whole) * groups(whole);
    }
    return total;
  }
  /// The group that holds item `index`; the item's tile and the group's tile count.
  __device__ Group find(int index, int& tile, int& end_tile) const {
    for (int s = 0; s < args.tables.segment_capacity; ++s) {
      const Group whole = clip(args.tables.segments[s]);
      const int tile_count = tiles(whole);
      const int items = tile_count * groups(whole);
      if (index >= items) {
        index -= items;
        continue;
      }
      const int group = index / tile_count;
      tile = index % tile_count;
      end_tile = tile_count;
      const int skip = group * group_rows;
      return {whole.pages, whole.first_row + skip, min(group_rows, whole.rows - skip), whole.first_position + skip};
    }
    tile = end_tile = 0;
    return {};
  }
};

template <IndexFormat kFormat, int kPool>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocksPerSm) index_score_kernel(const IndexScore args, int padded) {
  start_after_previous();
  __shared__ Group group;
  __shared__ int tile;
  __shared__ int end_tile;
  extern __shared__ uint4 shared_query[];  // [vectors][16 chunks], chunk ^ (vector & 1)
  auto* shared_weight = reinterpret_cast<float*>(shared_query + kGroupVectors * kChunks);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int quad = lane % 4;
  WorkList list{args, min(kMaxGroupRows, kGroupVectors / padded)};
  int64_t size = list.size();
  // Little work: rather read the keys more than once than leave blocks idle.
  while (list.group_rows > 1 && size < gridDim.x) {
    list.group_rows /= 2;
    size = list.size();
  }
  auto item = static_cast<int>(size * blockIdx.x / gridDim.x);
  auto remaining = static_cast<int>(size * (blockIdx.x + 1) / gridDim.x) - item;

  while (remaining > 0) {
    __syncthreads();  // everyone is done with the last group
    if (threadIdx.x == 0) {
      group = list.find(item, tile, end_tile);
      end_tile = min(end_tile, tile + remaining);
    }
    __syncthreads();
    item += end_tile - tile;
    remaining -= end_tile - tile;
    for (int i = static_cast<int>(threadIdx.x); i < group.rows * padded * kChunks; i += kWarps * kWarp) {
      const int vector = i / kChunks;
      const int chunk = i % kChunks;
      const int head = vector % padded;
      const int64_t row = group.first_row + vector / padded;
      const uint4 zero = make_uint4(0, 0, 0, 0);
      shared_query[vector * kChunks + (chunk ^ (vector & 1))] =
          head < args.heads ? reinterpret_cast<const uint4*>(args.query + (row * args.heads + head) * kIndexDim)[chunk]
                            : zero;
    }
    for (int vector = static_cast<int>(threadIdx.x); vector < group.rows * padded; vector += kWarps * kWarp) {
      const int head = vector % padded;
      const int64_t row = group.first_row + vector / padded;
      shared_weight[vector] = head < args.heads ? args.weight[row * args.heads + head] : 0.0F;
    }
    __syncthreads();

    const auto visible = static_cast<int>(group.first_position) + 1;  // positions that row 0 sees
    const int group_pools = (visible + group.rows - 1) / kPool;
    for (int t = tile; t < end_tile; ++t) {
      const int first = t * kTilePools + warp * kWarpPools;
      if (first >= group_pools) continue;
      KeyFragments keys;
      load_keys<kFormat, kPool>(args, group.pages, first, group_pools, lane, keys);
      const int pool = first + 8 * quad + lane / 4;  // the pool whose score this lane writes
      float key_scale = 1.0F;
      if (kFormat == IndexFormat::kFp8 && pool < group_pools) {
        const auto at = pool_address<kFormat, kPool>(args, group.pages, pool);
        key_scale = reinterpret_cast<const float*>(at.page + kPagePositions / kPool * kIndexDim)[at.slot];
      }
      float* out = args.scores + int64_t{group.first_row - args.first_row} * args.pool_capacity + pool;
      for (int r = 0; r < group.rows; ++r) {
        const int pools = static_cast<int>(static_cast<unsigned>(visible + r) / kPool);
        if (pools <= args.pools_per_query || first >= pools) continue;
        float sum[4] = {0.0F, 0.0F, 0.0F, 0.0F};  // pools lane/4 + 0, 8, 16, 24
        for (int h = 0; h < padded; h += kHeadTile) {
          float d[2][2][4] = {};  // [m tile][n tile]
#pragma unroll
          for (int block = 0; block < 2; ++block) {
#pragma unroll
            for (int n = 0; n < 2; ++n) {
              uint32_t b[4][2];
              load_query(shared_query, r * padded + h + 8 * n + lane / 4, quad, block, b);
#pragma unroll
              for (int step = 0; step < 4; ++step) {
                mma_m16n8k16_bf16(d[0][n], keys.a[0][4 * block + step], b[step]);
                mma_m16n8k16_bf16(d[1][n], keys.a[1][4 * block + step], b[step]);
              }
            }
          }
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const float2 w = *reinterpret_cast<const float2*>(shared_weight + r * padded + h + 8 * n + 2 * quad);
#pragma unroll
            for (int m = 0; m < 2; ++m) {
              sum[2 * m] = fmaf(w.x, fmaxf(d[m][n][0], 0.0F), sum[2 * m]);
              sum[2 * m] = fmaf(w.y, fmaxf(d[m][n][1], 0.0F), sum[2 * m]);
              sum[2 * m + 1] = fmaf(w.x, fmaxf(d[m][n][2], 0.0F), sum[2 * m + 1]);
              sum[2 * m + 1] = fmaf(w.y, fmaxf(d[m][n][3], 0.0F), sum[2 * m + 1]);
            }
          }
        }
#pragma unroll
        for (float& s : sum) {
          s += __shfl_xor_sync(0xFFFFFFFFU, s, 1);
          s += __shfl_xor_sync(0xFFFFFFFFU, s, 2);
        }
        const float mine = quad == 0 ? sum[0] : quad == 1 ? sum[1] : quad == 2 ? sum[2] : sum[3];
        if (pool < pools) out[r * args.pool_capacity] = mine * key_scale;
      }
    }
  }
}

/// Enough blocks to fill the device twice over, whatever the launch holds.
int score_blocks() {
  int device = 0;
  int processors = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return kBlocksPerSm * processors;
}

template <IndexFormat kFormat, int kPool>
void launch_score(const IndexScore& args, int padded, cudaStream_t stream) {
  allow_dynamic_shared<index_score_kernel<kFormat, kPool>, kSharedBytes>("index_score shared memory");
  launch_overlapped("index_score launch", index_score_kernel<kFormat, kPool>, static_cast<unsigned>(score_blocks()),
                    kWarps * kWarp, kSharedBytes, stream, args, padded);
}

}  // namespace

void index_query(const IndexQuery& query, cudaStream_t stream) {
  if (query.rows < 1 || query.heads < 1) throw std::invalid_argument("index_query: rows and heads must be at least 1");
  const float scale = 1.0F / std::sqrt(static_cast<float>(kIndexDim) * static_cast<float>(query.heads));
  const int64_t blocks = (int64_t{query.rows} * query.heads + kVectorsPerBlock - 1) / kVectorsPerBlock;
  launch_overlapped("index_query launch", index_query_kernel, static_cast<unsigned>(blocks), kVectorsPerBlock * kWarp,
                    0, stream, query, scale);
}

void index_score(const IndexScore& score, cudaStream_t stream) {
  const int padded = (score.heads + kHeadTile - 1) / kHeadTile * kHeadTile;
  if (score.rows < 1 || score.heads < 1 || padded > kGroupVectors) {
    throw std::invalid_argument("index_score: rows >= 1 and 1 to 256 heads required");
  }
  if (score.kpool != 4 && score.kpool != 16) throw std::invalid_argument("index_score: kpool must be 4 or 16");
  if (score.pool_capacity < 4 || score.pool_capacity % 4 != 0) {
    throw std::invalid_argument("index_score: pool_capacity must be a multiple of 4");
  }
  const bool fp8 = score.format == IndexFormat::kFp8;
  if (score.kpool == 4) {
    fp8 ? launch_score<IndexFormat::kFp8, 4>(score, padded, stream)
        : launch_score<IndexFormat::kBf16, 4>(score, padded, stream);
  } else {
    fp8 ? launch_score<IndexFormat::kFp8, 16>(score, padded, stream)
        : launch_score<IndexFormat::kBf16, 16>(score, padded, stream);
  }
}

}  // namespace glm53::kernels
