// y = x · Wᵀ for every dense projection of the model, with W in bf16, fp8 or 4-bit (spec 70 §9, §4.1).
//
// W is packed once at load time into the order in which tensor-core fragments read it (linear_layout.h). Two families
// of kernels read the same bytes (spec 00 §4):
//   linear_window  1..64 rows; streams the weights once for all rows; may split K, by the shape alone
//   linear_prompt  any number of rows; 128×128 tiles, never splits K
// In each family the bits of a result row depend on that row of x and on W alone, not on the number of rows or its
// place. The two families differ in the last bits.
//
// All pointers are device pointers; calls are asynchronous on `stream`, allocate nothing, and throw
// std::invalid_argument for bad arguments and CudaError for a failed launch.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/common/segment_table.h"

namespace glm53::kernels {

enum class WeightFormat {
  bf16,
  fp8,  ///< e4m3 codes and one fp32 scale amax / 448 per output channel
  q4,   ///< codes −7..7 and one bf16 scale per output channel and 64 columns; code · scale is exact in bf16
};

enum class SourceType { f32, f16, bf16 };

/// Every input width is a multiple of this.
inline constexpr int kLinearColumns = 16;

/// `matrices` packed weights of one shape, packed_bytes() apart.
struct PackedWeight {
  WeightFormat format = WeightFormat::bf16;
  int64_t out = 0;                ///< >= 1
  int64_t in = 0;                 ///< multiple of kLinearColumns
  const uint8_t* data = nullptr;  ///< 256-byte aligned
  int matrices = 1;               ///< heads of a batched product; 1 for a plain one
};

/// Bytes of one packed [out, in] matrix, a multiple of 256.
int64_t packed_bytes(WeightFormat format, int64_t out, int64_t in);

/// A view of a matrix [rows, columns] at load time; element (r, c) is data[r · row_stride + c · column_stride], so a
/// transpose is a swap of the strides.
struct SourceMatrix {
  const void* data = nullptr;
  SourceType type = SourceType::bf16;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_stride = 0;
  int64_t column_stride = 1;
};

/// Rounds `source` to bf16 or quantises it, and writes it as output channels [first_out, first_out + source.rows) of a
/// packed [out, source.columns] matrix. Parts of a fused projection are packed one by one, at any first_out. `packed`
/// 256-byte aligned, packed_bytes(format, out, source.columns).
/// fp8: code = nearest e4m3 of w / scale. q4: of the scales with five significant bits from amax / 7 (rounded up) to
/// about 3/4 of it, the one with the least squared error over the group.
void pack_linear(const SourceMatrix& source, WeightFormat format, int64_t out, int64_t first_out, uint8_t* packed,
                 cudaStream_t stream);

/// values [out, in] fp32 = the weights that the products use, of the first matrix (for tests and error reports).
void unpack_linear(const PackedWeight& weight, float* values, cudaStream_t stream);

/// The rows of one product. Matrix m reads x + m · x_matrix_stride and writes y + m · y_matrix_stride.
template <typename T>
struct LinearRows {
  const __nv_bfloat16* x = nullptr;  ///< [rows, in] with x_stride; 16-byte aligned, strides multiples of 8 elements
  int64_t x_stride = 0;
  T* y = nullptr;  ///< [rows, out] with y_stride, __nv_bfloat16 (rounded once) or float; must not overlap x
  int64_t y_stride = 0;
  int rows = 0;
  int64_t x_matrix_stride = 0;
  int64_t y_matrix_stride = 0;
};

/// Bytes of `workspace` for products of this shape, 0 where K is not split. A workspace may serve products of many
/// shapes one after the other (take the maximum), not two at a time. It must be zero before its first use and is left
/// ready for the next.
size_t linear_window_workspace(int64_t out, int64_t in, int matrices);

/// rows in 1..kWindowRows. `workspace` 256-byte aligned, null where linear_window_workspace() is 0.
template <typename T>
void linear_window(const PackedWeight& weight, const LinearRows<T>& rows, void* workspace, cudaStream_t stream);

/// rows >= 1.
template <typename T>
void linear_prompt(const PackedWeight& weight, const LinearRows<T>& rows, cudaStream_t stream);

/// target [rows, columns] contiguous = source, rounded to nearest (exact to fp32).
template <typename T>
void convert_matrix(const SourceMatrix& source, T* target, cudaStream_t stream);

/// least[0] = min(least[0], number) where an element of `source` is a NaN or infinity: one such value would spread over
/// everything that is computed.
void mark_non_finite(const SourceMatrix& source, int32_t number, int32_t* least, cudaStream_t stream);

}  // namespace glm53::kernels
