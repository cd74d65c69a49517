// The compiled variants of the kernels; which exist depends on the architecture (CMakeLists.txt).
#pragma once

#include "backend/cpu/vector_kernels.h"

namespace glm53::cpu {

extern const VectorKernels kGenericKernels;  ///< 16-byte vectors: every architecture's baseline
#if defined(__x86_64__)
extern const VectorKernels kAvx2Kernels;
extern const VectorKernels kAvx512Kernels;
#endif

}  // namespace glm53::cpu
