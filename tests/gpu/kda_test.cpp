#include "kernels/kda/kda.h"

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

namespace glm53::kernels {
namespace {

constexpr int kD = kKdaHeadDim;
constexpr int kLowRank = 16;  // width of f_a and g_a behind b in a projected row; the kernels must skip them
constexpr uint16_t kPoison = 0x7fc1;

float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t to_bf16(double value) {
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

RowInput make_row(const Model& model, int sequence, int64_t position) {
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

Weights make_weights(const Model& model) {
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

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

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

double relative_error(const std::vector<float>& got, const std::vector<double>& expected) {
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

double relative_error(const std::vector<uint16_t>& got, const std::vector<double>& expected) {
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

#define SKIP_WITHOUT_DEVICE() \
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device"

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<double> expected_rows(Oracle& oracle, const Model& model, int sequence, int64_t position, int rows) {
  std::vector<double> all;
  for (int i = 0; i < rows; ++i) {
    const std::vector<double> y = oracle.step(make_row(model, sequence, position + i));
    all.insert(all.end(), y.begin(), y.end());
  }
  return all;
}

// ------------------------------------------------------------------------------------------------ windows

class KdaWindowHeads : public ::testing::TestWithParam<int> {};

TEST_P(KdaWindowHeads, MatchTheRecurrence) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.heads = GetParam(), .seed = 11};
  Layer layer(model, 3);
  std::vector<Oracle> oracles(3, Oracle(model, layer.weights));
  std::vector<int64_t> positions(3, 0);
  const int sizes[][3] = {{1, 16, 3}, {1, 1, 8}, {2, 5, 16}, {16, 1, 7}, {4, 9, 1}};
  for (const auto& rows : sizes) {
    std::vector<Part> parts;
    for (int i = 0; i < 3; ++i) parts.push_back({i, i, positions[static_cast<size_t>(i)], rows[i]});
    const auto results = layer.run(parts, true, 2, 1);
    for (size_t i = 0; i < 3; ++i) {
      const auto expected = expected_rows(oracles[i], model, static_cast<int>(i), positions[i], rows[i]);
      EXPECT_LE(relative_error(results[i], expected), 4e-3) << "sequence " << i << " at " << positions[i];
      positions[i] += rows[i];
      // Rounded q, k and v may differ by one bf16 step from the oracle's; StateFollowsTheLog is the sharp test of S.
      EXPECT_LE(relative_error(layer.settled(static_cast<int>(i)), oracles[i].state()), 1e-3);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Heads, KdaWindowHeads, ::testing::Values(2, 16, 64));

/// Runs the logged rows through fp64 from the state before them.
std::vector<double> replay_log(const Layer& layer, int slot, const std::vector<float>& before, int rows) {
  std::vector<double> state(before.begin(), before.end());
  const auto key = layer.log_key(slot);
  const auto value = layer.log_value(slot);
  const auto decay = layer.log_decay(slot);
  const auto beta = layer.log_beta(slot);
  const int w = layer.model.width();
  for (int r = 0; r < rows; ++r) {
    for (int h = 0; h < layer.model.heads; ++h) {
      double k[kD];
      double v[kD];
      double g[kD];
      for (int c = 0; c < kD; ++c) {
        const auto at = static_cast<size_t>(r * w + h * kD + c);
        k[c] = from_bf16(key[at]);
        v[c] = from_bf16(value[at]);
        g[c] = decay[at];
      }
      Oracle::recur(&state[static_cast<size_t>(h) * kD * kD], nullptr, k, v, g,
                    beta[static_cast<size_t>(r * layer.model.heads + h)], nullptr);
    }
  }
  return state;
}

TEST(KdaWindow, StateFollowsTheLog) {
  SKIP_WITHOUT_DEVICE();
  for (const float gate_shift : {0.0F, 40.0F, -40.0F}) {
    for (const float beta_shift : {0.0F, 60.0F, -200.0F}) {
      const Model model{.gate_shift = gate_shift, .beta_shift = beta_shift, .seed = 5};
      Layer layer(model, 1);
      int64_t position = 0;
      for (const int rows : {16, 1, 1, 7, 16}) {
        layer.window(0, 0, position, rows);
        position += rows;
        const auto expected = replay_log(layer, 0, layer.raw_state(0), rows);
        EXPECT_LE(relative_error(layer.settled(0), expected), 1e-5) << gate_shift << " " << beta_shift;
      }
      const float g = layer.log_decay(0)[0];
      const float beta = layer.log_beta(0)[0];
      if (gate_shift > 0.0F) {
        EXPECT_LE(g, -4.99F);
      }
      if (gate_shift < 0.0F) {
        EXPECT_GE(g, -1e-4F);
      }
      if (beta_shift > 0.0F) {
        EXPECT_EQ(beta, 1.0F);
      }
      if (beta_shift < 0.0F) {
        EXPECT_EQ(beta, 0.0F);
      }
    }
  }
}

TEST(KdaWindow, LongDecodeDoesNotDrift) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.heads = 1, .gate_shift = -8.0F, .seed = 21};
  Layer layer(model, 1);
  std::vector<double> state(static_cast<size_t>(kD) * kD);
  for (int64_t position = 0; position < 4096; position += 16) {
    layer.window(0, 0, position, 16);
    // The log holds what the device rounded; fp64 runs on from its own state.
    const auto key = layer.log_key(0);
    const auto value = layer.log_value(0);
    const auto decay = layer.log_decay(0);
    const auto beta = layer.log_beta(0);
    for (size_t r = 0; r < 16; ++r) {
      double k[kD];
      double v[kD];
      double g[kD];
      for (size_t c = 0; c < kD; ++c) {
        k[c] = from_bf16(key[r * kD + c]);
        v[c] = from_bf16(value[r * kD + c]);
        g[c] = decay[r * kD + c];
      }
      Oracle::recur(state.data(), nullptr, k, v, g, beta[r], nullptr);
    }
  }
  EXPECT_LE(relative_error(layer.settled(0), state), 1e-4);
}

TEST(KdaWindow, TogetherOrOneByOneGivesTheSameBits) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.heads = 3, .seed = 2};
  Layer layer(model, 4);
  std::mt19937 random(4);
  const int total = 64;
  std::vector<uint16_t> serial;
  for (int i = 0; i < total; ++i) {
    const auto y = layer.window(0, 9, i, 1);
    serial.insert(serial.end(), y.begin(), y.end());
  }
  for (int slot = 1; slot < 4; ++slot) {
    std::vector<uint16_t> cut;
    for (int done = 0; done < total;) {
      const int rows = slot == 1 ? 16 : std::min(total - done, static_cast<int>(random() % 16 + 1));
      const auto y = layer.window(slot, 9, done, rows);
      cut.insert(cut.end(), y.begin(), y.end());
      done += rows;
    }
    EXPECT_EQ(cut, serial);
    EXPECT_TRUE(same_bits(layer.settled(slot), layer.settled(0)));
    EXPECT_EQ(layer.ring(slot), layer.ring(0));
  }
}

TEST(KdaWindow, RejectedRowsLeaveNoTrace) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.seed = 31};
  std::mt19937 random(8);
  Layer layer(model, 2);
  int64_t position = 0;
  for (int round = 0; round < 60; ++round) {
    const int rows = static_cast<int>(random() % 16) + 1;
    const int kept = static_cast<int>(random() % static_cast<uint32_t>(rows + 1));
    // Rejected rows are another sequence's: what a wrong draft would have been.
    const auto speculated = layer.run({{0, 1, position, rows}}, true)[0];
    layer.commit(0, 0);
    EXPECT_EQ(speculated, layer.window(0, 1, position, rows));
    layer.commit(0, 0);
    const auto y = layer.window(0, 0, position, rows);
    layer.commit(0, rows);
    layer.commit(0, kept);
    for (int i = 0; i < kept; ++i) {
      const auto serial = layer.window(1, 0, position + i, 1);
      const auto w = static_cast<ptrdiff_t>(model.width());
      EXPECT_EQ(serial, std::vector<uint16_t>(y.begin() + i * w, y.begin() + (i + 1) * w));
    }
    position += kept;
    EXPECT_TRUE(same_bits(layer.settled(0), layer.settled(1))) << "round " << round;
  }
  EXPECT_EQ(layer.slot(0).state_position + layer.slot(0).kept, position);
}

TEST(KdaWindow, CommitStaysWithinTheLog) {
  SKIP_WITHOUT_DEVICE();
  Layer layer(Model{}, 1);
  layer.commit(0, 3);
  EXPECT_EQ(layer.slot(0).kept, 0);
  layer.window(0, 0, 0, 5);
  EXPECT_EQ(layer.slot(0).kept, 5);
  layer.commit(0, 9);
  EXPECT_EQ(layer.slot(0).kept, 5);
  layer.commit(0, -1);
  EXPECT_EQ(layer.slot(0).kept, 0);
  EXPECT_TRUE(same_bits(layer.settled(0), layer.raw_state(0)));
}

TEST(KdaWindow, OtherSequencesDoNotMatter) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.heads = 5, .seed = 3};
  Layer alone(model, 8);
  Layer together(model, 8);
  for (int step = 0; step < 4; ++step) {
    std::vector<Part> parts;
    for (int i = 0; i < 8; ++i) {
      const int slot = (i * 3 + step) % 8;
      parts.push_back({slot, slot, step * 7, 7});
    }
    const auto results = together.run(parts, true, step, 8 - step);
    for (size_t i = 0; i < parts.size(); ++i) EXPECT_EQ(alone.run({parts[i]}, true)[0], results[i]);
  }
  for (int slot = 0; slot < 8; ++slot) {
    EXPECT_TRUE(same_bits(alone.settled(slot), together.settled(slot)));
    EXPECT_EQ(alone.log_key(slot), together.log_key(slot));
  }
}

