// KDA over prompt rows, 16-row sub-chunks on the grid from position 0.
//
// Operation   spec 10 §3.5.1 for every head, with all decay factors relative to the sub-chunk's first row: with
//             S' = diag(e^g_first)·S, Γ_i = e^{g_first+1 + … + g_i}, K̂Γ and Q̂Γ rows k̂_i∘Γ_i and q̂_i∘Γ_i,
//               A = tril(β_i (K̂Γ)_i·(k̂_j/Γ_j), −1)    P = tril((Q̂Γ)_i·(k̂_j/Γ_j), 0)     T = (I + A)^-1
//               D = T·diag(β)·(V − K̂Γ·S')    O = Q̂Γ·S' + P·D    S ← diag(Γ_15)·S' + (k̂_j∘Γ_15/Γ_j)ᵀ·D
//             around it the convolution, norms and gates, and y = norm(o)·sigmoid(γ)
// Shapes      see kda.h; any number of rows a segment. One block a (segment, head)
// Rounding    q, k, v to bf16 after SiLU; y to bf16. Tensor-core operands are bf16 pairs (high + low part, three
//             products), so A, P, T, D and S are fp32-grade; Q̂Γ in Q̂Γ·S' has its high part alone. S stays fp32 in the
//             accumulators for the whole prompt
// Bound       latency of the serial chain over sub-chunks: 8 warps prepare the next one while 8 warps run this one
//
// A sub-chunk that the call's rows do not complete gives its outputs and goes to the log; it is computed again, with
// the same bits for these rows, when its other rows come: a row's arithmetic reads nothing of later rows.
#include <cstddef>

#include "kernels/common/cp_async.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/dynamic_shared.h"
#include "kernels/common/ldmatrix.h"
#include "kernels/common/mma.h"
#include "kernels/common/named_barrier.h"
#include "kernels/kda/kda_rows.h"

namespace glm53::kernels {
namespace {

constexpr int kHead = kKdaHeadDim;
constexpr int kRows = kKdaRows;
constexpr int kRoleThreads = 256;  ///< that run the recurrence; as many prepare
constexpr int kThreads = 2 * kRoleThreads;
static_assert(kRoleThreads / 32 == kRows / 2, "a warp of the recurrence writes two rows");
constexpr int kPitch = kHead + 8;        ///< bf16 elements: rows 16 bytes apart mod 128, for ldmatrix
constexpr int kSquarePitch = kRows + 8;  ///< likewise
constexpr int kTaps = 3;                 ///< rows of the convolution before the current one
constexpr int kPairs = kHead / 2;        ///< channel pairs of a head: one a preparing thread
constexpr int kScanBarrier = 1;
constexpr int kPrepareBarrier = 2;

using Bf16 = __nv_bfloat16;
using Rows = Bf16[kRows][kPitch];
using Square = Bf16[kRows][kSquarePitch];

/// The rows of a segment as sub-chunks. Lives in shared memory, where it costs no registers.
struct Plan {
  int64_t start = 0;      ///< position of the first row of sub-chunk 0: the rows before it are in S
  int64_t first_end = 0;  ///< end of sub-chunk 0
  int64_t first_position = 0;
  int64_t end = 0;  ///< position after the segment's last row
  int logged = 0;   ///< rows of sub-chunk 0 that come from the log
  int chunks = 0;
  int complete = 0;  ///< of which S takes in

