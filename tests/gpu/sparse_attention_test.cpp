#include "kernels/sparse_attention/sparse_attention.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/indexer/index_score.h"
#include "kernels/indexer/index_select.h"
#include "kernels/indexer/index_write.h"
#include "kernels/latent_cache/latent_write.h"
#include "tests/gpu/paged_batch.h"

namespace glm53::kernels {
namespace {

using test::DeviceArray;
using test::DeviceBatch;
using test::PageTables;
using test::Piece;

constexpr int kLatent = 512;
constexpr float kScale = 0.0625F;

/// Latent pages whose rows [0, length) of every sequence are random; everything else is NaN.
struct LatentPages {
  LatentPages(LatentFormat row_format, const PageTables& tables, int sequences, int64_t length, uint32_t seed)
      : format(row_format),
        bytes(static_cast<size_t>(tables.pages()) * kPagePositions * latent_row_bytes(row_format, kLatent), 0xFF) {
    std::mt19937 random(seed);
    for (int s = 0; s < sequences; ++s) {
      for (int64_t position = 0; position < length; ++position) {
        uint8_t* row = at(tables, s, position);
        for (int c = 0; c < kLatent; ++c) {
          const uint32_t draw = random();
          if (format == LatentFormat::kFp8) {
            uint32_t code = draw & 0xFF;  // every finite code, subnormals included
            if ((code & 0x7F) == 0x7F) code ^= 1;
            row[c] = static_cast<uint8_t>(code);
          } else {
            const __nv_bfloat16 value = __float2bfloat16(static_cast<float>(draw & 0xFFFF) / 16384.0F - 2.0F);
            std::memcpy(row + 2 * c, &value, 2);
          }
        }
        if (format == LatentFormat::kFp8) {
          const float scale = std::ldexp(1.0F, static_cast<int>(random() % 4) - 7);
          std::memcpy(row + kLatent, &scale, 4);
        }
      }
    }
  }
  uint8_t* at(const PageTables& tables, int sequence, int64_t position) {
    return bytes.data() + tables.row(sequence, position) * latent_row_bytes(format, kLatent);
  }
  std::vector<double> values(const PageTables& tables, int sequence, int64_t position) {
    const uint8_t* row = at(tables, sequence, position);
    std::vector<double> out(kLatent);
    float scale = 1.0F;
    if (format == LatentFormat::kFp8) std::memcpy(&scale, row + kLatent, 4);
    for (int c = 0; c < kLatent; ++c) {
      if (format == LatentFormat::kFp8) {
        out[c] = test::e4m3_value(row[c]) * scale;
      } else {
        __nv_bfloat16 value;
        std::memcpy(&value, row + 2 * c, 2);
        out[c] = __bfloat162float(value);
      }
    }
    return out;
  }
  LatentFormat format;
  std::vector<uint8_t> bytes;
};

struct Call {
  int heads;
  int kpool;
  int pools_per_query;
  std::vector<__nv_bfloat16> query;  // [rows, heads, 512]
  std::vector<int32_t> selected;     // [rows, pools_per_query]
};

std::vector<__nv_bfloat16> attend(const Call& call, const DeviceBatch& batch, const LatentPages& pages, bool window) {
  const DeviceArray<__nv_bfloat16> query(call.query);
  const DeviceArray<int32_t> selected(call.selected);
  const DeviceArray<uint8_t> latents(pages.bytes);
  const DeviceArray<__nv_bfloat16> output(call.query.size());
  const DeviceArray<uint8_t> workspace(
      static_cast<size_t>(sparse_attention_workspace(batch.rows(), call.heads, call.kpool, call.pools_per_query)));
  SparseAttention args;
  args.tables = batch.tables();
  args.rows = batch.rows();
  args.heads = call.heads;
  args.kpool = call.kpool;
  args.pools_per_query = call.pools_per_query;
  args.scale = kScale;
  args.format = pages.format;
  args.pages = latents.get();
  args.query = query.get();
  args.selected = selected.get();
  args.output = output.get();
  args.workspace = workspace.get();
  window ? sparse_attention_window(args, nullptr) : sparse_attention_prompt(args, nullptr);
  return output.download();
}

/// Positions a row attends to, in order.
std::vector<int64_t> positions_of(const Call& call, int row, int64_t position) {
  std::vector<int64_t> out;
  const int64_t pools = (position + 1) / call.kpool;
  if (pools <= call.pools_per_query) {
    out.resize(static_cast<size_t>(position + 1));
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  for (int i = 0; i < call.pools_per_query; ++i) {
    const int64_t pool = call.selected[static_cast<size_t>(row) * call.pools_per_query + i];
    for (int j = 0; j < call.kpool; ++j) out.push_back(pool * call.kpool + j);
  }
  for (int64_t p = pools * call.kpool; p <= position; ++p) out.push_back(p);
  return out;
}

/// A random selection for every row that needs one; the rest holds what must not be read.
void draw_selection(Call& call, const DeviceBatch& batch, uint32_t seed) {
  std::mt19937 random(seed);
  call.selected.assign(static_cast<size_t>(batch.rows()) * call.pools_per_query, -1);
  for (int r = 0; r < batch.rows(); ++r) {
    const int64_t pools = (batch.position(r) + 1) / call.kpool;
    if (pools <= call.pools_per_query) continue;
    std::vector<int32_t> ids(static_cast<size_t>(pools));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random);
    std::sort(ids.begin(), ids.begin() + call.pools_per_query);
    std::copy_n(ids.begin(), call.pools_per_query,
                call.selected.begin() + static_cast<int64_t>(r) * call.pools_per_query);
  }
}

void expect_matches_double(const Call& call, const DeviceBatch& batch, const PageTables& tables, LatentPages& pages,
                           const std::vector<__nv_bfloat16>& got, int rows) {
  for (int r = 0; r < rows; ++r) {
    std::vector<std::vector<double>> keys;
    for (const int64_t p : positions_of(call, r, batch.position(r))) {
      keys.push_back(pages.values(tables, batch.sequence(r), p));
    }
    for (int h = 0; h < call.heads; ++h) {
      const size_t at = (static_cast<size_t>(r) * call.heads + h) * kLatent;
      std::vector<double> query(kLatent);
      for (int c = 0; c < kLatent; ++c) query[c] = __bfloat162float(call.query[at + c]);
      std::vector<double> p(keys.size());
      for (size_t j = 0; j < keys.size(); ++j) {
        p[j] = kScale * std::inner_product(query.begin(), query.end(), keys[j].begin(), 0.0);
      }
      const double largest = *std::max_element(p.begin(), p.end());
      double sum = 0.0;
      for (double& x : p) sum += x = std::exp(x - largest);
      std::vector<double> z(kLatent, 0.0);
      for (size_t j = 0; j < keys.size(); ++j) {
        for (int c = 0; c < kLatent; ++c) z[c] += p[j] / sum * keys[j][c];
      }
      double dot = 0.0;
      double norm = 0.0;
      double got_norm = 0.0;
      double biggest = 0.0;
      double error = 0.0;
      for (int c = 0; c < kLatent; ++c) {
        const double value = __bfloat162float(got[at + c]);
        dot += value * z[c];
        norm += z[c] * z[c];
        got_norm += value * value;
        biggest = std::max(biggest, std::abs(z[c]));
        error = std::max(error, std::abs(value - z[c]));
        ASSERT_TRUE(std::isfinite(value)) << "row " << r << " head " << h << " column " << c;
      }
      ASSERT_LE(error, 2e-2 * biggest) << "row " << r << " (" << keys.size() << " keys) head " << h;
      ASSERT_GE(dot / std::sqrt(norm * got_norm), 0.99999) << "row " << r << " (" << keys.size() << " keys) head " << h;
    }
  }
}

struct Shape {
  LatentFormat format;
  int heads;
  int kpool;
};

class SparseAttentionTest : public testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, SparseAttentionTest,
                         testing::Values(Shape{LatentFormat::kBf16, 2, 4}, Shape{LatentFormat::kFp8, 2, 4},
                                         Shape{LatentFormat::kFp8, 16, 4}, Shape{LatentFormat::kBf16, 22, 4},
                                         Shape{LatentFormat::kBf16, 32, 4}, Shape{LatentFormat::kFp8, 32, 16},
                                         Shape{LatentFormat::kFp8, 64, 4}));

Call make_call(const Shape& shape, const DeviceBatch& batch, float deviation, uint32_t seed) {
  Call call{shape.heads, shape.kpool, 2048 / shape.kpool, {}, {}};
  call.query =
      test::to_bf16(test::random_floats(static_cast<size_t>(batch.rows()) * shape.heads * kLatent, deviation, seed));
  draw_selection(call, batch, seed + 1);
  return call;
}

TEST_P(SparseAttentionTest, MatchesDoubleOnTheStoredRows) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const PageTables tables(2, 130, 5);
  std::vector<Piece> pieces;
  for (const int visible : {1, 2, 3, 4, 5, 255, 256, 257, 260, 2047, 2048, 2049, 2051, 2052, 2053, 8192}) {
    pieces.push_back({visible % 2, visible - 1, 1});
  }
  const DeviceBatch batch(tables, pieces, 2);
  LatentPages pages(GetParam().format, tables, 2, 8192, 91);
  const Call call = make_call(GetParam(), batch, 0.4F, 92);
  for (const bool window : {true, false}) {
    const std::vector<__nv_bfloat16> got = attend(call, batch, pages, window);
    expect_matches_double(call, batch, tables, pages, got, batch.rows() - 2);
    for (size_t i = static_cast<size_t>(batch.rows() - 2) * call.heads * kLatent; i < got.size(); ++i) {
      ASSERT_EQ(test::bits(got[i]), 0) << "padding rows are zero";
    }
  }
}

