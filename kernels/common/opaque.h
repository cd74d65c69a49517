// Keeps the compiler from holding derived values in registers.
#pragma once

namespace glm53::kernels {

/// The same value, but one the compiler knows nothing of: what is computed from it in a loop is computed there each
/// time instead of being hoisted out and spilled. Worth it only where registers run out.
__device__ inline int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

}  // namespace glm53::kernels
