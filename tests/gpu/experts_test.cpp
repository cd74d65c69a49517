#include "kernels/experts/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "glm53/core/exl3.h"
#include "glm53/core/float_convert.h"
#include "kernels/common/cuda_check.h"
#include "tests/gpu/device_buffer.h"

namespace glm53::kernels {
namespace {

/// A random matrix: host form, its W, and its packed form on the device.
struct TestMatrix {
  TestMatrix(int in, int out, TrellisKind kind, std::mt19937& random, const std::vector<uint16_t>* suh = nullptr)
      : words(static_cast<size_t>(in) * out * kind.bits / 32) {
    for (uint32_t& w : words) w = static_cast<uint32_t>(random());
    matrix.name = "test";
    matrix.in = in;
    matrix.out = out;
    matrix.bits = kind.bits;
    matrix.codebook = static_cast<Exl3Codebook>(kind.codebook);
    matrix.order = kind.column_major != 0 ? Exl3TileOrder::kColumnMajor : Exl3TileOrder::kStandard;
    matrix.trellis = std::as_bytes(std::span<const uint32_t>(words));
    std::uniform_real_distribution<float> size(0.5F, 1.5F);
    const auto signed_size = [&](float scale) {
      return float_to_fp16((random() % 2 == 0 ? scale : -scale) * size(random));
    };
    for (int i = 0; i < in; ++i) matrix.suh.push_back(signed_size(1.0F));
    if (suh != nullptr) matrix.suh = *suh;
    for (int i = 0; i < out; ++i) matrix.svh.push_back(signed_size(1.0F / std::sqrt(static_cast<float>(in))));
    weight.resize(static_cast<size_t>(in) * out);
    glm53::exl3_dequantise(matrix, weight.data());

    device_words = std::make_unique<DeviceBuffer<uint32_t>>(words);
    packed = std::make_unique<DeviceBuffer<uint32_t>>(words.size());
    device_suh = std::make_unique<DeviceBuffer<uint16_t>>(matrix.suh);
    device_svh = std::make_unique<DeviceBuffer<uint16_t>>(matrix.svh);
    TrellisSource source;
    source.tiles = device_words->get();
    source.tile_columns = out / 16;
    exl3_pack(source, in, out, kind.bits, packed->get(), nullptr);
    record.words = packed->get();
    record.suh = reinterpret_cast<const __half*>(device_suh->get());
    record.svh = reinterpret_cast<const __half*>(device_svh->get());
    record.kind = kind;
  }

  std::vector<uint32_t> words;
  Exl3Matrix matrix;
  std::vector<float> weight;  // [in, out]
  std::unique_ptr<DeviceBuffer<uint32_t>> device_words, packed;
  std::unique_ptr<DeviceBuffer<uint16_t>> device_suh, device_svh;
  ExpertMatrix record;
};

struct TestExpert {
  std::unique_ptr<TestMatrix> gate, up, down;
};

/// Experts whose matrix m (0 gate, 1 up, 2 down) of expert e has the kind kinds(e, m).
struct TestBank {
  template <typename Kinds>
  TestBank(int experts, int hidden, int width, Kinds kinds, std::mt19937& random, bool shared_suh = false) {
    std::vector<ExpertRecord> host_records;
    for (int e = 0; e < experts; ++e) {
      TestExpert expert;
      expert.gate = std::make_unique<TestMatrix>(hidden, width, kinds(e, 0), random);
      expert.up = std::make_unique<TestMatrix>(hidden, width, kinds(e, 1), random,
                                               shared_suh ? &expert.gate->matrix.suh : nullptr);
      expert.down = std::make_unique<TestMatrix>(width, hidden, kinds(e, 2), random);
      if (shared_suh) expert.up->record.suh = expert.gate->record.suh;
      host_records.push_back({expert.gate->record, expert.up->record, expert.down->record});
      view.gate_up_kinds.push_back(kinds(e, 0));
      view.gate_up_kinds.push_back(kinds(e, 1));
      view.down_kinds.push_back(kinds(e, 2));
      list.push_back(std::move(expert));
    }
    records = std::make_unique<DeviceBuffer<ExpertRecord>>(host_records);
    view.records = records->get();
    view.experts = experts;
    view.hidden = hidden;
    view.width = width;
    view.limit = 1.5F;  // low enough to bite on test data
  }

