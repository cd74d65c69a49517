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

/// The first statement of a kernel that can do nothing before its input is there: only its launch overlaps.
__device__ inline void start_after_previous() {
  let_next_kernel_start();
  wait_for_previous_kernel();
}

/// kernel<<<grid, block, shared, stream>>>(arguments...), allowed to start early. May be captured.
///
/// Kernels hand over before they wait, so a kernel may start while several before it still run; what it waits for is
/// all of them, as each of them waited too. Every block must wait, those without work as well. Memory that a kernel
/// before wrote is read with plain loads: the read-only path (__ldg) is for constants.
template <typename... Parameters, typename... Arguments>
void launch_overlapped(const char* what, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
                       cudaStream_t stream, Arguments... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), what);
}

}  // namespace glm53::kernels
