// KDA over window rows, and the serial replay that settles a log.
//
// Operation   for every head: convolution + SiLU, L2 norms, gates, then row by row (spec 10 §3.5 step 7)
//               S ← diag(e^g)·S; d = β·(v − Sᵀk); S ← S + k·dᵀ; o = Sᵀq
//             and y = norm(o)·sigmoid(γ)
// Shapes      see kda.h; at most 16 rows a segment
// Rounding    q, k, v to bf16 after SiLU; y to bf16; all else fp32, S included
// Bound       memory: S is read once, and written once when logged rows count. One block a (segment, head): S lives in
//             registers (64 a thread); the block owns its part of state, ring and log, so nothing is locked or doubled.
#include <stdexcept>

#include "kernels/common/cuda_check.h"
#include "kernels/common/overlap.h"
#include "kernels/kda/kda_rows.h"

namespace glm53::kernels {
namespace {

constexpr int kHead = kKdaHeadDim;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kValues = 8;   ///< rows v of S that a thread holds
constexpr int kColumns = 8;  ///< and its columns k

/// A thread's part of S. Half a warp holds 8 rows v: a thread columns 4·l..4·l+3 and 64 + 4·l.. of all of them, l its
/// lane in the half, so that a row of k, q or decay costs each thread two conflict-free 16-byte reads.
using StatePart = float[kValues][kColumns];

/// Up to 16 rows, ready for the recurrence.
struct Shared {
  float query[kKdaRows][kHead];
  float key[kKdaRows][kHead];
  float decay[kKdaRows][kHead];
  float out[kKdaRows][kHead];  ///< o
  __nv_bfloat16 raw_query[kKdaRows][kHead];
  __nv_bfloat16 raw_key[kKdaRows][kHead];
  __nv_bfloat16 value[kKdaRows][kHead];
  float beta[kKdaRows];
};
static_assert(sizeof(Shared) <= 48 * 1024, "two blocks share an SM's 100 KiB on GB10");

/// A thread's two channels of q, k, v or g for the steps that run down the rows. A warp has one part.
struct Columns {
  int part = static_cast<int>(threadIdx.x) / (kHead / 2);  ///< 0 q, 1 k, 2 v, 3 g
  int channel = static_cast<int>(threadIdx.x) % (kHead / 2) * 2;
};

__device__ uint32_t* word(__nv_bfloat16* at) { return reinterpret_cast<uint32_t*>(at); }
__device__ const uint32_t* word(const __nv_bfloat16* at) { return reinterpret_cast<const uint32_t*>(at); }

/// Rows 0..count of the log to rows 0..count of `shared`.
__device__ void load_log_rows(Shared& shared, const KdaLayerState& layer, int64_t slot, int head, int count) {
  const Columns own;
  const int64_t width = int64_t{layer.heads} * kHead;
  const int64_t at = slot * kKdaRows * width + head * kHead + own.channel;
  if (own.part == 3) {
    const float* log = layer.log_decay + at;
#pragma unroll 4
    for (int i = 0; i < count; ++i, log += width) {
      const float2 g = *reinterpret_cast<const float2*>(log);
      *reinterpret_cast<float2*>(&shared.decay[i][own.channel]) = {expf(g.x), expf(g.y)};
    }
  } else if (own.part != 0) {
    auto& to = own.part == 1 ? shared.raw_key : shared.value;
    const __nv_bfloat16* log = (own.part == 1 ? layer.log_key : layer.log_value) + at;
#pragma unroll 4
    for (int i = 0; i < count; ++i, log += width) *word(&to[i][own.channel]) = *word(log);
  }
  if (threadIdx.x < static_cast<unsigned>(count)) {
    shared.beta[threadIdx.x] = layer.log_beta[(slot * kKdaRows + threadIdx.x) * layer.heads + head];
  }
}

/// Rows first_row.. of a segment, count of them, to rows at.. of `shared`, q and k not normalised, and to the log;
/// their raw rows to the ring. What a thread overwrites in the log it has itself read before, in load_log_rows.
__device__ void load_new_rows(Shared& shared, const KdaRows& rows, const KdaParameters& parameters,
                              const KdaLayerState& layer, const DeviceSegment& segment, int head, int first_row,
                              int count, int at) {
  const Columns own;
  const int64_t width = int64_t{layer.heads} * kHead;
  const int head_channel = head * kHead + own.channel;
  const int64_t flat_row = int64_t{segment.first_row} + first_row;
  const int64_t log_at = (int64_t{segment.slot} * kKdaRows + first_row) * width + head_channel;
  if (own.part == 3) {
    const float rate = expf(parameters.a_log[head]);
    const float2 bias = *reinterpret_cast<const float2*>(parameters.dt_bias + head_channel);
    const __nv_bfloat16* from = rows.forget + flat_row * width + head_channel;
    float* log = layer.log_decay + log_at;
#pragma unroll 4
    for (int i = 0; i < count; ++i, from += width, log += width) {
      const float2 p = unpack_bf16(*word(from));
      const float2 g = {kda_log_decay(p.x, rate, bias.x, parameters.lower_bound),
                        kda_log_decay(p.y, rate, bias.y, parameters.lower_bound)};
      *reinterpret_cast<float2*>(log) = g;
      *reinterpret_cast<float2*>(&shared.decay[at + i][own.channel]) = {expf(g.x), expf(g.y)};
    }
  } else {
    auto& to = own.part == 0 ? shared.raw_query : own.part == 1 ? shared.raw_key : shared.value;
    const int64_t raw_channel = own.part * width + head_channel;
    const auto* weights = reinterpret_cast<const float4*>(parameters.conv) + raw_channel;
    const float4 low = weights[0];
    const float4 high = weights[1];
    __nv_bfloat16* const ring = layer.conv_ring + int64_t{segment.slot} * kKdaConvRing * 3 * width + raw_channel;
    const int first_ring_row = static_cast<int>(segment.first_position % kKdaConvRing);
    const __nv_bfloat16* from = rows.projected + flat_row * rows.projected_stride + raw_channel;
    // Rows before the segment come from the ring; this window overwrites none of the three that it reads.
    uint32_t taps[3];
#pragma unroll
    for (int tap = 0; tap < 3; ++tap) {
      // One load without branches, so that the three are in flight together.
      const int row = first_row - 3 + tap;
      const auto* raw = word(row >= 0 ? from + (tap - 3) * rows.projected_stride
                                      : ring + kda_ring_row(first_ring_row, row) * 3 * width);
      taps[tap] = *raw;
      if (segment.first_position + row < 0) taps[tap] = 0;
    }
    __nv_bfloat16* const log = (own.part == 1 ? layer.log_key : layer.log_value) + log_at;
    float2 x0 = unpack_bf16(taps[0]);
    float2 x1 = unpack_bf16(taps[1]);
    float2 x2 = unpack_bf16(taps[2]);
#pragma unroll 4
    for (int i = 0; i < count; ++i, from += rows.projected_stride) {
      const uint32_t raw = *word(from);
      const float2 x3 = unpack_bf16(raw);
      const uint32_t result = pack_bf16(kda_conv(low, x0.x, x1.x, x2.x, x3.x), kda_conv(high, x0.y, x1.y, x2.y, x3.y));
      *word(&to[at + i][own.channel]) = result;
      // Indexed: beside S there is no register for a second running pointer on sm_121a.
      if (own.part != 0) *word(log + i * width) = result;
      *word(ring + kda_ring_row(first_ring_row, first_row + i) * 3 * width) = raw;
      x0 = x1;
      x1 = x2;
      x2 = x3;
    }
  }
  if (threadIdx.x < static_cast<unsigned>(count)) {
    const int64_t row = flat_row + static_cast<int>(threadIdx.x);
    const float b = __bfloat162float(rows.projected[row * rows.projected_stride + 3 * width + head]);
    const float beta = kda_sigmoid(b);
    shared.beta[at + threadIdx.x] = beta;
    layer.log_beta[(int64_t{segment.slot} * kKdaRows + first_row + threadIdx.x) * layer.heads + head] = beta;
  }
}

/// Unit keys of rows 0..end of `shared`, and scaled unit queries of rows first_new..end.
__device__ void normalise(Shared& shared, int first_new, int end) {
  const int channel = static_cast<int>(threadIdx.x) % 32 * 4;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int task = warp; task < 2 * end; task += kWarps) {
    const int i = task / 2;
    const bool is_key = task % 2 == 0;
    if (!is_key && i < first_new) continue;
    const uint2 packed = *reinterpret_cast<const uint2*>(&(is_key ? shared.raw_key : shared.raw_query)[i][channel]);
    const uint32_t words[2] = {packed.x, packed.y};
    float x[4];
    unpack_bf16(words, x);
    const float sum = kda_sum_squares(x);
    const float scale = is_key ? kda_key_scale(sum) : kda_query_scale(sum);
    *reinterpret_cast<float4*>(&(is_key ? shared.key : shared.query)[i][channel]) = {
        __fmul_rn(x[0], scale), __fmul_rn(x[1], scale), __fmul_rn(x[2], scale), __fmul_rn(x[3], scale)};
  }
}

__device__ int first_value() { return static_cast<int>(threadIdx.x) / 16 * kValues; }
__device__ int half_lane() { return static_cast<int>(threadIdx.x) % 16; }

/// This thread's columns of a row of 128.
__device__ void load_columns(const float* row, float (&x)[kColumns]) {
  const float4 low = *reinterpret_cast<const float4*>(row + 4 * half_lane());
  const float4 high = *reinterpret_cast<const float4*>(row + kHead / 2 + 4 * half_lane());
  x[0] = low.x;
  x[1] = low.y;
  x[2] = low.z;
  x[3] = low.w;
  x[4] = high.x;
  x[5] = high.y;
  x[6] = high.z;
  x[7] = high.w;
}

__device__ void load_state(const float* state, StatePart& s) {
#pragma unroll
  for (int v = 0; v < kValues; ++v) load_columns(state + (first_value() + v) * kHead, s[v]);
}

__device__ void store_state(float* state, const StatePart& s) {
  float* const part = state + first_value() * kHead + 4 * half_lane();
#pragma unroll
  for (int v = 0; v < kValues; ++v) {
    *reinterpret_cast<float4*>(part + v * kHead) = {s[v][0], s[v][1], s[v][2], s[v][3]};
    *reinterpret_cast<float4*>(part + v * kHead + kHead / 2) = {s[v][4], s[v][5], s[v][6], s[v][7]};
  }
}

/// Sums over half a warp of 8 values a lane: lane l gets the sum of x[l / 2]. In each step a lane keeps half of its
/// values and hands the other half to its partner.
__device__ float half_warp_sums(float (&x)[kValues]) {
#pragma unroll
  for (int keep = kValues / 2; keep > 0; keep /= 2) {
    const bool upper = (half_lane() & (2 * keep)) != 0;
#pragma unroll
    for (int i = 0; i < keep; ++i) {
      const float give = upper ? x[i] : x[i + keep];
      const float kept = upper ? x[i + keep] : x[i];
      x[i] = __fadd_rn(kept, __shfl_xor_sync(0xffffffffU, give, 2 * keep));
    }
  }
  return __fadd_rn(x[0], __shfl_xor_sync(0xffffffffU, x[0], 1));
}

/// One recurrent step with row i of `shared`. The state's bits are the same with and without an output: replayed rows
/// give the state that their first execution had.
template <bool kOutput>
__device__ void step(Shared& shared, int i, StatePart& s) {
  float decay[kColumns];
  float key[kColumns];
  load_columns(shared.decay[i], decay);
  load_columns(shared.key[i], key);
  const int own_value = first_value() + half_lane() / 2;
  const float value = __bfloat162float(shared.value[i][own_value]);
  const float beta = shared.beta[i];
  float sums[kValues] = {};
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int v = 0; v < kValues; ++v) {
      s[v][c] = __fmul_rn(s[v][c], decay[c]);
      sums[v] = __fmaf_rn(s[v][c], key[c], sums[v]);
    }
  }
  const float own_delta = __fmul_rn(beta, __fsub_rn(value, half_warp_sums(sums)));
  float query[kColumns] = {};
  if constexpr (kOutput) load_columns(shared.query[i], query);
