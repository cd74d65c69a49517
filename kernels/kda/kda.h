// KDA on the device: short convolution, gates, gated delta-rule recurrence and gated output norm of one layer (spec 10
// §3.5 steps 2–8). H = heads of this rank, W = H · 128.
//
// Sequence state. A layer keeps, for every slot, the state S that holds the rows before KdaSlot::state_position, and a
// log of the rows since: what a rejected draft row must not change, and what a cut prompt sub-chunk is computed again
// from. The slot table is shared by all layers, so a forward call only reads it; kda_advance moves it once, after the
// last layer:
//
//   forward call   kda_prompt or kda_window for every layer, then kda_advance
//   commit         kda_commit, or a write of KdaSlot::kept by the kernel that accepts drafts; until the slot's next
//                  forward call it may be repeated, also with fewer rows
//   anyone else who reads S   kda_settle first
//
// Exactness: a row's bits depend neither on other rows or sequences of a launch, nor on where a prompt is cut, nor on
// whether window rows come in one call or one by one, nor on rejected rows in between.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/common/segment_table.h"

namespace glm53::kernels {

inline constexpr int kKdaHeadDim = 128;
inline constexpr int kKdaRows = 16;      ///< most rows of a window; rows of a prompt sub-chunk; rows of the log
inline constexpr int kKdaConvRing = 19;  ///< raw rows kept for the convolution: 3 before a window and its 16
/// 16 rows of decay must stay inside fp32's exponent range in both directions.
inline constexpr float kKdaLowestBound = -5.4F;

enum KdaLogKind : int32_t { kKdaLogNone = 0, kKdaLogPrompt = 1, kKdaLogWindow = 2 };

/// One slot, in device memory. The sequence stands at state_position + kept. All zero: an empty sequence.
struct KdaSlot {
  int64_t state_position = 0;  ///< rows that S holds
  int32_t log_kind = kKdaLogNone;
  int32_t logged = 0;  ///< rows in the log, 0..16
  int32_t kept = 0;    ///< rows of the log that count; read as if clamped to [0, logged]
  int32_t unused = 0;
};

/// One layer's state of all slots, device memory, 16-byte aligned.
struct KdaLayerState {
  float* state = nullptr;              ///< [slots, H, 128 (v), 128 (k)] fp32: value-major
  __nv_bfloat16* conv_ring = nullptr;  ///< [slots, 19, 3·W] bf16 raw q|k|v, row of position p at p mod 19
  __nv_bfloat16* log_key = nullptr;    ///< [slots, 16, W] bf16 after conv and SiLU, before the L2 norm
  __nv_bfloat16* log_value = nullptr;  ///< [slots, 16, W] bf16 after conv and SiLU
  float* log_decay = nullptr;          ///< [slots, 16, W] fp32 g
  float* log_beta = nullptr;           ///< [slots, 16, H] fp32
  const KdaSlot* slots = nullptr;      ///< [slots], the same for all layers
  int heads = 0;                       ///< H
};

struct KdaParameters {
  const float* conv = nullptr;         ///< [3·W, 4] fp32, column 3 multiplies the current row
  const float* a_log = nullptr;        ///< [H] fp32
  const float* dt_bias = nullptr;      ///< [W] fp32
  const float* output_norm = nullptr;  ///< [128] fp32
  float lower_bound = -5.0F;           ///< of g; in [kKdaLowestBound, 0)
  float norm_eps = 1e-5F;
};

/// Rows of a launch; bf16, 16-byte aligned.
struct KdaRows {
  const __nv_bfloat16* projected = nullptr;  ///< [rows, projected_stride] raw q[W] | k[W] | v[W] | b[H] | …
  int64_t projected_stride = 0;              ///< elements, >= 3·W + H, a multiple of 8
  const __nv_bfloat16* forget = nullptr;     ///< [rows, W] p of spec 10 §3.5 step 4
  const __nv_bfloat16* gate = nullptr;       ///< [rows, W] γ
  __nv_bfloat16* out = nullptr;              ///< [rows, W] y
};

/// All segments of `tables` are windows of at most 16 rows. Replays the kept rows of a slot's log into S, runs the
/// segment's rows on a copy of it and logs them. Throws std::invalid_argument for bad sizes and CudaError; asynchronous
/// on `stream`; so do all functions here.
///
/// It reads tables, slots, states and logs before it waits for the kernels launched just before it (overlap.h): what
/// writes those must have completed by an ordinary dependency. In a forward call it has: the call begins with the copy
/// of its tables, after kda_advance, kda_commit or kda_reset of earlier calls, and nothing in it touches this layer's
/// state before.
void kda_window(const KdaRows& rows, const KdaParameters& parameters, const KdaLayerState& layer,
                const BatchTables& tables, cudaStream_t stream);

/// All segments of `tables` are prompt rows. The log of a window is first replayed into S; an open sub-chunk is
/// computed again from its log. S advances by whole sub-chunks; the rows of the last, open one are logged.
void kda_prompt(const KdaRows& rows, const KdaParameters& parameters, const KdaLayerState& layer,
                const BatchTables& tables, cudaStream_t stream);

/// After the last layer of a call: the slot table as that call leaves it. All rows of a window count until a commit
/// says otherwise.
void kda_advance(KdaSlot* slots, const BatchTables& tables, bool windows, cudaStream_t stream);

/// slots[ids[i]].kept = clamp(kept[i], 0, logged) for windows; slots without a window's log are left alone.
/// ids, kept: device [count]
void kda_commit(KdaSlot* slots, const int32_t* ids, const int32_t* kept, int count, cudaStream_t stream);

/// Brings S of the slots ids[0..count) (device) to the position where their sequences stand, by serial steps over the
/// kept log rows. out null: in place, to be followed by kda_mark_settled once every layer is done. Otherwise the
/// settled states go to out [count, H, 128 (v), 128 (k)] fp32 and the slots stay as they are.
void kda_settle(const KdaLayerState& layer, const int32_t* ids, int count, float* out, cudaStream_t stream);
void kda_mark_settled(KdaSlot* slots, const int32_t* ids, int count, cudaStream_t stream);

/// Empties slots: S and conv ring of one layer; the slot table.
void kda_reset(const KdaLayerState& layer, const int32_t* ids, int count, cudaStream_t stream);
void kda_reset_slots(KdaSlot* slots, const int32_t* ids, int count, cudaStream_t stream);

}  // namespace glm53::kernels
