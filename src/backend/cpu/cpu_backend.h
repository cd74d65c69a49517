// The CPU backend: the readable reference and the oracle of every GPU kernel. fp32 activations and caches over bf16 and
// EXL3 weights, fixed summation order whatever the thread count (00-decisions §4).
#pragma once

#include <memory>

#include "backend/backend.h"

namespace glm53 {

struct CpuBackendOptions {
  int threads = 0;          ///< 0 = all cores
  int tensor_parallel = 1;  ///< ranks; this one holds kda_heads / tensor_parallel heads
};

std::unique_ptr<Backend> make_cpu_backend(const Geometry& geometry, const CpuBackendOptions& options);

}  // namespace glm53
