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
#include "kernels/kda/kda_rows.h"

namespace glm53::kernels {
namespace {

constexpr int kHead = kKdaHeadDim;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kGroup = 4;                ///< channels of a thread's part of a row
constexpr int kGroups = kHead / kGroup;  ///< of a head: a whole warp
constexpr int kRowTasks = 4 * kGroups;   ///< q, k, v and g of a row
constexpr int kLaneValues = kHead / 4;   ///< of one row of S; four lanes share a row, a thread has two rows

/// A thread's part of S: rows v and v + 8, columns k = 16·j + 4·lane + c.
using StatePart = float[2][kLaneValues];

/// Up to 16 rows, ready for the recurrence.
struct Shared {
  float query[kKdaRows][kHead];
  float key[kKdaRows][kHead];
  float decay[kKdaRows][kHead];
  float log_decay[kKdaRows][kHead];  ///< g until it is logged, then o
  __nv_bfloat16 raw_key[kKdaRows][kHead];
  __nv_bfloat16 value[kKdaRows][kHead];
  float beta[kKdaRows];
};
static_assert(sizeof(Shared) <= 48 * 1024, "two blocks share an SM's 100 KiB on GB10");

__device__ void unpack(uint2 packed, float (&x)[kGroup]) {
  const uint32_t words[kGroup / 2] = {packed.x, packed.y};
  unpack_bf16(words, x);
}

__device__ void store_scaled(const float (&x)[kGroup], float scale, float* to) {
  *reinterpret_cast<float4*>(to) = {__fmul_rn(x[0], scale), __fmul_rn(x[1], scale), __fmul_rn(x[2], scale),
                                    __fmul_rn(x[3], scale)};
}

/// Rows 0..count of the log to rows 0..count of `shared`.
__device__ void load_log_rows(Shared& shared, const KdaLayerState& layer, int64_t slot, int head, int count) {
  const int64_t width = int64_t{layer.heads} * kHead;
#pragma unroll 1
  for (int task = static_cast<int>(threadIdx.x); task < count * kRowTasks; task += kThreads) {
    const int row = task / kRowTasks;
    const int part = task % kRowTasks / kGroups;
    const int channel = task % kGroups * kGroup;
    const int64_t at = (slot * kKdaRows + row) * width + head * kHead + channel;
    if (part == 1) {
      float x[kGroup];
      unpack(*reinterpret_cast<const uint2*>(layer.log_key + at), x);
      store_scaled(x, kda_key_scale(kda_sum_squares(x)), &shared.key[row][channel]);
    } else if (part == 2) {
      *reinterpret_cast<uint2*>(&shared.value[row][channel]) = *reinterpret_cast<const uint2*>(layer.log_value + at);
    } else if (part == 3) {
      const float4 g = *reinterpret_cast<const float4*>(layer.log_decay + at);
      *reinterpret_cast<float4*>(&shared.decay[row][channel]) = {expf(g.x), expf(g.y), expf(g.z), expf(g.w)};
    }
  }
  if (threadIdx.x < static_cast<unsigned>(count)) {
    shared.beta[threadIdx.x] = layer.log_beta[(slot * kKdaRows + threadIdx.x) * layer.heads + head];
  }
}

/// Rows first_row.. of a segment, count of them, to rows at.. of `shared`; their raw rows to the ring.
__device__ void load_new_rows(Shared& shared, const KdaRows& rows, const KdaParameters& parameters,
                              const KdaLayerState& layer, const DeviceSegment& segment, int head, int first_row,
                              int count, int at) {
  const int64_t width = int64_t{layer.heads} * kHead;
  const int first_ring_row = static_cast<int>(segment.first_position % kKdaConvRing);
  __nv_bfloat16* const ring = layer.conv_ring + int64_t{segment.slot} * kKdaConvRing * 3 * width;
#pragma unroll 1
  for (int task = static_cast<int>(threadIdx.x); task < count * kRowTasks; task += kThreads) {
    const int row = first_row + task / kRowTasks;
    const int to = at + task / kRowTasks;
    const int part = task % kRowTasks / kGroups;
    const int channel = task % kGroups * kGroup;
    const int64_t head_channel = head * kHead + channel;
    const int64_t flat_row = segment.first_row + row;
    if (part == 3) {
      float p[kGroup];
      unpack(*reinterpret_cast<const uint2*>(rows.forget + flat_row * width + head_channel), p);
      const float4 dt_bias = *reinterpret_cast<const float4*>(parameters.dt_bias + head_channel);
      const float bias[kGroup] = {dt_bias.x, dt_bias.y, dt_bias.z, dt_bias.w};
      const float rate = expf(parameters.a_log[head]);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const float g = kda_log_decay(p[i], rate, bias[i], parameters.lower_bound);
        shared.log_decay[to][channel + i] = g;
        shared.decay[to][channel + i] = expf(g);
      }
      continue;
    }
    // Rows before the segment come from the ring; this window overwrites none of the three that it reads.
    const int64_t raw_channel = part * width + head_channel;
    uint2 packed[4] = {};
#pragma unroll
    for (int tap = 0; tap < 4; ++tap) {
      const int back = 3 - tap;
      if (row >= back) {
        packed[tap] =
            *reinterpret_cast<const uint2*>(rows.projected + (flat_row - back) * rows.projected_stride + raw_channel);
      } else if (segment.first_position + row >= back) {
        packed[tap] =
            *reinterpret_cast<const uint2*>(ring + kda_ring_row(first_ring_row, row - back) * 3 * width + raw_channel);
      }
    }
    *reinterpret_cast<uint2*>(ring + kda_ring_row(first_ring_row, row) * 3 * width + raw_channel) = packed[3];
    float taps[4][kGroup];
#pragma unroll
    for (int tap = 0; tap < 4; ++tap) unpack(packed[tap], taps[tap]);
    float x[kGroup];
    const auto* weights = reinterpret_cast<const float4*>(parameters.conv) + raw_channel;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = kda_conv(weights[i], taps[0][i], taps[1][i], taps[2][i], taps[3][i]);
    const uint2 rounded = {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])};
    if (part == 2) {
      *reinterpret_cast<uint2*>(&shared.value[to][channel]) = rounded;
      continue;
    }
    unpack(rounded, x);
    const float sum = kda_sum_squares(x);
    if (part == 0) {
      store_scaled(x, kda_query_scale(sum), &shared.query[to][channel]);
    } else {
      *reinterpret_cast<uint2*>(&shared.raw_key[to][channel]) = rounded;
      store_scaled(x, kda_key_scale(sum), &shared.key[to][channel]);
    }
  }
  if (threadIdx.x < static_cast<unsigned>(count)) {
    const int64_t flat_row = segment.first_row + first_row + static_cast<int>(threadIdx.x);
    const float b = __bfloat162float(rows.projected[flat_row * rows.projected_stride + 3 * width + head]);
    shared.beta[at + threadIdx.x] = kda_sigmoid(b);
  }
}

