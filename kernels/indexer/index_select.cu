// Exact top-K of a row of scores.
//
// Operation   selected[t] = ascending ids of the K best of scores[t][0 .. n(t)), ties to the lower id
// Shapes      scores [rows, pool_capacity] fp32, selected [rows, K] int32; n(t) up to 262,144
// Rounding    none: scores are compared as ordered integers
// Bound       one read of the scores; in practice the counting. A block keeps up to 16,384 scores in registers and
// finds
//             the K-th largest two bits at a time by counting (no histogram: scores crowd into few exponents, and
//             shared atomics would queue up); once few scores are undecided, only those are counted. Rows of more
//             slices than one pass their slices' K best to a second block. Every stage is exact and keeps the order of
//             ids, so the slicing never shows in the result: it follows the row's length, finer for windows, whose rows
//             are few.
#include <cstdint>
#include <stdexcept>

#include "kernels/common/cuda_check.h"
#include "kernels/common/overlap.h"
#include "kernels/indexer/index_select.h"

namespace glm53::kernels {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kVectors = 8;  // of four keys, a thread
constexpr int kKeys = 4 * kVectors;
constexpr int kSlice = kThreads * kKeys;  // 16,384
constexpr int kWindowSlice = 4096;
constexpr int kFew = 2;  // keys a thread once the rest is decided
constexpr int kMaxSelected = 1024;

/// Larger score, larger key; 0 is below every score.
__device__ uint32_t order_key(float score) {
  if (score != score) score = -INFINITY;
  const uint32_t bits = __float_as_uint(score + 0.0F);  // −0.0 + 0.0 = +0.0
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// A block's keys: element 4·(kThreads·v + thread) + e of the list is key[4·v + e]. Entries past the end are 0.
struct Keys {
  uint32_t key[kKeys];
  int vectors;  // in use, the same in every thread
};

struct Shared {
  int counts[2][kWarps][4];          // alternating, so that one barrier a pass is enough
  int prefix[2][kVectors * kWarps];  // elements before a warp's part of a vector: above, equal
  uint32_t undecided[kFew * kThreads];
  int undecided_count;
};

/// Sums over the block of three counters, each in every thread.
__device__ void block_counts(const int (&mine)[3], Shared& shared, int pass, int (&total)[3]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const int sum = __reduce_add_sync(0xFFFFFFFFU, mine[i]);
    if (lane == 0) shared.counts[pass & 1][warp][i] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    total[i] = __reduce_add_sync(0xFFFFFFFFU, lane < kWarps ? shared.counts[pass & 1][lane][i] : 0);
  }
}

/// The largest threshold with at least `wanted` keys at or above it, found two bits a pass. Ends early when exactly
/// `wanted` keys are: then any such threshold selects the same keys.
__device__ uint32_t find_threshold(const Keys& keys, int wanted, Shared& shared) {
  uint32_t threshold = 0;
  int at_least = INT32_MAX;  // keys >= threshold, once it is not 0
  int above = 0;             // keys of higher leading bits than the threshold's
  bool few = false;          // the keys that share its leading bits are in `undecided`
  int base = 0;              // keys above those
  uint32_t undecided[kFew];
  for (int pass = 0; pass < 16; ++pass) {
    const int shift = 30 - 2 * pass;
    const uint32_t trial[3] = {threshold | (1U << shift), threshold | (2U << shift), threshold | (3U << shift)};
    int mine[3] = {0, 0, 0};
    const auto count = [&](uint32_t key) {
#pragma unroll
      for (int i = 0; i < 3; ++i) mine[i] += key >= trial[i] ? 1 : 0;
    };
    if (few) {
#pragma unroll
      for (const uint32_t key : undecided) count(key);
    } else {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (v >= keys.vectors) break;
#pragma unroll
        for (int e = 0; e < 4; ++e) count(keys.key[4 * v + e]);
      }
    }
    int total[3];
    block_counts(mine, shared, pass, total);
    for (const int i : {0, 1, 2}) {
      if (base + total[i] < wanted) {
        above = base + total[i];
        break;
      }
      threshold = trial[i];
      at_least = base + total[i];
    }
    if (at_least == wanted) break;
    if (few || at_least - above > kFew * kThreads) continue;

    few = true;
    base = above;
    if (threadIdx.x == 0) shared.undecided_count = 0;
    __syncthreads();
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (v >= keys.vectors) break;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint32_t key = keys.key[4 * v + e];
        // Their order does not matter: they are only counted.
        if (key - threshold < (1U << shift)) shared.undecided[atomicAdd(&shared.undecided_count, 1)] = key;
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kFew; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kThreads;
      undecided[i] = at < shared.undecided_count ? shared.undecided[at] : 0;
    }
  }
  return threshold;
}

