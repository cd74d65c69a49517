#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/indexer/index_score.h"
#include "kernels/indexer/index_select.h"
#include "kernels/indexer/index_write.h"
#include "tests/gpu/paged_batch.h"

namespace glm53::kernels {
namespace {

using test::DeviceArray;
using test::DeviceBatch;
using test::PageTables;
using test::Piece;

constexpr int kHeads = 2;  // of the written rows; their weights are not read here
constexpr int kInputWidth = 2 * kIndexDim + kHeads;

// ---- index_write

/// Caches of one layer and the rows that feed them.
struct Writer {
  Writer(int pool, int ring_entries, IndexFormat index_format, int sequences, int pages_each)
      : kpool(pool),
        ring(ring_entries),
        format(index_format),
        tables(sequences, pages_each, 5),
        key_norm(test::random_floats(kIndexDim, 1.0F, 21)),
        key_bias(test::random_floats(kIndexDim, 0.3F, 22)),
        pool_position(test::random_floats(static_cast<size_t>(pool) * kIndexDim, 1.0F, 23)),
        rings(static_cast<size_t>(sequences) * ring * kIndexRingEntry),
        pages(static_cast<size_t>(tables.pages() * index_page_bytes(index_format, pool))) {}

  /// `input` [rows, kInputWidth] in the pieces' order.
  void write(const std::vector<Piece>& pieces, const std::vector<float>& input, bool prompt, int padding = 0) {
    const DeviceBatch batch(tables, pieces, padding);
    const DeviceArray<float> device_input(input);
    IndexWrite args;
    args.tables = batch.tables();
    args.prompt = prompt;
    args.rows = batch.rows();
    args.input = device_input.get();
    args.input_stride = kInputWidth;
    args.key_norm = key_norm.get();
    args.key_bias = key_bias.get();
    args.pool_position = pool_position.get();
    args.kpool = kpool;
    args.ring = ring;
    args.rings = rings.get();
    args.format = format;
    args.pages = pages.get();
    index_write(args, nullptr);
  }

  /// Bytes of a pool: its codes or values, then its scale if it has one.
  std::vector<uint8_t> pool(const std::vector<uint8_t>& bytes, int sequence, int index) const {
    const int per_page = kPagePositions / kpool;
    const uint8_t* page = bytes.data() + tables.of(sequence)[index / per_page] * index_page_bytes(format, kpool);
    const int slot = index % per_page;
    const int width = format == IndexFormat::kBf16 ? 2 * kIndexDim : kIndexDim;
    std::vector<uint8_t> out(page + slot * width, page + (slot + 1) * width);
    if (format == IndexFormat::kFp8) {
      const uint8_t* scale = page + per_page * kIndexDim + 4 * slot;
      out.insert(out.end(), scale, scale + 4);
    }
    return out;
  }

  int kpool;
  int ring;
  IndexFormat format;
  PageTables tables;
  DeviceArray<float> key_norm;
  DeviceArray<float> key_bias;
  DeviceArray<float> pool_position;
  DeviceArray<__nv_bfloat16> rings;
  DeviceArray<uint8_t> pages;
};

std::vector<float> input_rows(int rows, uint32_t seed) {
  return test::random_floats(static_cast<size_t>(rows) * kInputWidth, 2.0F, seed);
}

std::vector<float> slice(const std::vector<float>& input, int64_t first, int rows) {
  return {input.begin() + first * kInputWidth, input.begin() + (first + rows) * kInputWidth};
}

class IndexWriteTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Kpool, IndexWriteTest, testing::Values(4, 16));

TEST_P(IndexWriteTest, RawKeysAndPoolsMatchDouble) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const int kpool = GetParam();
  const int rows = 203;
  Writer writer(kpool, 256, IndexFormat::kBf16, 1, 4);  // a ring that keeps every row
  const std::vector<float> input = input_rows(rows, 31);
  std::vector<float> padded = input;
  padded.resize(static_cast<size_t>(rows + 2) * kInputWidth, NAN);
  writer.write({{0, 0, rows}}, padded, true, 2);

