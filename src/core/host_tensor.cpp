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

namespace {

void check_range(const HostTensor& tensor, int64_t first, int64_t count) {
  if (first < 0 || count < 0 || first + count > tensor.element_count()) {
    throw Error(tensor.file + ": tensor " + tensor.name + ": elements " + std::to_string(first) + " to " +
                std::to_string(first + count) + " lie outside " + describe(tensor.shape, tensor.dtype));
  }
}

}  // namespace

void copy_elements(const HostTensor& tensor, int64_t first, int64_t count, std::byte* out) {
  check_range(tensor, first, count);
  if (tensor.synthetic) {
    synthesise(*tensor.synthetic, tensor.dtype, first, count, out);
    return;
  }
  const auto element = static_cast<int64_t>(dtype_bytes(tensor.dtype));
  if (count > 0) std::memcpy(out, tensor.bytes.data() + first * element, static_cast<size_t>(count * element));
}

void copy_as_float(const HostTensor& tensor, int64_t first, int64_t count, float* out) {
  check_range(tensor, first, count);
  if (tensor.dtype == DType::kF32) {
    copy_elements(tensor, first, count, reinterpret_cast<std::byte*>(out));
    return;
  }
  if (tensor.dtype != DType::kBF16 && tensor.dtype != DType::kF16) {
    throw Error(tensor.file + ": tensor " + tensor.name + " has dtype " + std::string(dtype_name(tensor.dtype)) +
                "; expected F32, F16 or BF16");
  }
  std::vector<std::byte> made;
  if (tensor.synthetic) {
    made.resize(static_cast<size_t>(count) * sizeof(uint16_t));
    copy_elements(tensor, first, count, made.data());
  }
  const std::byte* source = tensor.synthetic ? made.data() : tensor.bytes.data() + 2 * first;
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
