// How a packed weight lies in memory, and how a lane gets its fragments from it. Device side of linear.h.
//
// A matrix [out, in] is cut into strips of 16 output channels and blocks of 32 columns; `in` is padded with zeros to a
// multiple of 128 (a panel). Strip-major, so that a strip's blocks are one contiguous stream:
//   codes   [strips, in / 32] blocks of 1024 (bf16), 512 (fp8) or 256 bytes (q4)
//   scales  fp8: [out] fp32; q4: [strips, in / 64, 8, 2] bf16, channels at positions g and g + 8
// A block holds, for its two k16 steps and for lane l (g = l / 4, k = 16·step + 2·(l % 4)), the registers
//   r0 = W[g][k..], r1 = W[g + 8][k..], r2 = W[g][k + 8..], r3 = W[g + 8][k + 8..]   two columns each
// where g and g + 8 are positions in the strip. (r0, r1, r2, r3) is the A fragment of mma_m16n8k16 for the strip, and
// (r0, r2) and (r1, r3) are the B fragments of its two halves.
//   bf16  [step][lane] r0, r2, r1, r3     fp8  [lane][step] r0, r1, r2, r3, one byte an element
//   q4    [lane][step] 4 bytes: nibbles i and i + 4 are the low and high half of r0, r2, r1, r3 for i = 0..3, offset 8
// Position p holds channel strip_channel(p): so a lane of an mma result owns four neighbouring channels.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "kernels/common/e4m3.h"
#include "kernels/linear/linear.h"

