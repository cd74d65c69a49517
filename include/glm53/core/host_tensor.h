// Views on tensors in host memory, as the checkpoint reader hands them out. Views own nothing: the reader that made
// them keeps the bytes alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "glm53/core/dtype.h"
#include "glm53/core/synthetic.h"

namespace glm53 {

/// One tensor of a checkpoint, row-major, little-endian. `bytes` may be unaligned.
struct HostTensor {
  std::string name;  ///< full name in the file
  std::string file;  ///< for error messages
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  ///< empty for a scalar
  std::span<const std::byte> bytes;
  uint64_t file_offset = 0;                ///< of `bytes` in the file, for readers that go round the mapping
  std::optional<SyntheticRule> synthetic;  ///< makes the elements of a tensor that no file holds; then no bytes

  int64_t element_count() const {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    return count;
  }
};

/// "[24, 16384] BF16", for messages.
std::string describe(const std::vector<int64_t>& shape, DType dtype);

/// Elements [first, first + count) of `tensor` (row-major order) as stored, into `out`. Throws Error naming the tensor
/// when the range leaves it.
void copy_elements(const HostTensor& tensor, int64_t first, int64_t count, std::byte* out);

/// The same, converted through fp32 into `out` [count] fp32.
/// Throws Error naming the tensor when its dtype is not F32, F16 or BF16 or the range leaves the tensor.
void copy_as_float(const HostTensor& tensor, int64_t first, int64_t count, float* out);

/// The whole tensor as fp32.
std::vector<float> to_floats(const HostTensor& tensor);

}  // namespace glm53
