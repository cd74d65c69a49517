// One operation on two backends at once: the backend under test, and the CPU backend that judges it. Both hold the same
// weights (values that bf16 holds exactly, or fp32 where a backend keeps fp32) and get the same calls.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backends_under_test.h"
#include "glm53/core/float_convert.h"
#include "glm53/core/limits.h"
#include "glm53/core/tensor_stream.h"

namespace glm53::test {

/// The oracle of a case: fp32, itself held to golden values, or the CPU's serving mode, which rounds where the backend
/// under test rounds, so that little but the order of sums remains.
struct OperationCase {
  std::string name;
  BackendFactory tested;
  BackendFactory oracle;
  std::string problem;         ///< why `tested` cannot be used here; empty if it can
  bool same_rounding = false;  ///< the oracle is serving mode
  bool fp8_caches = false;     ///< latents and pool keys of `tested`, and of a serving oracle
  // What is worth running: embedding and mHC sites; whatever has dense projections and no paged cache; sparse
  // attention.
  bool rows = true;
  bool projections = true;
  bool attention = true;
};

inline BackendFactory cpu_factory(CpuMode mode, bool fp8_caches) {
  return [=](const Geometry& geometry) {
    CpuBackendOptions options;
    options.mode = mode;
    options.latents = fp8_caches ? LatentFormat::kFp8 : LatentFormat::kBf16;
    options.fp8_index = fp8_caches;
    return make_cpu_backend(geometry, options);
  };
}

/// Every backend that rounds, against fp32; a GPU against serving mode too.
inline std::vector<OperationCase> all_operation_cases() {
  const BackendFactory exact = cpu_factory(CpuMode::kFp32, false);
#ifdef GLM53_TEST_CUDA
  std::vector<OperationCase> cases;
  for (const BackendUnderTest& backend : backends_under_test()) {
    OperationCase test_case;
    test_case.tested = backend.make;
    test_case.problem = backend.problem;
    test_case.fp8_caches = backend.name == "cuda_fp8";
    test_case.rows = backend.name == "cuda_bf16";
    test_case.projections = !test_case.fp8_caches;
    test_case.attention = test_case.rows || test_case.fp8_caches;
    test_case.name = backend.name + "_to_serving";
    test_case.oracle = cpu_factory(CpuMode::kServing, test_case.fp8_caches);
    test_case.same_rounding = true;
    cases.push_back(test_case);
    if (!test_case.attention) continue;  // other formats of dense weights add no rounding: one oracle will do
    test_case.name = backend.name + "_to_fp32";
    test_case.oracle = exact;
    test_case.same_rounding = false;
    cases.push_back(test_case);
  }
  return cases;
#else
  return {{"cpu_bf16_to_fp32", cpu_factory(CpuMode::kServing, false), exact, "", false, false, true, true, true},
          {"cpu_fp8_to_fp32", cpu_factory(CpuMode::kServing, true), exact, "", false, true, false, false, true}};
#endif
}

/// The cases in which a kind of operation runs.
inline std::vector<OperationCase> operation_cases(bool OperationCase::*runs) {
  std::vector<OperationCase> cases = all_operation_cases();
  std::erase_if(cases, [runs](const OperationCase& test_case) { return !(test_case.*runs); });
  return cases;
}

inline std::string case_name(const testing::TestParamInfo<OperationCase>& info) { return info.param.name; }

// ---------------------------------------------------------------------------------------------------- weights

inline float to_bf16(float value) { return bf16_to_float(float_to_bf16(value)); }

/// Normal values that bf16 holds exactly.
inline std::vector<float> random_bf16(std::mt19937& random, int64_t count, float scale, float mean = 0.0F) {
  std::normal_distribution<float> normal(mean, scale);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = to_bf16(normal(random));
  return values;
}

/// A dense projection [out, in] of codes −7..7 times a power of two, a 7 in every group of 64 columns: bf16, fp8 with a
/// scale a row and 4-bit codes with a scale a group hold these values exactly, so that every dense format has the same
/// weights. `scale` is roughly their standard deviation.
inline std::vector<float> random_projection(std::mt19937& random, int64_t out, int64_t in, float scale) {
  constexpr float kCodeDeviation = 2.5F;
  std::normal_distribution<float> normal(0.0F, kCodeDeviation);
  const float unit = std::exp2(std::round(std::log2(scale / kCodeDeviation)));
  std::vector<float> values(static_cast<size_t>(out * in));
  for (float& value : values) value = unit * std::clamp(std::round(normal(random)), -7.0F, 7.0F);
  for (int64_t r = 0; r < out; ++r) {
    for (int64_t c = 0; c < in; c += 64) {
      const auto at = r * in + c + static_cast<int64_t>(random()) % std::min<int64_t>(64, in - c);
      values[static_cast<size_t>(at)] = random() % 2 == 0 ? 7.0F * unit : -7.0F * unit;
    }
  }
  return values;
}

/// Hands values to a backend, and keeps the views on them that it may read until finish(). The values are the caller's.
class Loader {
 public:
  explicit Loader(Backend& backend) : backend_(backend) {}