  std::vector<TestExpert> list;
  std::unique_ptr<DeviceBuffer<ExpertRecord>> records;
  ExpertBankView view;
};

struct Rows {
  std::vector<uint16_t> x;       // [rows, hidden] bf16
  std::vector<float> shared;     // [rows, hidden]
  std::vector<int32_t> experts;  // [rows, topk]
  std::vector<float> weights;    // [rows, topk]
  int topk = 0;
  int hidden = 0;
  int count() const { return static_cast<int>(experts.size()) / topk; }
};

/// `popular`: that share of rows chooses experts 0..topk−1.
Rows random_rows(int rows, int hidden, int experts, int topk, double popular, std::mt19937& random) {
  Rows result;
  result.topk = topk;
  result.hidden = hidden;
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0.0F, 1.0F);
  for (int i = 0; i < rows * hidden; ++i) {
    result.x.push_back(float_to_bf16(normal(random)));
    result.shared.push_back(0.25F * normal(random));
  }
  std::vector<int32_t> ids(static_cast<size_t>(experts));
  for (int r = 0; r < rows; ++r) {
    std::iota(ids.begin(), ids.end(), 0);
    if (uniform(random) >= popular) std::shuffle(ids.begin(), ids.end(), random);
    result.experts.insert(result.experts.end(), ids.begin(), ids.begin() + topk);
    for (int c = 0; c < topk; ++c) result.weights.push_back(0.1F + uniform(random));
  }
  return result;
}

Rows pick(const Rows& all, const std::vector<int>& which) {
  Rows result;
  result.topk = all.topk;
  result.hidden = all.hidden;
  for (const int r : which) {
    const auto copy = [r](const auto& from, auto& to, int width) {
      to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(r) * width,
                from.begin() + static_cast<std::ptrdiff_t>(r + 1) * width);
    };
    copy(all.x, result.x, all.hidden);
    copy(all.shared, result.shared, all.hidden);
    copy(all.experts, result.experts, all.topk);
    copy(all.weights, result.weights, all.topk);
  }
  return result;
}

/// experts_forward on poisoned memory; fp32 results.
std::vector<float> run(const TestBank& bank, const Rows& rows, bool window) {
  const int count = rows.count();
  const DeviceBuffer<char> table_memory(route_tables_bytes(count, rows.topk, bank.view.experts));
  const RouteTables tables = route_tables_at(table_memory.get(), count, rows.topk, bank.view.experts);
  check_cuda(cudaMemcpy(tables.expert_of_slot, rows.experts.data(), rows.experts.size() * sizeof(int32_t),
                        cudaMemcpyHostToDevice),
             "cudaMemcpy");
  check_cuda(cudaMemcpy(tables.weight_of_slot, rows.weights.data(), rows.weights.size() * sizeof(float),
                        cudaMemcpyHostToDevice),
             "cudaMemcpy");
  group_slots(count, window, tables, nullptr);
  const DeviceBuffer<uint16_t> x(rows.x);
  const DeviceBuffer<float> shared(rows.shared);
  const DeviceBuffer<float> y(rows.shared.size());
  const DeviceBuffer<char> workspace(experts_workspace_bytes(bank.view, count, rows.topk));
  ExpertsCall call;
  call.x = reinterpret_cast<const __nv_bfloat16*>(x.get());
  call.shared_fp32 = shared.get();
  call.y_fp32 = y.get();
  call.rows = count;
  call.window = window;
  experts_forward(bank.view, tables, call, workspace.get(), nullptr);
  return y.read();
}

/// x [in] · W in fp64.
std::vector<double> multiply(const std::vector<double>& x, const TestMatrix& m) {
  std::vector<double> y(static_cast<size_t>(m.matrix.out), 0.0);
  for (int64_t k = 0; k < m.matrix.in; ++k) {
    for (int64_t n = 0; n < m.matrix.out; ++n) y[n] += x[k] * m.weight[k * m.matrix.out + n];
  }
  return y;
}

