#include <array>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/latent_cache/latent_write.h"
#include "tests/gpu/paged_batch.h"

namespace glm53::kernels {
namespace {

using test::DeviceArray;
using test::DeviceBatch;
using test::PageTables;

constexpr int kLatent = 512;

struct Inputs {
  Inputs(int row_count, int q_lora_width, uint32_t seed)
      : rows(row_count), q_lora(q_lora_width), width(q_lora_width + kLatent) {
    std::vector<float> values = test::random_floats(static_cast<size_t>(rows) * width, 1.0F, seed);
    if (rows > 3) {
      for (int c = 0; c < width; ++c) values[1 * width + c] = 0.0F;
      for (int c = 0; c < width; ++c) values[2 * width + c] *= 1e-30F;
      values[3 * width + q_lora + 17] = 1e4F;
    }
    low = test::to_bf16(values);
    query_norm = test::random_floats(q_lora, 1.0F, seed + 1);
    latent_norm = test::random_floats(kLatent, 1.0F, seed + 2);
  }
  int rows;
  int q_lora;
  int width;
  std::vector<__nv_bfloat16> low;
  std::vector<float> query_norm;
  std::vector<float> latent_norm;
};

struct Written {
  std::vector<__nv_bfloat16> query_low;
  std::vector<uint8_t> pages;
};

Written write(const Inputs& in, const PageTables& tables, const DeviceBatch& batch, LatentFormat format) {
  const DeviceArray<__nv_bfloat16> low(in.low);
  const DeviceArray<float> query_norm(in.query_norm);
  const DeviceArray<float> latent_norm(in.latent_norm);
  const DeviceArray<__nv_bfloat16> query_low(static_cast<size_t>(batch.rows()) * in.q_lora);
  const DeviceArray<uint8_t> pages(tables.pages() * kPagePositions * latent_row_bytes(format, kLatent));
  LatentWrite args;
  args.tables = batch.tables();
  args.rows = batch.rows();
  args.q_lora = in.q_lora;
  args.latent = kLatent;
  args.low = low.get();
  args.query_norm = query_norm.get();
  args.latent_norm = latent_norm.get();
  args.query_low = query_low.get();
  args.format = format;
  args.pages = pages.get();
  latent_write(args, nullptr);
  return {query_low.download(), pages.download()};
}

/// RMSNorm in double against `got`, one bf16 step of room.
void expect_norm(const __nv_bfloat16* x, const std::vector<float>& weight, const __nv_bfloat16* got) {
  double squares = 0.0;
  for (size_t c = 0; c < weight.size(); ++c) squares += std::pow(static_cast<double>(__bfloat162float(x[c])), 2);
  const double r = 1.0 / std::sqrt(squares / static_cast<double>(weight.size()) + 1e-5F);
  for (size_t c = 0; c < weight.size(); ++c) {
    const double expected = __bfloat162float(x[c]) * r * weight[c];
    ASSERT_NEAR(__bfloat162float(got[c]), expected, test::bf16_step(expected)) << "column " << c;
  }
}

// Two sequences at odd offsets over scattered pages and three padding rows.
void check_writes(int rows, int q_lora) {
  const PageTables tables(2, 40, 7);
  const int first = rows / 3;
  std::vector<test::Piece> pieces{{1, 61, rows - first}};
  if (first > 0) pieces.push_back({0, 130, first});
  const int padding = 3;
  const DeviceBatch batch(tables, pieces, padding);
  const Inputs in(rows + padding, q_lora, 11);

  const Written exact = write(in, tables, batch, LatentFormat::kBf16);
  const Written coded = write(in, tables, batch, LatentFormat::kFp8);
  std::vector<bool> written(static_cast<size_t>(tables.pages()) * kPagePositions, false);
  double error = 0.0;
  double power = 0.0;
  for (int r = 0; r < rows; ++r) {
    const __nv_bfloat16* x = in.low.data() + static_cast<size_t>(r) * in.width;
    expect_norm(x, in.query_norm, exact.query_low.data() + static_cast<size_t>(r) * q_lora);
    const int64_t row = tables.row(batch.sequence(r), batch.position(r));
    written[row] = true;
    const auto* values = reinterpret_cast<const __nv_bfloat16*>(exact.pages.data()) + row * kLatent;
    expect_norm(x + q_lora, in.latent_norm, values);

    // The fp8 row is the quantised bf16 row, byte for byte.
    double largest = 0.0;
    for (int c = 0; c < kLatent; ++c) largest = std::max(largest, std::abs(double{__bfloat162float(values[c])}));
    const double scale = test::power_of_two_scale(largest);
    const uint8_t* code = coded.pages.data() + row * latent_row_bytes(LatentFormat::kFp8, kLatent);
    float stored = 0.0F;
    std::memcpy(&stored, code + kLatent, 4);
    ASSERT_EQ(stored, scale);
    for (int c = 0; c < kLatent; ++c) {
      const double value = __bfloat162float(values[c]);
      ASSERT_EQ(code[c], test::e4m3_nearest(value / scale)) << "row " << r << " column " << c;
      if (r > 3) {
        error += std::pow(test::e4m3_value(code[c]) * scale - value, 2);
        power += value * value;
      }
    }
    for (int c = kLatent + 4; c < kLatent + 16; ++c) ASSERT_EQ(code[c], 0);
  }
  if (rows > 8) {
    EXPECT_LE(error / power, 1e-3);
  }
  for (size_t row = 0; row < written.size(); ++row) {
    if (!written[row]) {
      ASSERT_EQ(exact.pages[row * 2 * kLatent], 0xFF) << "row " << row << " was not to be written";
    }
  }
  for (size_t i = static_cast<size_t>(rows) * q_lora; i < exact.query_low.size(); ++i) {
    ASSERT_EQ(test::bits(exact.query_low[i]), 0xFFFF) << "padding row written";
  }
}

TEST(LatentWrite, NormalisesAndQuantises) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const int rows : {1, 7, 64, 300}) {
    for (const int q_lora : {256, 1536}) check_writes(rows, q_lora);
  }
}

