// Choice of experts and grouping of slots by expert.
//
// Operation   s = sigmoid(logits); choose the topk largest s + bias; weights s / (Σ s + 1e-20) · scale; then sort the
//             slots (row · topk + choice) by expert, stable, and cut the experts' rows into segments
// Shapes      logits [rows, experts] fp32 → RouteTables
// Rounding    fp32 throughout; the sum of the chosen runs in order of choice
// Bound       latency. Windows: one block, one launch. Prompts: three launches over chunks of 64 rows.
//
// A row chooses an expert at most once, so the rows of a 64-row chunk that chose an expert are one 64-bit mask, and a
// slot's rank in its expert is a population count: no sort, and no order of atomics that could matter.
#include <climits>
#include <stdexcept>

#include "kernels/common/cuda_check.h"
#include "kernels/router/router.h"

namespace glm53::kernels {
namespace {

constexpr int kChunk = 64;  // rows of one mask
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kPerLane = kMaxExperts / 32;
static_assert(kMaxExperts <= kThreads, "a thread an expert");
static_assert(kWindowRows <= kChunk, "a window is one chunk");

struct Arguments {
  const float* logits;  // null: the choices are in the tables already
  const float* bias;
  const int32_t* row_segment;
  float scale;
  bool normalise;
  bool window;
  int rows;
  RouteTables tables;
};

/// Order of floats as order of unsigned integers; NaN below −∞.
__device__ uint32_t order_key(float value) {
  if (isnan(value)) return 0;
  const uint32_t bits = __float_as_uint(value);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// One warp chooses for one row.
__device__ void choose(const Arguments& a, int row, int lane) {
  const RouteTables& tables = a.tables;
  const int experts = tables.experts;
  const int topk = tables.topk;
  const bool padding = a.row_segment != nullptr && a.row_segment[row] < 0;
  if (padding) {
    if (lane < topk) {
      tables.expert_of_slot[row * topk + lane] = -1;
      tables.weight_of_slot[row * topk + lane] = 0.0F;
    }
    return;
  }
  uint32_t keys[kPerLane];  // of experts 32·i + lane; 0 once taken
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = 32 * i + lane;
    keys[i] = 0;
    if (e < experts) {
      const float score = 1.0F / (1.0F + expf(-a.logits[static_cast<int64_t>(row) * experts + e]));
      // +1 keeps NaN (key 0 + 1) above what is absent or taken; no finite key is the largest integer.
      keys[i] = order_key(score + a.bias[e]) + 1;
    }
  }
  float sum = 0.0F;
  int my_expert = 0;
  float my_score = 0.0F;
  for (int choice = 0; choice < topk; ++choice) {
    uint32_t best = 0;
    int best_index = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (keys[i] > best) {
        best = keys[i];
        best_index = i;
      }
    }
    const uint32_t largest = __reduce_max_sync(0xFFFFFFFFU, best);
    const uint32_t expert =
        __reduce_min_sync(0xFFFFFFFFU, best == largest ? static_cast<uint32_t>(32 * best_index + lane) : UINT_MAX);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      keys[i] = static_cast<uint32_t>(32 * i + lane) == expert ? 0 : keys[i];
    }
    const float score = 1.0F / (1.0F + expf(-a.logits[static_cast<int64_t>(row) * experts + expert]));
    sum += score;
    if (lane == choice) {
      my_expert = static_cast<int>(expert);
      my_score = score;
    }
  }
  if (lane < topk) {
    const float share = a.normalise ? my_score / (sum + 1e-20F) : my_score;
    tables.expert_of_slot[row * topk + lane] = my_expert;
    tables.weight_of_slot[row * topk + lane] = share * a.scale;
  }
}

/// Masks of the rows [first, first + count) by expert. All threads; ends with a barrier.
__device__ void fill_masks(const RouteTables& tables, int first, int count, unsigned long long* masks) {
  for (int e = static_cast<int>(threadIdx.x); e < tables.experts; e += kThreads) masks[e] = 0;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count * tables.topk; i += kThreads) {
    const int expert = tables.expert_of_slot[first * tables.topk + i];
    if (expert >= 0) atomicOr(&masks[expert], 1ULL << (i / tables.topk));
  }
  __syncthreads();
}