  const std::vector<float> norm = writer.key_norm.download();
  const std::vector<float> bias = writer.key_bias.download();
  const std::vector<float> ape = writer.pool_position.download();
  const std::vector<__nv_bfloat16> ring = writer.rings.download();
  for (int r = 0; r < rows; ++r) {
    double x[kIndexDim];
    double mean = 0.0;
    for (int c = 0; c < kIndexDim; ++c) {
      x[c] = __bfloat162float(__float2bfloat16(input[static_cast<size_t>(r) * kInputWidth + c]));
      mean += x[c] / kIndexDim;
    }
    double variance = 0.0;
    for (const double v : x) variance += (v - mean) * (v - mean) / kIndexDim;
    for (int c = 0; c < kIndexDim; ++c) {
      const double expected = (x[c] - mean) / std::sqrt(variance + 1e-6) * norm[c] + bias[c];
      const float got = __bfloat162float(ring[static_cast<size_t>(r) * kIndexRingEntry + c]);
      ASSERT_NEAR(got, expected, test::bf16_step(expected) + 1e-6) << "row " << r << " channel " << c;
      const float gate = input[static_cast<size_t>(r) * kInputWidth + kIndexDim + c];
      ASSERT_EQ(test::bits(ring[static_cast<size_t>(r) * kIndexRingEntry + kIndexDim + c]),
                test::bits(__float2bfloat16(gate)));
    }
  }
  const std::vector<uint8_t> pages = writer.pages.download();
  for (int p = 0; p < rows / kpool; ++p) {
    const std::vector<uint8_t> bytes = writer.pool(pages, 0, p);
    for (int c = 0; c < kIndexDim; ++c) {
      double sum = 0.0;
      double key = 0.0;
      double magnitude = 0.0;
      for (int j = 0; j < kpool; ++j) {
        const __nv_bfloat16* entry = ring.data() + static_cast<size_t>(p * kpool + j) * kIndexRingEntry;
        const double weight = std::exp(double{__bfloat162float(entry[kIndexDim + c])} + ape[j * kIndexDim + c]);
        sum += weight;
        key += weight * __bfloat162float(entry[c]);
        magnitude += weight * std::abs(__bfloat162float(entry[c]));
      }
      __nv_bfloat16 got;
      std::memcpy(&got, bytes.data() + 2 * c, 2);
      ASSERT_NEAR(__bfloat162float(got), key / sum, test::bf16_step(key / sum) + 1e-6 * magnitude / sum);
    }
  }
}

TEST_P(IndexWriteTest, Fp8PoolsAreRotatedBf16Pools) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const int kpool = GetParam();
  const int rows = 512;
  Writer exact(kpool, 32, IndexFormat::kBf16, 1, 8);
  Writer coded(kpool, 32, IndexFormat::kFp8, 1, 8);
  const std::vector<float> input = input_rows(rows, 41);
  exact.write({{0, 0, rows}}, input, true);
  coded.write({{0, 0, rows}}, input, true);
  const std::vector<uint8_t> exact_pages = exact.pages.download();
  const std::vector<uint8_t> coded_pages = coded.pages.download();
  int off = 0;
  for (int p = 0; p < rows / kpool; ++p) {
    const std::vector<uint8_t> values = exact.pool(exact_pages, 0, p);
    const std::vector<uint8_t> codes = coded.pool(coded_pages, 0, p);
    double rotated[kIndexDim];
    double largest = 0.0;
    for (int i = 0; i < kIndexDim; ++i) {
      double sum = 0.0;
      for (int k = 0; k < kIndexDim; ++k) {
        __nv_bfloat16 value;
        std::memcpy(&value, values.data() + 2 * k, 2);
        sum += __builtin_parity(i & k) != 0 ? -__bfloat162float(value) : __bfloat162float(value);
      }
      rotated[i] = __bfloat162float(__float2bfloat16(static_cast<float>(sum / std::sqrt(128.0))));
      largest = std::max(largest, std::abs(rotated[i]));
    }
    const double scale = test::power_of_two_scale(largest);
    float stored = 0.0F;
    std::memcpy(&stored, codes.data() + kIndexDim, 4);
    ASSERT_EQ(stored, scale) << "pool " << p;
    for (int i = 0; i < kIndexDim; ++i) {
      const uint8_t expected = test::e4m3_nearest(rotated[i] / scale);
      if (codes[i] == expected) continue;
      ++off;
      ASSERT_LE(std::abs((codes[i] & 0x7F) - (expected & 0x7F)), 1) << "pool " << p << " channel " << i;
    }
  }
  EXPECT_LE(off, rows / kpool * kIndexDim / 1000 + 1);
}

