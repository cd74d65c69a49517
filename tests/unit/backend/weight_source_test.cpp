#include "backend/weight_source.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "glm53/core/error.h"

namespace glm53 {
namespace {

/// A 4 × 8 tensor of zeros but for one element.
template <typename T>
struct Stored {
  Stored(DType dtype, size_t at, T value) : values(32) {
    values[at] = value;
    tensor.name = "layers.3.some\nweight";
    tensor.file = "model.safetensors";
    tensor.dtype = dtype;
    tensor.shape = {4, 8};
    tensor.bytes = std::as_bytes(std::span(values));
  }
  std::vector<T> values;
  HostTensor tensor;
};

std::string error_of(const HostTensor& tensor, Range rows) {
  const LinearPart part{&tensor, nullptr, rows, {0, 8}, false};
  try {
    read_part(part);
  } catch (const Error& error) {
    // The same elements as plain values.
    const VectorPart plain{&tensor, {rows.begin * 8, rows.end * 8}};
    EXPECT_THROW(read_parts({&plain, 1}), Error);
    return error.what();
  }
  return "";
}

TEST(WeightSource, RefusesWhatIsNotFinite) {
  const std::string refusal = "model.safetensors: tensor layers.3.some\\x0aweight holds a NaN or infinity";
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    EXPECT_EQ(error_of(Stored<float>(DType::kF32, 31, bad).tensor, {0, 4}), refusal);
  }
  EXPECT_EQ(error_of(Stored<uint16_t>(DType::kBF16, 8, 0xFF80).tensor, {0, 4}), refusal);
  EXPECT_EQ(error_of(Stored<uint16_t>(DType::kF16, 0, 0x7C01).tensor, {0, 4}), refusal);
  // Rows that this rank does not take are not its business.
  EXPECT_EQ(error_of(Stored<float>(DType::kF32, 31, NAN).tensor, {0, 3}), "");
  EXPECT_EQ(error_of(Stored<float>(DType::kF32, 31, std::numeric_limits<float>::max()).tensor, {0, 4}), "");
  EXPECT_EQ(error_of(Stored<uint16_t>(DType::kF16, 3, 0x7BFF).tensor, {0, 4}), "");
}

}  // namespace
}  // namespace glm53
