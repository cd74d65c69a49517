// Host conversions between cache rows, bf16 and the 656-byte fp8_ds_mla record. Nothing here runs on the device; it is
// compiled by nvcc because the E4M3 conversions come from CUDA's header.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/common/e4m3.h"
#include "kernels/latent_cache/latent_layout.h"

namespace glm53::kernels {
namespace {

constexpr int kGroups = kRecordLatent / kRecordGroup;

float largest_of(const __nv_bfloat16* values, int count) {
  float largest = 0.0F;
  for (int i = 0; i < count; ++i) largest = std::max(largest, std::fabs(__bfloat162float(values[i])));
  return largest;
}

void quantise(const __nv_bfloat16* values, int count, float scale, uint8_t* codes) {
  const float inverse = 1.0F / scale;
  for (int i = 0; i < count; ++i) codes[i] = to_e4m3(__bfloat162float(values[i]) * inverse);
}

}  // namespace

void record_from_fp8_row(const uint8_t* row, uint8_t* record) {
  std::memset(record, 0, kRecordBytes);
  std::memcpy(record, row, kRecordLatent);
  for (int g = 0; g < kGroups; ++g) std::memcpy(record + kRecordLatent + 4 * g, row + kRecordLatent, 4);
}

void record_from_bf16(const __nv_bfloat16* values, uint8_t* record) {
  std::memset(record, 0, kRecordBytes);
  for (int g = 0; g < kGroups; ++g) {
    const __nv_bfloat16* group = values + g * kRecordGroup;
    const float scale = e4m3_scale(largest_of(group, kRecordGroup));
    quantise(group, kRecordGroup, scale, record + g * kRecordGroup);
    std::memcpy(record + kRecordLatent + 4 * g, &scale, 4);
  }
}

void bf16_from_record(const uint8_t* record, __nv_bfloat16* values) {
  for (int i = 0; i < kRecordLatent; ++i) {
    float scale = 0.0F;
    std::memcpy(&scale, record + kRecordLatent + 4 * (i / kRecordGroup), 4);
    values[i] = __float2bfloat16(from_e4m3(record[i]) * scale);
  }
}

void fp8_row_from_bf16(const __nv_bfloat16* values, uint8_t* row) {
  std::memset(row, 0, static_cast<size_t>(latent_row_bytes(LatentFormat::kFp8, kRecordLatent)));
  const float scale = e4m3_scale(largest_of(values, kRecordLatent));
  quantise(values, kRecordLatent, scale, row);
  std::memcpy(row + kRecordLatent, &scale, 4);
}

}  // namespace glm53::kernels
