#include "glm53/core/host_tensor.h"

#include <cstring>

#include "glm53/core/error.h"
#include "glm53/core/float_convert.h"

namespace glm53 {

std::string describe(const std::vector<int64_t>& shape, DType dtype) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  text += "] ";
  text += dtype_name(dtype);
  return text;
}

void copy_as_float(const HostTensor& tensor, int64_t first, int64_t count, float* out) {
  if (first < 0 || count < 0 || first + count > tensor.element_count()) {
    throw Error(tensor.file + ": tensor " + tensor.name + ": elements " + std::to_string(first) + " to " +
                std::to_string(first + count) + " lie outside " + describe(tensor.shape, tensor.dtype));
  }
  const std::byte* source = tensor.bytes.data() + first * static_cast<int64_t>(dtype_bytes(tensor.dtype));
  if (tensor.dtype == DType::kF32) {
    std::memcpy(out, source, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  if (tensor.dtype != DType::kBF16 && tensor.dtype != DType::kF16) {
    throw Error(tensor.file + ": tensor " + tensor.name + " has dtype " + std::string(dtype_name(tensor.dtype)) +
                "; expected F32, F16 or BF16");
  }
  const bool is_bf16 = tensor.dtype == DType::kBF16;
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, source + 2 * i, sizeof bits);
    out[i] = is_bf16 ? bf16_to_float(bits) : fp16_to_float(bits);
  }
}

std::vector<float> to_floats(const HostTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.element_count()));
  copy_as_float(tensor, 0, tensor.element_count(), values.data());
  return values;
}

}  // namespace glm53
