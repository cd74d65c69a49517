// Three-input logic in one instruction, where the compiler would spend two.
#pragma once

#include <cstdint>

namespace glm53::kernels {

/// (x & mask) ^ flip. From the expression with two constants the compiler makes two instructions.
__device__ inline uint32_t and_xor(uint32_t x, uint32_t mask, uint32_t flip) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(result) : "r"(x), "r"(mask), "r"(flip));
  return result;
}

}  // namespace glm53::kernels