// Any cut of a prompt, any windows with any number of kept rows: the caches end with the bits of one whole prompt.
TEST_P(IndexWriteTest, CutsWindowsAndRollbacksLeaveTheSameCaches) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const int kpool = GetParam();
  for (const IndexFormat format : {IndexFormat::kBf16, IndexFormat::kFp8}) {
    std::mt19937 random(kpool + (format == IndexFormat::kFp8 ? 1 : 0));
    const int total = 700;
    Writer whole(kpool, 32, format, 2, 12);
    Writer pieces(kpool, 32, format, 2, 12);
    const std::vector<float> inputs[2] = {input_rows(total + 16, 51), input_rows(total + 16, 52)};
    int64_t at[2] = {0, 0};
    while (at[0] < total || at[1] < total) {
      const bool prompt = at[0] < 200 || at[1] < 200;
      std::vector<Piece> step;
      std::vector<float> rows;
      int kept[2] = {0, 0};
      for (const int s : {1, 0}) {
        const auto left = static_cast<int>(total - at[s]);
        if (left == 0) continue;
        const int count =
            prompt ? std::min(left, 1 + static_cast<int>(random() % 90)) : 1 + static_cast<int>(random() % 16);
        kept[s] = prompt ? count : std::min(left, 1 + static_cast<int>(random() % count));
        std::vector<float> window = slice(inputs[s], at[s], std::min(count, left + 16));
        // Rows past the kept ones were drafts that came out otherwise.
        for (size_t i = static_cast<size_t>(kept[s]) * kInputWidth; i < window.size(); ++i)
          window[i] = -1.5F * window[i];
        step.push_back({s, at[s], count});
        rows.insert(rows.end(), window.begin(), window.end());
      }
      pieces.write(step, rows, prompt, 1);
      for (const int s : {0, 1}) at[s] += kept[s];
    }
    std::vector<float> both = slice(inputs[0], 0, total);
    const std::vector<float> second = slice(inputs[1], 0, total);
    both.insert(both.end(), second.begin(), second.end());
    whole.write({{0, 0, total}, {1, 0, total}}, both, true);

    const std::vector<uint8_t> expected = whole.pages.download();
    const std::vector<uint8_t> got = pieces.pages.download();
    const std::vector<__nv_bfloat16> expected_ring = whole.rings.download();
    const std::vector<__nv_bfloat16> got_ring = pieces.rings.download();
    for (const int s : {0, 1}) {
      for (int p = 0; p < total / kpool; ++p) {
        ASSERT_EQ(whole.pool(expected, s, p), pieces.pool(got, s, p)) << "sequence " << s << " pool " << p;
      }
      // The entries that a later pool may still read.
      for (int position = total - kpool + 1; position < total; ++position) {
        const size_t entry = (static_cast<size_t>(s) * 32 + position % 32) * kIndexRingEntry;
        ASSERT_EQ(std::memcmp(&expected_ring[entry], &got_ring[entry], 2 * kIndexRingEntry), 0);
      }
    }
  }
}

TEST(IndexWrite, RefusesBadSizes) {
  IndexWrite args;
  args.rows = 1;
  args.input_stride = 258;
  args.kpool = 8;
  EXPECT_THROW(index_write(args, nullptr), std::invalid_argument);
  args.kpool = 16;
  args.ring = 8;
  EXPECT_THROW(index_write(args, nullptr), std::invalid_argument);
}

// ---- index_query and index_score