/// Places of the rows of one chunk; `base[e]`: place of the chunk's first slot of expert e.
__device__ void place_slots(const RouteTables& tables, int first, int count, const unsigned long long* masks,
                            const int* base) {
  for (int i = static_cast<int>(threadIdx.x); i < count * tables.topk; i += kThreads) {
    const int slot = first * tables.topk + i;
    const int expert = tables.expert_of_slot[slot];
    int place = -1;
    if (expert >= 0) {
      const unsigned long long earlier = (1ULL << (i / tables.topk)) - 1;
      place = base[expert] + __popcll(masks[expert] & earlier);
      tables.slot_of_place[place] = slot;
    }
    tables.place_of_slot[slot] = place;
  }
}

/// Exclusive prefix sum over the block's threads; `total` = sum of all.
__device__ int exclusive_sum(int value, int* warp_sums, int& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int inclusive = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFFU, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  if (lane == 31) warp_sums[warp] = inclusive;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += warp_sums[w];
    total += warp_sums[w];
  }
  __syncthreads();
  return before + inclusive - value;
}

/// Thread e holds the rows of expert e (0 beyond). Writes first_place, segments and their counts; returns the expert's
/// first place.
__device__ int write_segments(const RouteTables& tables, bool window, int expert_rows, int* warp_sums) {
  const int e = static_cast<int>(threadIdx.x);
  const bool is_thin = window && expert_rows > 0 && expert_rows <= kThinExpertRows;
  const int tiles = is_thin ? 0 : (expert_rows + kExpertTileRows - 1) / kExpertTileRows;
  int total_rows = 0;
  int total_thin = 0;
  int total_tiles = 0;
  const int first = exclusive_sum(expert_rows, warp_sums, total_rows);
  const int thin_index = exclusive_sum(is_thin ? 1 : 0, warp_sums, total_thin);
  const int tile_index = exclusive_sum(tiles, warp_sums, total_tiles);
  if (e < tables.experts) tables.first_place[e] = first;
  if (is_thin) tables.thin[thin_index] = {e, first, expert_rows, 0};
  for (int t = 0; t < tiles; ++t) {
    tables.tiles[tile_index + t] = {e, first + t * kExpertTileRows,
                                    min(kExpertTileRows, expert_rows - t * kExpertTileRows), 0};
  }
  if (e == 0) {
    tables.first_place[tables.experts] = total_rows;
    tables.counts[0] = total_thin;
    tables.counts[1] = total_tiles;
  }
  return first;
}

/// Windows: everything in one block.
__global__ __launch_bounds__(kThreads) void route_window_kernel(Arguments a) {
  __shared__ unsigned long long masks[kMaxExperts];
  __shared__ int base[kMaxExperts];
  __shared__ int warp_sums[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (a.logits != nullptr) {
    for (int row = warp; row < a.rows; row += kWarps) choose(a, row, lane);
    __syncthreads();
  }
  fill_masks(a.tables, 0, a.rows, masks);
  const int e = static_cast<int>(threadIdx.x);
  const int expert_rows = e < a.tables.experts ? __popcll(masks[e]) : 0;
  const int first = write_segments(a.tables, a.window, expert_rows, warp_sums);
  if (e < a.tables.experts) base[e] = first;
  __syncthreads();
  place_slots(a.tables, 0, a.rows, masks, base);
}

/// Prompts, 1: choose, and count each expert's rows in this chunk.
__global__ __launch_bounds__(kThreads) void route_count_kernel(Arguments a) {
  __shared__ unsigned long long masks[kMaxExperts];
  const int first = static_cast<int>(blockIdx.x) * kChunk;
  const int count = min(kChunk, a.rows - first);
  if (a.logits != nullptr) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int row = static_cast<int>(threadIdx.x) / 32; row < count; row += kWarps) choose(a, first + row, lane);
    __syncthreads();
  }
  fill_masks(a.tables, first, count, masks);
  const int e = static_cast<int>(threadIdx.x);
  if (e < a.tables.experts) a.tables.chunk_counts[blockIdx.x * a.tables.experts + e] = __popcll(masks[e]);
}

/// Prompts, 2: counts of the chunks become places. One block.
__global__ __launch_bounds__(kThreads) void route_scan_kernel(Arguments a, int chunks) {
  __shared__ int warp_sums[kWarps];
  const int e = static_cast<int>(threadIdx.x);
  const int experts = a.tables.experts;
  int expert_rows = 0;
  if (e < experts) {
    for (int c = 0; c < chunks; ++c) expert_rows += a.tables.chunk_counts[c * experts + e];
  }
  int place = write_segments(a.tables, a.window, expert_rows, warp_sums);
  if (e < experts) {
    for (int c = 0; c < chunks; ++c) {
      const int count = a.tables.chunk_counts[c * experts + e];
      a.tables.chunk_counts[c * experts + e] = place;
      place += count;
    }
  }
}

