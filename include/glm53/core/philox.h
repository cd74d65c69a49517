// Noise of the sampler and of the drafter's coupled picks (spec 30 §5.2, 40 §10.3): the counter-based generator
// Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
//
// Every value is a pure function of (seed, choice, position, token, lane): any shard, batch mate or drafter evaluates
// the one it needs alone, on any backend, and gets the same 32 bits. Layout:
//
//   generator key   word 0, 1   words 0, 1 of Philox(key = seed, counter = (choice, 0, 0, 1)); seed low word first
//   noise counter   word 0      absolute position of the drawn token (mod 2^32)
//                   word 1      token id
//                   word 2      lane (NoiseLane)
//                   word 3      0; the 1 above keeps key derivation apart from all noise
//   result          word 0
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace glm53 {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

/// Ten rounds; test vectors of the authors' Random123 in tests/unit/core/philox_test.cpp.
constexpr PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key = {key[0] + 0x9E3779B9U, key[1] + 0xBB67AE85U};
  }
  return counter;
}

/// Independent uses of one (seed, position, token) must not share noise (spec 30 §5.4).
enum class NoiseLane : uint32_t { kToken = 0, kDraftWalk = 1, kAccept = 2, kBonus = 3 };

/// Key of choice `choice` of a request.
constexpr PhiloxKey noise_key(uint64_t seed, uint32_t choice) {
  const PhiloxCounter block =
      philox4x32({choice, 0, 0, 1}, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return {block[0], block[1]};
}

/// The 32 random bits of one (position, token, lane).
constexpr uint32_t noise_bits(PhiloxKey key, int64_t position, int32_t token, NoiseLane lane = NoiseLane::kToken) {
  return philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(token), static_cast<uint32_t>(lane), 0},
                    key)[0];
}

/// u = (bits + ½) · 2⁻³², exact and inside (0, 1). A float would round the largest to 1 and make its noise infinite.
constexpr double noise_uniform(uint32_t bits) { return (bits + 0.5) * 0x1p-32; }

/// Standard Gumbel noise G = −ln(−ln u), within [−3.13, 22.88].
inline double noise_gumbel(uint32_t bits) { return -std::log(-std::log(noise_uniform(bits))); }

}  // namespace glm53