#pragma unroll
  for (int v = 0; v < kValues; ++v) {
    const float delta = __shfl_sync(0xffffffffU, own_delta, 2 * v, 16);
    sums[v] = 0.0F;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      s[v][c] = __fmaf_rn(key[c], delta, s[v][c]);
      if constexpr (kOutput) sums[v] = __fmaf_rn(s[v][c], query[c], sums[v]);
    }
  }
  if constexpr (kOutput) {
    const float sum = half_warp_sums(sums);
    if (half_lane() % 2 == 0) shared.out[i][own_value] = sum;
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    window_kernel(KdaRows rows, KdaParameters parameters, KdaLayerState layer, BatchTables tables) {
  // The call's tables, this layer's states and its logs were written before the call began: they are read while the
  // projections before this kernel still run.
  let_next_kernel_start();
  const DeviceSegment segment = tables.segments[blockIdx.y];
  if (segment.rows <= 0) {
    wait_for_previous_kernel();
    return;
  }
  __shared__ Shared shared;
  const int head = static_cast<int>(blockIdx.x);
  const int64_t width = int64_t{layer.heads} * kHead;
  const int new_rows = min(segment.rows, kKdaRows);
  const int replay = kda_kept_rows(layer.slots[segment.slot]);
  float* const state = layer.state + (int64_t{segment.slot} * layer.heads + head) * kHead * kHead;
  StatePart s;
  load_state(state, s);

  // Up to 16 rows at a time of [logged rows that count | new rows]; the former fit in the first batch.
  load_log_rows(shared, layer, segment.slot, head, replay);
  wait_for_previous_kernel();
  int at = replay;
#pragma unroll 1
  for (int done = 0; done < new_rows;) {
    const int count = min(new_rows - done, kKdaRows - at);
    load_new_rows(shared, rows, parameters, layer, segment, head, done, count, at);
    __syncthreads();
    normalise(shared, at, at + count);
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < at; ++i) step<false>(shared, i, s);
    if (at > 0) store_state(state, s);
#pragma unroll 1
    for (int i = at; i < at + count; ++i) step<true>(shared, i, s);
    __syncthreads();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int channel = static_cast<int>(threadIdx.x) % 32 * 4;
    for (int i = warp; i < count; i += kWarps) {
      const int64_t to = int64_t{segment.first_row + done + i} * width + head * kHead + channel;
      const uint2 gate = *reinterpret_cast<const uint2*>(rows.gate + to);
      const float4 weight = *reinterpret_cast<const float4*>(parameters.output_norm + channel);
      const float4 o = *reinterpret_cast<const float4*>(&shared.out[at + i][channel]);
      *reinterpret_cast<uint2*>(rows.out + to) = kda_gated_norm(o, gate, weight, parameters.norm_eps);
    }
    __syncthreads();
    done += count;
    at = 0;
  }
}