  /// values [Σ part_rows, in], one LinearPart for each entry of part_rows.
  Linear linear(LinearGroup group, const std::vector<float>& values, int64_t in,
                const std::vector<int64_t>& part_rows) {
    const HostTensor& stored = tensor({static_cast<int64_t>(values.size()) / in, in}, values);
    std::vector<LinearPart> parts;
    int64_t first = 0;
    for (const int64_t rows : part_rows) {
      parts.push_back({&stored, nullptr, {first, first + rows}, {0, in}, false});
      first += rows;
    }
    return backend_.load_linear("test", group, parts);
  }

  Linear linear(LinearGroup group, const std::vector<float>& values, int64_t in) {
    return linear(group, values, in, {static_cast<int64_t>(values.size()) / in});
  }

  LinearBatch linear_batch(LinearGroup group, const std::vector<LinearPart>& matrices) {
    return backend_.load_linear_batch("test", group, matrices);
  }

  Matrix matrix(const std::vector<float>& values, int64_t columns, Precision precision) {
    const auto rows = static_cast<int64_t>(values.size()) / columns;
    return backend_.load_matrix("test", {&tensor({rows, columns}, values), nullptr, {0, rows}, {0, columns}, false},
                                precision);
  }

  Vector vector(const std::vector<float>& values) {
    const auto count = static_cast<int64_t>(values.size());
    const std::array parts = {VectorPart{&tensor({count}, values), {0, count}}};
    return backend_.load_vector("test", parts);
  }

  ExpertBank experts(const std::vector<ExpertParts>& parts) { return backend_.load_experts("test", parts); }

  /// A view for linear_batch.
  const HostTensor& tensor(std::vector<int64_t> shape, const std::vector<float>& values) {
    HostTensor& stored = tensors_.emplace_back();
    stored.name = "test";
    stored.shape = std::move(shape);
    stored.bytes = std::as_bytes(std::span(values));
    return stored;
  }

  void finish() {
    backend_.finish_loading(
        [](std::vector<TensorRange> ranges, StagingRing&) { return std::make_unique<MemoryStream>(std::move(ranges)); },
        {});
  }

 private:
  /// Ranges of tensors that are in memory as they are.
  class MemoryStream final : public TensorStream {
   public:
    explicit MemoryStream(std::vector<TensorRange> ranges) : ranges_(std::move(ranges)) {}
    void next(const Use& use) override {
      const TensorRange& range = ranges_.at(next_++);
      use(range.tensor->bytes.subspan(range.first, range.size));
    }

   private:
    std::vector<TensorRange> ranges_;
    size_t next_ = 0;
  };

