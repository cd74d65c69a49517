// KDA: gated delta-rule linear attention with a short convolution (spec 10 §3.5). W = heads · 128, F = low-rank width.
#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_backend_impl.h"

namespace glm53::cpu {
namespace {

constexpr int64_t kHeadDim = 128;
constexpr int64_t kRowGrain = 16;
constexpr float kL2Eps = 1e-6F;

int64_t ring_row(int64_t position) { return (position + kConvRing) % kConvRing; }

}  // namespace

/// The rows of a call, ready for the recurrence.
struct CpuBackend::KdaRows {
  int64_t width = 0;  ///< W
  int heads = 0;
  const float* qkv = nullptr;    ///< [rows, 3·W] q | k | v; q and k normalised, q scaled
  const float* decay = nullptr;  ///< [rows, W] g, in (lower bound, 0)
  const float* beta = nullptr;   ///< [rows, heads]
  float* out = nullptr;          ///< [rows, W]

  const float* q(int64_t row, int head) const { return qkv + row * 3 * width + head * kHeadDim; }
  const float* k(int64_t row, int head) const { return q(row, head) + width; }
  const float* v(int64_t row, int head) const { return q(row, head) + 2 * width; }
  const float* g(int64_t row, int head) const { return decay + row * width + head * kHeadDim; }
  float* o(int64_t row, int head) const { return out + row * width + head * kHeadDim; }

