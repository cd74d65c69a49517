// The CPU backend: the readable reference and the oracle of every GPU kernel. fp32 sums over bf16 and EXL3
// weights in a fixed order whatever the thread count (00-decisions §4), rounded nowhere or where the GPU rounds.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace glm53 {

/// Where values are rounded (spec 10 §3.0).
enum class CpuMode : uint8_t {
  kFp32,     ///< Mode F: nowhere; what tests/data/golden holds
  kServing,  ///< Mode S: the GPU's rounding points (bf16 activations, fp16 expert inputs)
};

/// Latent rows of serving mode; fp32 mode keeps fp32.
enum class LatentFormat : uint8_t {
  kBf16,
  kFp8,  ///< e4m3 with one power-of-two scale a row (00-decisions §4)
};

struct CpuBackendOptions {
  int threads = 0;          ///< 0 = all cores
  int tensor_parallel = 1;  ///< ranks; this one holds kda_heads / tensor_parallel heads
  CpuMode mode = CpuMode::kFp32;
  LatentFormat latents = LatentFormat::kBf16;
  bool fp8_index = false;  ///< serving mode: pool keys and index queries rotated and in e4m3, as a GPU stores them
};

std::unique_ptr<Backend> make_cpu_backend(const Geometry& geometry, const CpuBackendOptions& options);

}  // namespace glm53
