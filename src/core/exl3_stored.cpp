// Contents of a stored EXL3 matrix, but for the trellis.
#include <cstring>

#include "glm53/core/error.h"
#include "glm53/core/exl3.h"
#include "glm53/core/float_convert.h"
#include "glm53/core/printable.h"

namespace glm53 {
namespace {

constexpr uint32_t kMcgMarker = 0xCBAC1FEDU;
constexpr uint32_t kMul1Marker = 0x83DCD12DU;
constexpr uint32_t kColumnMajorMarker = 0x70C0U;

[[noreturn]] void fail(const HostTensor& tensor, const std::string& what) {
  throw Error(tensor.file + ": tensor " + printable(tensor.name) + " " + what);
}

template <typename T>
std::vector<T> elements(const HostTensor& tensor) {
  std::vector<T> values(static_cast<size_t>(tensor.element_count()));
  copy_elements(tensor, 0, tensor.element_count(), reinterpret_cast<std::byte*>(values.data()));
  return values;
}

void check_marker(const HostTensor* marker, uint32_t value) {
  if (marker == nullptr) return;
  const uint32_t stored = elements<uint32_t>(*marker).front();
  if (stored != value) fail(*marker, "holds " + std::to_string(stored) + "; expected " + std::to_string(value));
}

void check_finite(const HostTensor& tensor, const std::vector<uint16_t>& values) {
  bool finite = true;
  for (const uint16_t bits : values) finite &= (bits & 0x7C00U) != 0x7C00U;
  if (!finite) fail(tensor, "holds an infinity or NaN in fp16");
}

/// fp16 [length]; packed signs (bit set: −1) are expanded.
std::vector<uint16_t> read_side(const HostTensor& tensor) {
  if (tensor.dtype == DType::kF16) {
    std::vector<uint16_t> values = elements<uint16_t>(tensor);
    check_finite(tensor, values);
    return values;
  }
  constexpr uint16_t kOne = 0x3C00;
  constexpr uint16_t kMinusOne = 0xBC00;
  std::vector<uint16_t> values;
  for (const uint16_t word : elements<uint16_t>(tensor)) {
    for (int bit = 0; bit < 16; ++bit) values.push_back(((word >> bit) & 1U) != 0 ? kMinusOne : kOne);
  }
  return values;
}

}  // namespace

Exl3Matrix read_exl3(const Exl3Stored& stored) {
  check_marker(stored.codebook_marker, stored.codebook == Exl3Codebook::kMcg ? kMcgMarker : kMul1Marker);
  check_marker(stored.order_marker, kColumnMajorMarker);
  Exl3Matrix matrix;
  matrix.name = stored.name;
  matrix.in = stored.in;
  matrix.out = stored.out;
  matrix.bits = stored.bits;
  matrix.codebook = stored.codebook;
  matrix.order = stored.order;
  matrix.trellis = stored.trellis->bytes;
  matrix.suh = read_side(*stored.suh);
  matrix.svh = read_side(*stored.svh);
  if (stored.bias != nullptr) {
    for (const float value : to_floats(*stored.bias)) matrix.bias.push_back(float_to_fp16(value));
    check_finite(*stored.bias, matrix.bias);
  }
  return matrix;
}

}  // namespace glm53