/// Random pool keys written straight into the pages; a double of every key for the oracle.
struct KeyPages {
  KeyPages(IndexFormat index_format, int pool, const PageTables& tables, uint32_t seed)
      : format(index_format), kpool(pool), bytes(static_cast<size_t>(tables.pages() * index_page_bytes(format, pool))) {
    std::mt19937 random(seed);
    const int per_page = kPagePositions / kpool;
    for (int page = 0; page < tables.pages(); ++page) {
      uint8_t* at = bytes.data() + page * index_page_bytes(format, kpool);
      for (int slot = 0; slot < per_page; ++slot) {
        if (format == IndexFormat::kFp8) {
          // Every finite code, subnormals included.
          for (int c = 0; c < kIndexDim; ++c) {
            uint32_t code = random() & 0xFF;
            if ((code & 0x7F) == 0x7F) code ^= 1;
            at[slot * kIndexDim + c] = static_cast<uint8_t>(code);
          }
          const float scale = std::ldexp(1.0F, static_cast<int>(random() % 6) - 8);
          std::memcpy(at + per_page * kIndexDim + 4 * slot, &scale, 4);
        } else {
          for (int c = 0; c < kIndexDim; ++c) {
            const float uniform = static_cast<float>(random() & 0xFFFF) / 32768.0F - 1.0F;
            const __nv_bfloat16 value = __float2bfloat16(uniform);
            std::memcpy(at + (slot * kIndexDim + c) * 2, &value, 2);
          }
        }
      }
    }
  }
  double value(const PageTables& tables, int sequence, int pool, int channel) const {
    const int per_page = kPagePositions / kpool;
    const uint8_t* page = bytes.data() + tables.of(sequence)[pool / per_page] * index_page_bytes(format, kpool);
    const int slot = pool % per_page;
    if (format == IndexFormat::kFp8) {
      float scale = 0.0F;
      std::memcpy(&scale, page + per_page * kIndexDim + 4 * slot, 4);
      return test::e4m3_value(page[slot * kIndexDim + channel]) * scale;
    }
    __nv_bfloat16 out;
    std::memcpy(&out, page + (slot * kIndexDim + channel) * 2, 2);
    return __bfloat162float(out);
  }
  IndexFormat format;
  int kpool;
  std::vector<uint8_t> bytes;
};

struct Queries {
  Queries(int row_count, int head_count, uint32_t seed)
      : rows(row_count),
        heads(head_count),
        stride(2 * kIndexDim + head_count),
        query(test::to_bf16(test::random_floats(static_cast<size_t>(rows) * heads * kIndexDim, 1.0F, seed))),
        input(test::random_floats(static_cast<size_t>(rows) * stride, 1.0F, seed + 1)) {}
  Queries row(int index) const {
    Queries one = *this;
    one.rows = 1;
    const auto width = static_cast<int64_t>(heads) * kIndexDim;
    one.query.assign(query.begin() + index * width, query.begin() + (index + 1) * width);
    one.input.assign(input.begin() + int64_t{index} * stride, input.begin() + int64_t{index + 1} * stride);
    return one;
  }
  int rows;
  int heads;
  int stride;
  std::vector<__nv_bfloat16> query;
  std::vector<float> input;
};

struct Scored {
  std::vector<__nv_bfloat16> query;  // prepared
  std::vector<float> weight;
  std::vector<float> scores;
};

Scored score(const Queries& in, const DeviceBatch& batch, const KeyPages& keys, int pools_per_query,
             int64_t pool_capacity, int first_row = 0, int row_count = 0) {
  const DeviceArray<__nv_bfloat16> query(in.query);
  const DeviceArray<float> input(in.input);
  const DeviceArray<uint8_t> pages(keys.bytes);
  const DeviceArray<__nv_bfloat16> prepared(in.query.size());
  const DeviceArray<float> weight(static_cast<size_t>(in.rows) * in.heads);
  if (row_count == 0) row_count = batch.rows();
  const DeviceArray<float> scores(static_cast<size_t>(row_count * pool_capacity));
  IndexQuery prepare;
  prepare.tables = batch.tables();
  prepare.rows = batch.rows();
  prepare.heads = in.heads;
  prepare.format = keys.format;
  prepare.query = query.get();
  prepare.head_weight = input.get() + 2 * kIndexDim;
  prepare.head_weight_stride = in.stride;
  prepare.prepared_query = prepared.get();
  prepare.prepared_weight = weight.get();
  index_query(prepare, nullptr);
  IndexScore args;
  args.tables = batch.tables();
  args.first_row = first_row;
  args.rows = row_count;
  args.heads = in.heads;
  args.kpool = keys.kpool;
  args.pools_per_query = pools_per_query;
  args.pool_capacity = pool_capacity;
  args.format = keys.format;
  args.query = keys.format == IndexFormat::kFp8 ? prepared.get() : query.get();
  args.weight = weight.get();
  args.pages = pages.get();
  args.scores = scores.get();
  index_score(args, nullptr);
  return {keys.format == IndexFormat::kFp8 ? prepared.download() : in.query, weight.download(), scores.download()};
}