/// Rows at.. of `shared`, count of them, to log rows first_row...
__device__ void write_log_rows(const Shared& shared, const KdaLayerState& layer, int64_t slot, int head, int first_row,
                               int count, int at) {
  const int64_t width = int64_t{layer.heads} * kHead;
#pragma unroll 1
  for (int task = static_cast<int>(threadIdx.x); task < count * kRowTasks; task += kThreads) {
    const int from = at + task / kRowTasks;
    const int part = task % kRowTasks / kGroups;
    const int channel = task % kGroups * kGroup;
    const int64_t to = (slot * kKdaRows + first_row + task / kRowTasks) * width + head * kHead + channel;
    if (part == 1) {
      *reinterpret_cast<uint2*>(layer.log_key + to) = *reinterpret_cast<const uint2*>(&shared.raw_key[from][channel]);
    } else if (part == 2) {
      *reinterpret_cast<uint2*>(layer.log_value + to) = *reinterpret_cast<const uint2*>(&shared.value[from][channel]);
    } else if (part == 3) {
      *reinterpret_cast<float4*>(layer.log_decay + to) =
          *reinterpret_cast<const float4*>(&shared.log_decay[from][channel]);
    }
  }
  if (threadIdx.x < static_cast<unsigned>(count)) {
    layer.log_beta[(slot * kKdaRows + first_row + threadIdx.x) * layer.heads + head] = shared.beta[at + threadIdx.x];
  }
}