  Backend& backend_;
  std::deque<HostTensor> tensors_;
};

// ------------------------------------------------------------------------------------------------------ calls

/// Activations of the forward pass.
struct Buffers {
  Tensor streams, mix, x, y, hidden, logits;
};

using Operation = std::function<void(Backend&, const Buffers&)>;
/// Loads weights; returns what may run in a forward call. Called once a backend.
using LoadOperations = std::function<std::vector<Operation>(Loader&)>;

struct Piece {
  int slot = 0;
  int rows = 0;
  SegmentKind kind = SegmentKind::kPrompt;
};

struct Call {
  std::vector<Piece> pieces;
  std::vector<int32_t> ids;         ///< zeros if empty
  std::vector<int32_t> logit_rows;  ///< rows for which head runs
  int rows() const {
    int sum = 0;
    for (const Piece& piece : pieces) sum += piece.rows;
    return sum;
  }
};

struct PairOptions {
  int sequences = 13;
  int64_t context = 256;  ///< positions a sequence may have
  int max_rows = 256;
  /// The backend may record the operations; window calls are then replayed. One operation only.
  bool recorded = false;
};

/// Rows of both backends.
struct Rows {
  std::vector<float> got, want;  ///< [rows, width]
  int64_t width = 0;
};

class OperationPair {
 public:
  OperationPair(const OperationCase& test_case, const Geometry& geometry, const LoadOperations& load,
                const PairOptions& options = {})
      : geometry_(geometry), options_(options) {
    const int64_t pages = (options.context + kPageTokens - 1) / kPageTokens;
    std::vector<int32_t> all(static_cast<size_t>(pages * options.sequences));
    std::iota(all.begin(), all.end(), 0);
    std::ranges::shuffle(all, random_);
    for (int s = 0; s < options.sequences; ++s) {
      pages_.emplace_back(all.begin() + s * pages, all.begin() + (s + 1) * pages);
    }
    positions_.resize(static_cast<size_t>(options.sequences));
    const CachePlan plan{.sequences = options.sequences,
                         .pages = static_cast<int64_t>(all.size()),
                         .max_rows = options.max_rows,
                         .max_logit_rows = options.max_rows};
    for (auto& [side, factory] : {std::pair{&tested_, &test_case.tested}, std::pair{&oracle_, &test_case.oracle}}) {
      side->backend = (*factory)(geometry);
      Backend& backend = *side->backend;
      Loader loader(backend);
      side->operations = load(loader);
      loader.finish();
      backend.create_caches(plan);
      const int64_t hidden = geometry.hidden;
      side->buffers = {backend.create_activations("streams", 4 * hidden, Precision::kServing),
                       backend.create_activations("mix", 20, Precision::kFp32),
                       backend.create_activations("x", hidden, Precision::kServing),
                       backend.create_activations("y", hidden, Precision::kServing),
                       backend.create_logit_rows("hidden", hidden, Precision::kServing),
                       backend.create_logit_rows("logits", geometry.vocab, Precision::kFp32)};
      backend.prepare(
          [side] {
            for (const Operation& operation : side->operations) operation(*side->backend, side->buffers);
          },
          options.recorded);
      for (int s = 0; s < options.sequences; ++s) backend.reset_sequence(s);
    }
  }

  Backend& tested() { return *tested_.backend; }
  Backend& oracle() { return *oracle_.backend; }
  const std::vector<int32_t>& pages(int slot) const { return pages_[static_cast<size_t>(slot)]; }
  int64_t position(int slot) const { return positions_[static_cast<size_t>(slot)]; }

  /// One forward call with one of the operations; `outputs` are poisoned before. Afterwards: outputs hold numbers in
  /// the rows of the call, and poison in all others where the call was not replayed with padding.
  void run(const Call& call, const std::vector<Tensor Buffers::*>& outputs, size_t operation = 0) {
    for (Side* side : {&tested_, &oracle_}) run_on(*side, call, outputs, operation);
    for (const Piece& piece : call.pieces) {
      if (piece.kind == SegmentKind::kPrompt) positions_[static_cast<size_t>(piece.slot)] += piece.rows;
    }
  }

  /// The same on one backend, from empty sequences. For operations without state.
  void run_tested(const Call& call, const std::vector<Tensor Buffers::*>& outputs, size_t operation) {
    reset();
    run_on(tested_, call, outputs, operation);
  }
  void run_oracle(const Call& call, const std::vector<Tensor Buffers::*>& outputs, size_t operation) {
    reset();
    run_on(oracle_, call, outputs, operation);
  }

  void commit(int slot, int kept) {
    for (const Side* side : {&tested_, &oracle_}) side->backend->commit(slot, kept);
    positions_[static_cast<size_t>(slot)] += kept;
  }

  /// Empties all sequences.
  void reset() {
    for (int s = 0; s < options_.sequences; ++s) {
      tested_.backend->reset_sequence(s);
      oracle_.backend->reset_sequence(s);
    }
    std::ranges::fill(positions_, 0);
  }

  /// values [rows, width] on both backends.
  void write(Tensor Buffers::*buffer, const std::vector<float>& values) {
    for (const Side* side : {&tested_, &oracle_}) {
      const Tensor tensor = side->buffers.*buffer;
      side->backend->write_rows(tensor, 0, static_cast<int>(static_cast<int64_t>(values.size()) / tensor.width),
                                values);
    }
  }

  /// What the tested backend made becomes the oracle's too, so that an operation's error does not count for the next.
  void give_to_oracle(Tensor Buffers::*buffer, int rows) {
    const std::vector<float> values = read_side(tested_, buffer, rows);
    oracle_.backend->write_rows(oracle_.buffers.*buffer, 0, rows, values);
  }

  Rows read(Tensor Buffers::*buffer, int rows) const {
    return {read_side(tested_, buffer, rows), read_side(oracle_, buffer, rows), (tested_.buffers.*buffer).width};
  }

  Tensor tested_buffer(Tensor Buffers::*buffer) const { return tested_.buffers.*buffer; }
  Tensor oracle_buffer(Tensor Buffers::*buffer) const { return oracle_.buffers.*buffer; }

