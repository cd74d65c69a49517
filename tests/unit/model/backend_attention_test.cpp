// The operations with sequence state, KDA and sparse attention, on the backends of this program against the CPU
// (operation_pair.h): prompts and windows of several sequences in one call, windows of which fewer rows are kept, pages
// in scattered order. After every call the rows are compared, and what the caches hold for the calls to come.
#include <gtest/gtest.h>

#include "operation_pair.h"

namespace glm53::test {
namespace {

/// Of a row's length. Spec 70 §10 gives 5e-3 for KDA rows and 2e-3 for states, NMSE 8e-4 (2.9e-2 of the length) for fp8
/// latents and 2e-2 of the largest value for attention, all from equal bf16 inputs: the second figures hold to them.
/// Against fp32 the roundings of the projections come on top, and all of e4m3's.
constexpr Tolerance kKdaRows = {1e-2, 5e-3};  // all rows of a call together
constexpr Tolerance kKdaRow = {0.1, 2e-2};  // each: one that hardly meets its state is rounding made large by the norm
constexpr Tolerance kKdaState = {2.5e-2, 2e-3};  // a decay's logit may be 100, and its rounding 0.2
constexpr Tolerance kConvRows = {3e-3, 1e-3};
constexpr Tolerance kLatents = {4e-3, 2e-3};
constexpr Tolerance kFp8Latents = {3.5e-2, 2e-2};
constexpr Tolerance kPoolKeys = {8e-3, 4e-3};
constexpr Tolerance kFp8PoolKeys = {4e-2, 3e-2};
constexpr Tolerance kAttention = {1e-2, 1e-2};
constexpr Tolerance kFp8Attention = {0.1, 1e-2};
/// Of the largest value of a call, where scores of up to ±60 move by a share of their size. The CPU's bf16 is 3.7e-2
/// away from fp32; the spec's 2e-2 is asked of a GPU against serving mode, which a CPU build does not run. With fp8
/// caches the softmax picks other keys than in fp32 (0.31 on the CPU), which judges nothing: there serving mode alone
/// is compared with.
constexpr Tolerance kLargeScores = {5e-2, 2e-2};

/// Where the oracle rounds at the same points, an fp8 row differs in few codes (one alone may be 1/50 of its length).
constexpr size_t kCodesApart = 50;  ///< one code in so many, and two

/// Pool scores closer than this share of Σ_h |w_h|·|q_h|·|K| may change places by rounding.
constexpr double kScoreMargin = 1.5e-3;
constexpr double kFp8ScoreMargin = 1e-2;

constexpr auto kPrompt = SegmentKind::kPrompt;
constexpr auto kWindow = SegmentKind::kWindow;

struct Step {
  std::vector<Piece> pieces;
  std::vector<std::pair<int, int>> kept;  ///< (slot, rows) to commit after the call
};

/// Five sequences: first rows of 200, 1, 17 and 63; windows beside prompts; windows kept whole, in part and not at all;
/// prompts after windows; windows of 65 rows together; single rows.
const std::vector<Step>& steps() {
  static const std::vector<Step> kSteps = {
      {{{0, 200, kPrompt}, {1, 1, kPrompt}, {2, 17, kPrompt}, {3, 63, kPrompt}}, {}},
      {{{1, 15, kPrompt}, {0, 16, kWindow}, {3, 2, kPrompt}, {2, 1, kWindow}}, {{0, 5}, {2, 1}}},
      {{{0, 3, kWindow}, {1, 2, kWindow}, {2, 16, kWindow}, {3, 16, kWindow}, {4, 15, kWindow}},
       {{0, 0}, {1, 2}, {2, 7}, {3, 16}, {4, 15}}},
      {{{0, 65, kPrompt}, {2, 64, kPrompt}, {4, 1, kPrompt}, {1, 16, kPrompt}}, {}},
      {{{0, 1, kWindow}}, {{0, 1}}},
      {{{4, 13, kWindow}, {3, 13, kWindow}, {2, 13, kWindow}, {1, 13, kWindow}, {0, 13, kWindow}},
       {{0, 13}, {1, 1}, {2, 0}, {3, 6}, {4, 12}}},
      {{{1, 2, kWindow}, {2, 1, kWindow}}, {{1, 2}, {2, 1}}},
  };
  return kSteps;
}
constexpr int kSequences = 5;

class BackendKda : public OperationTest {};
class BackendSparseAttention : public OperationTest {};

INSTANTIATE_TEST_SUITE_P(Backends, BackendKda, testing::ValuesIn(operation_cases(&OperationCase::projections)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Backends, BackendSparseAttention,
                         testing::ValuesIn(operation_cases(&OperationCase::attention)), case_name);

// ---------------------------------------------------------------------------------------------------------- KDA

struct KdaShape {
  int hidden, heads;
  int64_t gate_rank;
  int first_gate;  ///< gates of head h are of kind (h + first_gate) % 3: free, at the lower bound, at 0
  bool recorded;
};

struct KdaValues {
  KdaValues(std::mt19937& random, const KdaShape& shape) {
    const int64_t heads = shape.heads;
    const int64_t width = heads * 128;
    const float scale = 1.0F / std::sqrt(static_cast<float>(shape.hidden));
    parts = {width, width, width, heads, shape.gate_rank, shape.gate_rank};
    input = random_projection(random, 3 * width, shape.hidden, scale);
    conv = random_bf16(random, 3 * width * 4, 0.5F);
    // Three quarters of a key's weights are the query's, so that reading a state does not cancel to what rounding left.
    const auto resemble = [&random](std::vector<float>& values, int64_t part, int64_t group) {
      for (int64_t i = 0; i < part; i += group) {
        if (random() % 4 != 0) std::copy_n(values.begin() + i, group, values.begin() + part + i);
      }
    };
    resemble(input, width * shape.hidden, 64);
    resemble(conv, width * 4, 1);
    for (int64_t h = 0; h < heads; ++h) {
      // β in between, and at both ends.
      const std::vector<float> beta = random_projection(random, 1, shape.hidden, h % 2 == 0 ? scale : 24.0F * scale);
      input.insert(input.end(), beta.begin(), beta.end());
    }
    const std::vector<float> low = random_projection(random, 2 * shape.gate_rank, shape.hidden, scale);
    input.insert(input.end(), low.begin(), low.end());
    const float rank_scale = 1.0F / std::sqrt(static_cast<float>(shape.gate_rank));
    forget_up = random_projection(random, width, shape.gate_rank, rank_scale);
    gate_up = random_projection(random, width, shape.gate_rank, rank_scale);
    output = random_projection(random, shape.hidden, width, 1.0F / std::sqrt(static_cast<float>(width)));
    a_log = random_bf16(random, heads, 0.5F);
    for (int64_t h = 0; h < heads; ++h) {
      const auto kind = static_cast<int>(h + shape.first_gate) % 3;
      const float mean = kind == 0 ? -2.0F : kind == 1 ? 30.0F : -30.0F;
      const std::vector<float> bias = random_bf16(random, 128, 1.0F, mean);
      dt_bias.insert(dt_bias.end(), bias.begin(), bias.end());
    }
    output_norm = random_bf16(random, 128, 0.2F, 1.0F);
  }

  KdaWeights load(Loader& loader, const KdaShape& shape, int kda_index) const {
    KdaWeights weights;
    weights.kda_index = kda_index;
    weights.heads = shape.heads;
    weights.gate_rank = shape.gate_rank;
    weights.input = loader.linear(LinearGroup::kKda, input, shape.hidden, parts);
    weights.forget_up = loader.linear(LinearGroup::kKda, forget_up, shape.gate_rank);
    weights.gate_up = loader.linear(LinearGroup::kKda, gate_up, shape.gate_rank);
    weights.output = loader.linear(LinearGroup::kKda, output, shape.heads * int64_t{128});
    weights.conv = loader.vector(conv);
    weights.a_log = loader.vector(a_log);
    weights.dt_bias = loader.vector(dt_bias);
    weights.output_norm = loader.vector(output_norm);
    return weights;
  }

  std::vector<int64_t> parts;
  std::vector<float> input, forget_up, gate_up, output, conv, a_log, dt_bias, output_norm;
};

TEST_P(BackendKda, kda) {
  for (const KdaShape& shape : {KdaShape{256, 1, 128, 0, true},
                                {256, 1, 64, 1, false},
                                {512, 1, 128, 2, true},
                                {768, 3, 128, 0, false},
                                {256, 16, 32, 1, true},
                                {512, 17, 128, 2, false}}) {
    SCOPED_TRACE("hidden " + std::to_string(shape.hidden) + ", " + std::to_string(shape.heads) + " heads, gates " +
                 std::to_string(shape.first_gate));
    Geometry g = operation_geometry();
    g.hidden = shape.hidden;
    g.kda_heads = shape.heads;
    g.layers = 2;
    g.attention = {AttentionKind::kLinear, AttentionKind::kLinear};
    g.mlp = {MlpKind::kDense, MlpKind::kDense};
    const KdaValues values(random_, shape);
    OperationPair pair(GetParam(), g,
                       [&](Loader& loader) -> std::vector<Operation> {
                         const KdaWeights weights = values.load(loader, shape, 1);
                         return {[weights](Backend& device, const Buffers& b) { device.kda(weights, b.x, b.y); }};
                       },
                       {.sequences = kSequences, .context = 384, .max_rows = 288, .recorded = shape.recorded});
    for (size_t s = 0; s < steps().size(); ++s) {
      SCOPED_TRACE("step " + std::to_string(s));
      const Call call{steps()[s].pieces, {}, {}};
      pair.write(&Buffers::x, adversarial_rows(random_, call.rows(), g.hidden));
      pair.run(call, {&Buffers::y});
      for (const auto& [slot, kept] : steps()[s].kept) pair.commit(slot, kept);
      const Rows y = pair.read(&Buffers::y, call.rows());
      EXPECT_LE(worst_row(y.got, y.want, y.width * call.rows()), limit(kKdaRows));
      EXPECT_LE(worst_row(y.got, y.want, y.width), limit(kKdaRow));
      for (int slot = 0; slot < kSequences; ++slot) {
        SCOPED_TRACE("slot " + std::to_string(slot));
        // A head's state is a row. Heads that have just forgotten hold next to nothing.
        EXPECT_LE(
            worst_row(pair.tested().read_kda_state(slot, 1), pair.oracle().read_kda_state(slot, 1), 128 * 128, 1e-2),
            limit(kKdaState));
        EXPECT_LE(worst_row(pair.tested().read_conv_state(slot, 1), pair.oracle().read_conv_state(slot, 1),
                            3 * 128 * shape.heads),
                  limit(kConvRows));
        EXPECT_EQ(pair.tested().read_kda_state(slot, 0), pair.oracle().read_kda_state(slot, 0)) << "the other layer";
      }
    }
  }
}

// ------------------------------------------------------------------------------------------- sparse attention

/// How the scores of the pools of a context lie.
enum class Landscape {
  kSpread,  ///< all apart
  kTies,    ///< a sixth apart, the others below 0 for every head, where relu makes them equal: the lowest pools win
};

struct SparseShape {
  int hidden, heads, q_lora, qk_dim, v_dim, index_heads, kpool, topk;
  Landscape landscape;
  bool recorded = false;
  float query_scale = 1.0F;
};

/// Random weights, in which the indexer has a plan: x[0] is constant and makes all index queries point along one
/// direction; x[1] and x[2] are cosine and sine of the angle between it and the token's index key.
struct SparseValues {
  SparseValues(std::mt19937& random, const SparseShape& s) : shape(s) {
    const float scale = 1.0F / std::sqrt(static_cast<float>(s.hidden));
    const int64_t q_lora = s.q_lora;
    latents = random_bf16(random, (q_lora + 512) * s.hidden, scale);
    std::fill_n(latents.begin(), s.hidden, 0.0F);
    latents[0] = 4.0F;  // q_a[0] = 16, far from the others
    query_norm = random_bf16(random, q_lora, 0.1F, 1.0F);
    latent_norm = random_bf16(random, 512, 0.2F, 1.0F);
    query_up = random_bf16(random, int64_t{s.heads} * s.qk_dim * q_lora, 0.15F * s.query_scale);
    for (int64_t r = 0; r < int64_t{s.heads} * s.qk_dim; ++r) query_up[static_cast<size_t>(r * q_lora)] *= 0.0625F;
    key_value = random_bf16(random, int64_t{s.heads} * (s.qk_dim + s.v_dim) * 512, 1.0F / std::sqrt(512.0F));
    output = random_bf16(random, int64_t{s.hidden} * s.heads * s.v_dim,
                         1.0F / std::sqrt(static_cast<float>(s.heads * s.v_dim)));

    const std::vector<float> along = random_bf16(random, 128, 0.5F);
    const std::vector<float> across = random_bf16(random, 128, 0.5F);
    index_query_up = random_bf16(random, int64_t{s.index_heads} * 128 * q_lora, 0.02F);
    for (int64_t r = 0; r < s.index_heads * 128; ++r) {
      index_query_up[static_cast<size_t>(r * q_lora)] = along[static_cast<size_t>(r % 128)];
    }
    const int64_t rows = 128 + 128 + s.index_heads;
    index_input = random_bf16(random, rows * s.hidden, 0.02F);
    for (int64_t r = 0; r < 128; ++r) {
      index_input[static_cast<size_t>(r * s.hidden)] = 0.0F;
      index_input[static_cast<size_t>(r * s.hidden + 1)] = along[static_cast<size_t>(r)];
      index_input[static_cast<size_t>(r * s.hidden + 2)] = across[static_cast<size_t>(r)];
    }
    for (int64_t h = 0; h < s.index_heads; ++h) {
      index_input[static_cast<size_t>((256 + h) * s.hidden)] = h % 4 == 3 ? -0.25F : 1.0F;
    }
    index_key_norm = random_bf16(random, 128, 0.05F, 1.0F);
    index_key_bias = random_bf16(random, 128, 0.02F);
    pool_position = random_bf16(random, int64_t{s.kpool} * 128, 0.5F);
  }

  SparseAttentionWeights load(Loader& loader, int sparse_index) const {
    const int64_t head_rows = shape.qk_dim + shape.v_dim;
    SparseAttentionWeights w;
    w.sparse_index = sparse_index;
    w.heads = shape.heads;
    w.latents = loader.linear(LinearGroup::kMla, latents, shape.hidden, {shape.q_lora, 512});
    w.query_norm = loader.vector(query_norm);
    w.latent_norm = loader.vector(latent_norm);
    w.query_up = loader.linear(LinearGroup::kMla, query_up, shape.q_lora);
    const HostTensor& stored = loader.tensor({shape.heads * head_rows, 512}, key_value);
    std::vector<LinearPart> keys;
    std::vector<LinearPart> value_rows;
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t first = h * head_rows;
      keys.push_back({&stored, nullptr, {first, first + shape.qk_dim}, {0, 512}, true});
      value_rows.push_back({&stored, nullptr, {first + shape.qk_dim, first + head_rows}, {0, 512}, false});
    }
    w.key_absorb = loader.linear_batch(LinearGroup::kKvB, keys);
    w.value_up = loader.linear_batch(LinearGroup::kKvB, value_rows);
    w.output = loader.linear(LinearGroup::kMla, output, int64_t{shape.heads} * shape.v_dim);
    w.index_query_up = loader.linear(LinearGroup::kIndexer, index_query_up, shape.q_lora);
    w.index_input = loader.linear(LinearGroup::kIndexer, index_input, shape.hidden, {128, 128, shape.index_heads});
    w.index_key_norm = loader.vector(index_key_norm);
    w.index_key_bias = loader.vector(index_key_bias);
    w.pool_position = loader.vector(pool_position);
    return w;
  }

  /// Row of a token at `position`.
  std::vector<float> row(std::mt19937& random, int64_t position) const {
    std::vector<float> x = random_bf16(random, shape.hidden, 1.0F);
    const int64_t pool = position / shape.kpool;
    const double part = std::fmod(static_cast<double>(pool + 1) * 0.6180339887498949, 1.0);  // evenly spread over pools
    double cosine = 0.05 + 0.93 * part;
    if (shape.landscape == Landscape::kTies) cosine = pool % 6 == 1 ? 0.4 + 0.55 * part : -0.5;
    x[0] = 4.0F;
    x[1] = to_bf16(static_cast<float>(4.0 * cosine));
    x[2] = to_bf16(static_cast<float>(4.0 * std::sqrt(1.0 - cosine * cosine)));
    for (size_t i = 3; i < x.size(); i += 17) x[i] = -0.0F;
    return x;
  }

  SparseShape shape;
  std::vector<float> latents, query_norm, latent_norm, query_up, key_value, output;
  std::vector<float> index_query_up, index_input, index_key_norm, index_key_bias, pool_position;
};

/// Matrix rows [first, first + rows) of `weight` [.., columns] times x, in double.
std::vector<double> product(const std::vector<float>& weight, int64_t first, int64_t rows, std::span<const double> x) {
  std::vector<double> y(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    const float* w = weight.data() + (first + r) * static_cast<int64_t>(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[static_cast<size_t>(r)] += w[i] * x[i];
  }
  return y;
}

/// By how much the last selected pool beats the first that is not, as a share of Σ_h |w_h|·|q_h|·|K|; 0 at a tie and
/// infinite where all are selected. `keys` [pools][128] of the pools that the row may select.
double selection_margin(const SparseValues& values, std::span<const float> row,
                        const std::vector<std::vector<float>>& keys) {
  const SparseShape& s = values.shape;
  const auto keep = static_cast<size_t>(s.topk / s.kpool);
  if (keys.size() <= keep) return std::numeric_limits<double>::infinity();
  const std::vector<double> x(row.begin(), row.end());
  std::vector<double> low = product(values.latents, 0, s.q_lora, x);
  double squares = 0.0;
  for (const double v : low) squares += v * v;
  const double norm = 1.0 / std::sqrt(squares / s.q_lora + 1e-5);
  for (size_t i = 0; i < low.size(); ++i) low[i] *= norm * values.query_norm[i];
  const std::vector<double> query = product(values.index_query_up, 0, s.index_heads * 128, low);
  const std::vector<double> weight = product(values.index_input, 256, s.index_heads, x);
  std::vector<double> scores;
  double unit = 0.0;
  for (const std::vector<float>& key : keys) {
    double score = 0.0;
    double size = 0.0;
    double key_squares = 0.0;
    for (const float k : key) key_squares += static_cast<double>(k) * k;
    for (int h = 0; h < s.index_heads; ++h) {
      double dot = 0.0;
      double query_squares = 0.0;
      for (size_t c = 0; c < 128; ++c) {
        const double q = query[static_cast<size_t>(h) * 128 + c];
        dot += q * key[c];
        query_squares += q * q;
      }
      score += weight[static_cast<size_t>(h)] * std::max(dot, 0.0);
      size += std::abs(weight[static_cast<size_t>(h)]) * std::sqrt(query_squares);
    }
    scores.push_back(score);
    unit = std::max(unit, size * std::sqrt(key_squares));
  }
  std::ranges::sort(scores, std::greater());
  const double margin = scores[keep - 1] - scores[keep];
  return margin == 0.0 ? 0.0 : margin / unit;
}

/// x · H / √128: how fp8 pool keys are stored. Its own inverse.
std::vector<float> rotated(std::vector<float> x) {
  for (size_t stride = 1; stride < x.size(); stride *= 2) {
    for (size_t i = 0; i < x.size(); ++i) {
      if ((i & stride) != 0) continue;
      const float sum = x[i] + x[i + stride];
      x[i + stride] = x[i] - x[i + stride];
      x[i] = sum;
    }
  }
  for (float& value : x) value /= std::sqrt(static_cast<float>(x.size()));
  return x;
}

class SparseRun {
 public:
  SparseRun(const OperationCase& test_case, std::mt19937& random, const SparseShape& shape, int64_t context,
            int max_rows)
      : case_(test_case), random_(random), values_(random, shape), pair_(make(context, max_rows)) {}

  void step(const Step& step) {
    const Call call{step.pieces, {}, {}};
    std::vector<float> x;
    for (const Piece& piece : call.pieces) {
      for (int i = 0; i < piece.rows; ++i) {
        const int64_t position = pair_.position(piece.slot) + i;
        std::vector<float> row = values_.row(random_, position);
        if (position % 23 == 22) std::ranges::fill(row, position % 2 == 0 ? 0.0F : -0.0F);
        x.insert(x.end(), row.begin(), row.end());
      }
    }
    const std::vector<int64_t> before = positions();
    pair_.write(&Buffers::x, x);
    pair_.run(call, {&Buffers::y});
    if (testing::Test::HasFatalFailure()) return;

    // Margins and caches, before a commit hides rows.
    std::vector<bool> skip;
    const auto hidden = static_cast<size_t>(values_.shape.hidden);
    for (const Piece& piece : call.pieces) {
      const int64_t first = before[static_cast<size_t>(piece.slot)];
      expect_caches(piece.slot, first, first + piece.rows);
      std::vector<std::vector<float>> keys;
      for (int i = 0; i < piece.rows; ++i) {
        const int64_t pools = (first + i + 1) / values_.shape.kpool;
        while (static_cast<int64_t>(keys.size()) < pools) {
          keys.push_back(oracle_key(piece.slot, static_cast<int64_t>(keys.size())));
        }
        const double margin = selection_margin(values_, std::span(x).subspan(skip.size() * hidden, hidden), keys);
        skip.push_back(margin > 0.0 && margin < (case_.fp8_caches ? kFp8ScoreMargin : kScoreMargin));
        selecting_ += std::isfinite(margin) ? 1 : 0;
      }
    }
    for (const auto& [slot, kept] : step.kept) pair_.commit(slot, kept);
    left_out_ += static_cast<int>(std::ranges::count(skip, true));
    const Rows y = pair_.read(&Buffers::y, call.rows());
    if (values_.shape.query_scale > 1.0F) {
      const double error = worst_value(y.got, y.want, y.width, skip);
      EXPECT_TRUE(std::isfinite(error));
      if (case_.same_rounding || !case_.fp8_caches) {
        EXPECT_LE(error, kLargeScores.of(case_));
      }
      return;
    }
    const Tolerance& tolerance = case_.fp8_caches ? kFp8Attention : kAttention;
    EXPECT_LE(worst_row(y.got, y.want, y.width, 1e-6, skip), tolerance.of(case_));
  }

  int selecting() const { return selecting_; }  ///< rows that chose among pools
  int left_out() const { return left_out_; }    ///< those of them that rounding might turn

 private:
  OperationPair make(int64_t context, int max_rows) {
    const SparseShape& s = values_.shape;
    Geometry g = operation_geometry();
    g.hidden = s.hidden;
    g.layers = 2;
    g.attention = {AttentionKind::kSparse, AttentionKind::kSparse};
    g.mlp = {MlpKind::kDense, MlpKind::kDense};
    g.mla_heads = s.heads;
    g.q_lora = s.q_lora;
    g.qk_dim = s.qk_dim;
    g.v_dim = s.v_dim;
    g.index_heads = s.index_heads;
    g.index_kpool = s.kpool;
    g.index_topk = s.topk;
    return OperationPair(
        case_, g,
        [&](Loader& loader) -> std::vector<Operation> {
          const SparseAttentionWeights weights = values_.load(loader, 1);
          return {[weights](Backend& device, const Buffers& b) { device.sparse_attention(weights, b.x, b.y); }};
        },
        {.sequences = kSequences, .context = context, .max_rows = max_rows, .recorded = s.recorded});
  }

  std::vector<int64_t> positions() const {
    std::vector<int64_t> all;
    for (int slot = 0; slot < kSequences; ++slot) all.push_back(pair_.position(slot));
    return all;
  }

  /// Not rotated.
  std::vector<float> oracle_key(int slot, int64_t pool) {
    const std::vector<float> key = pair_.oracle().read_pool_key(1, pair_.pages(slot), pool);
    return case_.fp8_caches && case_.same_rounding ? rotated(key) : key;
  }

  /// Latents of positions [first, end) and keys of the pools that they complete.
  void expect_caches(int slot, int64_t first, int64_t end) {
    const std::vector<int32_t>& pages = pair_.pages(slot);
    std::vector<float> got;
    std::vector<float> want;
    const auto append = [](std::vector<float>& all, const std::vector<float>& more) {
      all.insert(all.end(), more.begin(), more.end());
    };
    for (int64_t p = first; p < end; ++p) {
      append(got, pair_.tested().read_latent(1, pages, p));
      append(want, pair_.oracle().read_latent(1, pages, p));
    }
    EXPECT_LE(worst_row(got, want, 512), (case_.fp8_caches ? kFp8Latents : kLatents).of(case_)) << "slot " << slot;
    expect_few_codes_apart(got, want);
    got.clear();
    want.clear();
    for (int64_t pool = first / values_.shape.kpool; pool < end / values_.shape.kpool; ++pool) {
      append(got, pair_.tested().read_pool_key(1, pages, pool));
      const std::vector<float> key = pair_.oracle().read_pool_key(1, pages, pool);
      append(want, case_.fp8_caches && !case_.same_rounding ? rotated(key) : key);
    }
    if (want.empty()) return;
    expect_few_codes_apart(got, want);
    EXPECT_LE(worst_row(got, want, 128), (case_.fp8_caches ? kFp8PoolKeys : kPoolKeys).of(case_)) << "slot " << slot;
  }

  void expect_few_codes_apart(const std::vector<float>& got, const std::vector<float>& want) const {
    if (!case_.fp8_caches || !case_.same_rounding) return;
    EXPECT_LE(unequal(got, want), want.size() / kCodesApart + 2) << "of " << want.size();
  }

  const OperationCase& case_;
  std::mt19937& random_;
  const SparseValues values_;
  OperationPair pair_;
  int selecting_ = 0;
  int left_out_ = 0;
};

TEST_P(BackendSparseAttention, sparse_attention) {
  constexpr auto kSpread = Landscape::kSpread;
  constexpr auto kTies = Landscape::kTies;
  for (const SparseShape& shape : {SparseShape{256, 1, 128, 128, 128, 2, 4, 64, kSpread, true},
                                   {256, 3, 192, 192, 256, 1, 16, 64, kSpread, false},
                                   {512, 16, 256, 64, 128, 4, 4, 64, kTies, true},
                                   {256, 17, 128, 256, 64, 32, 16, 128, kTies, false},
                                   {768, 33, 128, 128, 128, 5, 4, 128, kSpread, false}}) {
    SCOPED_TRACE(std::to_string(shape.heads) + " heads, kpool " + std::to_string(shape.kpool));
    SparseRun run(GetParam(), random_, shape, 384, 288);
    for (size_t s = 0; s < steps().size(); ++s) {
      SCOPED_TRACE("step " + std::to_string(s));
      run.step(steps()[s]);
      if (HasFatalFailure()) return;
    }
    EXPECT_GE(run.selecting(), 150);
    EXPECT_LE(run.left_out(), run.selecting() / (GetParam().fp8_caches ? 2 : 5));
  }
}

// Windows and prompts over lists of several 256-key splits, below and above the limit of selection.
TEST_P(BackendSparseAttention, sparse_attention_of_long_contexts) {
  SparseRun run(GetParam(), random_, {256, 2, 128, 128, 128, 4, 4, 512, Landscape::kTies, true}, 704, 512);
  const std::vector<Step> long_steps = {{{{0, 509, kPrompt}}, {}},
                                        {{{0, 1, kWindow}, {1, 255, kPrompt}}, {{0, 1}}},
                                        {{{0, 16, kWindow}, {1, 3, kWindow}}, {{0, 16}, {1, 3}}},
                                        {{{0, 130, kPrompt}, {1, 254, kPrompt}}, {}},
                                        {{{0, 2, kWindow}, {1, 16, kWindow}}, {{0, 0}, {1, 16}}}};
  for (const Step& step : long_steps) {
    run.step(step);
    if (HasFatalFailure()) return;
  }
  EXPECT_GE(run.selecting(), 100);
  EXPECT_LE(run.left_out(), run.selecting() / 10);
}

// Scores so large that the softmax picks single keys.
TEST_P(BackendSparseAttention, sparse_attention_of_large_scores) {
  SparseRun run(GetParam(), random_, {256, 3, 128, 128, 128, 2, 4, 64, Landscape::kTies, false, 16.0F}, 384, 288);
  for (const Step& step : steps()) {
    run.step(step);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace glm53::test
