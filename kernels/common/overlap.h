// Kernels that start while the one before them on the stream still runs (programmatic dependent launch).
#pragma once

#include <cstddef>

#include <cuda_runtime.h>

#include "kernels/common/cuda_check.h"

namespace glm53::kernels {

/// Waits until the kernel before has finished and its writes are visible. A kernel launched by launch_overlapped calls
/// it in every thread before it touches anything that is not constant since load, be it only to write.
__device__ inline void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/// Lets the kernel after this one start once every block has come here. Says nothing about this kernel's results.
__device__ inline void let_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

/// kernel<<<grid, block, 0, stream>>>(arguments...), allowed to start early. May be captured.
template <typename... Parameters, typename... Arguments>
void launch_overlapped(const char* what, void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
                       Arguments... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), what);
}

}  // namespace glm53::kernels