 private:
  struct Side {
    std::unique_ptr<Backend> backend;
    std::vector<Operation> operations;
    Buffers buffers;
  };

  static std::vector<float> read_side(const Side& side, Tensor Buffers::*buffer, int rows) {
    const Tensor tensor = side.buffers.*buffer;
    std::vector<float> values(static_cast<size_t>(rows * tensor.width));
    side.backend->read_rows(tensor, 0, rows, values);
    return values;
  }

  void run_on(Side& side, const Call& call, const std::vector<Tensor Buffers::*>& outputs, size_t operation) {
    for (const auto output : outputs) {
      const Tensor tensor = side.buffers.*output;
      side.backend->write_rows(
          tensor, 0, options_.max_rows,
          std::vector<float>(static_cast<size_t>(options_.max_rows * tensor.width), std::nanf("")));
    }
    std::vector<int32_t> ids = call.ids;
    ids.resize(static_cast<size_t>(call.rows()));
    std::vector<Segment> segments;
    int first_row = 0;
    for (const Piece& piece : call.pieces) {
      Segment segment;
      segment.slot = piece.slot;
      segment.first_position = position(piece.slot);
      segment.first_row = first_row;
      segment.rows = piece.rows;
      segment.kind = piece.kind;
      segment.pages = pages(piece.slot);
      segments.push_back(segment);
      first_row += piece.rows;
    }
    const Batch batch{ids, segments, call.logit_rows};
    const bool replayed = options_.recorded && side.backend->replay(batch);
    // Otherwise eager runs would be compared with themselves.
    const bool of_windows =
        std::ranges::all_of(segments, [](const Segment& segment) { return segment.kind == SegmentKind::kWindow; });
    if (options_.recorded && of_windows && side.backend->name() == "cuda" && segments.size() <= 8 && ids.size() <= 64) {
      ASSERT_TRUE(replayed) << "a call of " << ids.size() << " window rows is not recorded";
    }
    if (!replayed) {
      side.backend->begin_forward(batch);
      side.operations[operation](*side.backend, side.buffers);
      side.backend->end_forward();
    }
    for (const auto output : outputs) {
      const bool of_logits = output == &Buffers::hidden || output == &Buffers::logits;
      const size_t rows = of_logits ? call.logit_rows.size() : ids.size();
      const std::vector<float> values = read_side(side, output, options_.max_rows);
      const size_t width = values.size() / static_cast<size_t>(options_.max_rows);
      const auto end = values.begin() + static_cast<std::ptrdiff_t>(rows * width);
      const auto bad = std::find_if_not(values.begin(), end, [](float value) { return std::isfinite(value); });
      ASSERT_EQ(bad, end) << "row " << static_cast<size_t>(bad - values.begin()) / width << " of " << rows
                          << " is not written or not finite";
      if (replayed) continue;
      ASSERT_TRUE(std::all_of(end, values.end(), [](float value) { return std::isnan(value); }))
          << "a row beyond the call's " << rows << " is written";
    }
  }

  const Geometry geometry_;
  const PairOptions options_;
  std::mt19937 random_{11};
  std::vector<std::vector<int32_t>> pages_;  ///< [sequences]
  std::vector<int64_t> positions_;           ///< [sequences]
  Side tested_, oracle_;
};

// ------------------------------------------------------------------------------------------------- comparison

/// Largest ‖got − want‖ / ‖want‖ of a row; infinity where a value is not finite. Rows shorter than `share` of the
/// longest count as that long.
inline double worst_row(std::span<const float> got, std::span<const float> want, int64_t width, double share = 1e-6,
                        const std::vector<bool>& skip = {}) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  const size_t rows = want.size() / static_cast<size_t>(width);
  std::vector<double> errors(rows);
  std::vector<double> norms(rows);
  for (size_t i = 0; i < want.size(); ++i) {
    const size_t row = i / static_cast<size_t>(width);
    errors[row] += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norms[row] += std::pow(static_cast<double>(want[i]), 2);
  }
  const double longest = std::sqrt(std::ranges::max(norms));
  double worst = 0.0;
  for (size_t row = 0; row < rows; ++row) {
    if (!skip.empty() && skip[row]) continue;
    const double error = std::sqrt(errors[row]) / std::max({std::sqrt(norms[row]), share * longest, 1e-30});
    if (!std::isfinite(error)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, error);
  }
  return worst;
}

/// Largest |got − want| as a share of the largest |want| of all rows.
inline double worst_value(std::span<const float> got, std::span<const float> want, int64_t width,
                          const std::vector<bool>& skip) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double error = 0.0;
  double largest = 1e-30;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(want[i])));
    if (skip[i / static_cast<size_t>(width)]) continue;
    const double difference = std::abs(static_cast<double>(got[i]) - want[i]);
    if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
    error = std::max(error, difference);
  }
  return error / largest;
}

