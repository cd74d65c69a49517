#include "glm53/core/synthetic.h"

#include <cstring>
#include <stdexcept>

#include "glm53/core/float_convert.h"

namespace glm53 {
namespace {

constexpr uint32_t kDomain = 2;  // word 3 of every counter

float value_of(const SyntheticRule& rule, uint32_t word) {
  if (rule.kind == SyntheticRule::Kind::kSigns) return static_cast<float>(word >> 31 != 0 ? -rule.scale : rule.scale);
  const auto n = static_cast<int>((word & 0xFFU) + ((word >> 8) & 0xFFU) + ((word >> 16) & 0xFFU) + (word >> 24)) - 510;
  return static_cast<float>(rule.centre + rule.scale * n);
}

/// Calls use(word, w) for w in [first, last).
template <typename Use>
void for_each_word(PhiloxKey key, uint64_t first, uint64_t last, const Use& use) {
  for (uint64_t block = first / 4; block * 4 < last; ++block) {
    const PhiloxCounter words =
        philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, kDomain}, key);
    for (uint64_t w = block * 4; w < block * 4 + 4; ++w) {
      if (w >= first && w < last) use(words[w % 4], w);
    }
  }
}

}  // namespace

PhiloxKey synthetic_key(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325U;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  const PhiloxCounter block = philox4x32({static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32), 0, kDomain},
                                         {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return {block[0], block[1]};
}

void synthesise(const SyntheticRule& rule, DType dtype, int64_t first, int64_t count, std::byte* out) {
  const bool bits = rule.kind == SyntheticRule::Kind::kBits;
  if (bits ? dtype != DType::kI16 : dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16) {
    throw std::invalid_argument("a synthetic tensor cannot be " + std::string(dtype_name(dtype)));
  }
  const auto begin = static_cast<uint64_t>(first);
  const uint64_t end = begin + static_cast<uint64_t>(count);
  const auto put = [&](uint64_t element, const auto value) {
    std::memcpy(out + (element - begin) * sizeof value, &value, sizeof value);
  };
  if (bits) {
    for_each_word(rule.key, begin / 2, (end + 1) / 2, [&](uint32_t word, uint64_t w) {
      if (2 * w >= begin) put(2 * w, static_cast<uint16_t>(word));
      if (2 * w + 1 < end) put(2 * w + 1, static_cast<uint16_t>(word >> 16));
    });
    return;
  }
  for_each_word(rule.key, begin, end, [&](uint32_t word, uint64_t w) {
    const float value = value_of(rule, word);
    if (dtype == DType::kF32) {
      put(w, value);
    } else {
      put(w, dtype == DType::kBF16 ? float_to_bf16(value) : float_to_fp16(value));
    }
  });
}

}  // namespace glm53
