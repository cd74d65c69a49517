// Contents of tensors that no file holds (model.load_format: dummy): a pure function of (seed, tensor name, element
// index), so that any part of a tensor is made where it is needed, with the same bits on every processor.
//
//   tensor key   words 0, 1 of Philox(key = seed, counter = (FNV-1a 64 of the name, low word first, 0, 2))
//   word w       word w mod 4 of Philox(key = tensor key, counter = (w / 4, low word first, 0, 2))
//
// The 2 keeps both apart from the noise of the sampler (philox.h). kernels/synthetic makes the same on a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "glm53/core/dtype.h"
#include "glm53/core/philox.h"

namespace glm53 {

struct SyntheticRule {
  enum class Kind : uint8_t {
    kBits,   ///< 16-bit elements of random bits; element i is half i mod 2 (low first) of word i / 2
    kSigns,  ///< ±scale, negative where the top bit of word i is set
    /// centre + scale · n, n = sum of the four bytes of word i − 510: a bell of standard deviation 147.8 that ends at
    /// ±510. Computed in double, where product and sum are exact or rounded once, whether fused or not.
    kValues,
  };
  Kind kind = Kind::kValues;
  PhiloxKey key = {};
  double centre = 0.0;
  double scale = 0.0;
};

/// Standard deviation of n.
inline constexpr double kSyntheticDeviation = 147.80054127;

PhiloxKey synthetic_key(uint64_t seed, std::string_view name);

/// Elements [first, first + count) of a tensor of `dtype` (kBits: I16; else F32, F16 or BF16, rounded to nearest) into
/// `out`, little-endian. Throws std::invalid_argument for another dtype.
void synthesise(const SyntheticRule& rule, DType dtype, int64_t first, int64_t count, std::byte* out);

}  // namespace glm53