  void write_log(KdaLog& log, int64_t log_row, int64_t row, int head) const {
    const int64_t at = log_row * width + head * kHeadDim;
    std::copy_n(k(row, head), kHeadDim, log.key.begin() + at);
    std::copy_n(v(row, head), kHeadDim, log.value.begin() + at);
    std::copy_n(g(row, head), kHeadDim, log.decay.begin() + at);
    log.beta[static_cast<size_t>(log_row * heads + head)] = beta[row * heads + head];
  }
};

void CpuBackend::kda(const KdaWeights& weights, Tensor x, Tensor y) {
  const int rows = batch_.rows();
  const int heads = weights.heads;
  const int64_t width = heads * kHeadDim;
  const PackedLinear& input = linear(weights.input);

  // Step 1: raw q | k | v | b | f_a | g_a.
  float* z = scratch("kda.input", rows * input.out);
  multiply(input, row_of(x, 0), x.width, rows, z, input.out);
  const float* beta_logits = z + 3 * width;
  const float* forget_low = beta_logits + heads;
  const float* gate_low = forget_low + weights.gate_rank;
  float* decay = scratch("kda.decay", rows * width);
  multiply(linear(weights.forget_up), forget_low, input.out, rows, decay, width);
  float* gate = scratch("kda.gate", rows * width);
  multiply(linear(weights.gate_up), gate_low, input.out, rows, gate, width);

  // Steps 2–6. Row p of the convolution reads raw rows p−3..p: from this call, or from the ring before it is rewritten.
  float* qkv = scratch("kda.qkv", rows * 3 * width);
  float* beta = scratch("kda.beta", int64_t{rows} * heads);
  const float* conv = vector(weights.conv);
  const float* a_log = vector(weights.a_log);
  const float* dt_bias = vector(weights.dt_bias);
  for (const Segment& segment : batch_.segments) {
    const KdaState& layer = sequences_[static_cast<size_t>(segment.slot)].kda[static_cast<size_t>(weights.kda_index)];
    const auto raw_row = [&](int64_t row) {
      if (row >= 0) return const_cast<const float*>(z) + (segment.first_row + row) * input.out;
      return layer.conv_rows.data() + ring_row(segment.first_position + row) * 3 * width;
    };
    pool_.parallel_for(segment.rows, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = segment.first_row + i;
        const float* taps[4] = {raw_row(i - 3), raw_row(i - 2), raw_row(i - 1), raw_row(i)};
        float* out = qkv + row * 3 * width;
        for (int64_t c = 0; c < 3 * width; ++c) {
          const float* w = conv + 4 * c;
          out[c] = w[0] * taps[0][c] + w[1] * taps[1][c] + w[2] * taps[2][c] + w[3] * taps[3][c];
        }
        kernels_.silu(out, out, 3 * width);
        round_bf16(out, 3 * width);

        float* g = decay + row * width;
        for (int h = 0; h < heads; ++h) {
          const float rate = std::exp(a_log[h]);
          for (int64_t c = h * kHeadDim; c < (h + 1) * kHeadDim; ++c) g[c] = rate * (g[c] + dt_bias[c]);
        }
        kernels_.sigmoid(g, g, width);
        for (int64_t c = 0; c < width; ++c) g[c] *= geometry_.gate_lower_bound;
        kernels_.sigmoid(beta_logits + row * input.out, beta + row * heads, heads);

        for (int h = 0; h < heads; ++h) {
          float* q = out + h * kHeadDim;
          float* k = q + width;
          const float q_scale = 1.0F / std::sqrt((kernels_.sum_squares(q, kHeadDim) + kL2Eps) * kHeadDim);
          const float k_scale = 1.0F / std::sqrt(kernels_.sum_squares(k, kHeadDim) + kL2Eps);
          for (int64_t c = 0; c < kHeadDim; ++c) {
            q[c] *= q_scale;
            k[c] *= k_scale;
          }
        }
      }
    });
  }
  for (const Segment& segment : batch_.segments) {
    KdaState& layer = sequences_[static_cast<size_t>(segment.slot)].kda[static_cast<size_t>(weights.kda_index)];
    for (int64_t i = std::max(0, segment.rows - kConvRing); i < segment.rows; ++i) {
      std::copy_n(z + (segment.first_row + i) * input.out, 3 * width,
                  layer.conv_rows.begin() + ring_row(segment.first_position + i) * 3 * width);
    }
  }

  // Step 7: every (segment, head) is a chain of its own.
  KdaRows kda_rows{width, heads, qkv, decay, beta, scratch("kda.out", rows * width)};
  pool_.parallel_for(static_cast<int64_t>(batch_.segments.size()) * heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const Segment& segment = batch_.segments[static_cast<size_t>(task / heads)];
      const int head = static_cast<int>(task % heads);
      KdaState& layer = sequences_[static_cast<size_t>(segment.slot)].kda[static_cast<size_t>(weights.kda_index)];
      if (segment.kind == SegmentKind::kPrompt) {
        kda_prompt_segment(segment, head, layer, kda_rows);
      } else {
        kda_window_segment(segment, head, layer, kda_rows);
      }
    }
  });

  // Steps 8 and 9.
  const float* norm = vector(weights.output_norm);
  pool_.parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* gates = gate + row * width;
      kernels_.sigmoid(gates, gates, width);
      for (int h = 0; h < heads; ++h) {
        float* o = kda_rows.o(row, h);
        rms_norm(o, norm, kHeadDim, o, Rounding::kNone);
        for (int64_t c = 0; c < kHeadDim; ++c) o[c] *= gates[h * kHeadDim + c];
        round_bf16(o, kHeadDim);
      }
    }
  });
  multiply(linear(weights.output), kda_rows.out, width, rows, row_of(y, 0), y.width);

  trace(weights.layer, "forget_gate.in", row_of(x, 0), x.width);
  trace(weights.layer, "forget_gate.out0", decay, width);
}

/// Sub-chunks of 16 rows on the grid from position 0. A sub-chunk that an earlier call began is computed again from its
/// row log, so that a cut leaves every row's bits as they are (00-decisions §4).
void CpuBackend::kda_prompt_segment(const Segment& segment, int head, KdaState& layer, const KdaRows& rows) {
  const SequenceState& sequence = sequences_[static_cast<size_t>(segment.slot)];
  const int64_t width = rows.width;
  float* state = layer.state.data() + head * kHeadDim * kHeadDim;
  int64_t end = chunk_end(sequence.state_position);
  int logged = sequence.log_rows();
  for (int done = 0; done < segment.rows;) {
    const int64_t first = segment.first_row + done;
    const int64_t position = segment.first_position + done;
    const int fresh = static_cast<int>(std::min<int64_t>(end - position, segment.rows - done));
    const bool completes = position + fresh == end;
    float* state_out = completes ? state : nullptr;
    if (logged == 0) {
      kernels_.kda_chunk(rows.q(first, head), rows.k(first, head), rows.v(first, head), 3 * width, rows.g(first, head),
                         width, rows.beta + first * rows.heads + head, rows.heads, fresh, 0, state, state_out,
                         rows.o(first, head), width);
    } else {
      // q, k and v share one stride, the log's.
      std::vector<float> q(static_cast<size_t>(kKdaChunk * width));
      float out[kKdaChunk][kHeadDim];
      for (int i = 0; i < fresh; ++i) {
        std::copy_n(rows.q(first + i, head), kHeadDim, q.begin() + (logged + i) * width);
        rows.write_log(layer.log, logged + i, first + i, head);
      }
      const int64_t at = head * kHeadDim;
      kernels_.kda_chunk(q.data(), layer.log.key.data() + at, layer.log.value.data() + at, width,
                         layer.log.decay.data() + at, width, layer.log.beta.data() + head, rows.heads, logged + fresh,
                         logged, state, state_out, out[0], kHeadDim);
      for (int i = 0; i < fresh; ++i) std::copy_n(out[logged + i], kHeadDim, rows.o(first + i, head));
    }
    if (!completes && logged == 0) {
      for (int i = 0; i < fresh; ++i) rows.write_log(layer.log, i, first + i, head);
    }
    logged = 0;
    end += kKdaChunk;
    done += fresh;
  }
}