/// Largest |got − want| / (|want| + share · the row's largest |want|): elements that nearly cancel have the errors of
/// the sums they come from.
inline double worst_element(std::span<const float> got, std::span<const float> want, int64_t width, double share) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double worst = 0.0;
  for (size_t first = 0; first < want.size(); first += static_cast<size_t>(width)) {
    const auto row = want.subspan(first, static_cast<size_t>(width));
    double largest = 0.0;
    for (const float value : row) largest = std::max(largest, std::abs(static_cast<double>(value)));
    for (size_t i = 0; i < row.size(); ++i) {
      const double size = std::abs(static_cast<double>(row[i])) + share * largest + 1e-30;
      const double error = std::abs(static_cast<double>(got[first + i]) - row[i]) / size;
      if (!std::isfinite(error)) return std::numeric_limits<double>::infinity();
      worst = std::max(worst, error);
    }
  }
  return worst;
}

/// Values that are not the same.
inline size_t unequal(std::span<const float> got, std::span<const float> want) {
  size_t count = got.size() == want.size() ? 0 : want.size();
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) count += got[i] == want[i] ? 0 : 1;
  return count;
}

/// Limits of an operation's error against fp32, and against an oracle that rounds at the same points.
struct Tolerance {
  double fp32;
  double same_rounding;
  double of(const OperationCase& test_case) const { return test_case.same_rounding ? same_rounding : fp32; }
};

class OperationTest : public testing::TestWithParam<OperationCase> {
 protected:
  void SetUp() override {
    if (!GetParam().problem.empty()) GTEST_SKIP() << "no CUDA device: " << GetParam().problem;
  }
  double limit(const Tolerance& tolerance) const { return tolerance.of(GetParam()); }

  std::mt19937 random_{7};
};

// ----------------------------------------------------------------------------------------------------- shapes

/// One layer of each kind, of sizes that every backend takes.
inline Geometry operation_geometry() {
  Geometry g;
  g.vocab = 64;
  g.hidden = 256;
  g.layers = 1;
  g.attention = {AttentionKind::kLinear};
  g.mlp = {MlpKind::kDense};
  g.max_positions = 4096;
  g.kda_heads = 1;
  g.mla_heads = 1;
  g.q_lora = 128;
  g.latent = 512;
  g.qk_dim = 128;
  g.v_dim = 128;
  g.index_heads = 2;
  g.index_dim = 128;
  g.index_topk = 64;
  g.dense_intermediate = 128;
  g.moe_intermediate = 128;
  g.experts = 8;
  g.experts_per_token = 2;
  g.routed_scaling = 2.5F;
  return g;
}

/// Rows of calls whose operation keeps no state: one prompt, windows of ragged lengths, and both mixed.
inline std::vector<Call> stateless_calls() {
  std::vector<Call> calls;
  for (const int rows : {1, 2, 15, 16, 17, 63, 64, 65, 200}) {
    calls.push_back({{{0, rows, SegmentKind::kPrompt}}, {}, {}});
    Call windows;
    Call mixed;
    int slot = 0;
    for (int left = rows; left > 0; ++slot) {
      const int count = std::min({left, 16 - slot % 2, kMaxWindowRows});
      windows.pieces.push_back({slot, count, SegmentKind::kWindow});
      mixed.pieces.push_back({slot, count, slot % 3 == 1 ? SegmentKind::kPrompt : SegmentKind::kWindow});
      left -= count;
    }
    calls.push_back(windows);
    if (slot > 1) calls.push_back(mixed);
  }
  return calls;
}

/// Rows [rows, width] among which are zero rows, rows of −0, equal rows and rows thirty times as large.
inline std::vector<float> adversarial_rows(std::mt19937& random, int rows, int64_t width) {
  std::vector<float> values = random_bf16(random, rows * width, 1.0F);
  for (int r = 0; r < rows; ++r) {
    const auto row = std::span(values).subspan(static_cast<size_t>(r * width), static_cast<size_t>(width));
    if (r % 16 == 3) std::ranges::fill(row, 0.0F);
    if (r % 16 == 5) std::ranges::fill(row, -0.0F);
    if (r % 16 == 7) {
      for (float& value : row) value *= 32.0F;
    }
    if (r % 16 == 9) std::copy_n(row.data() - width, width, row.begin());
    if (r % 16 == 11) {
      for (float& value : row) value *= 0x1p-12F;
    }
  }
  return values;
}

}  // namespace glm53::test
