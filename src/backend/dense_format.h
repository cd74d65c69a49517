// How a backend stores dense projections, group by group (`dense.format`, `dense.groups`; spec 50 §13).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backend/weights.h"

namespace glm53 {

enum class DenseFormat : uint8_t {
  kBf16,
  kFp8,  ///< e4m3 with one scale an output channel
  kQ4,   ///< 4-bit codes with one scale an output channel and 64 inputs
};

/// A format for every LinearGroup, bf16 unless said otherwise.
struct DenseFormats {
  std::array<DenseFormat, kLinearGroups> formats{};

  DenseFormat& operator[](LinearGroup group) { return formats[static_cast<size_t>(group)]; }
  DenseFormat operator[](LinearGroup group) const { return formats[static_cast<size_t>(group)]; }
};

/// What `dense.format` alone means: the projections of KDA, MLA, dense MLP and shared expert take it. The head is one
/// step finer with q4 (fp8) and stays bf16 with fp8; kv_b and the indexer, whose errors enter scores, stay bf16.
inline DenseFormats dense_formats(DenseFormat format) {
  DenseFormats all;
  for (const LinearGroup group : {LinearGroup::kKda, LinearGroup::kMla, LinearGroup::kMlp, LinearGroup::kShared}) {
    all[group] = format;
  }
  if (format == DenseFormat::kQ4) all[LinearGroup::kHead] = DenseFormat::kFp8;
  return all;
}

}  // namespace glm53