  __device__ void set(const DeviceSegment& segment, const KdaSlot& slot) {
    first_position = segment.first_position;
    end = first_position + segment.rows;
    logged = slot.log_kind == kKdaLogPrompt ? min(kda_kept_rows(slot), kRows - 1) : 0;
    start = first_position - logged;
    first_end = (start / kRows + 1) * kRows;
    complete = end < first_end ? 0 : static_cast<int>((end - first_end) / kRows) + 1;
    chunks = complete + (end > chunk_end(complete - 1) ? 1 : 0);
  }
  __device__ int64_t chunk_end(int chunk) const { return chunk < 0 ? start : first_end + int64_t{chunk} * kRows; }
  /// First row of the segment in a sub-chunk, negative by the logged rows in sub-chunk 0.
  __device__ int first_row(int chunk) const { return static_cast<int>(chunk_end(chunk - 1) - first_position); }
  __device__ int rows(int chunk) const { return static_cast<int>(min(chunk_end(chunk), end) - chunk_end(chunk - 1)); }
  __device__ int logged_rows(int chunk) const { return chunk == 0 ? logged : 0; }
};

/// One prepared sub-chunk; rows that it lacks are zero.
struct alignas(16) Stage {
  Rows key_high, key_low;          ///< K̂Γ
  Rows query;                      ///< Q̂Γ, high part
  Rows end_key_high, end_key_low;  ///< k̂_j ∘ Γ_15 / Γ_j
  Rows value;
  Square solve_high, solve_low;    ///< T
  Bf16 gate[kRows][kHead];         ///< γ
  Square weight_high, weight_low;  ///< P
  float first_decay[kHead];        ///< e^g_first
  float total_decay[kHead];        ///< Γ_15
  float beta[kRows];
};

// Byte distances, so that one register addresses several arrays.
constexpr uint32_t kKeyLow = offsetof(Stage, key_low) - offsetof(Stage, key_high);
constexpr uint32_t kQuery = offsetof(Stage, query) - offsetof(Stage, key_high);
constexpr uint32_t kEndKeyLow = offsetof(Stage, end_key_low) - offsetof(Stage, end_key_high);

struct Shared {
  DeviceSegment segment;
  Plan plan;
  Stage stages[2];
  Rows query_low;
  Rows inverse_key_high, inverse_key_low;  ///< k̂_j / Γ_j; before that the rounded q and k rows, element for element
  float log_decay[kRows][kHead];           ///< log Γ
  float a[kRows][kRows + 4];               ///< column-major
  float out[kRows][kHead + 4];
  float output_norm[kHead];
};

__device__ void split(float x, float y, uint32_t& high, uint32_t& low) {
  high = pack_bf16(x, y);
  const float2 rounded = unpack_bf16(high);
  low = pack_bf16(__fsub_rn(x, rounded.x), __fsub_rn(y, rounded.y));
}

/// 8 values as 16 bytes of high parts and, unless null, 16 of low parts.
__device__ void store_split(const float (&x)[8], Bf16* high, Bf16* low) {
  uint32_t h[4];
  uint32_t l[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) split(x[2 * i], x[2 * i + 1], h[i], l[i]);
  *reinterpret_cast<uint4*>(high) = {h[0], h[1], h[2], h[3]};
  *reinterpret_cast<uint4*>(low) = {l[0], l[1], l[2], l[3]};
}

__device__ void load_floats(const float* from, float (&x)[8]) {
  *reinterpret_cast<float4*>(&x[0]) = *reinterpret_cast<const float4*>(from);
  *reinterpret_cast<float4*>(&x[4]) = *reinterpret_cast<const float4*>(from + 4);
}

/// ldmatrix address of this lane for matrices (rows 0–7, columns 0–7), (0–7, 8–15), (8–15, 0–7), (8–15, 8–15) of 16
/// rows: B fragments of two 8-wide tiles when the rows are B's columns.
__device__ uint32_t row_tiles(const Bf16* at, int pitch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return shared_address(at + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 8);
}

/// The same with the second and third exchanged: an A fragment, or transposed the B fragments of two tiles of columns.
__device__ uint32_t column_tiles(const Bf16* at, int pitch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return shared_address(at + (lane / 8 % 2 * 8 + lane % 8) * pitch + lane / 16 * 8);
}

// ------------------------------------------------------------------------------------------------ preparing warps

/// A thread of the preparing warps. It owns two channels of q, k, v or the gates through the whole segment (steps that
/// run down the rows: convolution, decay sums), and eight channels of one row of q and k (steps across a row).
class Preparer {
 public:
  __device__ Preparer(const KdaRows& rows, const KdaParameters& parameters, const KdaLayerState& layer, Shared& shared,
                      int head)
      : rows_(rows),
        layer_(layer),
        segment_(shared.segment),
        plan_(shared.plan),
        shared_(shared),
        head_(head),
        thread_(static_cast<int>(threadIdx.x) - kRoleThreads),
        part_(thread_ / kPairs),
        width_(layer.heads * kHead) {
    const int channel = head * kHead + 2 * (thread_ % kPairs);
    log_at_ = int64_t{segment_.slot} * kRows * width_ + channel;
    if (part_ == 3) {
      source_ = rows.forget + int64_t{segment_.first_row} * width_ + channel;
      stride_ = width_;
      rate_ = expf(parameters.a_log[head]);
      lower_bound_ = parameters.lower_bound;
      dt_bias_ = {parameters.dt_bias[channel], parameters.dt_bias[channel + 1]};
      return;
    }
    source_ = rows.projected + segment_.first_row * rows.projected_stride + part_ * width_ + channel;
    stride_ = rows.projected_stride;
    const auto* weights = reinterpret_cast<const float4*>(parameters.conv) + part_ * width_ + channel;
    weights_[0] = weights[0];
    weights_[1] = weights[1];
    ring_ = layer.conv_ring + int64_t{segment_.slot} * kKdaConvRing * 3 * width_ + part_ * width_ + channel;
    first_ring_row_ = static_cast<int>(plan_.first_position % kKdaConvRing);
  }

