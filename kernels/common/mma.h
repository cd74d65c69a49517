// Warp-level tensor-core instructions. Only forms that both sm_90a and sm_121a have, so that what runs on one is the
// code that runs on the other.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

namespace glm53::kernels {

/// D += A · B for one warp: A [16, 16] bf16 row-major, B [16, 8] bf16 column-major, D [16, 8] fp32.
///
/// Lane l holds, with g = l / 4 and c = 2·(l % 4), two consecutive elements a register (the lower one in the low half):
///   a[0] A[g][c..]      a[1] A[g+8][c..]      a[2] A[g][c+8..]      a[3] A[g+8][c+8..]
///   b[0] B[c..][g]      b[1] B[c+8..][g]
///   d[0], d[1] D[g][c], D[g][c+1]             d[2], d[3] D[g+8][c], D[g+8][c+1]
__device__ inline void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// As mma_m16n8k16_bf16 with fp16 operands. Not volatile: the compiler may schedule it among the decoding around it.
__device__ inline void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace glm53::kernels