TEST(KdaWindow, SettlingIsWhatTheNextWindowWouldDo) {
  SKIP_WITHOUT_DEVICE();
  Layer layer(Model{.seed = 14}, 2);
  for (int slot = 0; slot < 2; ++slot) layer.window(slot, 0, 0, 12);
  layer.commit(0, 10);
  layer.commit(1, 10);
  const auto copy = layer.settled(0);
  layer.settle(0);
  EXPECT_TRUE(same_bits(layer.raw_state(0), copy));
  EXPECT_EQ(layer.slot(0).state_position, 10);
  EXPECT_EQ(layer.slot(0).logged, 0);
  EXPECT_EQ(layer.window(0, 0, 10, 4), layer.window(1, 0, 10, 4));
  EXPECT_TRUE(same_bits(layer.raw_state(0), layer.raw_state(1)));
}

TEST(KdaWindow, GraphsReplayWithNewTables) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.seed = 15};
  Layer eager(model, 2);
  Layer graphed(model, 2);
  Layer::Call call = graphed.make_call({{0, 0, 0, 4}, {1, 1, 0, 4}}, 0, 0);
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreate(&stream), "cudaStreamCreate");
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  kda_window(call.rows, graphed.parameters, graphed.state, call.tables, stream);
  kda_advance(graphed.slot_table(), call.tables, true, stream);
  check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
  cudaGraphExec_t replay = nullptr;
  check_cuda(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
  int64_t position = 0;
  for (const int kept : {4, 0, 2, 3}) {
    const std::vector<Part> parts = {{0, 0, position, 4}, {1, 1, position, 4}};
    const Layer::Call fresh = graphed.make_call(parts, 0, 0);
    call.projected.write(fresh.projected.read());
    call.forget.write(fresh.forget.read());
    call.gate.write(fresh.gate.read());
    call.segments.write(fresh.segments.read());
    check_cuda(cudaDeviceSynchronize(), "upload");
    check_cuda(cudaGraphLaunch(replay, stream), "replay");
    check_cuda(cudaStreamSynchronize(stream), "replay");
    const auto expected = eager.run(parts, true);
    std::vector<uint16_t> all = expected[0];
    all.insert(all.end(), expected[1].begin(), expected[1].end());
    EXPECT_EQ(call.out.read(), all);
    for (int slot = 0; slot < 2; ++slot) {
      eager.commit(slot, kept);
      graphed.commit(slot, kept);
    }
    position += kept;
  }
  check_cuda(cudaGraphExecDestroy(replay), "destroy");
  check_cuda(cudaGraphDestroy(graph), "destroy");
  check_cuda(cudaStreamDestroy(stream), "destroy");
}

