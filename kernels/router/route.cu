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
#include "kernels/common/overlap.h"
#include "kernels/router/router.h"

namespace glm53::kernels {
namespace {

constexpr int kChunk = 64;  // rows of one mask
constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
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

/// Choices and rows by expert of one chunk.
struct Chunk {
  int16_t expert_of_slot[kChunk * kMaxExpertsPerToken];
  unsigned long long masks[kMaxExperts];  // bit r: row r chose this expert
};

/// One warp chooses for one row; lane c returns choice c, −1 for none. kPerLane · 32 ≥ experts.
template <int kPerLane>
__device__ int choose(const Arguments& a, int row, int lane) {
  const RouteTables& tables = a.tables;
  const int experts = tables.experts;
  const int topk = tables.topk;
  const bool padding = a.row_segment != nullptr && a.row_segment[row] < 0;
  if (padding) {
    if (lane < topk) {
      tables.expert_of_slot[row * topk + lane] = -1;
      tables.weight_of_slot[row * topk + lane] = 0.0F;
    }
    return -1;
  }
  float scores[kPerLane];   // of experts 32·i + lane
  uint32_t keys[kPerLane];  // order of the biased scores; 0 once taken
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = 32 * i + lane;
    scores[i] = 0.0F;
    keys[i] = 0;
    if (e < experts) {
      scores[i] = 1.0F / (1.0F + expf(-a.logits[static_cast<int64_t>(row) * experts + e]));
      // +1 keeps NaN (key 0 + 1) above what is absent or taken; no finite key is the largest integer.
      keys[i] = order_key(scores[i] + a.bias[e]) + 1;
    }
  }
  float sum = 0.0F;
  int my_expert = 0;
  float my_score = 0.0F;
  for (int choice = 0; choice < topk; ++choice) {
    uint32_t best = keys[0];
    float best_score = scores[0];
    uint32_t best_expert = static_cast<uint32_t>(lane);
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) {
      const bool better = keys[i] > best;
      best = better ? keys[i] : best;
      best_score = better ? scores[i] : best_score;
      best_expert = better ? static_cast<uint32_t>(32 * i + lane) : best_expert;
    }
    const uint32_t largest = __reduce_max_sync(0xFFFFFFFFU, best);
    const uint32_t expert = __reduce_min_sync(0xFFFFFFFFU, best == largest ? best_expert : UINT_MAX);
    const float score = __shfl_sync(0xFFFFFFFFU, best_score, static_cast<int>(expert % 32));
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      keys[i] = static_cast<uint32_t>(32 * i + lane) == expert ? 0 : keys[i];
    }
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
  return lane < topk ? my_expert : -1;
}

__device__ int choose_any(const Arguments& a, int row, int lane) {
  const int per_lane = (a.tables.experts + 31) / 32;
  if (per_lane <= 4) return choose<4>(a, row, lane);
  if (per_lane <= 9) return choose<9>(a, row, lane);
  return choose<kMaxExperts / 32>(a, row, lane);
}

/// Chooses for the rows [first, first + count), or reads their choices, and fills the masks. All threads; ends with a
/// barrier.
__device__ void fill_chunk(const Arguments& a, bool with_choice, int first, int count, Chunk& chunk) {
  const int topk = a.tables.topk;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int e = static_cast<int>(threadIdx.x); e < a.tables.experts; e += kThreads) chunk.masks[e] = 0;
  __syncthreads();
  for (int row = static_cast<int>(threadIdx.x) / 32; row < count; row += kWarps) {
    int expert = -1;
    if (with_choice) {
      expert = choose_any(a, first + row, lane);
    } else if (lane < topk) {
      expert = a.tables.expert_of_slot[(first + row) * topk + lane];
    }
    if (lane < topk) {
      chunk.expert_of_slot[row * topk + lane] = static_cast<int16_t>(expert);
      if (expert >= 0) atomicOr(&chunk.masks[expert], 1ULL << row);
    }
  }
  __syncthreads();
}

/// Places of the rows of one chunk; `base[e]`: place of the chunk's first slot of expert e.
__device__ void place_slots(const RouteTables& tables, int first, int count, const Chunk& chunk, const int* base) {
  for (int i = static_cast<int>(threadIdx.x); i < count * tables.topk; i += kThreads) {
    const int slot = first * tables.topk + i;
    const int expert = chunk.expert_of_slot[i];
    int place = -1;
    if (expert >= 0) {
      const unsigned long long earlier = (1ULL << (i / tables.topk)) - 1;
      place = base[expert] + __popcll(chunk.masks[expert] & earlier);
      tables.slot_of_place[place] = slot;
    }
    tables.place_of_slot[slot] = place;
  }
}

