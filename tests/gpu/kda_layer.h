// What the KDA tests run: random layers, an fp64 oracle of their sequences, and a layer with its slots on the device.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/common/cuda_check.h"
#include "kernels/kda/kda.h"

namespace glm53::kernels::kda_test {

inline constexpr int kD = kKdaHeadDim;
inline constexpr int kLowRank = 16;  // width of f_a and g_a behind b in a projected row; the kernels must skip them
inline constexpr uint16_t kPoison = 0x7fc1;

inline float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t to_bf16(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

struct DeviceFree {
  void operator()(void* memory) const { cudaFree(memory); }
};

template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(size_t count, int fill = 0xff) : count_(count) {
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, std::max<size_t>(count, 1) * sizeof(T)), "cudaMalloc");
    memory_.reset(static_cast<T*>(memory));
    check_cuda(cudaMemset(memory, fill, count * sizeof(T)), "cudaMemset");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { write(values); }

  T* get() const { return memory_.get(); }
  void write(const std::vector<T>& values) {
    ASSERT_LE(values.size(), count_);
    check_cuda(cudaMemcpy(get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    check_cuda(cudaMemcpy(values.data(), get(), count_ * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }

 private:
  size_t count_ = 0;
  std::unique_ptr<T, DeviceFree> memory_;
};

/// Weights of a layer and how the raw rows of its sequences are drawn.
struct Model {
  int heads = 2;
  float gate_shift = 0.0F;  ///< added to p: large: g at the lower bound; very negative: g near 0
  float gate_spread = 2.0F;
  float beta_shift = 0.0F;  ///< large: β = 1; very negative: β = 0
  bool identical_keys = false;
  uint32_t seed = 1;

  int width() const { return heads * kD; }
  int stride() const { return (3 * width() + heads + 2 * kLowRank + 7) / 8 * 8; }
};

/// bf16 inputs of one position of one sequence; a pure function of both.
struct RowInput {
  std::vector<uint16_t> projected;
  std::vector<uint16_t> forget;
  std::vector<uint16_t> gate;
};

inline RowInput make_row(const Model& model, int sequence, int64_t position) {
  std::mt19937 random(model.seed * 7919U + static_cast<uint32_t>(sequence) * 104729U + static_cast<uint32_t>(position));
  // A sum of uniform draws: cheap, and wide enough.
  const auto draw = [&random](float scale) {
    const uint32_t bits = random();
    return scale * (static_cast<float>(bits & 0xffffU) + static_cast<float>(bits >> 16) - 65535.0F) / 26755.0F;
  };
  RowInput row;
  const int w = model.width();
  row.projected.assign(static_cast<size_t>(model.stride()), kPoison);
  for (int c = 0; c < 3 * w; ++c) {
    const bool is_key = c >= w && c < 2 * w;
    row.projected[static_cast<size_t>(c)] =
        to_bf16(is_key && model.identical_keys ? 0.5F + 0.01F * static_cast<float>(c % kD) : draw(1.0F));
  }
  for (int h = 0; h < model.heads; ++h) {
    row.projected[static_cast<size_t>(3 * w + h)] = to_bf16(draw(1.5F) + model.beta_shift);
  }
  row.forget.resize(static_cast<size_t>(w));
  row.gate.resize(static_cast<size_t>(w));
  for (auto& p : row.forget) p = to_bf16(draw(model.gate_spread) + model.gate_shift);
  for (auto& g : row.gate) g = to_bf16(draw(1.0F));
  return row;
}

struct Weights {
  std::vector<float> conv, a_log, dt_bias, norm;
};

inline Weights make_weights(const Model& model) {
  std::mt19937 random(model.seed + 77);
  std::normal_distribution<float> normal;
  Weights weights;
  const auto width = static_cast<size_t>(model.width());
  weights.conv.resize(3 * width * 4);
  for (float& w : weights.conv) w = 0.6F * normal(random);
  weights.a_log.resize(static_cast<size_t>(model.heads));
  for (float& a : weights.a_log) a = 0.4F * normal(random);
  weights.dt_bias.resize(width);
  for (float& b : weights.dt_bias) b = 0.5F * normal(random);
  weights.norm.resize(kD);
  for (float& w : weights.norm) w = 1.0F + 0.2F * normal(random);
  return weights;
}

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// spec 10 §3.5 steps 2–8 for one sequence in fp64, with Mode S's rounding points.
class Oracle {
 public:
  Oracle(const Model& model, const Weights& weights)
      : model_(model), weights_(weights), state_(static_cast<size_t>(model.width()) * kD), history_(4) {
    for (auto& row : history_) row.assign(static_cast<size_t>(3 * model.width()), 0.0);
  }

  /// y before its rounding, [W].
  std::vector<double> step(const RowInput& row) {
    const auto w = static_cast<size_t>(model_.width());
    std::rotate(history_.begin(), history_.begin() + 1, history_.end());
    for (size_t c = 0; c < 3 * w; ++c) history_[3][c] = from_bf16(row.projected[c]);
    std::vector<double> x(3 * w);
    for (size_t c = 0; c < 3 * w; ++c) {
      double sum = 0.0;
      for (size_t tap = 0; tap < 4; ++tap) sum += static_cast<double>(weights_.conv[4 * c + tap]) * history_[tap][c];
      x[c] = from_bf16(to_bf16(sum * sigmoid(sum)));
    }
    std::vector<double> y(w);
    for (int h = 0; h < model_.heads; ++h) {
      const size_t at = static_cast<size_t>(h) * kD;
      double g[kD];
      for (size_t c = 0; c < kD; ++c) {
        g[c] = -5.0 * sigmoid(std::exp(static_cast<double>(weights_.a_log[static_cast<size_t>(h)])) *
                              (static_cast<double>(from_bf16(row.forget[at + c])) +
                               static_cast<double>(weights_.dt_bias[at + c])));
      }
      const double beta = sigmoid(from_bf16(row.projected[3 * w + static_cast<size_t>(h)]));
      double o[kD];
      recur(&state_[at * kD], &x[at], &x[w + at], &x[2 * w + at], g, beta, o);
      double mean = 0.0;
      for (double value : o) mean += value * value / kD;
      const double scale = 1.0 / std::sqrt(mean + 1e-5);
      for (size_t c = 0; c < kD; ++c) {
        y[at + c] = o[c] * scale * static_cast<double>(weights_.norm[c]) * sigmoid(from_bf16(row.gate[at + c]));
      }
    }
    return y;
  }

  /// One row of one head; state [128 (v), 128 (k)]; q, k not normalised. o may be null.
  static void recur(double* state, const double* q, const double* k, const double* v, const double* g, double beta,
                    double* o) {
    double q_sum = 1e-6;
    double k_sum = 1e-6;
    for (int c = 0; c < kD; ++c) {
      if (o != nullptr) q_sum += q[c] * q[c];
      k_sum += k[c] * k[c];
    }
    double key[kD];
    double decay[kD];
    for (int c = 0; c < kD; ++c) {
      key[c] = k[c] / std::sqrt(k_sum);
      decay[c] = std::exp(g[c]);
    }
    for (int row = 0; row < kD; ++row) {
      double* s = state + row * kD;
      double read = 0.0;
      for (int c = 0; c < kD; ++c) {
        s[c] *= decay[c];
        read += s[c] * key[c];
      }
      const double delta = beta * (v[row] - read);
      double out = 0.0;
      for (int c = 0; c < kD; ++c) {
        s[c] += key[c] * delta;
        if (o != nullptr) out += s[c] * q[c];
      }
      if (o != nullptr) o[row] = out / std::sqrt(q_sum * kD);
    }
  }

  const std::vector<double>& state() const { return state_; }

 private:
  const Model model_;
  const Weights weights_;
  std::vector<double> state_;
  std::vector<std::vector<double>> history_;
};

inline double relative_error(const std::vector<float>& got, const std::vector<double>& expected) {
  EXPECT_EQ(got.size(), expected.size());
  double error = 0.0;
  double norm = 1e-30;
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = static_cast<double>(got[i]) - expected[i];
    error += d * d;
    norm += expected[i] * expected[i];
  }
  const double result = std::sqrt(error / norm);
  return std::isnan(result) ? INFINITY : result;
}

inline double relative_error(const std::vector<uint16_t>& got, const std::vector<double>& expected) {
  std::vector<float> values(got.size());
  std::ranges::transform(got, values.begin(), from_bf16);
  return relative_error(values, expected);
}

struct Part {
  int slot = 0;
  int sequence = 0;  ///< whose rows
  int64_t first_position = 0;
  int rows = 0;
};

/// A layer on the device and its slots.
class Layer {
 public:
  Layer(const Model& of_model, int slots) : model(of_model), weights(make_weights(of_model)), slots_(slots) {
    const auto w = static_cast<size_t>(model.width());
    const auto n = static_cast<size_t>(slots);
    // Poison everywhere: what reset does not clear must never be read.
    state_ = DeviceArray<float>(n * w * kD);
    ring_ = DeviceArray<uint16_t>(n * kKdaConvRing * 3 * w);
    key_ = DeviceArray<uint16_t>(n * kKdaRows * w);
    value_ = DeviceArray<uint16_t>(n * kKdaRows * w);
    decay_ = DeviceArray<float>(n * kKdaRows * w);
    beta_ = DeviceArray<float>(n * kKdaRows * static_cast<size_t>(model.heads));
    slot_table_ = DeviceArray<KdaSlot>(n);
    conv_ = DeviceArray<float>(weights.conv);
    a_log_ = DeviceArray<float>(weights.a_log);
    dt_bias_ = DeviceArray<float>(weights.dt_bias);
    norm_ = DeviceArray<float>(weights.norm);
    state.state = state_.get();
    state.conv_ring = bf16(ring_);
    state.log_key = bf16(key_);
    state.log_value = bf16(value_);
    state.log_decay = decay_.get();
    state.log_beta = beta_.get();
    state.slots = slot_table_.get();
    state.heads = model.heads;
    parameters.conv = conv_.get();
    parameters.a_log = a_log_.get();
    parameters.dt_bias = dt_bias_.get();
    parameters.output_norm = norm_.get();
    std::vector<int32_t> all(n);
    std::iota(all.begin(), all.end(), 0);
    reset(all);
  }

  void reset(const std::vector<int32_t>& ids) {
    const DeviceArray<int32_t> device_ids(ids);
    kda_reset(state, device_ids.get(), static_cast<int>(ids.size()), nullptr);
    kda_reset_slots(slot_table_.get(), device_ids.get(), static_cast<int>(ids.size()), nullptr);
    check_cuda(cudaDeviceSynchronize(), "reset");
  }

  /// Uploads a launch's inputs and tables; rows of a part are consecutive, `gap` unused rows lie before each part.
  struct Call {
    DeviceArray<uint16_t> projected, forget, gate, out;
    DeviceArray<DeviceSegment> segments;
    std::vector<int> first_rows;
    KdaRows rows;
    BatchTables tables;
  };
  Call make_call(const std::vector<Part>& parts, int gap, int absent) const {
    Call call;
    std::vector<uint16_t> projected;
    std::vector<uint16_t> forget;
    std::vector<uint16_t> gate;
    std::vector<DeviceSegment> segments;
    const auto w = static_cast<size_t>(model.width());
    const auto stride = static_cast<size_t>(model.stride());
    size_t row = 0;
    for (int i = 0; i < absent; ++i) segments.push_back(DeviceSegment{});
    for (const Part& part : parts) {
      row += static_cast<size_t>(gap);
      segments.push_back({part.slot, static_cast<int>(row), part.rows, 0, part.first_position});
      call.first_rows.push_back(static_cast<int>(row));
      projected.resize(row * stride, kPoison);
      forget.resize(row * w, kPoison);
      gate.resize(row * w, kPoison);
      for (int i = 0; i < part.rows; ++i, ++row) {
        const RowInput input = make_row(model, part.sequence, part.first_position + i);
        projected.insert(projected.end(), input.projected.begin(), input.projected.end());
        forget.insert(forget.end(), input.forget.begin(), input.forget.end());
        gate.insert(gate.end(), input.gate.begin(), input.gate.end());
      }
    }
    call.projected = DeviceArray<uint16_t>(projected);
    call.forget = DeviceArray<uint16_t>(forget);
    call.gate = DeviceArray<uint16_t>(gate);
    call.out = DeviceArray<uint16_t>(row * w);
    call.segments = DeviceArray<DeviceSegment>(segments);
    call.rows = {bf16(call.projected), static_cast<int64_t>(stride), bf16(call.forget), bf16(call.gate),
                 bf16(call.out)};
    call.tables.segments = call.segments.get();
    call.tables.segment_capacity = static_cast<int>(segments.size());
    return call;
  }

  /// y of every part, in order.
  std::vector<std::vector<uint16_t>> run(const std::vector<Part>& parts, bool windows, int gap = 0, int absent = 0) {
    const Call call = make_call(parts, gap, absent);
    (windows ? kda_window : kda_prompt)(call.rows, parameters, state, call.tables, nullptr);
    kda_advance(slot_table_.get(), call.tables, windows, nullptr);
    check_cuda(cudaDeviceSynchronize(), "run");
    const std::vector<uint16_t> out = call.out.read();
    std::vector<std::vector<uint16_t>> results;
    const auto w = static_cast<ptrdiff_t>(model.width());
    ptrdiff_t row = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      for (ptrdiff_t c = row * w; c < call.first_rows[i] * w; ++c) {
        EXPECT_EQ(out[static_cast<size_t>(c)], 0xffff) << "wrote a row of no segment";
      }
      row = call.first_rows[i] + parts[i].rows;
      results.emplace_back(out.begin() + call.first_rows[i] * w, out.begin() + row * w);
    }
    return results;
  }
  std::vector<uint16_t> window(int slot, int sequence, int64_t position, int rows) {
    return run({{slot, sequence, position, rows}}, true)[0];
  }
  std::vector<uint16_t> prompt(int slot, int sequence, int64_t position, int rows) {
    return run({{slot, sequence, position, rows}}, false)[0];
  }

  void commit(int slot, int kept) {
    const DeviceArray<int32_t> ids(std::vector<int32_t>{slot});
    const DeviceArray<int32_t> rows(std::vector<int32_t>{kept});
    kda_commit(slot_table_.get(), ids.get(), rows.get(), 1, nullptr);
    check_cuda(cudaDeviceSynchronize(), "commit");
  }

  /// Settled S of a slot; the slot stays as it is.
  std::vector<float> settled(int slot) const {
    const DeviceArray<int32_t> ids(std::vector<int32_t>{slot});
    const DeviceArray<float> out(static_cast<size_t>(model.width()) * kD);
    kda_settle(state, ids.get(), 1, out.get(), nullptr);
    check_cuda(cudaDeviceSynchronize(), "settle");
    return out.read();
  }
  void settle(int slot) {
    const DeviceArray<int32_t> ids(std::vector<int32_t>{slot});
    kda_settle(state, ids.get(), 1, nullptr, nullptr);
    kda_mark_settled(slot_table_.get(), ids.get(), 1, nullptr);
    check_cuda(cudaDeviceSynchronize(), "settle");
  }

  KdaSlot slot(int i) const { return slot_table_.read()[static_cast<size_t>(i)]; }
  KdaSlot* slot_table() const { return slot_table_.get(); }
  template <typename T>
  std::vector<T> of_slot(const DeviceArray<T>& array, int slot) const {
    const std::vector<T> all = array.read();
    const size_t size = all.size() / static_cast<size_t>(slots_);
    return {all.begin() + static_cast<ptrdiff_t>(size * static_cast<size_t>(slot)),
            all.begin() + static_cast<ptrdiff_t>(size * static_cast<size_t>(slot + 1))};
  }
  std::vector<float> raw_state(int slot) const { return of_slot(state_, slot); }
  std::vector<uint16_t> ring(int slot) const { return of_slot(ring_, slot); }
  std::vector<uint16_t> log_key(int slot) const { return of_slot(key_, slot); }
  std::vector<uint16_t> log_value(int slot) const { return of_slot(value_, slot); }
  std::vector<float> log_decay(int slot) const { return of_slot(decay_, slot); }
  std::vector<float> log_beta(int slot) const { return of_slot(beta_, slot); }

  const Model model;
  const Weights weights;
  KdaLayerState state;
  KdaParameters parameters;

 private:
  static __nv_bfloat16* bf16(const DeviceArray<uint16_t>& array) {
    return reinterpret_cast<__nv_bfloat16*>(array.get());
  }
  int slots_;
  DeviceArray<float> state_, decay_, beta_, conv_, a_log_, dt_bias_, norm_;
  DeviceArray<uint16_t> ring_, key_, value_;
  DeviceArray<KdaSlot> slot_table_;
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline std::vector<double> expected_rows(Oracle& oracle, const Model& model, int sequence, int64_t position, int rows) {
  std::vector<double> all;
  for (int i = 0; i < rows; ++i) {
    const std::vector<double> y = oracle.step(make_row(model, sequence, position + i));
    all.insert(all.end(), y.begin(), y.end());
  }
  return all;
}

}  // namespace glm53::kernels::kda_test