std::vector<double> reference_row(const TestBank& bank, const Rows& rows, int r) {
  std::vector<double> x(static_cast<size_t>(rows.hidden));
  std::vector<double> y(x.size());
  for (int i = 0; i < rows.hidden; ++i) {
    x[i] = bf16_to_float(rows.x[r * rows.hidden + i]);
    y[i] = rows.shared[r * rows.hidden + i];
  }
  const double limit = bank.view.limit;
  for (int c = 0; c < rows.topk; ++c) {
    const TestExpert& expert = bank.list[rows.experts[r * rows.topk + c]];
    std::vector<double> gate = multiply(x, *expert.gate);
    const std::vector<double> up = multiply(x, *expert.up);
    for (size_t i = 0; i < gate.size(); ++i) {
      const double g = std::min(gate[i], limit);
      gate[i] = g / (1.0 + std::exp(-g)) * std::clamp(up[i], -limit, limit);
    }
    const std::vector<double> result = multiply(gate, *expert.down);
    for (int i = 0; i < rows.hidden; ++i) y[i] += rows.weights[r * rows.topk + c] * result[i];
  }
  return y;
}

/// ‖got − want‖ / ‖want‖ over some rows; a NaN makes it NaN.
double relative_error(const TestBank& bank, const Rows& rows, const std::vector<float>& y, int step = 1) {
  double difference = 0.0;
  double size = 0.0;
  for (int r = 0; r < rows.count(); r += step) {
    const std::vector<double> want = reference_row(bank, rows, r);
    for (int i = 0; i < rows.hidden; ++i) {
      // The shared rows are no part of what is tested, so they do not count as size.
      const double routed = want[i] - rows.shared[r * rows.hidden + i];
      difference += (y[r * rows.hidden + i] - want[i]) * (y[r * rows.hidden + i] - want[i]);
      size += routed * routed;
    }
  }
  return std::sqrt(difference / size);
}

constexpr double kTolerance = 2e-3;

class ExpertsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
  std::mt19937 random{7};
};

TEST_F(ExpertsTest, DequantisesEveryKind) {
  const int in = 256;
  const int out = 384;
  for (int kind_index = 0; kind_index < 48; ++kind_index) {
    const TrellisKind kind{kind_index / 6 + 1, kind_index / 2 % 3, kind_index % 2};
    const TestMatrix m(in, out, kind, random);
    DequantiseRange range{0, out, 0, in, in};
    const DeviceBuffer<uint16_t> full(static_cast<size_t>(in) * out);
    exl3_dequantise(m.device_words->get(), m.record.suh, m.record.svh, kind, in, out, range,
                    reinterpret_cast<__half*>(full.get()), nullptr);
    const auto got = full.read();
    double largest = 0.0;
    for (const float w : m.weight) largest = std::max(largest, std::abs(double{w}));
    for (int n = 0; n < out; ++n) {
      for (int k = 0; k < in; ++k) {
        const double want = m.weight[k * out + n];
        ASSERT_NEAR(fp16_to_float(got[n * in + k]), want, std::abs(want) * 0x1p-10 + largest * 1e-6)
            << "K " << kind.bits << " codebook " << kind.codebook << " order " << kind.column_major;
      }
    }
    // A part of it, in bf16, among poison.
    range = {100, 200, 30, 150, 160};
    const DeviceBuffer<uint16_t> part(static_cast<size_t>(200) * 160);
    exl3_dequantise(m.device_words->get(), m.record.suh, m.record.svh, kind, in, out, range,
                    reinterpret_cast<__nv_bfloat16*>(part.get()), nullptr);
    const auto some = part.read();
    for (int n = 0; n < 200; ++n) {
      for (int k = 0; k < 150; ++k) {
        const double want = m.weight[(k + 30) * out + n + 100];
        ASSERT_NEAR(bf16_to_float(some[n * 160 + k]), want, std::abs(want) * 0x1p-8 + largest * 1e-6);
      }
      for (int k = 150; k < 160; ++k) ASSERT_EQ(some[n * 160 + k], 0xFFFF);
    }
  }
}