/// Three counts of a thread, added as one number: rows in the low 32 bits, thin segments in 12, tiles in 20.
using Counts = unsigned long long;
__device__ Counts pack_counts(int rows, int thin, int tiles) {
  return static_cast<Counts>(rows) | static_cast<Counts>(thin) << 32 | static_cast<Counts>(tiles) << 44;
}
__device__ int rows_of(Counts c) { return static_cast<int>(c & 0xFFFFFFFFU); }
__device__ int thin_of(Counts c) { return static_cast<int>(c >> 32 & 0xFFFU); }
__device__ int tiles_of(Counts c) { return static_cast<int>(c >> 44); }

/// Exclusive prefix sum over the block's threads; `total` = sum of all.
__device__ Counts exclusive_sum(Counts value, Counts* warp_sums, Counts& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  Counts inclusive = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Counts other = __shfl_up_sync(0xFFFFFFFFU, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  if (lane == 31) warp_sums[warp] = inclusive;
  __syncthreads();
  Counts before = 0;
  total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += warp_sums[w];
    total += warp_sums[w];
  }
  return before + inclusive - value;
}

/// Thread e holds the rows of expert e (0 beyond). Writes first_place, segments and their counts; returns the expert's
/// first place.
__device__ int write_segments(const RouteTables& tables, bool window, int expert_rows, Counts* warp_sums) {
  const int e = static_cast<int>(threadIdx.x);
  const bool is_thin = window && expert_rows > 0 && expert_rows <= kThinExpertRows;
  const int tiles = is_thin ? 0 : (expert_rows + kExpertTileRows - 1) / kExpertTileRows;
  Counts total = 0;
  const Counts before = exclusive_sum(pack_counts(expert_rows, is_thin ? 1 : 0, tiles), warp_sums, total);
  const int first = rows_of(before);
  if (e < tables.experts) tables.first_place[e] = first;
  if (is_thin) tables.thin[thin_of(before)] = {e, first, expert_rows, 0};
  for (int t = 0; t < tiles; ++t) {
    tables.tiles[tiles_of(before) + t] = {e, first + t * kExpertTileRows,
                                          min(kExpertTileRows, expert_rows - t * kExpertTileRows), 0};
  }
  if (e == 0) {
    tables.first_place[tables.experts] = rows_of(total);
    tables.counts[0] = thin_of(total);
    tables.counts[1] = tiles_of(total);
  }
  return first;
}

/// Windows: everything in one block.
__global__ __launch_bounds__(kThreads) void route_window_kernel(Arguments a) {
  start_after_previous();
  __shared__ Chunk chunk;
  __shared__ int base[kMaxExperts];
  __shared__ Counts warp_sums[kWarps];
  fill_chunk(a, a.logits != nullptr, 0, a.rows, chunk);
  const int e = static_cast<int>(threadIdx.x);
  const int expert_rows = e < a.tables.experts ? __popcll(chunk.masks[e]) : 0;
  const int first = write_segments(a.tables, a.window, expert_rows, warp_sums);
  if (e < a.tables.experts) base[e] = first;
  __syncthreads();
  place_slots(a.tables, 0, a.rows, chunk, base);
}

/// Prompts, 1: choose, and count each expert's rows in this chunk.
__global__ __launch_bounds__(kThreads) void route_count_kernel(Arguments a) {
  __shared__ Chunk chunk;
  const int first = static_cast<int>(blockIdx.x) * kChunk;
  fill_chunk(a, a.logits != nullptr, first, min(kChunk, a.rows - first), chunk);
  const int e = static_cast<int>(threadIdx.x);
  if (e < a.tables.experts) a.tables.chunk_counts[blockIdx.x * a.tables.experts + e] = __popcll(chunk.masks[e]);
}

/// Prompts, 2: counts of the chunks become places. One block.
__global__ __launch_bounds__(kThreads) void route_scan_kernel(Arguments a, int chunks) {
  __shared__ Counts warp_sums[kWarps];
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
  __shared__ Chunk chunk;
  __shared__ int base[kMaxExperts];
  const int first = static_cast<int>(blockIdx.x) * kChunk;
  const int count = min(kChunk, a.rows - first);
  const int e = static_cast<int>(threadIdx.x);
  if (e < a.tables.experts) base[e] = a.tables.chunk_counts[blockIdx.x * a.tables.experts + e];
  fill_chunk(a, false, first, count, chunk);
  place_slots(a.tables, first, count, chunk, base);
}

void launch(const Arguments& a, cudaStream_t stream) {
  const RouteTables& tables = a.tables;
  if (a.rows < 0 || a.rows > tables.rows || (a.window && a.rows > kWindowRows)) {
    throw std::invalid_argument("route: rows beyond the tables' capacity or the window's limit");
  }
  if (a.rows <= kChunk) {
    launch_overlapped("route launch", route_window_kernel, 1, kThreads, 0, stream, a);
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
    throw std::invalid_argument("route_tables: at most 384 experts, 32 of them a token");
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
