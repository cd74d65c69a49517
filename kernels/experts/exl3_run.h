// Decoding of EXL3 code words on the device (spec 20 §1.3, §2), in runs of 32 consecutive weights a lane.
//
// A tile holds 16×16 weights as a circular stream of 256·K bits. Lane l of a warp, g = l / 4 and t = l % 4, takes
// stream positions 32g..32g+31 of tile t of four that follow each other along k: exactly K words, at the same bit
// offsets in every lane for every K, and one word before them that lane l − 4 holds. In both tile orders such a run is
// two whole columns, so the lane can feed four A operands of mma.m16n8k16 (columns of W as rows of A):
//   mma i, slots 2t, 2t+1, 2t+8, 2t+9  ↔  rows 16t + {2i, 2i+1, 2i+8, 2i+9} of the 64 rows of W
//   A row g and g + 8                  ↔  tile column g and g + 8 (standard), 2g and 2g + 1 (column-major)
// so the other operand is 16 consecutive k of an activation row, unpermuted (RunInput).
#pragma once

#include <cstdint>

#include <cuda_fp16.h>

#include "kernels/common/lop3.h"

namespace glm53::kernels {

/// x = state · multiplier + addend of codebooks 3INST, MCG and MUL1.
struct CodeHash {
  uint32_t multiplier;
  uint32_t addend;
};

/// Offset of word f = q·K + j of a lane (word j of its run in 64-row half q) in the 64·K words of a packed unit of
/// 16 columns × 128 rows: planes of four words a lane, then for odd K one of two.
__host__ __device__ inline int packed_word(int bits, int lane, int f) {
  const int in_planes = bits / 2 * 4;
  return f < in_planes ? f / 4 * 128 + lane * 4 + f % 4 : bits / 2 * 128 + lane * 2 + (f - in_planes);
}

/// 0 = 3INST, 1 = MCG, 2 = MUL1.
__host__ __device__ inline CodeHash code_hash(int codebook) {
  if (codebook == 0) return {89226354U, 64248484U};
  return {codebook == 1 ? 0xCBAC1FEDU : 0x83DCD12DU, 0U};
}

/// Hashed word → the value in both halves (3INST and MCG): rn16(low half + high half). The add reads the halves of one
/// register, which saves the two permutes of the packed form.
__device__ inline uint32_t mix_value(uint32_t x) {
  const uint32_t bits = and_xor(x, 0x8FFF8FFFU, 0x3B603B60U);
  const __half2 halves = *reinterpret_cast<const __half2*>(&bits);
  const __half2 sum = __hadd2(__low2half2(halves), __high2half2(halves));
  return *reinterpret_cast<const uint32_t*>(&sum);
}

/// Two hashed words → two fp16 values, the first in the low half.
template <bool kMul1>
__device__ inline uint32_t value_pair(uint32_t x0, uint32_t x1) {
  if constexpr (kMul1) {
    const uint32_t packed = __byte_perm(__dp4a(x0, 0x01010101U, 0x6400U), __dp4a(x1, 0x01010101U, 0x6400U), 0x5410);
    const uint32_t scale = 0x1EEE1EEEU;
    const uint32_t offset = 0xC931C931U;
    const __half2 value = __hfma2(*reinterpret_cast<const __half2*>(&packed), *reinterpret_cast<const __half2*>(&scale),
                                  *reinterpret_cast<const __half2*>(&offset));
    return *reinterpret_cast<const uint32_t*>(&value);
  } else {
    return __byte_perm(mix_value(x0), mix_value(x1), 0x5410);
  }
}

/// Hashed words of a run's 32 weights. run[0] is the word before it, run[1..K] its own words.
///
/// The hash of a 16-bit field needs the field alone in its register: one permute where the field lies on byte bounds
/// within a word, a shift and a mask elsewhere. Where K divides 8, fields across two words do with one permute too: it
/// puts the field l below another, h, whose hash is at hand, and
///   hash(l) = (register · M + A + (A << 16)) − (hash(h) << 16)      mod 2^32.
/// That is work for the multiply pipe, which has room for it; doing as much for fields in a low half overloads it.
template <int K>
__device__ inline void hash_run(const uint32_t (&run)[K + 1], CodeHash hash, uint32_t (&x)[32]) {
  if constexpr (16 % K == 0) {
    constexpr int kPerWord = 32 / K;
    constexpr int kShifts = K < 8 ? 8 / K : 1;  // residues of window ends modulo 8, in steps of K
    const uint32_t pair_addend = hash.addend + (hash.addend << 16);
#pragma unroll
    for (int w = 1; w <= K; ++w) {
#pragma unroll
      for (int s = 0; s < kShifts; ++s) {
        const int r = s * K;
        // The stream moved right by r bits, so that windows end on byte bounds.
        const uint32_t word = r == 0 ? run[w] : __funnelshift_r(run[w], run[w - 1], r);
        const uint32_t before =
            r == 0 ? run[w - 1] : (w >= 2 ? __funnelshift_r(run[w - 1], run[w >= 2 ? w - 2 : 0], r) : run[w - 1] >> r);
        const auto index = [w, r](int end) { return (w - 1) * kPerWord + (end - r) / K - 1; };
        const int high = index(16);
        const int low = index(32);
        x[high] = __byte_perm(word, 0, 0x4432) * hash.multiplier + hash.addend;
        x[low] = __byte_perm(word, 0, 0x4410) * hash.multiplier + hash.addend;
        if constexpr (8 % K == 0) {
          x[index(24)] = __byte_perm(word, 0, 0x4421) * hash.multiplier + hash.addend;
          const uint32_t high_and_cross = __byte_perm(word, before, 0x3243);
          x[index(8)] = (high_and_cross * hash.multiplier + pair_addend) - (x[high] << 16);
        }
      }
    }
  } else {
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      const int end = (j + 1) * K;
      const int w = (end + 31) / 32;
      const int shift = 32 * w - end;
      uint32_t state;
      if (shift == 0 || shift == 8 || shift == 16) {
        state = __byte_perm(run[w], 0, shift == 0 ? 0x4410 : shift == 8 ? 0x4421 : 0x4432);
      } else {
        state = __funnelshift_r(run[w], run[w - 1], shift) & 0xFFFFU;
      }
      x[j] = state * hash.multiplier + hash.addend;
    }
  }
}

