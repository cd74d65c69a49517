// One element of a checkpoint tensor as fp32. Device code.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/linear/linear.h"

namespace glm53::kernels {

__device__ inline float load_element(const void* data, SourceType type, int64_t index) {
  switch (type) {
    case SourceType::f32:
      return static_cast<const float*>(data)[index];
    case SourceType::f16:
      return __half2float(static_cast<const __half*>(data)[index]);
    case SourceType::bf16:
      break;
  }
  return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[index]);
}

}  // namespace glm53::kernels