// Scores of ±2e5 before the scale: the softmax is all but one-hot, nothing may overflow.
TEST_P(SparseAttentionTest, StandsLargeScores) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const PageTables tables(1, 40, 5);
  const DeviceBatch batch(tables, {{0, 700, 2}, {0, 2300, 1}});
  LatentPages pages(GetParam().format, tables, 1, 2400, 93);
  const Call call = make_call(GetParam(), batch, 2000.0F, 94);
  for (const bool window : {true, false}) {
    const std::vector<__nv_bfloat16> got = attend(call, batch, pages, window);
    expect_matches_double(call, batch, tables, pages, got, batch.rows());
  }
}

TEST_P(SparseAttentionTest, RowsAloneAndOnOtherPagesHaveTheSameBits) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const PageTables tables(2, 50, 5);
  const PageTables moved(2, 50, 6);
  const DeviceBatch batch(tables, {{1, 2045, 11}, {0, 31, 3}, {0, 2999, 4}}, 1);
  LatentPages pages(GetParam().format, tables, 2, 3100, 95);
  LatentPages moved_pages = pages;
  for (int s = 0; s < 2; ++s) {
    for (int64_t p = 0; p < 3100; ++p) {
      std::memcpy(moved_pages.at(moved, s, p), pages.at(tables, s, p), latent_row_bytes(pages.format, kLatent));
    }
  }
  const Call call = make_call(GetParam(), batch, 0.4F, 96);
  const size_t width = static_cast<size_t>(call.heads) * kLatent;
  for (const bool window : {true, false}) {
    const std::vector<__nv_bfloat16> all = attend(call, batch, pages, window);
    for (int r = 0; r < batch.rows() - 1; ++r) {
      Call one = call;
      one.query.assign(call.query.begin() + r * width, call.query.begin() + (r + 1) * width);
      one.selected.assign(call.selected.begin() + int64_t{r} * call.pools_per_query,
                          call.selected.begin() + int64_t{r + 1} * call.pools_per_query);
      const DeviceBatch alone(moved, {{batch.sequence(r), batch.position(r), 1}});
      const std::vector<__nv_bfloat16> got = attend(one, alone, moved_pages, window);
      ASSERT_EQ(std::memcmp(&all[r * width], got.data(), 2 * width), 0) << "row " << r << " window " << window;
    }
  }
}