  /// Fetches what convolve() and gates() read of a sub-chunk: rows of the segment, and raw rows before it.
  __device__ void load(int chunk) {
    const int first = plan_.first_row(chunk) - kTaps;
    const Bf16* from = source_ + first * stride_;
    if (first >= 0 && first + kTaps + kRows <= segment_.rows) {
#pragma unroll
      for (int i = 0; i < kRows + kTaps; ++i, from += stride_) next_[i] = *reinterpret_cast<const uint32_t*>(from);
    } else {
#pragma unroll
      for (int i = 0; i < kRows + kTaps; ++i, from += stride_) {
        const int row = first + i;
        next_[i] = 0;
        if (row >= 0) {
          if (row < segment_.rows) next_[i] = *reinterpret_cast<const uint32_t*>(from);
        } else if (row >= -kTaps && part_ != 3 && plan_.first_position >= -row) {
          next_[i] = *ring_pair(row);
        }
      }
    }
    const int beta_row = first + kTaps + thread_ - 3 * kPairs;
    if (part_ == 3 && beta_row >= 0 && beta_row < min(segment_.rows, first + kTaps + kRows)) {
      next_beta_ =
          rows_.projected[(segment_.first_row + beta_row) * rows_.projected_stride + 3 * int64_t{width_} + head_];
    }
  }

  /// Fills a stage from the rows fetched last, and fetches those of the next sub-chunk.
  __device__ void prepare(int chunk, Stage& stage) {
    fetch_gate(chunk, stage);
    if (part_ == 3) {
      gates(chunk, stage);
    } else {
      convolve(chunk, stage);
    }
    if (chunk + 1 < plan_.chunks) load(chunk + 1);
    named_barrier_sync(kPrepareBarrier, kRoleThreads);
    factors(stage);
    named_barrier_sync(kPrepareBarrier, kRoleThreads);
    if (thread_ < 4 * 32) scores(stage);
    named_barrier_sync(kPrepareBarrier, kRoleThreads);
    if (thread_ < 32) solve(stage);
    cp_async_wait<0>();
    // The block barrier that follows is enough for the hardware. Racecheck sees no order in it, as the two roles reach
    // it at different instructions, and reported solve's stores; this costs 0.7 % of the kernel.
    named_barrier_sync(kPrepareBarrier, kRoleThreads);
  }

 private:
  /// Where the ring holds this thread's raw values of a row of the segment, or of one of the 3 before it.
  __device__ uint32_t* ring_pair(int row) const {
    return reinterpret_cast<uint32_t*>(ring_ +
                                       (first_ring_row_ + row + kKdaConvRing) % kKdaConvRing * 3 * int64_t{width_});
  }