/// Blocks (head, i): slot ids[i], or where ids is null the slot of segment i if a window was its last.
__global__ void __launch_bounds__(kThreads, 2)
    settle_kernel(KdaLayerState layer, const int32_t* ids, BatchTables tables, float* out) {
  int64_t slot = 0;
  if (ids != nullptr) {
    slot = ids[blockIdx.y];
  } else {
    const DeviceSegment segment = tables.segments[blockIdx.y];
    if (segment.rows <= 0 || layer.slots[segment.slot].log_kind != kKdaLogWindow) return;
    slot = segment.slot;
  }
  const int replay = kda_kept_rows(layer.slots[slot]);
  if (replay == 0 && out == nullptr) return;
  __shared__ Shared shared;
  const int head = static_cast<int>(blockIdx.x);
  float* const state = layer.state + (slot * layer.heads + head) * kHead * kHead;
  StatePart s;
  load_state(state, s);
  load_log_rows(shared, layer, slot, head, replay);
  __syncthreads();
  normalise(shared, replay, replay);
  __syncthreads();
  for (int i = 0; i < replay; ++i) step<false>(shared, i, s);
  store_state(out == nullptr ? state : out + (int64_t{blockIdx.y} * layer.heads + head) * kHead * kHead, s);
}

void check_layer(const KdaLayerState& layer) {
  if (layer.heads < 1) throw std::invalid_argument("kda: a layer needs at least one head");
}

}  // namespace