__device__ int state_row() { return static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4; }
__device__ int state_lane() { return static_cast<int>(threadIdx.x) % 4; }

__device__ void load_state(const float* state, StatePart& s) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float* row = state + (state_row() + 8 * r) * kHead + 4 * state_lane();
#pragma unroll
    for (int j = 0; j < 8; ++j)
      *reinterpret_cast<float4*>(&s[r][4 * j]) = *reinterpret_cast<const float4*>(row + 16 * j);
  }
}

__device__ void store_state(float* state, const StatePart& s) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float* row = state + (state_row() + 8 * r) * kHead + 4 * state_lane();
#pragma unroll
    for (int j = 0; j < 8; ++j)
      *reinterpret_cast<float4*>(row + 16 * j) = *reinterpret_cast<const float4*>(&s[r][4 * j]);
  }
}

/// The same bits in every lane of the four.
__device__ float quad_sum(float x) {
  x = __fadd_rn(x, __shfl_xor_sync(0xffffffffU, x, 1));
  return __fadd_rn(x, __shfl_xor_sync(0xffffffffU, x, 2));
}

/// One recurrent step with row i of `shared`. The state's bits are the same with and without an output: replayed rows
/// give the state that their first execution had.
template <bool kOutput>
__device__ void step(Shared& shared, int i, StatePart& s) {
  const int lane = state_lane();
  const int v = state_row();
  const auto quad = [lane](const float* row, int j) {
    return *reinterpret_cast<const float4*>(row + 16 * j + 4 * lane);
  };
  float read[2] = {0.0F, 0.0F};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float4 decay = quad(shared.decay[i], j);
    const float4 key = quad(shared.key[i], j);
    const float d[4] = {decay.x, decay.y, decay.z, decay.w};
    const float k[4] = {key.x, key.y, key.z, key.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        s[r][4 * j + c] = __fmul_rn(s[r][4 * j + c], d[c]);
        read[r] = __fmaf_rn(s[r][4 * j + c], k[c], read[r]);
      }
    }
  }
  float delta[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float value = __bfloat162float(shared.value[i][v + 8 * r]);
    delta[r] = __fmul_rn(shared.beta[i], __fsub_rn(value, quad_sum(read[r])));
  }
  float out[2] = {0.0F, 0.0F};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float4 key = quad(shared.key[i], j);
    const float k[4] = {key.x, key.y, key.z, key.w};
    float q[4] = {0.0F, 0.0F, 0.0F, 0.0F};
    if constexpr (kOutput) *reinterpret_cast<float4*>(q) = quad(shared.query[i], j);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        s[r][4 * j + c] = __fmaf_rn(k[c], delta[r], s[r][4 * j + c]);
        if constexpr (kOutput) out[r] = __fmaf_rn(s[r][4 * j + c], q[c], out[r]);
      }
    }
  }
  if constexpr (kOutput) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = quad_sum(out[r]);
      if (lane == 0) shared.log_decay[i][v + 8 * r] = sum;
    }
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    window_kernel(KdaRows rows, KdaParameters parameters, KdaLayerState layer, BatchTables tables) {
  const DeviceSegment segment = tables.segments[blockIdx.y];
  if (segment.rows <= 0) return;
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
  int at = replay;
#pragma unroll 1
  for (int done = 0; done < new_rows;) {
    const int count = min(new_rows - done, kKdaRows - at);
    load_new_rows(shared, rows, parameters, layer, segment, head, done, count, at);
    __syncthreads();
    write_log_rows(shared, layer, segment.slot, head, done, count, at);
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
      const float4 o = *reinterpret_cast<const float4*>(&shared.log_decay[at + i][channel]);
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
  window_kernel<<<grid, kThreads, 0, stream>>>(rows, parameters, layer, tables);
  check_cuda(cudaGetLastError(), "kda_window launch");
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