  /// γ of the segment's rows for the recurrent warps; as many 16-byte parts as threads.
  __device__ void fetch_gate(int chunk, Stage& stage) {
    const int row = plan_.first_row(chunk) + thread_ / 16;
    const int channel = thread_ % 16 * 8;
    const bool exists = row >= 0 && row < segment_.rows;
    const Bf16* const gate = rows_.gate + (segment_.first_row + row) * int64_t{width_} + head_ * kHead + channel;
    cp_async_16(shared_address(&stage.gate[thread_ / 16][channel]), exists ? gate : rows_.gate, exists);
    cp_async_commit();
  }

  /// True for rows that the next call needs in the log.
  __device__ bool logs(int chunk) const { return chunk >= plan_.complete; }

  // The main loops below have no branches, so that 16 rows overlap; what few sub-chunks need comes after.

  __device__ void convolve(int chunk, Stage& stage) {
    Rows& to = part_ == 0 ? shared_.inverse_key_high : part_ == 1 ? shared_.inverse_key_low : stage.value;
    const auto pair = [&](int i) { return reinterpret_cast<uint32_t*>(&to[i][2 * (thread_ % kPairs)]); };
    const int count = plan_.rows(chunk);
    float2 x[kRows + kTaps];
#pragma unroll
    for (int i = 0; i < kRows + kTaps; ++i) x[i] = unpack_bf16(next_[i]);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const uint32_t result = pack_bf16(kda_conv(weights_[0], x[i].x, x[i + 1].x, x[i + 2].x, x[i + 3].x),
                                        kda_conv(weights_[1], x[i].y, x[i + 1].y, x[i + 2].y, x[i + 3].y));
      *pair(i) = i < count ? result : 0;
    }

