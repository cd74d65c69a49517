// Row sums of a strided bf16 matrix.
//
// Operation   sums[r] = Σ_c matrix[r][c]
// Shapes      matrix [rows, stride] bf16, sums [rows] fp32
// Rounding    products with 1.0 are exact; fp32 accumulation in the tensor core, 16 columns a step, left to right
// Bound       memory: 2 bytes a weight, no reuse. One warp for 16 rows keeps it simple, not fast; nothing serves with
// it.
#include <stdexcept>

#include "kernels/common/cuda_check.h"
#include "kernels/common/mma.h"
#include "kernels/smoke/row_sums.h"

namespace glm53::kernels {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileColumns = 16;
constexpr int kWarp = 32;

__device__ uint32_t load_pair(const __nv_bfloat16* matrix, int64_t row, int64_t column, int64_t rows, int64_t columns,
                              int64_t stride) {
  const __nv_bfloat16 zero = __float2bfloat16(0.0F);
  const bool row_ok = row < rows;
  __nv_bfloat162 pair;
  pair.x = row_ok && column < columns ? matrix[row * stride + column] : zero;
  pair.y = row_ok && column + 1 < columns ? matrix[row * stride + column + 1] : zero;
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__global__ void row_sums_kernel(const __nv_bfloat16* matrix, int64_t rows, int64_t columns, int64_t stride,
                                float* sums) {
  const int lane = static_cast<int>(threadIdx.x);
  const int group = lane / 4;
  const int pair = 2 * (lane % 4);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTileRows;
  // B is all ones, so each of the eight columns of D holds the row's sum.
  const __nv_bfloat162 ones = __float2bfloat162_rn(1.0F);
  const uint32_t one_bits = *reinterpret_cast<const uint32_t*>(&ones);
  const uint32_t b[2] = {one_bits, one_bits};
  float d[4] = {0.0F, 0.0F, 0.0F, 0.0F};
  for (int64_t column = 0; column < columns; column += kTileColumns) {
    const uint32_t a[4] = {
        load_pair(matrix, first + group, column + pair, rows, columns, stride),
        load_pair(matrix, first + group + 8, column + pair, rows, columns, stride),
        load_pair(matrix, first + group, column + pair + 8, rows, columns, stride),
        load_pair(matrix, first + group + 8, column + pair + 8, rows, columns, stride),
    };
    mma_m16n8k16_bf16(d, a, b);
  }
  if (pair == 0) {
    if (first + group < rows) sums[first + group] = d[0];
    if (first + group + 8 < rows) sums[first + group + 8] = d[2];
  }
}

}  // namespace

void row_sums(const __nv_bfloat16* matrix, int64_t rows, int64_t columns, int64_t stride, float* sums,
              cudaStream_t stream) {
  if (rows < 1 || columns < 1 || stride < columns) {
    throw std::invalid_argument("row_sums: rows and columns must be at least 1 and stride at least columns");
  }
  const auto blocks = static_cast<unsigned>((rows + kTileRows - 1) / kTileRows);
  row_sums_kernel<<<blocks, kWarp, 0, stream>>>(matrix, rows, columns, stride, sums);
  check_cuda(cudaGetLastError(), "row_sums launch");
}

}  // namespace glm53::kernels