namespace glm53::kernels {

inline constexpr int kStripChannels = 16;
inline constexpr int kBlockColumns = 32;
inline constexpr int kGroupColumns = 64;   // of a q4 scale
inline constexpr int kPanelColumns = 128;  // K is padded to whole panels and split between them
inline constexpr int kPanelBlocks = kPanelColumns / kBlockColumns;
inline constexpr int kPanelGroups = kPanelColumns / kGroupColumns;
inline constexpr int kQ4ScaleBytes = 32;  // a strip and group

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

__host__ __device__ constexpr int block_bytes(WeightFormat format) {
  return format == WeightFormat::bf16 ? 1024 : format == WeightFormat::fp8 ? 512 : 256;
}

__host__ __device__ constexpr int64_t code_bytes(WeightFormat format, int64_t out, int64_t in) {
  return ceil_div(out, kStripChannels) * ceil_div(in, kPanelColumns) * kPanelBlocks * block_bytes(format);
}

/// Channel of a strip at fragment position p, and its inverse.
__host__ __device__ constexpr int strip_channel(int p) { return 4 * ((p % 8) / 2) + p % 2 + 2 * (p / 8); }
__host__ __device__ constexpr int strip_position(int channel) {
  return 2 * (channel / 4) + channel % 2 + 8 * ((channel % 4) / 2);
}

/// Where the code of (channel in strip, column in block) is: byte offset in the block, and for q4 which nibble.
struct CodePlace {
  int byte;
  int shift;
};

__host__ __device__ constexpr CodePlace code_place(WeightFormat format, int channel, int column) {
  const int p = strip_position(channel);
  const int lane = (p % 8) * 4 + (column % 8) / 2;
  const int step = column / 16;
  const int half = column % 2;
  const int late = (column % 16) / 8;
  if (format == WeightFormat::bf16) return {step * 512 + lane * 16 + (2 * (p / 8) + late) * 4 + half * 2, 0};
  if (format == WeightFormat::fp8) return {lane * 16 + step * 8 + (2 * late + p / 8) * 2 + half, 0};
  return {lane * 8 + step * 4 + half * 2 + p / 8, 4 * late};
}

/// Fragments of both k16 steps of a block. `block` in shared memory; `scales` of a q4 strip and group, else unused.
template <WeightFormat kFormat>
__device__ inline void load_fragments(const uint8_t* block, const uint8_t* scales, int lane, uint32_t (&a)[2][4]) {
  if constexpr (kFormat == WeightFormat::bf16) {
    for (int step = 0; step < 2; ++step) {
      const uint4 v = *reinterpret_cast<const uint4*>(block + step * 512 + lane * 16);
      a[step][0] = v.x;
      a[step][2] = v.y;
      a[step][1] = v.z;
      a[step][3] = v.w;
    }
  } else if constexpr (kFormat == WeightFormat::fp8) {
    const uint4 v = *reinterpret_cast<const uint4*>(block + lane * 16);
    e4m3x4_to_bf16(v.x, a[0][0], a[0][1]);
    e4m3x4_to_bf16(v.y, a[0][2], a[0][3]);
    e4m3x4_to_bf16(v.z, a[1][0], a[1][1]);
    e4m3x4_to_bf16(v.w, a[1][2], a[1][3]);
  } else {
    const uint2 v = *reinterpret_cast<const uint2*>(block + lane * 8);
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(scales + (lane / 4) * 4);
    const uint32_t scale_bits[2] = {__byte_perm(pair, pair, 0x1010), __byte_perm(pair, pair, 0x3232)};
    const auto widen = [&](uint32_t codes, int half) {
      // 128 + code as bf16, then minus 136, then the scale: each step exact.
      constexpr uint32_t kOffset = 0x43084308U;
      const uint32_t raised = (codes & 0x000F000FU) | 0x43004300U;
      const __nv_bfloat162 value = __hmul2(__hsub2(*reinterpret_cast<const __nv_bfloat162*>(&raised),
                                                   *reinterpret_cast<const __nv_bfloat162*>(&kOffset)),
                                           *reinterpret_cast<const __nv_bfloat162*>(&scale_bits[half]));
      return *reinterpret_cast<const uint32_t*>(&value);
    };
    const uint32_t words[2] = {v.x, v.y};
    for (int step = 0; step < 2; ++step) {
      a[step][0] = widen(words[step], 0);
      a[step][2] = widen(words[step] >> 4, 0);
      a[step][1] = widen(words[step] >> 8, 1);
      a[step][3] = widen(words[step] >> 12, 1);
    }
  }
}

/// Byte offset of 16-byte chunk c (0..3) of row r of an x block [rows, 32 columns] in shared memory: eight rows' chunks
/// of one column lie in different banks.
__device__ constexpr int x_offset(int row, int chunk) { return row * 64 + ((chunk ^ (row / 2 % 4)) * 16); }

/// A result matrix as the kernels see it.
struct LinearOutput {
  void* y;
  int64_t stride;
  int64_t matrix_stride;
  bool fp32;
  bool vectors;  ///< base and strides allow 4-element stores
};

/// Stores four neighbouring channels of a row, those below `out`; `scales` [out] fp32 or null. channel % 4 == 0.
__device__ inline void store_channels(const LinearOutput& output, int64_t matrix, int64_t row, int channel, int out,
                                      const float* scales, float (&v)[4]) {
  if (channel >= out) return;
  if (scales != nullptr) {
    for (int i = 0; i < 4; ++i) {
      if (channel + i < out) v[i] *= scales[channel + i];
    }
  }
  const int64_t at = matrix * output.matrix_stride + row * output.stride + channel;
  const bool whole = output.vectors && channel + 4 <= out;
  if (output.fp32) {
    float* y = static_cast<float*>(output.y) + at;
    if (whole) {
      *reinterpret_cast<float4*>(y) = make_float4(v[0], v[1], v[2], v[3]);
    } else {
      for (int i = 0; i < 4 && channel + i < out; ++i) y[i] = v[i];
    }
  } else {
    __nv_bfloat16* y = static_cast<__nv_bfloat16*>(output.y) + at;
    if (whole) {
      const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(v[0], v[1]), __floats2bfloat162_rn(v[2], v[3])};
      *reinterpret_cast<uint2*>(y) = *reinterpret_cast<const uint2*>(pairs);
    } else {
      for (int i = 0; i < 4 && channel + i < out; ++i) y[i] = __float2bfloat16(v[i]);
    }
  }
}

/// One product, as both families take it.
struct LinearProblem {
  const uint8_t* weights;
  int64_t weight_bytes;  ///< from matrix to matrix
  int64_t scale_offset;
  int out;
  int in;
  int panels;  ///< of 128 columns, the padded last one included
  const __nv_bfloat16* x;
  int64_t x_stride;
  int64_t x_matrix_stride;
  int rows;
  LinearOutput output;
};

/// Checks the arguments and fills a problem; `what` names the operation in errors.
template <typename T>
LinearProblem make_problem(const PackedWeight& weight, const LinearRows<T>& rows, const char* what);

}  // namespace glm53::kernels