struct ScoreCase {
  IndexFormat format;
  int kpool;
  int heads;
};

class IndexScoreTest : public testing::TestWithParam<ScoreCase> {};
INSTANTIATE_TEST_SUITE_P(Shapes, IndexScoreTest,
                         testing::Values(ScoreCase{IndexFormat::kBf16, 4, 2}, ScoreCase{IndexFormat::kFp8, 4, 2},
                                         ScoreCase{IndexFormat::kBf16, 4, 32}, ScoreCase{IndexFormat::kFp8, 4, 32},
                                         ScoreCase{IndexFormat::kFp8, 16, 32}, ScoreCase{IndexFormat::kBf16, 16, 5}));

TEST_P(IndexScoreTest, MatchesDoubleOnTheStoredKeys) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto [format, kpool, heads] = GetParam();
  const PageTables tables(3, 80, 9);
  const KeyPages keys(format, kpool, tables, 61);
  const int limit = 20;
  // A row of few pools, rows around page and tile ends, a segment longer than a group.
  const DeviceBatch batch(tables, {{2, 16, 3}, {0, 5000, 16}, {1, int64_t{256} * kpool - 3, 5}}, 2);
  const Queries in(batch.rows(), heads, 62);
  const int64_t capacity = 5120 / kpool;
  const Scored got = score(in, batch, keys, limit, capacity);

  for (int r = 0; r < batch.rows() - 2; ++r) {
    const auto pools = static_cast<int>((batch.position(r) + 1) / kpool);
    for (int64_t p = pools <= limit ? 0 : pools; p < capacity; ++p) {
      uint32_t raw = 0;
      std::memcpy(&raw, &got.scores[r * capacity + p], 4);
      ASSERT_EQ(raw, 0xFFFFFFFFU) << "row " << r << " pool " << p << " was not to be written";
    }
    if (pools <= limit) continue;
    for (int p = 0; p < pools; p += 1 + p % 7) {
      double expected = 0.0;
      double magnitude = 0.0;
      for (int h = 0; h < heads; ++h) {
        double dot = 0.0;
        double query_norm = 0.0;
        double key_norm = 0.0;
        for (int c = 0; c < kIndexDim; ++c) {
          const double q = __bfloat162float(got.query[(static_cast<size_t>(r) * heads + h) * kIndexDim + c]);
          const double k = keys.value(tables, batch.sequence(r), p, c);
          dot += q * k;
          query_norm += q * q;
          key_norm += k * k;
        }
        const double weight = got.weight[static_cast<size_t>(r) * heads + h];
        expected += weight * std::max(dot, 0.0);
        magnitude += std::abs(weight) * std::sqrt(query_norm * key_norm);
      }
      ASSERT_NEAR(got.scores[r * capacity + p], expected, 1e-5 * magnitude) << "row " << r << " pool " << p;
    }
  }
}

TEST_P(IndexScoreTest, PreparedQueriesStandForTheOriginals) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto [format, kpool, heads] = GetParam();
  const PageTables tables(1, 4, 9);
  const KeyPages keys(format, kpool, tables, 71);
  const DeviceBatch batch(tables, {{0, 100, 4}});
  const Queries in(4, heads, 72);
  const Scored got = score(in, batch, keys, 1, 64);
  const double scale = 1.0 / std::sqrt(128.0 * heads);
  for (int v = 0; v < 4 * heads; ++v) {
    const double w = in.input[static_cast<size_t>(v / heads) * in.stride + 2 * kIndexDim + v % heads];
    if (format == IndexFormat::kBf16) {
      ASSERT_NEAR(got.weight[v], w * scale, std::abs(w) * scale * 1e-6);
      continue;
    }
    double rotated[kIndexDim];
    double largest = 0.0;
    for (int i = 0; i < kIndexDim; ++i) {
      double sum = 0.0;
      for (int k = 0; k < kIndexDim; ++k) {
        const double q = __bfloat162float(in.query[static_cast<size_t>(v) * kIndexDim + k]);
        sum += __builtin_parity(i & k) != 0 ? -q : q;
      }
      rotated[i] = __bfloat162float(__float2bfloat16(static_cast<float>(sum / std::sqrt(128.0))));
      largest = std::max(largest, std::abs(rotated[i]));
    }
    const double query_scale = test::power_of_two_scale(largest);
    ASSERT_NEAR(got.weight[v], w * scale * query_scale, std::abs(w) * scale * query_scale * 1e-6);
    for (int i = 0; i < kIndexDim; ++i) {
      const double code = __bfloat162float(got.query[static_cast<size_t>(v) * kIndexDim + i]);
      // One code off where fp32 rounded to the other bf16 neighbour.
      ASSERT_NEAR(code, test::e4m3_value(test::e4m3_nearest(rotated[i] / query_scale)), std::abs(code) / 7.9 + 0x1p-9);
    }
  }
}

