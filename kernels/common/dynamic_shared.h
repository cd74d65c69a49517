// Leave for a kernel to be launched with dynamic shared memory. Host code only.
#pragma once

#include <cuda_runtime.h>

#include "kernels/common/cuda_check.h"

namespace glm53::kernels {

/// What a block may have in all, static memory included: GB10's limit, below the H200's.
inline constexpr int kMaxSharedBytes = 99 * 1024;

/// Called before every launch of kKernel with kBytes of dynamic shared memory. Kept out of line, so that its symbol
/// names kernel and bytes: scripts/kernel_resources.sh reads them and adds what the kernel has statically.
template <auto kKernel, int kBytes>
__attribute__((noinline)) void allow_dynamic_shared(const char* what) {
  static_assert(kBytes > 0 && kBytes <= kMaxSharedBytes, "GB10 has 99 KiB for a block");
  check_cuda(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), what);
}

}  // namespace glm53::kernels