// ------------------------------------------------------------------------------------------------ prompts

void expect_prompt_close(const Model& model, int64_t rows, double out_tolerance = 5e-3, double state_tolerance = 2e-3) {
  Layer layer(model, 1);
  Oracle oracle(model, layer.weights);
  const auto y = layer.prompt(0, 0, 0, static_cast<int>(rows));
  const auto expected = expected_rows(oracle, model, 0, 0, static_cast<int>(rows));
  const double out_error = relative_error(y, expected);
  const double state_error = relative_error(layer.settled(0), oracle.state());
  EXPECT_LE(out_error, out_tolerance) << rows << " rows";
  EXPECT_LE(state_error, state_tolerance) << rows << " rows";
  ::testing::Test::RecordProperty("errors", std::to_string(out_error) + " " + std::to_string(state_error));
  EXPECT_EQ(layer.slot(0).state_position, rows / 16 * 16);
  EXPECT_EQ(layer.slot(0).logged, rows % 16);
}

TEST(KdaPrompt, MatchesTheRecurrence) {
  SKIP_WITHOUT_DEVICE();
  for (const int rows : {1, 15, 16, 17, 63, 64, 65, 2048}) expect_prompt_close(Model{.seed = 6}, rows);
  for (const int heads : {16, 64}) expect_prompt_close(Model{.heads = heads, .seed = 7}, 77);
}