TEST(LatentWrite, RowsDoNotDependOnEachOther) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const PageTables tables(1, 4, 3);
  const Inputs in(9, 256, 5);
  const Written all = write(in, tables, DeviceBatch(tables, {{0, 60, 9}}), LatentFormat::kFp8);
  for (int r = 0; r < in.rows; ++r) {
    Inputs one = in;
    one.low.assign(in.low.begin() + r * in.width, in.low.begin() + (r + 1) * in.width);
    const Written alone = write(one, tables, DeviceBatch(tables, {{0, 60 + r, 1}}), LatentFormat::kFp8);
    const int64_t at = tables.row(0, 60 + r) * latent_row_bytes(LatentFormat::kFp8, kLatent);
    EXPECT_EQ(std::memcmp(all.pages.data() + at, alone.pages.data() + at, 528), 0);
    EXPECT_EQ(std::memcmp(all.query_low.data() + r * 256, alone.query_low.data(), 512), 0);
  }
}

TEST(LatentWrite, RefusesBadSizes) {
  LatentWrite args;
  args.rows = 1;
  args.q_lora = 12;
  args.latent = kLatent;
  EXPECT_THROW(latent_write(args, nullptr), std::invalid_argument);
}

// ---- the 656-byte record, host only

TEST(LatentRecord, KeepsAnFp8RowExactly) {
  const std::vector<__nv_bfloat16> values = test::to_bf16(test::random_floats(kRecordLatent, 3.0F, 1));
  std::array<uint8_t, 528> row{};
  fp8_row_from_bf16(values.data(), row.data());
  std::array<uint8_t, kRecordBytes> record{};
  record_from_fp8_row(row.data(), record.data());
  for (int i = 528; i < kRecordBytes; ++i) EXPECT_EQ(record[i], 0);
  std::vector<__nv_bfloat16> back(kRecordLatent);
  bf16_from_record(record.data(), back.data());
  float scale = 0.0F;
  std::memcpy(&scale, row.data() + kRecordLatent, 4);
  for (int i = 0; i < kRecordLatent; ++i) {
    EXPECT_EQ(__bfloat162float(back[i]), test::e4m3_value(row[i]) * scale);
    EXPECT_EQ(row[i], test::e4m3_nearest(double{__bfloat162float(values[i])} / scale));
  }
  std::array<uint8_t, 528> again{};
  fp8_row_from_bf16(back.data(), again.data());
  EXPECT_EQ(row, again);
}

TEST(LatentRecord, ScalesEachGroup) {
  std::vector<float> values = test::random_floats(kRecordLatent, 1.0F, 2);
  for (int i = 128; i < 256; ++i) values[i] *= 1e-3F;
  for (int i = 256; i < 384; ++i) values[i] = 0.0F;
  const std::vector<__nv_bfloat16> rounded = test::to_bf16(values);
  std::array<uint8_t, kRecordBytes> record{};
  record_from_bf16(rounded.data(), record.data());
  std::vector<__nv_bfloat16> back(kRecordLatent);
  bf16_from_record(record.data(), back.data());
  for (int g = 0; g < 4; ++g) {
    double error = 0.0;
    double power = 0.0;
    for (int i = 128 * g; i < 128 * (g + 1); ++i) {
      error += std::pow(double{__bfloat162float(back[i])} - __bfloat162float(rounded[i]), 2);
      power += std::pow(double{__bfloat162float(rounded[i])}, 2);
    }
    EXPECT_LE(error, 1e-3 * power) << "group " << g;
  }
}

// Foreign writers use scales that are no powers of two.
TEST(LatentRecord, ReadsAnyScale) {
  std::array<uint8_t, kRecordBytes> record{};
  const float scale = 0.0123F;
  for (int g = 0; g < 4; ++g) std::memcpy(record.data() + 512 + 4 * g, &scale, 4);
  for (int i = 0; i < kRecordLatent; ++i) record[i] = static_cast<uint8_t>(i % 256 % 127 + (i % 2) * 128);
  std::vector<__nv_bfloat16> values(kRecordLatent);
  bf16_from_record(record.data(), values.data());
  for (int i = 0; i < kRecordLatent; ++i) {
    const double expected = test::e4m3_value(record[i]) * scale;
    EXPECT_NEAR(__bfloat162float(values[i]), expected, test::bf16_step(expected) / 2 * 1.001);
  }
}

}  // namespace
}  // namespace glm53::kernels
