// Packing and quantising dense weights at load time, and the argument checks of linear.h.
//
// Operation   packed = pack(W); codes and scales as linear.h says
// Shapes      W [out, in] fp32, fp16 or bf16 with any strides (a transpose is a swap of them)
// Rounding    bf16: nearest. fp8: fp32 division by the scale, nearest code. q4: fp32 division, nearest code; the scale
//             keeps five significant bits, so that a code (three bits) times the scale is a bf16 number
// Bound       memory; runs once a weight
#include <climits>
#include <stdexcept>
#include <string>

#include "kernels/common/cuda_check.h"
#include "kernels/linear/linear_layout.h"
#include "kernels/linear/load_element.h"

namespace glm53::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kQ4Candidates = 8;  // neighbouring five-bit scales, 3 to 6 % apart
constexpr int kQ4Max = 7;

struct Target {
  uint8_t* data;
  int64_t first_out;
  int64_t panels;
  int64_t scale_offset;
};

__device__ uint8_t* code_address(const Target& target, WeightFormat format, int64_t channel, int64_t column,
                                 CodePlace& place) {
  place = code_place(format, static_cast<int>(channel % kStripChannels), static_cast<int>(column % kBlockColumns));
  const int64_t block = channel / kStripChannels * target.panels * kPanelBlocks + column / kBlockColumns;
  return target.data + block * block_bytes(format) + place.byte;
}

__device__ float element(const SourceMatrix& source, int64_t row, int64_t column) {
  if (column >= source.columns) return 0.0F;  // K's padding
  return load_element(source.data, source.type, row * source.row_stride + column * source.column_stride);
}

__global__ void pack_bf16_kernel(const SourceMatrix source, const Target target) {
  const int64_t columns = target.panels * kPanelColumns;
  const int64_t pair = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (pair >= source.rows * columns / 2) return;
  const int64_t row = pair / (columns / 2);
  const int64_t column = pair % (columns / 2) * 2;
  CodePlace place{};
  uint8_t* code = code_address(target, WeightFormat::bf16, target.first_out + row, column, place);
  *reinterpret_cast<__nv_bfloat162*>(code) =
      __floats2bfloat162_rn(element(source, row, column), element(source, row, column + 1));
}

// One block a row.
__global__ void pack_fp8_kernel(const SourceMatrix source, const Target target) {
  __shared__ float warp_largest[kThreads / 32];
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  float largest = 0.0F;
  for (int64_t column = thread; column < source.columns; column += kThreads) {
    largest = fmaxf(largest, fabsf(element(source, row, column)));
  }
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, step));
  if (thread % 32 == 0) warp_largest[thread / 32] = largest;
  __syncthreads();
  for (int warp = 0; warp < kThreads / 32; ++warp) largest = fmaxf(largest, warp_largest[warp]);
  const float scale = largest / kE4m3Max;
  const int64_t channel = target.first_out + row;
  if (thread == 0) reinterpret_cast<float*>(target.data + target.scale_offset)[channel] = scale;
  for (int64_t column = thread; column < target.panels * kPanelColumns; column += kThreads) {
    CodePlace place{};
    uint8_t* code = code_address(target, WeightFormat::fp8, channel, column, place);
    *code = scale > 0.0F ? to_e4m3(element(source, row, column) / scale) : uint8_t{0};
  }
}

/// m · 2^e, 16 <= m < 32, by rank: neighbouring ranks are neighbouring values with five significant bits.
__device__ float five_bit_value(int rank) { return __uint_as_float(static_cast<uint32_t>(rank) << 19); }

/// The lowest rank whose value is at least `value` (> 0).
__device__ int five_bit_rank_above(float value) { return static_cast<int>((__float_as_uint(value) + 0x7FFFFU) >> 19); }

__device__ float q4_code(float w, float scale) {
  return fminf(fmaxf(rintf(w / scale), -static_cast<float>(kQ4Max)), static_cast<float>(kQ4Max));
}

__device__ float warp_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFU, value, step);
  return value;
}

