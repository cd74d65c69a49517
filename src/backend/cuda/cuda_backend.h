// The CUDA backend: Mode S of spec 10 on one NVIDIA GPU. A CUDA error during a step throws and ends the process: state
// on the device is unknown after it.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/dense_format.h"

namespace glm53 {

struct CudaBackendOptions {
  int device = 0;
  int tensor_parallel = 1;  ///< ranks; this one holds kda_heads / tensor_parallel heads
  bool fp8_latents = true;  ///< kv.dtype
  bool fp8_index = true;    ///< kv.index
  bool graphs = true;       ///< cuda.graphs: record window calls at start and replay them
  DenseFormats dense;       ///< dense.format, dense.groups
};

/// Empty when `device` can run this program, else why not: no driver, no such device, or its compute capability.
std::string cuda_device_problem(int device);

/// Bytes free on the device.
int64_t cuda_free_memory(int device);

/// Throws Error naming the driver or compute capability when the device cannot be used, or the configuration key of a
/// geometry that the kernels do not cover.
std::unique_ptr<Backend> make_cuda_backend(const Geometry& geometry, const CudaBackendOptions& options);

}  // namespace glm53