TEST(KdaPrompt, HoldsAtTheExtremes) {
  SKIP_WITHOUT_DEVICE();
  for (const float gate_shift : {-40.0F, 0.0F, 40.0F}) {
    for (const float beta_shift : {-200.0F, 0.0F, 60.0F}) {
      for (const bool identical : {false, true}) {
        SCOPED_TRACE(::testing::Message() << gate_shift << " " << beta_shift << " " << identical);
        const Model model{.gate_shift = gate_shift, .beta_shift = beta_shift, .identical_keys = identical, .seed = 12};
        expect_prompt_close(model, 200);
      }
    }
  }
  // Channels of one head at both ends of the gate.
  expect_prompt_close(Model{.gate_spread = 60.0F, .seed = 13}, 200);
}

TEST(KdaPrompt, LongPromptDoesNotDrift) {
  SKIP_WITHOUT_DEVICE();
  expect_prompt_close(Model{.heads = 1, .gate_shift = -6.0F, .seed = 16}, 16384);
}

TEST(KdaPrompt, CutsDoNotChangeBits) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.heads = 3, .seed = 17};
  const int total = 150;
  std::mt19937 random(99);
  Layer layer(model, 5);
  const auto whole = layer.prompt(0, 4, 0, total);
  for (int slot = 1; slot < 5; ++slot) {
    std::vector<uint16_t> cut;
    for (int done = 0; done < total;) {
      const int most = slot == 1 ? 1 : slot == 2 ? 5 : slot == 3 ? 20 : 70;
      const int rows = std::min(total - done, static_cast<int>(random() % static_cast<uint32_t>(most)) + 1);
      const auto y = layer.prompt(slot, 4, done, rows);
      cut.insert(cut.end(), y.begin(), y.end());
      done += rows;
    }
    EXPECT_EQ(cut, whole) << "slot " << slot;
    EXPECT_TRUE(same_bits(layer.raw_state(slot), layer.raw_state(0)));
    EXPECT_EQ(layer.ring(slot), layer.ring(0));
    const size_t logged = static_cast<size_t>(total % 16 * model.width());
    const auto head_of = [logged](auto values) {
      return decltype(values)(values.begin(), values.begin() + static_cast<ptrdiff_t>(logged));
    };
    EXPECT_EQ(head_of(layer.log_key(slot)), head_of(layer.log_key(0)));
    EXPECT_EQ(head_of(layer.log_value(slot)), head_of(layer.log_value(0)));
    EXPECT_TRUE(same_bits(head_of(layer.log_decay(slot)), head_of(layer.log_decay(0))));
    // Decoding goes on alike.
    EXPECT_TRUE(same_bits(layer.settled(slot), layer.settled(0)));
  }
  const auto next = layer.window(0, 4, total, 6);
  for (int slot = 1; slot < 5; ++slot) EXPECT_EQ(layer.window(slot, 4, total, 6), next);
}

TEST(KdaPrompt, OtherSequencesDoNotMatter) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.heads = 4, .seed = 18};
  Layer alone(model, 4);
  Layer together(model, 4);
  const int sizes[][4] = {{5, 40, 16, 1}, {27, 1, 33, 16}};
  std::vector<int64_t> positions(4, 0);
  for (const auto& rows : sizes) {
    std::vector<Part> parts;
    for (int i = 0; i < 4; ++i) parts.push_back({3 - i, i, positions[static_cast<size_t>(i)], rows[i]});
    const auto results = together.run(parts, false, 3, 2);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(alone.run({parts[i]}, false)[0], results[i]);
      positions[i] += rows[i];
    }
  }
  for (int slot = 0; slot < 4; ++slot) EXPECT_TRUE(same_bits(alone.settled(slot), together.settled(slot)));
}

