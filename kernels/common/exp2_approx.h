// The hardware's 2^x: 2 ulp, results below 2^-126 become 0.
#pragma once

namespace glm53::kernels {

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace glm53::kernels