/// A operands of the four mma of a run.
template <int K, bool kMul1, bool kColumnMajor>
__device__ inline void decode_run(const uint32_t (&run)[K + 1], CodeHash hash, uint32_t (&a)[4][4]) {
  uint32_t x[32];
  hash_run<K>(run, hash, x);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kColumnMajor) {
      a[i][0] = value_pair<kMul1>(x[2 * i], x[2 * i + 1]);
      a[i][1] = value_pair<kMul1>(x[16 + 2 * i], x[17 + 2 * i]);
      a[i][2] = value_pair<kMul1>(x[2 * i + 8], x[2 * i + 9]);
      a[i][3] = value_pair<kMul1>(x[24 + 2 * i], x[25 + 2 * i]);
    } else {
      a[i][0] = value_pair<kMul1>(x[8 * i], x[8 * i + 1]);
      a[i][1] = value_pair<kMul1>(x[8 * i + 4], x[8 * i + 5]);
      a[i][2] = value_pair<kMul1>(x[8 * i + 2], x[8 * i + 3]);
      a[i][3] = value_pair<kMul1>(x[8 * i + 6], x[8 * i + 7]);
    }
  }
}

/// The 16 activations of one lane for a run: row lane / 4, k 16·(lane % 4) … + 15 of the 64.
struct RunInput {
  uint4 low;   ///< k 0..7
  uint4 high;  ///< k 8..15
};

/// B operand of mma i.
__device__ inline void run_operand(const RunInput& input, int i, uint32_t (&b)[2]) {
  b[0] = i == 0 ? input.low.x : i == 1 ? input.low.y : i == 2 ? input.low.z : input.low.w;
  b[1] = i == 0 ? input.high.x : i == 1 ? input.high.y : i == 2 ? input.high.z : input.high.w;
}

/// Tile column of A row `row` (0..15).
template <bool kColumnMajor>
__device__ inline int run_column(int row) {
  return kColumnMajor ? 2 * (row % 8) + row / 8 : row;
}

}  // namespace glm53::kernels