// Sixteen rows of one block of words must be the words of the right tiles: checked against the whole matrix's packing.
TEST_F(ExpertsTest, PacksAShard) {
  const int bits = 3;
  const TestMatrix whole(512, 256, {bits, 1, 0}, random);
  const DeviceBuffer<uint32_t> shard(256 * 128 * bits / 32);
  exl3_pack({whole.device_words->get(), 16, 16, 8}, 256, 128, bits, shard.get(), nullptr);
  const auto all = whole.packed->read();
  const auto some = shard.read();
  const size_t unit = 64 * bits;
  for (size_t column = 0; column < 8; ++column) {
    for (size_t row = 0; row < 2; ++row) {
      EXPECT_EQ(std::memcmp(&some[(column * 2 + row) * unit], &all[((column + 8) * 4 + row + 2) * unit], unit * 4), 0);
    }
  }
}

TEST_F(ExpertsTest, MatchesDoubleForEveryKind) {
  for (int kind_index = 0; kind_index < 48; ++kind_index) {
    const TrellisKind kind{kind_index / 6 + 1, kind_index / 2 % 3, kind_index % 2};
    const TestBank bank(
        4, 256, 256, [&](int, int) { return kind; }, random);
    const Rows rows = random_rows(24, 256, 4, 2, 0.5, random);
    EXPECT_LT(relative_error(bank, rows, run(bank, rows, true), 3), kTolerance)
        << "window, K " << kind.bits << " codebook " << kind.codebook << " order " << kind.column_major;
    EXPECT_LT(relative_error(bank, rows, run(bank, rows, false), 3), kTolerance)
        << "prompt, K " << kind.bits << " codebook " << kind.codebook << " order " << kind.column_major;
    const Rows one = pick(rows, {5});
    EXPECT_LT(relative_error(bank, one, run(bank, one, true)), kTolerance);
  }
}

TEST_F(ExpertsTest, MatchesDoubleAtOddShapes) {
  for (const auto& [hidden, width] :
       {std::pair{128, 128}, std::pair{384, 128}, std::pair{128, 640}, std::pair{896, 384}}) {
    for (const bool shared_suh : {false, true}) {
      const TestBank bank(
          5, hidden, width,
          [&](int, int m) {
            return TrellisKind{3 + m / 2, 1, 0};
          },
          random, shared_suh);
      for (const int count : {1, 8, 9, 16, 17, 33, 64}) {
        const Rows rows = random_rows(count, hidden, 5, 3, 0.3, random);
        EXPECT_LT(relative_error(bank, rows, run(bank, rows, true), 5), kTolerance) << hidden << " " << width;
      }
      const Rows rows = random_rows(200, hidden, 5, 3, 0.3, random);
      EXPECT_LT(relative_error(bank, rows, run(bank, rows, false), 7), kTolerance) << hidden << " " << width;
    }
  }
}

TEST_F(ExpertsTest, MatrixKindsMayDifferWithinALayer) {
  const auto kinds = [](int e, int m) { return TrellisKind{1 + (3 * e + m) % 8, (e + m) % 3, (e + m / 2) % 2}; };
  const TestBank bank(8, 256, 256, kinds, random);
  const Rows rows = random_rows(40, 256, 8, 2, 0.3, random);
  EXPECT_LT(relative_error(bank, rows, run(bank, rows, true)), kTolerance);
  EXPECT_LT(relative_error(bank, rows, run(bank, rows, false)), kTolerance);
}