// One warp a row and group; a lane has the two columns whose nibbles share a byte.
__global__ void pack_q4_kernel(const SourceMatrix source, const Target target) {
  const int64_t index = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  const int64_t groups = target.panels * kPanelGroups;
  if (index >= source.rows * groups) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t row = index / groups;
  const int64_t group = index % groups;
  const int64_t column = group * kGroupColumns + lane / 8 * 16 + lane % 8;
  const float w[2] = {element(source, row, column), element(source, row, column + 8)};
  float largest = fmaxf(fabsf(w[0]), fabsf(w[1]));
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, step));

  // Below 2^-100 the group is zero: its scale would leave bf16's normal range.
  const bool zero = largest < 0x1p-100F;
  float scale = 0.0F;
  if (!zero) {
    const int top = five_bit_rank_above(largest / static_cast<float>(kQ4Max));
    float least = INFINITY;
    for (int i = 0; i < kQ4Candidates; ++i) {
      const float candidate = five_bit_value(top - i);
      const float low = w[0] - candidate * q4_code(w[0], candidate);
      const float high = w[1] - candidate * q4_code(w[1], candidate);
      const float error = warp_sum(low * low + high * high);
      if (error < least) {
        least = error;
        scale = candidate;
      }
    }
  }
  const int64_t channel = target.first_out + row;
  uint8_t nibbles = 0;
  CodePlace place{};
  uint8_t* code = nullptr;
  for (int i = 1; i >= 0; --i) {
    code = code_address(target, WeightFormat::q4, channel, column + 8 * i, place);
    const int value = 8 + (zero ? 0 : static_cast<int>(q4_code(w[i], scale)));
    nibbles = static_cast<uint8_t>(nibbles | value << place.shift);
  }
  *code = nibbles;
  if (lane == 0) {
    const int p = strip_position(static_cast<int>(channel % kStripChannels));
    auto* scales = reinterpret_cast<__nv_bfloat16*>(target.data + target.scale_offset);
    scales[(channel / kStripChannels * groups + group) * kStripChannels + p % 8 * 2 + p / 8] = __float2bfloat16(scale);
  }
}

__global__ void unpack_kernel(const PackedWeight weight, const Target target, float* values) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= weight.out * weight.in) return;
  const int64_t channel = index / weight.in;
  const int64_t column = index % weight.in;
  CodePlace place{};
  const uint8_t* code = code_address(target, weight.format, channel, column, place);
  const uint8_t* scales = target.data + target.scale_offset;
  float value = 0.0F;
  if (weight.format == WeightFormat::bf16) {
    value = __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(code));
  } else if (weight.format == WeightFormat::fp8) {
    value = from_e4m3(*code) * reinterpret_cast<const float*>(scales)[channel];
  } else {
    const int p = strip_position(static_cast<int>(channel % kStripChannels));
    const int64_t at =
        (channel / kStripChannels * target.panels * kPanelGroups + column / kGroupColumns) * kStripChannels;
    value = static_cast<float>((*code >> place.shift & 15) - 8) *
            __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(scales)[at + p % 8 * 2 + p / 8]);
  }
  values[index] = value;
}

int64_t scale_bytes(WeightFormat format, int64_t out, int64_t in) {
  if (format == WeightFormat::fp8) return out * static_cast<int64_t>(sizeof(float));
  if (format == WeightFormat::q4)
    return ceil_div(out, kStripChannels) * ceil_div(in, kPanelColumns) * kPanelGroups * kQ4ScaleBytes;
  return 0;
}

unsigned blocks_for(int64_t items, int64_t per_block) {
  const int64_t blocks = ceil_div(items, per_block);
  if (blocks > INT_MAX) throw std::invalid_argument("linear: matrix too large");
  return static_cast<unsigned>(blocks);
}

