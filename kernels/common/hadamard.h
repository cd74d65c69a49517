// The orthonormal 128-point Walsh–Hadamard transform of a vector spread over a warp (Sylvester order).
#pragma once

namespace glm53::kernels {

/// v[i] of lane l is element 4·l + i. fp32 butterflies of stride 1, 2, …, 64, then · 128^-1/2.
__device__ inline void hadamard_128(float (&v)[4], int lane) {
  const float a[4] = {v[0] + v[1], v[0] - v[1], v[2] + v[3], v[2] - v[3]};
  v[0] = a[0] + a[2];
  v[1] = a[1] + a[3];
  v[2] = a[0] - a[2];
  v[3] = a[1] - a[3];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
#pragma unroll
    for (float& x : v) {
      const float other = __shfl_xor_sync(0xFFFFFFFFU, x, step);
      x = (lane & step) != 0 ? other - x : x + other;
    }
  }
#pragma unroll
  for (float& x : v) x *= 0.08838834764831845F;
}

}  // namespace glm53::kernels
