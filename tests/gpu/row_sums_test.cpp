#include "kernels/smoke/row_sums.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/common/cuda_check.h"

namespace glm53::kernels {
namespace {

struct DeviceFree {
  void operator()(void* memory) const { cudaFree(memory); }
};

template <typename T>
std::unique_ptr<T, DeviceFree> device_array(size_t count) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, count * sizeof(T)), "cudaMalloc");
  return std::unique_ptr<T, DeviceFree>(static_cast<T*>(memory));
}

// Small integers: every partial sum is exact in fp32, so any correct order gives these bits.
TEST(RowSums, AddsRaggedStridedRowsExactly) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const int64_t rows = 37;
  const int64_t columns = 77;
  const int64_t stride = 96;
  std::vector<__nv_bfloat16> matrix(static_cast<size_t>(rows * stride), __float2bfloat16(1000.0F));
  std::vector<float> expected(static_cast<size_t>(rows), 0.0F);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const auto value = static_cast<float>((row * 31 + column * 7) % 23 - 11);
      matrix[static_cast<size_t>(row * stride + column)] = __float2bfloat16(value);
      expected[static_cast<size_t>(row)] += value;
    }
  }
  const auto device_matrix = device_array<__nv_bfloat16>(matrix.size());
  const auto device_sums = device_array<float>(expected.size());
  check_cuda(cudaMemcpy(device_matrix.get(), matrix.data(), matrix.size() * sizeof(matrix[0]), cudaMemcpyHostToDevice),
             "cudaMemcpy");
  row_sums(device_matrix.get(), rows, columns, stride, device_sums.get(), nullptr);
  std::vector<float> sums(expected.size());
  check_cuda(cudaMemcpy(sums.data(), device_sums.get(), sums.size() * sizeof(sums[0]), cudaMemcpyDeviceToHost),
             "cudaMemcpy");
  EXPECT_EQ(sums, expected);
}

TEST(RowSums, RefusesBadSizes) {
  EXPECT_THROW(row_sums(nullptr, 1, 8, 4, nullptr, nullptr), std::invalid_argument);
  EXPECT_THROW(row_sums(nullptr, 0, 8, 8, nullptr, nullptr), std::invalid_argument);
}

// Without a driver a launch must end in an exception, never in silence.
TEST(RowSums, ReportsAMissingDevice) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is a CUDA device";
  EXPECT_THROW(row_sums(nullptr, 1, 8, 8, nullptr, nullptr), CudaError);
}

}  // namespace
}  // namespace glm53::kernels