// The selected keys laid out as a short sequence of their own: the dense list must give the sparse list's bits.
TEST_P(SparseAttentionTest, DenseEqualsSparseOverTheSameKeys) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const PageTables tables(2, 80, 5);
  const int kpool = GetParam().kpool;
  const int64_t last = 4096 + kpool - 2;  // a full tail
  const DeviceBatch sparse(tables, {{0, last, 1}});
  LatentPages pages(GetParam().format, tables, 1, last + 1, 97);
  const Call call = make_call(GetParam(), sparse, 0.4F, 98);
  const std::vector<int64_t> list = positions_of(call, 0, last);
  for (size_t i = 0; i < list.size(); ++i) {
    std::memcpy(pages.at(tables, 1, static_cast<int64_t>(i)), pages.at(tables, 0, list[i]),
                latent_row_bytes(pages.format, kLatent));
  }
  const DeviceBatch dense(tables, {{1, static_cast<int64_t>(list.size()) - 1, 1}});
  for (const bool window : {true, false}) {
    const std::vector<__nv_bfloat16> a = attend(call, sparse, pages, window);
    const std::vector<__nv_bfloat16> b = attend(call, dense, pages, window);
    ASSERT_EQ(std::memcmp(a.data(), b.data(), 2 * a.size()), 0) << "window " << window;
  }
}