// A row's bits depend neither on the rows beside it, their number and order, nor on how many share its experts.
TEST_F(ExpertsTest, RowsAreInvariant) {
  for (const TrellisKind kind :
       {TrellisKind{4, 1, 0}, TrellisKind{2, 1, 1}, TrellisKind{3, 2, 0}, TrellisKind{8, 0, 1}}) {
    const int hidden = 512;
    const TestBank bank(
        8, hidden, 384, [&](int, int) { return kind; }, random);
    const Rows rows = random_rows(300, hidden, 8, 2, 0.4, random);
    const std::vector<float> prompt = run(bank, rows, false);
    for (const int count : {1, 2, 5, 8, 9, 16, 24, 40, 64}) {
      for (const bool window : {true, false}) {
        std::vector<int> which(300);
        std::iota(which.begin(), which.end(), 0);
        std::shuffle(which.begin(), which.end(), random);
        which.resize(static_cast<size_t>(count));
        const std::vector<float> y = run(bank, pick(rows, which), window);
        for (int i = 0; i < count; ++i) {
          ASSERT_EQ(std::memcmp(&y[i * hidden], &prompt[which[i] * hidden], hidden * sizeof(float)), 0)
              << "K " << kind.bits << ", " << count << " rows, window " << window;
        }
      }
    }
  }
}

TEST_F(ExpertsTest, AddsTheSharedExpertRoundsOnceAndSkipsPadding) {
  const int hidden = 256;
  const int count = 6;
  const TestBank bank(
      8, hidden, 128,
      [](int, int) {
        return TrellisKind{4, 1, 0};
      },
      random);
  Rows rows = random_rows(count, hidden, 8, 2, 0.0, random);
  std::vector<uint16_t> shared_bits;
  for (float& v : rows.shared) {
    shared_bits.push_back(float_to_bf16(v));
    v = bf16_to_float(shared_bits.back());
  }
  const std::vector<float> want = run(bank, rows, true);
  const DeviceBuffer<char> table_memory(route_tables_bytes(count, 2, 8));
  const RouteTables tables = route_tables_at(table_memory.get(), count, 2, 8);
  rows.experts[4] = rows.experts[5] = -1;  // row 2 is padding
  check_cuda(cudaMemcpy(tables.expert_of_slot, rows.experts.data(), 4 * rows.experts.size(), cudaMemcpyHostToDevice),
             "cudaMemcpy");
  check_cuda(cudaMemcpy(tables.weight_of_slot, rows.weights.data(), 4 * rows.weights.size(), cudaMemcpyHostToDevice),
             "cudaMemcpy");
  group_slots(count, true, tables, nullptr);
  const DeviceBuffer<uint16_t> x(rows.x);
  const DeviceBuffer<uint16_t> shared(shared_bits);
  const DeviceBuffer<uint16_t> y(rows.x.size());
  const DeviceBuffer<char> workspace(experts_workspace_bytes(bank.view, count, 2));
  ExpertsCall call;
  call.x = reinterpret_cast<const __nv_bfloat16*>(x.get());
  call.shared_bf16 = reinterpret_cast<const __nv_bfloat16*>(shared.get());
  call.y_bf16 = reinterpret_cast<__nv_bfloat16*>(y.get());
  call.rows = count;
  experts_forward(bank.view, tables, call, workspace.get(), nullptr);
  const auto got = y.read();
  for (int i = 0; i < count * hidden; ++i) {
    ASSERT_EQ(got[i], i / hidden == 2 ? 0xFFFF : float_to_bf16(want[i])) << i;
  }
}

TEST_F(ExpertsTest, FullGeometry) {
  const TestBank bank(
      10, 4096, 2048,
      [](int, int) {
        return TrellisKind{4, 1, 0};
      },
      random);
  const Rows rows = random_rows(20, 4096, 10, 8, 0.2, random);
  const auto window = run(bank, rows, true);
  EXPECT_LT(relative_error(bank, rows, window, 19), kTolerance);
  EXPECT_EQ(run(bank, rows, false), window);
}

TEST(Experts, RefusesBadCalls) {
  ExpertBankView bank;
  bank.experts = 8;
  bank.hidden = 256;
  bank.width = 200;
  const RouteTables tables = route_tables_at(nullptr, 4, 2, 8);
  ExpertsCall call;
  call.rows = 1;
  EXPECT_THROW(experts_forward(bank, tables, call, nullptr, nullptr), std::invalid_argument);
  bank.width = 256;
  EXPECT_THROW(experts_forward(bank, tables, call, nullptr, nullptr), std::invalid_argument);
  EXPECT_THROW(exl3_pack({}, 100, 128, 4, nullptr, nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace glm53::kernels