TEST(KdaPrompt, FollowsDecodedRows) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.seed = 19};
  Layer layer(model, 3);
  Oracle oracle(model, layer.weights);
  std::vector<std::vector<uint16_t>> results(3);
  for (int slot = 0; slot < 3; ++slot) {
    layer.prompt(slot, 0, 0, 20);
    layer.window(slot, 0, 20, 8);
    layer.commit(slot, 5);
    layer.window(slot, 0, 25, 16);
    layer.commit(slot, 2);
  }
  expected_rows(oracle, model, 0, 0, 27);
  for (int slot = 0; slot < 3; ++slot) EXPECT_LE(relative_error(layer.settled(slot), oracle.state()), 2e-3);
  // Position 27: the first sub-chunk has 5 rows.
  results[0] = layer.prompt(0, 0, 27, 60);
  for (int done = 0; done < 60; done += 3) {
    const auto y = layer.prompt(1, 0, 27 + done, 3);
    results[1].insert(results[1].end(), y.begin(), y.end());
  }
  layer.settle(2);
  results[2] = layer.prompt(2, 0, 27, 60);
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
  EXPECT_LE(relative_error(results[0], expected_rows(oracle, model, 0, 27, 60)), 5e-3);
  EXPECT_EQ(layer.slot(0).state_position, 80);
  EXPECT_EQ(layer.slot(0).logged, 7);
  for (int slot = 1; slot < 3; ++slot) EXPECT_TRUE(same_bits(layer.settled(slot), layer.settled(0)));
  EXPECT_LE(relative_error(layer.settled(0), oracle.state()), 2e-3);
}

TEST(KdaPrompt, ShortPromptAfterDecodedRowsStaysInTheLog) {
  SKIP_WITHOUT_DEVICE();
  Layer layer(Model{.seed = 20}, 1);
  layer.window(0, 0, 0, 3);
  layer.prompt(0, 0, 3, 4);
  EXPECT_EQ(layer.slot(0).state_position, 3);
  EXPECT_EQ(layer.slot(0).logged, 4);
  layer.prompt(0, 0, 7, 9);
  EXPECT_EQ(layer.slot(0).state_position, 16);
  EXPECT_EQ(layer.slot(0).logged, 0);
}

TEST(KdaReset, ReusedSlotsStartEmpty) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.seed = 22};
  Layer layer(model, 2);
  layer.prompt(0, 1, 0, 37);
  layer.window(0, 1, 37, 16);
  layer.reset({0});
  const KdaSlot slot = layer.slot(0);
  EXPECT_EQ(slot.state_position + slot.logged + slot.kept + slot.log_kind, 0);
  EXPECT_EQ(layer.window(0, 0, 0, 9), layer.window(1, 0, 0, 9));
  layer.reset({0, 1});
  EXPECT_EQ(layer.prompt(0, 0, 0, 19), layer.prompt(1, 0, 0, 19));
}

TEST(Kda, RefusesBadSizes) {
  KdaLayerState layer;
  layer.heads = 2;
  KdaRows rows;
  rows.projected_stride = 3 * 256 + 8;
  KdaParameters parameters;
  const BatchTables tables;
  EXPECT_NO_THROW(kda_window(rows, parameters, layer, tables, nullptr));
  rows.projected_stride = 3 * 256 + 4;
  EXPECT_THROW(kda_window(rows, parameters, layer, tables, nullptr), std::invalid_argument);
  rows.projected_stride = 3 * 256;
  EXPECT_THROW(kda_prompt(rows, parameters, layer, tables, nullptr), std::invalid_argument);
  rows.projected_stride = 3 * 256 + 8;
  for (const float bound : {0.0F, 1.0F, -6.0F, NAN}) {
    parameters.lower_bound = bound;
    EXPECT_THROW(kda_prompt(rows, parameters, layer, tables, nullptr), std::invalid_argument);
  }
  parameters.lower_bound = -5.0F;
  layer.heads = 0;
  EXPECT_THROW(kda_window(rows, parameters, layer, tables, nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace glm53::kernels
