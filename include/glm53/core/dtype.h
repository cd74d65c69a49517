// Element types of tensors on disk and in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace glm53 {

enum class DType : uint8_t { kF64, kF32, kF16, kBF16, kF8E4M3, kI64, kI32, kI16, kI8, kU8, kBool };

/// Bytes of one element.
size_t dtype_bytes(DType dtype);

/// The safetensors spelling: "F32", "BF16", "F8_E4M3", …
std::string_view dtype_name(DType dtype);

/// Inverse of dtype_name; nullopt for a spelling that this program does not know.
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace glm53