/// Calls emit(slot, v, e) for the `wanted` best keys, slots in list order.
template <typename Emit>
__device__ void select_best(const Keys& keys, int wanted, Shared& shared, const Emit& emit) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const uint32_t below = (1U << lane) - 1;
  const uint32_t threshold = find_threshold(keys, wanted, shared);

  // Elements of a warp's part of a vector, above and equal to the threshold.
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    int above = 0;
    int equal = 0;
    if (v < keys.vectors) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        above += __popc(__ballot_sync(0xFFFFFFFFU, keys.key[4 * v + e] > threshold));
        equal += __popc(__ballot_sync(0xFFFFFFFFU, keys.key[4 * v + e] == threshold));
      }
    }
    if (lane == 0) {
      shared.prefix[0][v * kWarps + warp] = above;
      shared.prefix[1][v * kWarps + warp] = equal;
    }
  }
  __syncthreads();
  // Exclusive prefix sums in list order, one warp for each of the two.
  if (warp < 2) {
    constexpr int kEach = kVectors * kWarps / kWarp;
    int* values = shared.prefix[warp];
    int own[kEach];
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      own[i] = sum;
      sum += values[lane * kEach + i];
    }
    int before = sum;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_up_sync(0xFFFFFFFFU, before, step);
      if (lane >= step) before += other;
    }
    const int all = before;
    before -= sum;
#pragma unroll
    for (int i = 0; i < kEach; ++i) values[lane * kEach + i] = before + own[i];
    if (lane == kWarp - 1) shared.counts[0][0][warp] = all;
  }
  __syncthreads();
  const int ties = wanted - shared.counts[0][0][0];  // of the equal ones the first `ties` are taken

#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (v >= keys.vectors) break;
    uint32_t above[4];
    uint32_t equal[4];
    int above_rank = shared.prefix[0][v * kWarps + warp];
    int equal_rank = shared.prefix[1][v * kWarps + warp];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      above[e] = __ballot_sync(0xFFFFFFFFU, keys.key[4 * v + e] > threshold);
      equal[e] = __ballot_sync(0xFFFFFFFFU, keys.key[4 * v + e] == threshold);
      above_rank += __popc(above[e] & below);
      equal_rank += __popc(equal[e] & below);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const bool is_above = (above[e] >> lane & 1) != 0;
      const bool is_equal = (equal[e] >> lane & 1) != 0;
      if (is_above || (is_equal && equal_rank < ties)) emit(above_rank + min(equal_rank, ties), v, e);
      above_rank += is_above ? 1 : 0;
      equal_rank += is_equal ? 1 : 0;
    }
  }
}

/// Scores a slice of a row of `pools` pools: as fine as the second stage can take.
__host__ __device__ int slice_size(int64_t pools, int pools_per_query, bool prompt) {
  int size = prompt ? kSlice : kWindowSlice;
  while (size < kSlice && (pools + size - 1) / size * pools_per_query > kSlice) size *= 2;
  return size;
}

/// Most slices of any row.
__host__ __device__ int slice_capacity(int64_t pool_capacity, int pools_per_query, bool prompt) {
  const int64_t smallest = prompt ? kSlice : kWindowSlice;
  const int64_t slices = (pool_capacity + smallest - 1) / smallest;
  const int64_t most = kSlice / pools_per_query;
  return static_cast<int>(slices < most ? slices : most);
}

/// n(t) of a row, or 0 where there is nothing to select.
__device__ int pools_to_rank(const IndexSelect& args, int row) {
  if (args.tables.row_segment[row] < 0) return 0;
  const int64_t pools = (args.tables.row_position[row] + 1) / args.kpool;
  return pools <= args.pools_per_query ? 0 : static_cast<int>(pools);
}

struct Candidates {
  uint32_t* keys;  // [rows][slices][K]
  int32_t* ids;
};