    const int first = plan_.first_row(chunk);
    if (first + kRows > segment_.rows - kKdaConvRing) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int row = first + i;
        if (row >= max(0, segment_.rows - kKdaConvRing) && i < count) *ring_pair(row % kKdaConvRing) = next_[i + kTaps];
      }
    }
    if (part_ == 0) return;
    Bf16* const log = (part_ == 1 ? layer_.log_key : layer_.log_value) + log_at_;
    const auto logged_pair = [&](int i) { return reinterpret_cast<uint32_t*>(log + i * int64_t{width_}); };
    const int logged = plan_.logged_rows(chunk);
#pragma unroll 1
    for (int i = 0; i < logged; ++i) *pair(i) = *logged_pair(i);
    if (!logs(chunk)) return;
#pragma unroll 1
    for (int i = logged; i < count; ++i) *logged_pair(i) = *pair(i);
  }

  __device__ void gates(int chunk, Stage& stage) {
    const int logged = plan_.logged_rows(chunk);
    const int count = plan_.rows(chunk);
    const int channel = 2 * (thread_ % kPairs);
    float2 g[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float2 p = unpack_bf16(next_[i + kTaps]);
      g[i] = {kda_log_decay(p.x, rate_, dt_bias_.x, lower_bound_), kda_log_decay(p.y, rate_, dt_bias_.y, lower_bound_)};
      if (i >= count) g[i] = {0.0F, 0.0F};
    }
    if (logged > 0 || logs(chunk)) {
      float* log = layer_.log_decay + log_at_;
#pragma unroll
      for (int i = 0; i < kRows; ++i, log += width_) {
        if (i < logged) {
          g[i] = *reinterpret_cast<const float2*>(log);
        } else if (i < count && logs(chunk)) {
          *reinterpret_cast<float2*>(log) = g[i];
        }
      }
    }
    float2 sum = {0.0F, 0.0F};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (i > 0) sum = {__fmaf_rn(g[i].x, kLog2E, sum.x), __fmaf_rn(g[i].y, kLog2E, sum.y)};
      *reinterpret_cast<float2*>(&shared_.log_decay[i][channel]) = sum;
    }
    *reinterpret_cast<float2*>(&stage.first_decay[channel]) = {exp2_approx(__fmul_rn(g[0].x, kLog2E)),
                                                               exp2_approx(__fmul_rn(g[0].y, kLog2E))};
    *reinterpret_cast<float2*>(&stage.total_decay[channel]) = {exp2_approx(sum.x), exp2_approx(sum.y)};

    const int i = thread_ - 3 * kPairs;
    if (i >= kRows) return;
    float* const log_beta = layer_.log_beta + (int64_t{segment_.slot} * kRows + i) * layer_.heads + head_;
    float beta = i < count ? kda_sigmoid(__bfloat162float(next_beta_)) : 0.0F;
    if (i < logged) beta = *log_beta;
    if (i >= logged && i < count && logs(chunk)) *log_beta = beta;
    stage.beta[i] = beta;
  }

  __device__ void factors(Stage& stage) {
    const int i = thread_ / 16;
    const int channel = thread_ % 16 * 8;
    const auto load_row = [&](const Rows& from, float(&x)[8]) {
      const uint4 packed = *reinterpret_cast<const uint4*>(&from[i][channel]);
      const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
      unpack_bf16(words, x);
    };
    float q[8];
    float k[8];
    load_row(shared_.inverse_key_high, q);
    load_row(shared_.inverse_key_low, k);
    const float q_scale = kda_query_scale(kda_sum_squares(q));
    const float k_scale = kda_key_scale(kda_sum_squares(k));
    float log_decay[8];
    float total_decay[8];
    load_floats(&shared_.log_decay[i][channel], log_decay);
    load_floats(&stage.total_decay[channel], total_decay);
    float key[8];
    float end_key[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float decay = exp2_approx(log_decay[c]);
      const float unit = __fmul_rn(k[c], k_scale);
      q[c] = __fmul_rn(__fmul_rn(q[c], q_scale), decay);
      key[c] = __fmul_rn(unit, decay);
      k[c] = __fmul_rn(unit, exp2_approx(-log_decay[c]));
      end_key[c] = __fmul_rn(k[c], total_decay[c]);
    }
    store_split(q, &stage.query[i][channel], &shared_.query_low[i][channel]);
    store_split(key, &stage.key_high[i][channel], &stage.key_low[i][channel]);
    store_split(k, &shared_.inverse_key_high[i][channel], &shared_.inverse_key_low[i][channel]);
    store_split(end_key, &stage.end_key_high[i][channel], &stage.end_key_low[i][channel]);
  }

  /// Warps 0, 1: columns 0–7 and 8–15 of A; warps 2, 3: of P.
  __device__ void scores(Stage& stage) {
    const int lane = thread_ % 32;
    const int tile = thread_ / 32 % 2;
    const bool is_a = thread_ < 64;
    const uint32_t high = column_tiles(is_a ? stage.key_high[0] : stage.query[0], kPitch);
    const uint32_t low = column_tiles(is_a ? stage.key_low[0] : shared_.query_low[0], kPitch);
    // Matrices of one 8-row tile: high columns 0–7, 8–15, low columns 0–7, 8–15.
    const Rows& inverse = lane < 16 ? shared_.inverse_key_high : shared_.inverse_key_low;
    const uint32_t inverse_key = shared_address(&inverse[tile * 8 + lane % 8][lane / 8 % 2 * 8]);
    float sums[3][4] = {};
    uint32_t a_high[2][4];
    uint32_t a_low[2][4];
    uint32_t b[2][4];
    const auto fetch = [&](int k) {
      ldmatrix_x4(a_high[k % 2], high + k * 32);
      ldmatrix_x4(a_low[k % 2], low + k * 32);
      ldmatrix_x4(b[k % 2], inverse_key + k * 32);
    };
    fetch(0);
#pragma unroll
    for (int k = 0; k < kHead / 16; ++k) {
      if (k + 1 < kHead / 16) fetch(k + 1);
      const uint32_t b_high[2] = {b[k % 2][0], b[k % 2][1]};
      const uint32_t b_low[2] = {b[k % 2][2], b[k % 2][3]};
      mma_m16n8k16_bf16(sums[0], a_high[k % 2], b_high);
      mma_m16n8k16_bf16(sums[1], a_high[k % 2], b_low);
      mma_m16n8k16_bf16(sums[2], a_low[k % 2], b_high);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = lane / 4 + 8 * half;
      const int j = tile * 8 + lane % 4 * 2;
      float x[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int at = 2 * half + c;
        const float sum = __fadd_rn(sums[0][at], __fadd_rn(sums[1][at], sums[2][at]));
        // Above the diagonal the factors do not cancel and may overflow: select, never multiply by zero.
        x[c] = (is_a ? j + c < i : j + c <= i) ? sum : 0.0F;
      }
      if (is_a) {
        shared_.a[j][i] = __fmul_rn(stage.beta[i], x[0]);
        shared_.a[j + 1][i] = __fmul_rn(stage.beta[i], x[1]);
      } else {
        uint32_t h = 0;
        uint32_t l = 0;
        split(x[0], x[1], h, l);
        *reinterpret_cast<uint32_t*>(&stage.weight_high[i][j]) = h;
        *reinterpret_cast<uint32_t*>(&stage.weight_low[i][j]) = l;
      }
    }
  }

  /// Lane j: column j of T by forward substitution, each finished element taken from the rows below it at once.
  __device__ void solve(Stage& stage) {
    const int column = thread_ % kRows;
    float t[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) t[i] = i == column ? 1.0F : 0.0F;
#pragma unroll
    for (int j = 0; j < kRows - 1; ++j) {
      float a[kRows];
#pragma unroll
      for (int i = (j + 1) / 4 * 4; i < kRows; i += 4) {
        *reinterpret_cast<float4*>(&a[i]) = *reinterpret_cast<const float4*>(&shared_.a[j][i]);
      }
#pragma unroll
      for (int i = j + 1; i < kRows; ++i) t[i] = __fmaf_rn(-a[i], t[j], t[i]);
    }
    if (thread_ >= kRows) return;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Bf16 high = __float2bfloat16_rn(t[i]);
      stage.solve_high[i][column] = high;
      stage.solve_low[i][column] = __float2bfloat16_rn(__fsub_rn(t[i], __bfloat162float(high)));
    }
  }

  const KdaRows& rows_;
  const KdaLayerState& layer_;
  const DeviceSegment& segment_;
  const Plan& plan_;
  Shared& shared_;
  const int head_;
  const int thread_;
  const int part_;   ///< 0 q, 1 k, 2 v, 3 gates
  const int width_;  ///< W
  int64_t log_at_ = 0;
  const Bf16* source_ = nullptr;  ///< this thread's channels in the segment's first row
  int64_t stride_ = 0;
  Bf16* ring_ = nullptr;
  int first_ring_row_ = 0;
  float4 weights_[2] = {};
  float rate_ = 0.0F;
  float lower_bound_ = 0.0F;
  float2 dt_bias_ = {};
  Bf16 next_beta_ = {};
  uint32_t next_[kRows + kTaps] = {};  ///< this thread's channels of the rows of the next sub-chunk and the 3 before it
};