/// Prompts, 3.
__global__ __launch_bounds__(kThreads) void route_place_kernel(Arguments a) {
  __shared__ unsigned long long masks[kMaxExperts];
  __shared__ int base[kMaxExperts];
  const int first = static_cast<int>(blockIdx.x) * kChunk;
  const int count = min(kChunk, a.rows - first);
  const int e = static_cast<int>(threadIdx.x);
  if (e < a.tables.experts) base[e] = a.tables.chunk_counts[blockIdx.x * a.tables.experts + e];
  fill_masks(a.tables, first, count, masks);
  place_slots(a.tables, first, count, masks, base);
}

void launch(const Arguments& a, cudaStream_t stream) {
  const RouteTables& tables = a.tables;
  if (a.rows < 0 || a.rows > tables.rows || (a.window && a.rows > kWindowRows)) {
    throw std::invalid_argument("route: rows beyond the tables' capacity or the window's limit");
  }
  if (a.rows <= kChunk) {
    route_window_kernel<<<1, kThreads, 0, stream>>>(a);
    check_cuda(cudaGetLastError(), "route launch");
    return;
  }
  const int chunks = (a.rows + kChunk - 1) / kChunk;
  route_count_kernel<<<static_cast<unsigned>(chunks), kThreads, 0, stream>>>(a);
  check_cuda(cudaGetLastError(), "route count launch");
  route_scan_kernel<<<1, kThreads, 0, stream>>>(a, chunks);
  check_cuda(cudaGetLastError(), "route scan launch");
  route_place_kernel<<<static_cast<unsigned>(chunks), kThreads, 0, stream>>>(a);
  check_cuda(cudaGetLastError(), "route place launch");
}

/// Walks the parts of the tables' memory; with a null base, only measures.
class Carver {
 public:
  explicit Carver(void* memory) : memory_(static_cast<char*>(memory)) {}
  template <typename T>
  T* take(size_t count) {
    T* part = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += (count * sizeof(T) + 15) / 16 * 16;
    return part;
  }
  size_t used() const { return used_; }

 private:
  char* memory_;
  size_t used_ = 0;
};

RouteTables carve(void* memory, int rows, int topk, int experts, size_t& bytes) {
  if (rows < 0 || topk < 1 || topk > kMaxExpertsPerToken || experts < topk || experts > kMaxExperts) {
    throw std::invalid_argument("route_tables: at most 512 experts, 32 of them a token");
  }
  const auto slots = static_cast<size_t>(rows) * static_cast<size_t>(topk);
  const auto expert_count = static_cast<size_t>(experts);
  const size_t chunks = (static_cast<size_t>(rows) + kChunk - 1) / kChunk;
  Carver carver(memory);
  RouteTables tables;
  tables.expert_of_slot = carver.take<int32_t>(slots);
  tables.weight_of_slot = carver.take<float>(slots);
  tables.slot_of_place = carver.take<int32_t>(slots);
  tables.place_of_slot = carver.take<int32_t>(slots);
  tables.first_place = carver.take<int32_t>(expert_count + 1);
  tables.thin = carver.take<ExpertSegment>(expert_count);
  tables.tiles = carver.take<ExpertSegment>(slots / kExpertTileRows + expert_count);
  tables.counts = carver.take<int32_t>(2);
  tables.chunk_counts = carver.take<int32_t>(chunks * expert_count);
  tables.rows = rows;
  tables.topk = topk;
  tables.experts = experts;
  bytes = carver.used();
  return tables;
}

}  // namespace

size_t route_tables_bytes(int rows, int topk, int experts) {
  size_t bytes = 0;
  carve(nullptr, rows, topk, experts, bytes);
  return bytes;
}

RouteTables route_tables_at(void* memory, int rows, int topk, int experts) {
  size_t bytes = 0;
  return carve(memory, rows, topk, experts, bytes);
}

void route(const float* logits, const float* bias, int rows, const RouterOptions& options, const RouteTables& tables,
           cudaStream_t stream) {
  launch({logits, bias, options.row_segment, options.scale, options.normalise, options.window, rows, tables}, stream);
}

void group_slots(int rows, bool window, const RouteTables& tables, cudaStream_t stream) {
  launch({nullptr, nullptr, nullptr, 1.0F, true, window, rows, tables}, stream);
}

}  // namespace glm53::kernels