TEST(SparseAttention, RefusesBadSizes) {
  SparseAttention args;
  args.rows = 1;
  args.heads = 1;
  args.pools_per_query = 513;
  EXPECT_THROW(sparse_attention_prompt(args, nullptr), std::invalid_argument);
}

// ---- the whole attention side of one layer

struct LayerInputs {
  static constexpr int kHeads = 2;
  static constexpr int kQueryLora = 256;
  static constexpr int kIndexWidth = 2 * kIndexDim + kHeads;
  explicit LayerInputs(int rows, uint32_t seed)
      : low(test::random_floats(static_cast<size_t>(rows) * (kQueryLora + kLatent), 1.0F, seed)),
        index(test::random_floats(static_cast<size_t>(rows) * kIndexWidth, 1.0F, seed + 1)),
        index_query(test::random_floats(static_cast<size_t>(rows) * kHeads * kIndexDim, 1.0F, seed + 2)),
        query(test::random_floats(static_cast<size_t>(rows) * kHeads * kLatent, 0.3F, seed + 3)) {}
  std::vector<float> low, index, index_query, query;
};

/// Caches of one layer at the tiny model's shapes, and one call of all its kernels.
class Layer {
 public:
  static constexpr int kPools = 64;

  Layer(bool fp8, int sequences, int pages_each)
      : tables_(sequences, pages_each, 77),
        latent_format_(fp8 ? LatentFormat::kFp8 : LatentFormat::kBf16),
        index_format_(fp8 ? IndexFormat::kFp8 : IndexFormat::kBf16),
        capacity_(pages_each * kPagePositions / 4),
        norms_(test::random_floats(4096, 1.0F, 78)),
        latents_(static_cast<size_t>(tables_.pages()) * kPagePositions * latent_row_bytes(latent_format_, kLatent)),
        pools_(static_cast<size_t>(tables_.pages()) * index_page_bytes(index_format_, 4)),
        rings_(static_cast<size_t>(sequences) * 32 * kIndexRingEntry) {}

