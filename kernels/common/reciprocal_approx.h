// The hardware's 1/x: 1 ulp, subnormals are 0, 1/inf = 0.
#pragma once

namespace glm53::kernels {

__device__ inline float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace glm53::kernels
