// Shared memory → mma fragments: four 8×8 matrices of 16-bit elements a call.
#pragma once

#include <cstdint>

namespace glm53::kernels {

/// Address of a generic pointer into shared memory, as the instructions below take it.
__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Lane l gives the address of row l % 8 (16 bytes, aligned) of matrix l / 8; d[i] of lane l then holds elements
/// [l / 4][2·(l % 4)], [..+1] of matrix i.
__device__ inline void ldmatrix_x4(uint32_t (&d)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(row_address)
               : "memory");
}

/// The same with every matrix transposed: lane l gets [2·(l % 4)][l / 4] and [..+1][l / 4].
__device__ inline void ldmatrix_x4_transposed(uint32_t (&d)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(row_address)
               : "memory");
}

}  // namespace glm53::kernels