  /// `inputs` in the pieces' row order → z [rows, heads, 512].
  std::vector<__nv_bfloat16> run(const std::vector<Piece>& pieces, const LayerInputs& inputs, bool prompt) {
    const DeviceBatch batch(tables_, pieces);
    const int rows = batch.rows();
    const DeviceArray<__nv_bfloat16> low(test::to_bf16(inputs.low));
    const DeviceArray<__nv_bfloat16> query_low(static_cast<size_t>(rows) * LayerInputs::kQueryLora);
    const DeviceArray<float> index(inputs.index);
    const DeviceArray<__nv_bfloat16> index_query_rows(test::to_bf16(inputs.index_query));
    const DeviceArray<__nv_bfloat16> prepared(inputs.index_query.size());
    const DeviceArray<float> weight(static_cast<size_t>(rows) * LayerInputs::kHeads);
    const DeviceArray<float> scores(static_cast<size_t>(rows) * capacity_);
    const DeviceArray<int32_t> selected(static_cast<size_t>(rows) * kPools);
    const DeviceArray<__nv_bfloat16> query(test::to_bf16(inputs.query));
    const DeviceArray<__nv_bfloat16> output(inputs.query.size());
    const DeviceArray<uint8_t> workspace(
        static_cast<size_t>(sparse_attention_workspace(rows, LayerInputs::kHeads, 4, kPools)));
    const DeviceArray<uint8_t> select_workspace(
        static_cast<size_t>(index_select_workspace(rows, capacity_, kPools, prompt)));
    const bool fp8 = index_format_ == IndexFormat::kFp8;

    LatentWrite latent;
    latent.tables = batch.tables();
    latent.rows = rows;
    latent.q_lora = LayerInputs::kQueryLora;
    latent.latent = kLatent;
    latent.low = low.get();
    latent.query_norm = latent.latent_norm = norms_.get();
    latent.query_low = query_low.get();
    latent.format = latent_format_;
    latent.pages = latents_.get();
    latent_write(latent, nullptr);

    IndexWrite write;
    write.tables = batch.tables();
    write.prompt = prompt;
    write.rows = rows;
    write.input = index.get();
    write.input_stride = LayerInputs::kIndexWidth;
    write.key_norm = norms_.get();
    write.key_bias = norms_.get() + 512;
    write.pool_position = norms_.get() + 1024;
    write.rings = rings_.get();
    write.format = index_format_;
    write.pages = pools_.get();
    index_write(write, nullptr);

    IndexQuery prepare;
    prepare.tables = batch.tables();
    prepare.rows = rows;
    prepare.heads = LayerInputs::kHeads;
    prepare.format = index_format_;
    prepare.query = index_query_rows.get();
    prepare.head_weight = index.get() + 2 * kIndexDim;
    prepare.head_weight_stride = LayerInputs::kIndexWidth;
    prepare.prepared_query = prepared.get();
    prepare.prepared_weight = weight.get();
    index_query(prepare, nullptr);

    IndexScore score;
    score.tables = batch.tables();
    score.rows = rows;
    score.heads = LayerInputs::kHeads;
    score.pools_per_query = kPools;
    score.pool_capacity = capacity_;
    score.format = index_format_;
    score.query = fp8 ? prepared.get() : index_query_rows.get();
    score.weight = weight.get();
    score.pages = pools_.get();
    score.scores = scores.get();
    index_score(score, nullptr);

    IndexSelect select;
    select.tables = batch.tables();
    select.prompt = prompt;
    select.rows = rows;
    select.pools_per_query = kPools;
    select.pool_capacity = capacity_;
    select.scores = scores.get();
    select.selected = selected.get();
    select.workspace = select_workspace.get();
    index_select(select, nullptr);

    SparseAttention attention;
    attention.tables = batch.tables();
    attention.rows = rows;
    attention.heads = LayerInputs::kHeads;
    attention.pools_per_query = kPools;
    attention.scale = kScale;
    attention.format = latent_format_;
    attention.pages = latents_.get();
    attention.query = query.get();
    attention.selected = selected.get();
    attention.output = output.get();
    attention.workspace = workspace.get();
    prompt ? sparse_attention_prompt(attention, nullptr) : sparse_attention_window(attention, nullptr);
    selected_ = selected.download();
    return output.download();
  }
  /// Of the last call [rows, kPools].
  const std::vector<int32_t>& selected() const { return selected_; }

 private:
  PageTables tables_;
  LatentFormat latent_format_;
  IndexFormat index_format_;
  int64_t capacity_;
  DeviceArray<float> norms_;
  DeviceArray<uint8_t> latents_;
  DeviceArray<uint8_t> pools_;
  DeviceArray<__nv_bfloat16> rings_;
  std::vector<int32_t> selected_;
};

/// Rows of several sequences' inputs put together as one call's.
void append(LayerInputs& to, const LayerInputs& from, int64_t first, int64_t rows, float factor = 1.0F) {
  const auto add = [&](std::vector<float>& out, const std::vector<float>& in, int64_t width) {
    for (int64_t i = first * width; i < (first + rows) * width; ++i) out.push_back(factor * in[i]);
  };
  add(to.low, from.low, LayerInputs::kQueryLora + kLatent);
  add(to.index, from.index, LayerInputs::kIndexWidth);
  add(to.index_query, from.index_query, LayerInputs::kHeads * kIndexDim);
  add(to.query, from.query, LayerInputs::kHeads * kLatent);
}