TEST_P(IndexScoreTest, RowsAloneInBlocksAndElsewhereHaveTheSameBits) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto [format, kpool, heads] = GetParam();
  const PageTables tables(2, 60, 9);
  const KeyPages keys(format, kpool, tables, 81);
  const DeviceBatch batch(tables, {{1, 2999, 21}, {0, 3500, 7}});
  const Queries in(batch.rows(), heads, 82);
  const int64_t capacity = 3840 / kpool;
  const Scored all = score(in, batch, keys, 4, capacity);
  const Scored block = score(in, batch, keys, 4, capacity, 13, 11);
  for (int r = 0; r < batch.rows(); ++r) {
    const int64_t pools = (batch.position(r) + 1) / kpool;
    const DeviceBatch one(tables, {{batch.sequence(r), batch.position(r), 1}});
    const Scored alone = score(in.row(r), one, keys, 4, capacity);
    ASSERT_EQ(std::memcmp(&all.scores[r * capacity], alone.scores.data(), pools * 4), 0) << "row " << r;
    if (r < 13 || r >= 24) continue;
    ASSERT_EQ(std::memcmp(&all.scores[r * capacity], &block.scores[(r - 13) * capacity], pools * 4), 0) << "row " << r;
  }
}

TEST(IndexScore, ReachesTheLastOf262144Pools) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const int64_t pools = 262144;
  const PageTables tables(1, static_cast<int>(pools / 16), 3);
  // Row r sees pools - r of them; key p is (1, 0, …) · (p mod 256), so that scores are exact.
  KeyPages keys(IndexFormat::kBf16, 4, PageTables(1, 1, 1), 1);
  keys.bytes.assign(static_cast<size_t>(tables.pages()) * index_page_bytes(IndexFormat::kBf16, 4), 0);
  for (int64_t p = 0; p < pools; ++p) {
    const __nv_bfloat16 value = __float2bfloat16(static_cast<float>(p % 256));
    std::memcpy(keys.bytes.data() + (int64_t{tables.of(0)[p / 16]} * 16 + p % 16) * 256, &value, 2);
  }
  const DeviceBatch batch(tables, {{0, 4 * pools - 5, 2}, {0, 65537 * 4 - 1, 1}});
  Queries in(3, 2, 1);
  for (auto& q : in.query) q = __float2bfloat16(1.0F);
  for (float& w : in.input) w = 16.0F;
  const Scored got = score(in, batch, keys, 512, pools);
  const float unit = got.weight[0] + got.weight[1];
  for (int r = 0; r < 3; ++r) {
    const int64_t visible = (batch.position(r) + 1) / 4;
    for (int64_t p = 0; p < visible; ++p) {
      ASSERT_EQ(got.scores[r * pools + p], unit * static_cast<float>(p % 256)) << "row " << r << " pool " << p;
    }
  }
}

// ---- index_select

std::vector<int32_t> best(const float* scores, int pools, int keep) {
  const auto value = [&](int32_t p) { return std::isnan(scores[p]) ? -INFINITY : scores[p]; };
  std::vector<int32_t> ids(static_cast<size_t>(pools));
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(ids.begin(), ids.begin() + keep, ids.end(),
                    [&](int32_t a, int32_t b) { return value(a) != value(b) ? value(a) > value(b) : a < b; });
  ids.resize(static_cast<size_t>(keep));
  std::sort(ids.begin(), ids.end());
  return ids;
}