void kda_check(const KdaRows& rows, const KdaParameters& parameters, const KdaLayerState& layer,
               const BatchTables& tables) {
  check_layer(layer);
  const int64_t least = int64_t{layer.heads} * (3 * kHead + 1);
  if (rows.projected_stride < least || rows.projected_stride % 8 != 0) {
    throw std::invalid_argument("kda: the row stride must be at least 3·W + H and a multiple of 8");
  }
  if (!(parameters.lower_bound >= kKdaLowestBound && parameters.lower_bound < 0.0F)) {
    throw std::invalid_argument("kda: the gate's lower bound must lie in [-5.4, 0)");
  }
  if (tables.segment_capacity < 0) throw std::invalid_argument("kda: negative segment capacity");
}

void kda_window(const KdaRows& rows, const KdaParameters& parameters, const KdaLayerState& layer,
                const BatchTables& tables, cudaStream_t stream) {
  kda_check(rows, parameters, layer, tables);
  if (tables.segment_capacity == 0) return;
  const dim3 grid(static_cast<unsigned>(layer.heads), static_cast<unsigned>(tables.segment_capacity));
  launch_overlapped("kda_window launch", window_kernel, grid, kThreads, 0, stream, rows, parameters, layer, tables);
}

void kda_settle(const KdaLayerState& layer, const int32_t* ids, int count, float* out, cudaStream_t stream) {
  check_layer(layer);
  if (count == 0) return;
  const dim3 grid(static_cast<unsigned>(layer.heads), static_cast<unsigned>(count));
  settle_kernel<<<grid, kThreads, 0, stream>>>(layer, ids, BatchTables{}, out);
  check_cuda(cudaGetLastError(), "kda_settle launch");
}

void kda_settle_windows(const KdaLayerState& layer, const BatchTables& tables, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(layer.heads), static_cast<unsigned>(tables.segment_capacity));
  settle_kernel<<<grid, kThreads, 0, stream>>>(layer, nullptr, tables, nullptr);
  check_cuda(cudaGetLastError(), "kda_settle launch");
}

}  // namespace glm53::kernels