// Window rows in one call = one by one, with drafts rejected and another sequence beside; a prompt cut anywhere =
// whole.
TEST(SparseAttentionLayer, CallsOfAnyShapeGiveTheSameRows) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  constexpr size_t kWidth = size_t{LayerInputs::kHeads} * kLatent;
  const int prompt = 531;
  const int total = 640;
  const LayerInputs inputs[2] = {LayerInputs(total + 16, 101), LayerInputs(total + 16, 201)};
  for (const bool fp8 : {false, true}) {
    Layer whole(fp8, 2, 12);
    Layer ragged(fp8, 2, 12);
    std::mt19937 random(fp8 ? 1 : 2);
    std::vector<std::vector<__nv_bfloat16>> expected[2];
    for (const int s : {0, 1}) {
      LayerInputs rows(0, 0);
      append(rows, inputs[s], 0, prompt);
      const std::vector<__nv_bfloat16> z = whole.run({{s, 0, prompt}}, rows, true);
      for (int r = 0; r < prompt; ++r) expected[s].emplace_back(z.begin() + r * kWidth, z.begin() + (r + 1) * kWidth);
      for (int r = prompt; r < total; ++r) {
        LayerInputs one(0, 0);
        append(one, inputs[s], r, 1);
        expected[s].push_back(whole.run({{s, r, 1}}, one, false));
      }
    }
    int64_t at[2] = {0, 0};
    while (at[0] < total || at[1] < total) {
      const bool is_prompt = at[0] < prompt || at[1] < prompt;
      std::vector<Piece> pieces;
      LayerInputs rows(0, 0);
      int kept[2] = {0, 0};
      for (const int s : {1, 0}) {
        const auto left = static_cast<int>((is_prompt ? prompt : total) - at[s]);
        if (left == 0) continue;
        const int count = 1 + static_cast<int>(random() % (is_prompt ? std::min(left, 150) : 16));
        kept[s] = is_prompt ? count : std::min(left, 1 + static_cast<int>(random() % count));
        append(rows, inputs[s], at[s], kept[s]);
        append(rows, inputs[s], at[s] + kept[s], count - kept[s], -2.0F);  // drafts that came out otherwise
        pieces.push_back({s, at[s], count});
      }
      const std::vector<__nv_bfloat16> z = ragged.run(pieces, rows, is_prompt);
      int64_t first = 0;
      for (const Piece& piece : pieces) {
        for (int r = 0; r < kept[piece.sequence]; ++r) {
          ASSERT_EQ(std::memcmp(expected[piece.sequence][at[piece.sequence] + r].data(), &z[(first + r) * kWidth],
                                2 * kWidth),
                    0)
              << "sequence " << piece.sequence << " position " << at[piece.sequence] + r << " fp8 " << fp8;
        }
        first += piece.rows;
        at[piece.sequence] += kept[piece.sequence];
      }
    }
  }
}

// fp8 keys may move pools near the cut only.
TEST(SparseAttentionLayer, Fp8KeysSelectNearlyTheSamePools) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const int rows = 2048;
  const LayerInputs inputs(rows, 301);
  Layer exact(false, 1, 32);
  Layer coded(true, 1, 32);
  exact.run({{0, 0, rows}}, inputs, true);
  coded.run({{0, 0, rows}}, inputs, true);
  int64_t common = 0;
  int64_t all = 0;
  for (int r = 4 * Layer::kPools + 4; r < rows; ++r) {
    const auto a = exact.selected().begin() + int64_t{r} * Layer::kPools;
    const auto b = coded.selected().begin() + int64_t{r} * Layer::kPools;
    std::vector<int32_t> both;
    std::set_intersection(a, a + Layer::kPools, b, b + Layer::kPools, std::back_inserter(both));
    common += static_cast<int64_t>(both.size());
    all += Layer::kPools;
  }
  const double overlap = static_cast<double>(common) / static_cast<double>(all);
  RecordProperty("overlap_percent", static_cast<int>(100 * overlap));
  EXPECT_GE(overlap, 0.95);
}

}  // namespace
}  // namespace glm53::kernels
