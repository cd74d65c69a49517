// Sets of token ids as SampleRow::mask has them: bit i of word w is id 32·w + i.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace glm53 {

constexpr size_t mask_words(int32_t vocab) { return (static_cast<size_t>(vocab) + 31) / 32; }

// `id` lies within the mask.
inline void allow_id(std::span<uint32_t> mask, int32_t id) {
  mask[static_cast<uint32_t>(id) / 32] |= uint32_t{1} << (static_cast<uint32_t>(id) % 32);
}
inline void forbid_id(std::span<uint32_t> mask, int32_t id) {
  mask[static_cast<uint32_t>(id) / 32] &= ~(uint32_t{1} << (static_cast<uint32_t>(id) % 32));
}
inline bool allows_id(std::span<const uint32_t> mask, int32_t id) {
  return (mask[static_cast<uint32_t>(id) / 32] >> (static_cast<uint32_t>(id) % 32) & 1) != 0;
}

}  // namespace glm53