/// Serial steps on a copy of the state: which rows count is known only at commit().
void CpuBackend::kda_window_segment(const Segment& segment, int head, KdaState& layer, const KdaRows& rows) {
  const float* committed = layer.state.data() + head * kHeadDim * kHeadDim;
  std::vector<float> state(committed, committed + kHeadDim * kHeadDim);
  for (int i = 0; i < segment.rows; ++i) {
    const int64_t row = segment.first_row + i;
    kernels_.kda_step(rows.q(row, head), rows.k(row, head), rows.v(row, head), rows.g(row, head),
                      rows.beta[row * rows.heads + head], state.data(), rows.o(row, head));
    rows.write_log(layer.log, i, row, head);
  }
}

void CpuBackend::settle(SequenceState& sequence) {
  if (sequence.log_rows() > 0) {
    pool_.parallel_for(static_cast<int64_t>(sequence.kda.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) settle_layer(sequence, sequence.kda[static_cast<size_t>(i)]);
    });
  }
  sequence.state_position = sequence.position;
  sequence.log_kind = LogKind::kNone;
}

void CpuBackend::settle_layer(const SequenceState& sequence, KdaState& layer) {
  const int rows = sequence.log_rows();
  if (rows == 0) return;
  const int64_t width = kda_heads_ * kHeadDim;
  for (int head = 0; head < kda_heads_; ++head) {
    float* state = layer.state.data() + head * kHeadDim * kHeadDim;
    const int64_t at = head * kHeadDim;
    const float* key = layer.log.key.data() + at;
    const float* value = layer.log.value.data() + at;
    const float* decay = layer.log.decay.data() + at;
    const float* beta = layer.log.beta.data() + head;
    if (sequence.log_kind == LogKind::kPrompt) {
      kernels_.kda_chunk(nullptr, key, value, width, decay, width, beta, kda_heads_, rows, rows, state, state, nullptr,
                         0);
      continue;
    }
    for (int64_t r = 0; r < rows; ++r) {
      kernels_.kda_step(nullptr, key + r * width, value + r * width, decay + r * width, beta[r * kda_heads_], state,
                        nullptr);
    }
  }
}

std::vector<float> CpuBackend::read_kda_state(int slot, int kda_index) {
  const SequenceState& sequence = sequences_.at(static_cast<size_t>(slot));
  KdaState copy = sequence.kda.at(static_cast<size_t>(kda_index));
  settle_layer(sequence, copy);
  return copy.state;
}

std::vector<float> CpuBackend::read_conv_state(int slot, int kda_index) {
  const SequenceState& sequence = sequences_.at(static_cast<size_t>(slot));
  const KdaState& layer = sequence.kda.at(static_cast<size_t>(kda_index));
  const int64_t width = 3 * kda_heads_ * kHeadDim;
  std::vector<float> rows;
  for (int64_t position = sequence.position - 3; position < sequence.position; ++position) {
    const auto row = layer.conv_rows.begin() + ring_row(position) * width;
    rows.insert(rows.end(), row, row + width);
  }
  return rows;
}

}  // namespace glm53::cpu