__global__ void __launch_bounds__(kThreads, 2) select_slice_kernel(const IndexSelect args, Candidates candidates) {
  start_after_previous();
  __shared__ Shared shared;
  const auto slice = static_cast<int>(blockIdx.x);
  const auto block_row = static_cast<int>(blockIdx.y);
  const int row = args.first_row + block_row;
  const int pools = pools_to_rank(args, row);
  const int size = slice_size(pools, args.pools_per_query, args.prompt);
  const int first = slice * size;
  if (first >= pools) return;
  const int count = min(pools - first, size);
  const float* scores = args.scores + int64_t{block_row} * args.pool_capacity + first;

  Keys keys;
  keys.vectors = (count + 4 * kThreads - 1) / (4 * kThreads);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = 4 * (kThreads * v + static_cast<int>(threadIdx.x));
    float4 four = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    if (at < count) four = *reinterpret_cast<const float4*>(scores + at);
    keys.key[4 * v] = at < count ? order_key(four.x) : 0;
    keys.key[4 * v + 1] = at + 1 < count ? order_key(four.y) : 0;
    keys.key[4 * v + 2] = at + 2 < count ? order_key(four.z) : 0;
    keys.key[4 * v + 3] = at + 3 < count ? order_key(four.w) : 0;
  }
  const int wanted = min(args.pools_per_query, count);
  const auto id = [&](int v, int e) { return first + 4 * (kThreads * v + static_cast<int>(threadIdx.x)) + e; };
  if (pools <= size) {
    int32_t* selected = args.selected + int64_t{row} * args.pools_per_query;
    select_best(keys, wanted, shared, [&](int slot, int v, int e) { selected[slot] = id(v, e); });
    return;
  }
  const int64_t base = (int64_t{block_row} * gridDim.x + slice) * args.pools_per_query;
  select_best(keys, wanted, shared, [&](int slot, int v, int e) {
    candidates.keys[base + slot] = keys.key[4 * v + e];
    candidates.ids[base + slot] = id(v, e);
  });
}

/// Selects among the slices' candidates, which lie in order of ids without gaps: only the last slice has fewer than K.
__global__ void __launch_bounds__(kThreads, 2)
    select_final_kernel(const IndexSelect args, Candidates candidates, int slices) {
  start_after_previous();
  __shared__ Shared shared;
  const auto block_row = static_cast<int>(blockIdx.x);
  const int row = args.first_row + block_row;
  const int pools = pools_to_rank(args, row);
  const int size = slice_size(pools, args.pools_per_query, args.prompt);
  if (pools <= size) return;
  const int full = (pools - 1) / size;
  const int count = full * args.pools_per_query + min(args.pools_per_query, pools - full * size);
  const int64_t base = int64_t{block_row} * slices * args.pools_per_query;

  Keys keys;
  keys.vectors = (count + 4 * kThreads - 1) / (4 * kThreads);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int at = 4 * (kThreads * v + static_cast<int>(threadIdx.x)) + e;
      keys.key[4 * v + e] = at < count ? candidates.keys[base + at] : 0;
    }
  }
  int32_t* selected = args.selected + int64_t{row} * args.pools_per_query;
  select_best(keys, args.pools_per_query, shared, [&](int slot, int v, int e) {
    selected[slot] = candidates.ids[base + 4 * (kThreads * v + static_cast<int>(threadIdx.x)) + e];
  });
}

}  // namespace

int64_t index_select_workspace(int rows, int64_t pool_capacity, int pools_per_query, bool prompt) {
  const int slices = slice_capacity(pool_capacity, pools_per_query, prompt);
  return slices <= 1 ? 0 : int64_t{rows} * slices * pools_per_query * 8;
}

void index_select(const IndexSelect& select, cudaStream_t stream) {
  if (select.rows < 1 || select.rows > 65535 || select.pools_per_query < 1 || select.pools_per_query > kMaxSelected) {
    throw std::invalid_argument("index_select: 1 to 65535 rows and 1 to 1024 pools a query required");
  }
  if (select.pool_capacity < 4 || select.pool_capacity % 4 != 0 ||
      (select.pool_capacity + kSlice - 1) / kSlice * select.pools_per_query > kSlice) {
    throw std::invalid_argument("index_select: pool_capacity must be a multiple of 4 and within reach of two stages");
  }
  const int slices = slice_capacity(select.pool_capacity, select.pools_per_query, select.prompt);
  Candidates candidates{};
  candidates.keys = static_cast<uint32_t*>(select.workspace);
  candidates.ids = static_cast<int32_t*>(select.workspace) + int64_t{select.rows} * slices * select.pools_per_query;
  launch_overlapped("index_select launch", select_slice_kernel,
                    dim3(static_cast<unsigned>(slices), static_cast<unsigned>(select.rows)), kThreads, 0, stream,
                    select, candidates);
  if (slices == 1) return;
  launch_overlapped("index_select launch", select_final_kernel, static_cast<unsigned>(select.rows), kThreads, 0, stream,
                    select, candidates, static_cast<int>(slices));
}

}  // namespace glm53::kernels
