#include "glm53/core/dtype.h"

#include <array>

namespace glm53 {
namespace {

struct DTypeEntry {
  DType dtype;
  std::string_view name;
  size_t bytes;
};

constexpr std::array kDTypes = {
    DTypeEntry{DType::kF64, "F64", 8},   DTypeEntry{DType::kF32, "F32", 4},        DTypeEntry{DType::kF16, "F16", 2},
    DTypeEntry{DType::kBF16, "BF16", 2}, DTypeEntry{DType::kF8E4M3, "F8_E4M3", 1}, DTypeEntry{DType::kI64, "I64", 8},
    DTypeEntry{DType::kI32, "I32", 4},   DTypeEntry{DType::kI16, "I16", 2},        DTypeEntry{DType::kI8, "I8", 1},
    DTypeEntry{DType::kU8, "U8", 1},     DTypeEntry{DType::kBool, "BOOL", 1},
};

const DTypeEntry& entry_of(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }

}  // namespace

size_t dtype_bytes(DType dtype) { return entry_of(dtype).bytes; }

std::string_view dtype_name(DType dtype) { return entry_of(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeEntry& entry : kDTypes) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

}  // namespace glm53
