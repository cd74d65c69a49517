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

#include "kernels/common/cuda_check.h"
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
constexpr int kPitch = kHead + 8;        ///< bf16 elements: rows 16 bytes apart mod 128, for ldmatrix
constexpr int kSquarePitch = kRows + 8;  ///< likewise
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
  float a[kRows][kRows + 4];
  float out[kRows][kHead + 4];
};
static_assert(sizeof(Shared) <= 99 * 1024, "GB10's limit for a block");

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
      first_ = {parameters.dt_bias[channel], parameters.dt_bias[channel + 1]};
      return;
    }
    source_ = rows.projected + segment_.first_row * rows.projected_stride + part_ * width_ + channel;
    stride_ = rows.projected_stride;
    const auto* weights = reinterpret_cast<const float4*>(parameters.conv) + part_ * width_ + channel;
    weights_[0] = weights[0];
    weights_[1] = weights[1];
    ring_ = layer.conv_ring + int64_t{segment_.slot} * kKdaConvRing * 3 * width_ + part_ * width_ + channel;
    first_ring_row_ = static_cast<int>(plan_.first_position % kKdaConvRing);
    first_ = before(3);
    second_ = before(2);
    third_ = before(1);
  }

  /// Fetches a sub-chunk's rows of the segment.
  __device__ void load(int chunk) {
    const int first = plan_.first_row(chunk);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first + i;
      next_[i] = row >= 0 && row < segment_.rows ? *reinterpret_cast<const uint32_t*>(source_ + row * stride_) : 0;
    }
  }

  /// Fills a stage from the rows fetched last, and fetches those of the next sub-chunk.
  __device__ void prepare(int chunk, Stage& stage) {
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
  }

 private:
  /// Raw values `rows` rows before the segment; zero before the sequence.
  __device__ float2 before(int rows) const {
    if (plan_.first_position < rows) return {0.0F, 0.0F};
    return unpack_bf16(
        *reinterpret_cast<const uint32_t*>(ring_ + kda_ring_row(first_ring_row_, -rows) * 3 * int64_t{width_}));
  }

  /// True for rows that the next call needs in the log.
  __device__ bool logs(int chunk) const { return chunk >= plan_.complete; }

  __device__ void convolve(int chunk, Stage& stage) {
    Rows& to = part_ == 0 ? shared_.inverse_key_high : part_ == 1 ? shared_.inverse_key_low : stage.value;
    Bf16* const log = part_ == 1 ? layer_.log_key : layer_.log_value;
    const int logged = plan_.logged_rows(chunk);
    const int count = plan_.rows(chunk);
    const int first = plan_.first_row(chunk);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      uint32_t result = 0;
      if (i < logged) {
        if (part_ != 0) result = *reinterpret_cast<const uint32_t*>(log + log_at_ + i * int64_t{width_});
      } else if (i < count) {
        const float2 x = unpack_bf16(next_[i]);
        result = pack_bf16(kda_conv(weights_[0], first_.x, second_.x, third_.x, x.x),
                           kda_conv(weights_[1], first_.y, second_.y, third_.y, x.y));
        first_ = second_;
        second_ = third_;
        third_ = x;
        const int row = first + i;
        if (row >= segment_.rows - kKdaConvRing) {
          const int ring_row = (first_ring_row_ + row) % kKdaConvRing;
          *reinterpret_cast<uint32_t*>(ring_ + ring_row * 3 * int64_t{width_}) = next_[i];
        }
        if (part_ != 0 && logs(chunk)) *reinterpret_cast<uint32_t*>(log + log_at_ + i * int64_t{width_}) = result;
      }
      *reinterpret_cast<uint32_t*>(&to[i][2 * (thread_ % kPairs)]) = result;
    }
  }

  __device__ void gates(int chunk, Stage& stage) {
    const int logged = plan_.logged_rows(chunk);
    const int count = plan_.rows(chunk);
    const int channel = 2 * (thread_ % kPairs);
    float2 sum = {0.0F, 0.0F};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float2 g = {0.0F, 0.0F};
      auto* const log = reinterpret_cast<float2*>(layer_.log_decay + log_at_ + i * int64_t{width_});
      if (i < logged) {
        g = *log;
      } else if (i < count) {
        const float2 p = unpack_bf16(next_[i]);
        g = {kda_log_decay(p.x, rate_, first_.x, lower_bound_), kda_log_decay(p.y, rate_, first_.y, lower_bound_)};
        if (logs(chunk)) *log = g;
      }
      if (i == 0) {
        stage.first_decay[channel] = expf(g.x);
        stage.first_decay[channel + 1] = expf(g.y);
      } else {
        sum = {__fadd_rn(sum.x, g.x), __fadd_rn(sum.y, g.y)};
      }
      *reinterpret_cast<float2*>(&shared_.log_decay[i][channel]) = sum;
    }
    stage.total_decay[channel] = expf(sum.x);
    stage.total_decay[channel + 1] = expf(sum.y);

    const int i = thread_ - 3 * kPairs;
    if (i < kRows) {
      float* const log = layer_.log_beta + (int64_t{segment_.slot} * kRows + i) * layer_.heads + head_;
      float beta = 0.0F;
      if (i < logged) {
        beta = *log;
      } else if (i < count) {
        const int64_t row = int64_t{segment_.first_row} + plan_.first_row(chunk) + i;
        beta =
            kda_sigmoid(__bfloat162float(rows_.projected[row * rows_.projected_stride + 3 * int64_t{width_} + head_]));
        if (logs(chunk)) *log = beta;
      }
      stage.beta[i] = beta;
    }
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
    float key[8];
    float end_key[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float log_decay = shared_.log_decay[i][channel + c];
      const float decay = expf(log_decay);
      const float unit = __fmul_rn(k[c], k_scale);
      q[c] = __fmul_rn(__fmul_rn(q[c], q_scale), decay);
      key[c] = __fmul_rn(unit, decay);
      k[c] = __fmul_rn(unit, expf(-log_decay));
      end_key[c] = __fmul_rn(k[c], stage.total_decay[channel + c]);
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
#pragma unroll
    for (int k = 0; k < kHead / 16; ++k) {
      uint32_t a_high[4];
      uint32_t a_low[4];
      uint32_t b[4];
      ldmatrix_x4(a_high, high + k * 32);
      ldmatrix_x4(a_low, low + k * 32);
      ldmatrix_x4(b, inverse_key + k * 32);
      const uint32_t b_high[2] = {b[0], b[1]};
      const uint32_t b_low[2] = {b[2], b[3]};
      mma_m16n8k16_bf16(sums[0], a_high, b_high);
      mma_m16n8k16_bf16(sums[1], a_high, b_low);
      mma_m16n8k16_bf16(sums[2], a_low, b_high);
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
        shared_.a[i][j] = __fmul_rn(stage.beta[i], x[0]);
        shared_.a[i][j + 1] = __fmul_rn(stage.beta[i], x[1]);
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
#pragma unroll
      for (int i = j + 1; i < kRows; ++i) t[i] = __fmaf_rn(-shared_.a[i][j], t[j], t[i]);
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
  float2 first_ = {};  ///< raw values 3 rows back; gates: dt_bias
  float2 second_ = {};
  float2 third_ = {};
  uint32_t next_[kRows] = {};
};

// ------------------------------------------------------------------------------------------------ recurrent warps

/// A warp of the recurrence: 16 values v of Sᵀ [16 (v), 128 (k)] as mma accumulators. Products have v along M, so an
/// accumulator packed to bf16 is the next product's A fragment.
class Scanner {
 public:
  __device__ Scanner() : lane_(static_cast<int>(threadIdx.x) % 32), warp_(static_cast<int>(threadIdx.x) / 32) {}

  __device__ void load_state(const float* state) {
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      const float2 low = *reinterpret_cast<const float2*>(state + offset(n));
      const float2 high = *reinterpret_cast<const float2*>(state + offset(n) + 8 * kHead);
      s_[n][0] = low.x;
      s_[n][1] = low.y;
      s_[n][2] = high.x;
      s_[n][3] = high.y;
    }
  }

  __device__ void store_state(float* state) const {
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      *reinterpret_cast<float2*>(state + offset(n)) = {s_[n][0], s_[n][1]};
      *reinterpret_cast<float2*>(state + offset(n) + 8 * kHead) = {s_[n][2], s_[n][3]};
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
      uint32_t s_high[4];
      uint32_t s_low[4];
      pack(s_[2 * k], s_[2 * k + 1], s_high, s_low);
      uint32_t b[4];
      ldmatrix_x4(b, rows + k * 32);
      multiply(read, s_high, b);
      multiply(read_small, s_low, b);
      ldmatrix_x4(b, rows + k * 32 + kKeyLow);
      multiply(read_small, s_high, b);
      ldmatrix_x4(b, rows + k * 32 + kQuery);
      multiply(o, s_high, b);
      multiply(o, s_low, b);
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
      uint32_t b[4];
      float(&s)[2][4] = *reinterpret_cast<float(*)[2][4]>(&s_[2 * k]);
      ldmatrix_x4_transposed(b, end_rows + k * 32 + kEndKeyLow);
      multiply(s, d_high, b);
      ldmatrix_x4_transposed(b, end_rows + k * 32);
      multiply(s, d_low, b);
      multiply(s, d_high, b);
    }
  }

 private:
  __device__ int value_row() const { return warp_ * 16 + lane_ / 4; }
  __device__ int offset(int n) const { return value_row() * kHead + 8 * n + lane_ % 4 * 2; }

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
__device__ void store_outputs(const KdaRows& rows, const KdaParameters& parameters, int heads,
                              const DeviceSegment& segment, const Plan& plan, int chunk, int head,
                              const float (&out)[kRows][kHead + 4]) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int channel = static_cast<int>(threadIdx.x) % 32 * 4;
  for (int i = warp; i < plan.rows(chunk); i += kRoleThreads / 32) {
    if (i < plan.logged_rows(chunk)) continue;
    const int64_t row = int64_t{segment.first_row} + plan.first_row(chunk) + i;
    const int64_t at = (row * heads + head) * kHead + channel;
    const uint2 gate = *reinterpret_cast<const uint2*>(rows.gate + at);
    const float4 weight = *reinterpret_cast<const float4*>(parameters.output_norm + channel);
    const float4 o = *reinterpret_cast<const float4*>(&out[i][channel]);
    *reinterpret_cast<uint2*>(rows.out + at) = kda_gated_norm(o, gate, weight, parameters.norm_eps);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    prompt_kernel(KdaRows rows, KdaParameters parameters, KdaLayerState layer, BatchTables tables) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const DeviceSegment segment = tables.segments[blockIdx.y];
  if (segment.rows <= 0) return;
  const int head = static_cast<int>(blockIdx.x);
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
    store_outputs(rows, parameters, layer.heads, shared.segment, plan, chunk, head, shared.out);
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
  check_cuda(cudaFuncSetAttribute(prompt_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)),
             "kda_prompt shared memory");
  const dim3 grid(static_cast<unsigned>(layer.heads), static_cast<unsigned>(tables.segment_capacity));
  prompt_kernel<<<grid, kThreads, sizeof(Shared), stream>>>(rows, parameters, layer, tables);
  check_cuda(cudaGetLastError(), "kda_prompt launch");
}

}  // namespace glm53::kernels