void check_shape(int64_t out, int64_t in, const char* what) {
  if (out < 1 || out > INT_MAX / 2 || in < kLinearColumns || in > INT_MAX / 2 || in % kLinearColumns != 0) {
    throw std::invalid_argument(std::string(what) + ": shape [" + std::to_string(out) + ", " + std::to_string(in) +
                                "], `in` must be a multiple of 16");
  }
}

bool aligned(const void* pointer, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

}  // namespace

int64_t packed_bytes(WeightFormat format, int64_t out, int64_t in) {
  check_shape(out, in, "packed_bytes");
  return ceil_div(code_bytes(format, out, in) + scale_bytes(format, out, in), 256) * 256;
}

void pack_linear(const SourceMatrix& source, WeightFormat format, int64_t out, int64_t first_out, uint8_t* packed,
                 cudaStream_t stream) {
  check_shape(out, source.columns, "pack_linear");
  if (source.rows < 1 || first_out < 0 || first_out + source.rows > out || !aligned(packed, 256)) {
    throw std::invalid_argument("pack_linear: rows outside the matrix, or `packed` not 256-byte aligned");
  }
  const Target target{packed, first_out, ceil_div(source.columns, kPanelColumns),
                      code_bytes(format, out, source.columns)};
  switch (format) {
    case WeightFormat::bf16:
      pack_bf16_kernel<<<blocks_for(source.rows * target.panels * kPanelColumns / 2, kThreads), kThreads, 0, stream>>>(
          source, target);
      break;
    case WeightFormat::fp8:
      pack_fp8_kernel<<<blocks_for(source.rows, 1), kThreads, 0, stream>>>(source, target);
      break;
    case WeightFormat::q4:
      pack_q4_kernel<<<blocks_for(source.rows * target.panels * kPanelGroups, kThreads / 32), kThreads, 0, stream>>>(
          source, target);
      break;
  }
  check_cuda(cudaGetLastError(), "pack_linear launch");
}

void unpack_linear(const PackedWeight& weight, float* values, cudaStream_t stream) {
  check_shape(weight.out, weight.in, "unpack_linear");
  const Target target{const_cast<uint8_t*>(weight.data), 0, ceil_div(weight.in, kPanelColumns),
                      code_bytes(weight.format, weight.out, weight.in)};
  unpack_kernel<<<blocks_for(weight.out * weight.in, kThreads), kThreads, 0, stream>>>(weight, target, values);
  check_cuda(cudaGetLastError(), "unpack_linear launch");
}

template <typename T>
LinearProblem make_problem(const PackedWeight& weight, const LinearRows<T>& rows, const char* what) {
  check_shape(weight.out, weight.in, what);
  const std::string name(what);
  if (weight.matrices < 1 || weight.matrices > 65535 || rows.rows < 1) {
    throw std::invalid_argument(name + ": no rows, or too few or many matrices");
  }
  if (!aligned(weight.data, 256)) throw std::invalid_argument(name + ": weights must be 256-byte aligned");
  if (!aligned(rows.x, 16) || rows.x_stride % 8 != 0 || rows.x_matrix_stride % 8 != 0) {
    throw std::invalid_argument(name + ": x must be 16-byte aligned and its strides multiples of 8");
  }
  const bool vectors = aligned(rows.y, 4 * sizeof(T)) && rows.y_stride % 4 == 0 && rows.y_matrix_stride % 4 == 0;
  return {weight.data,
          packed_bytes(weight.format, weight.out, weight.in),
          code_bytes(weight.format, weight.out, weight.in),
          static_cast<int>(weight.out),
          static_cast<int>(weight.in),
          static_cast<int>(ceil_div(weight.in, kPanelColumns)),
          rows.x,
          rows.x_stride,
          rows.x_matrix_stride,
          rows.rows,
          {rows.y, rows.y_stride, rows.y_matrix_stride, sizeof(T) == sizeof(float), vectors}};
}

template LinearProblem make_problem(const PackedWeight&, const LinearRows<__nv_bfloat16>&, const char*);
template LinearProblem make_problem(const PackedWeight&, const LinearRows<float>&, const char*);

}  // namespace glm53::kernels