// ------------------------------------------------------------------------------------------------ recurrent warps

/// A warp of the recurrence: 16 values v of Sᵀ [16 (v), 128 (k)] as mma accumulators. Products have v along M, so an
/// accumulator packed to bf16 is the next product's A fragment.
class Scanner {
 public:
  __device__ Scanner() : lane_(static_cast<int>(threadIdx.x) % 32), warp_(static_cast<int>(threadIdx.x) / 32) {}

  __device__ void load_state(const float* state) {
    state += offset();
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      const float2 low = *reinterpret_cast<const float2*>(state + 8 * n);
      const float2 high = *reinterpret_cast<const float2*>(state + 8 * n + 8 * kHead);
      s_[n][0] = low.x;
      s_[n][1] = low.y;
      s_[n][2] = high.x;
      s_[n][3] = high.y;
    }
  }

  __device__ void store_state(float* state) const {
    state += offset();
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      *reinterpret_cast<float2*>(state + 8 * n) = {s_[n][0], s_[n][1]};
      *reinterpret_cast<float2*>(state + 8 * n + 8 * kHead) = {s_[n][2], s_[n][3]};
    }
  }

  /// Outputs of a sub-chunk to `out`; S takes it in if `complete`.
  __device__ void scan(const Stage& stage, bool complete, float (&out)[kRows][kHead + 4]) {
    decay(stage.first_decay);
    // Two token tiles of (K̂Γ·S')ᵀ, its small terms apart, and of (Q̂Γ·S')ᵀ.
    float read[2][4] = {};
    float read_small[2][4] = {};
    float o[2][4] = {};
    const uint32_t rows = row_tiles(stage.key_high[0], kPitch);
#pragma unroll
    for (int k = 0; k < kHead / 16; ++k) {
      uint32_t key_high[4];
      uint32_t key_low[4];
      uint32_t query[4];
      ldmatrix_x4(key_high, rows + k * 32);
      ldmatrix_x4(key_low, rows + k * 32 + kKeyLow);
      uint32_t s_high[4];
      uint32_t s_low[4];
      pack(s_[2 * k], s_[2 * k + 1], s_high, s_low);
      multiply(read, s_high, key_high);
      multiply(read_small, s_high, key_low);
      multiply(read_small, s_low, key_high);
      ldmatrix_x4(query, rows + k * 32 + kQuery);
      multiply(o, s_high, query);
      multiply(o, s_low, query);
    }

    float d[2][4];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int at = 0; at < 4; ++at) {
        const int token = tile * 8 + lane_ % 4 * 2 + at % 2;
        const float v = __bfloat162float(stage.value[token][value_row() + at / 2 * 8]);
        d[tile][at] = __fmul_rn(stage.beta[token], __fsub_rn(v, __fadd_rn(read[tile][at], read_small[tile][at])));
      }
    }
    uint32_t d_high[4];
    uint32_t d_low[4];
    pack(d[0], d[1], d_high, d_low);
    zero(d);
    multiply_split(d, d_high, d_low, stage.solve_high, stage.solve_low);
    pack(d[0], d[1], d_high, d_low);
    multiply_split(o, d_high, d_low, stage.weight_high, stage.weight_low);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int at = 0; at < 4; ++at) {
        out[tile * 8 + lane_ % 4 * 2 + at % 2][value_row() + at / 2 * 8] = o[tile][at];
      }
    }
    if (!complete) return;

    decay(stage.total_decay);
    const uint32_t end_rows = column_tiles(stage.end_key_high[0], kPitch);