/// Rows of one pool count, filled by kind; checks each against a sort.
void check_selection(int pools, int keep, int kpool, bool prompt) {
  constexpr int kKinds = 7;
  const int64_t capacity = (pools + 3) / 4 * 4;
  const PageTables tables(1, 1, 1);
  std::vector<Piece> pieces;
  for (int i = 0; i < kKinds; ++i) pieces.push_back({0, int64_t{pools} * kpool - 1 + i % kpool, 1});
  pieces.push_back({0, int64_t{keep} * kpool - 1, 1});  // sees exactly `keep` pools: left alone
  const DeviceBatch batch(tables, pieces, 1);
  const int skipped = 1;  // a block that starts at the second row
  std::vector<float> scores(static_cast<size_t>(batch.rows()) * capacity, NAN);
  std::mt19937 random(static_cast<uint32_t>(pools));
  std::normal_distribution<float> normal;
  for (int kind = 0; kind < kKinds; ++kind) {
    for (int p = 0; p < pools; ++p) {
      float& s = scores[kind * capacity + p];
      switch (kind) {
        case 0:
          s = normal(random);
          break;
        case 1:
          s = 3.25F;
          break;  // all equal
        case 2:
          s = p % 3 == 0 ? -0.0F : p % 3 == 1 ? 0.0F : -1.0F;
          break;  // zeros of both signs
        case 3:
          s = random() % 100 == 0 ? normal(random) : 0.0F;
          break;  // ties at the cut
        case 4:
          s = random() % 3 == 0 ? NAN : random() % 3 == 0 ? -INFINITY : normal(random);
          break;
        case 5:
          s = static_cast<float>(p) * 1e-38F;
          break;  // ascending, subnormals
        default:
          s = 1.0F + static_cast<float>(random() % 4) * 0x1p-23F;
          break;  // last bits only
      }
    }
  }
  const DeviceArray<float> device_scores(scores);
  const DeviceArray<int32_t> selected(static_cast<size_t>(batch.rows()) * keep);
  const DeviceArray<uint8_t> workspace(
      static_cast<size_t>(index_select_workspace(batch.rows(), capacity, keep, prompt)));
  IndexSelect args;
  args.tables = batch.tables();
  args.prompt = prompt;
  args.first_row = skipped;
  args.rows = batch.rows() - skipped;
  args.kpool = kpool;
  args.pools_per_query = keep;
  args.pool_capacity = capacity;
  args.scores = device_scores.get() + skipped * capacity;
  args.selected = selected.get();
  args.workspace = workspace.get();
  index_select(args, nullptr);
  const std::vector<int32_t> got = selected.download();
  for (int r = 0; r < batch.rows(); ++r) {
    const std::vector<int32_t> row(got.begin() + static_cast<size_t>(r) * keep,
                                   got.begin() + (static_cast<size_t>(r) + 1) * keep);
    if (r < skipped || r >= kKinds || pools <= keep) {
      ASSERT_EQ(row, std::vector<int32_t>(static_cast<size_t>(keep), -1)) << "row " << r << " was not to be written";
    } else {
      ASSERT_EQ(row, best(&scores[r * capacity], pools, keep)) << pools << " pools, kind " << r;
    }
  }
}

TEST(IndexSelect, AgreesWithASort) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const bool prompt : {false, true}) {
    for (const int pools :
         {512, 513, 2047, 2048, 2051, 4096, 4097, 16384, 16385, 16896, 32768, 65537, 131076, 262144}) {
      check_selection(pools, 512, 4, prompt);
    }
    for (const int pools : {65, 229, 4097, 65536}) check_selection(pools, 64, 4, prompt);
    for (const int pools : {129, 16385}) check_selection(pools, 128, 16, prompt);
  }
}

TEST(IndexSelect, RefusesBadSizes) {
  IndexSelect args;
  args.rows = 1;
  args.pools_per_query = 2000;
  args.pool_capacity = 4096;
  EXPECT_THROW(index_select(args, nullptr), std::invalid_argument);
}

TEST(IndexScore, BlocksStayWithin64MiB) {
  for (const int64_t pools : {512, 2048, 32768, 262144}) {
    const int64_t rows = score_block_rows(pools);
    EXPECT_EQ(rows % 16, 0);
    EXPECT_LE(rows * pools * 4, int64_t{64} << 20);
    EXPECT_LE(index_select_workspace(static_cast<int>(rows), pools, 512, true), int64_t{8} << 20);
    EXPECT_LE(index_select_workspace(64, pools, 512, false), int64_t{8} << 20);
  }
}

}  // namespace
}  // namespace glm53::kernels