#pragma unroll
    for (int k = 0; k < kHead / 16; ++k) {
      uint32_t high[4];
      uint32_t low[4];
      ldmatrix_x4_transposed(high, end_rows + k * 32);
      ldmatrix_x4_transposed(low, end_rows + k * 32 + kEndKeyLow);
      float(&s)[2][4] = *reinterpret_cast<float(*)[2][4]>(&s_[2 * k]);
      multiply(s, d_high, low);
      multiply(s, d_low, high);
      multiply(s, d_high, high);
    }
  }

 private:
  __device__ int value_row() const { return warp_ * 16 + lane_ / 4; }
  __device__ int offset() const { return value_row() * kHead + lane_ % 4 * 2; }

  __device__ void decay(const float (&factor)[kHead]) {
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      const float2 f = *reinterpret_cast<const float2*>(&factor[8 * n + lane_ % 4 * 2]);
      s_[n][0] = __fmul_rn(s_[n][0], f.x);
      s_[n][1] = __fmul_rn(s_[n][1], f.y);
      s_[n][2] = __fmul_rn(s_[n][2], f.x);
      s_[n][3] = __fmul_rn(s_[n][3], f.y);
    }
  }

  /// Two accumulator tiles as an A fragment.
  __device__ static void pack(const float (&x)[4], const float (&y)[4], uint32_t (&high)[4], uint32_t (&low)[4]) {
    split(x[0], x[1], high[0], low[0]);
    split(x[2], x[3], high[1], low[1]);
    split(y[0], y[1], high[2], low[2]);
    split(y[2], y[3], high[3], low[3]);
  }

  __device__ static void zero(float (&x)[2][4]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i / 4][i % 4] = 0.0F;
  }

  /// Two tiles with the B fragments of one ldmatrix.
  __device__ static void multiply(float (&to)[2][4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    const uint32_t b0[2] = {b[0], b[1]};
    const uint32_t b1[2] = {b[2], b[3]};
    mma_m16n8k16_bf16(to[0], a, b0);
    mma_m16n8k16_bf16(to[1], a, b1);
  }

  __device__ static void multiply_split(float (&to)[2][4], const uint32_t (&a_high)[4], const uint32_t (&a_low)[4],
                                        const Square& high, const Square& low) {
    uint32_t b[4];
    ldmatrix_x4(b, row_tiles(low[0], kSquarePitch));
    multiply(to, a_high, b);
    ldmatrix_x4(b, row_tiles(high[0], kSquarePitch));
    multiply(to, a_low, b);
    multiply(to, a_high, b);
  }

  const int lane_;
  const int warp_;
  float s_[16][4];
};

/// Gated norm of the segment's rows of a sub-chunk by the recurrent warps.
__device__ void store_outputs(const KdaRows& rows, int heads, float norm_eps, const Shared& shared, int chunk,
                              int head) {
  const Plan& plan = shared.plan;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int channel = static_cast<int>(threadIdx.x) % 32 * 4;
  const int first = plan.logged_rows(chunk);
  const int end = plan.rows(chunk);
  const int64_t first_row = int64_t{shared.segment.first_row} + plan.first_row(chunk);
  const float4 weight = *reinterpret_cast<const float4*>(&shared.output_norm[channel]);
  uint2 y[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = warp + half * kRows / 2;
    const uint2 gate = *reinterpret_cast<const uint2*>(&shared.stages[chunk % 2].gate[i][channel]);
    const float4 o = *reinterpret_cast<const float4*>(&shared.out[i][channel]);
    y[half] = kda_gated_norm(o, gate, weight, norm_eps);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = warp + half * kRows / 2;
    if (i < first || i >= end) continue;
    *reinterpret_cast<uint2*>(rows.out + ((first_row + i) * heads + head) * kHead + channel) = y[half];
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    prompt_kernel(KdaRows rows, KdaParameters parameters, KdaLayerState layer, BatchTables tables) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const DeviceSegment segment = tables.segments[blockIdx.y];
  if (segment.rows <= 0) return;
  const int head = static_cast<int>(blockIdx.x);
  if (threadIdx.x < kHead) shared.output_norm[threadIdx.x] = parameters.output_norm[threadIdx.x];
  if (threadIdx.x == 0) {
    shared.segment = segment;
    shared.plan.set(segment, layer.slots[segment.slot]);
  }
  __syncthreads();
  const Plan& plan = shared.plan;

  // Every thread passes plan.chunks + 1 block barriers: the stage filled before one is read after it.
  if (threadIdx.x >= kRoleThreads) {
    Preparer preparer(rows, parameters, layer, shared, head);
    preparer.load(0);
#pragma unroll 1
    for (int chunk = 0; chunk < plan.chunks; ++chunk) {
      preparer.prepare(chunk, shared.stages[chunk % 2]);
      __syncthreads();
    }
    __syncthreads();
    return;
  }
  float* const state = layer.state + (int64_t{segment.slot} * layer.heads + head) * kHead * kHead;
  Scanner scanner;
  scanner.load_state(state);
#pragma unroll 1
  for (int chunk = 0; chunk < plan.chunks; ++chunk) {
    __syncthreads();
    scanner.scan(shared.stages[chunk % 2], chunk < plan.complete, shared.out);
    if (chunk == plan.complete - 1) scanner.store_state(state);
    named_barrier_sync(kScanBarrier, kRoleThreads);
    store_outputs(rows, layer.heads, parameters.norm_eps, shared, chunk, head);
    // `out` is written again after the next block barrier.
  }
  __syncthreads();
}

}  // namespace

void kda_prompt(const KdaRows& rows, const KdaParameters& parameters, const KdaLayerState& layer,
                const BatchTables& tables, cudaStream_t stream) {
  kda_check(rows, parameters, layer, tables);
  if (tables.segment_capacity == 0) return;
  kda_settle_windows(layer, tables, stream);
  allow_dynamic_shared<prompt_kernel, sizeof(Shared)>("kda_prompt shared memory");
  const dim3 grid(static_cast<unsigned>(layer.heads), static_cast<unsigned>(tables.segment_capacity));
  prompt_kernel<<<grid, kThreads, sizeof(Shared), stream>>>(rows, parameters, layer, tables);
  check_cuda(cudaGetLastError(), "kda_prompt launch");
}

}  // namespace glm53::kernels
