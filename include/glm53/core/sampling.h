// How the next token is picked from one row of logits (spec 40 §10).
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>

namespace glm53 {

/// A row from which no token can be drawn: all −inf, or not finite. Ends the request, not the engine.
struct SamplingError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Temperatures below this are greedy.
inline constexpr float kGreedyTemperature = 1e-5F;

struct SamplingParams {
  float temperature = 1.0F;  ///< < kGreedyTemperature: argmax, lowest id on ties; the filters below are ignored
  float top_p = 1.0F;        ///< (0, 1]
  int top_k = 0;             ///< 0 = off
  float min_p = 0.0F;        ///< [0, 1]
  uint64_t seed = 0;         ///< Philox key, low words; negative API seeds keep their two's complement bits
  uint32_t choice = 0;       ///< which of n choices: second part of the key

  bool greedy() const { return temperature < kGreedyTemperature; }
};

/// One row to sample.
struct SampleRow {
  int logits_row = 0;    ///< row of the forward call's logits
  int64_t position = 0;  ///< absolute position of the token that is drawn: counter word of the noise
  const SamplingParams* params = nullptr;
  std::span<const int32_t> banned;  ///< ids set to −inf first (padding ids, end ids below min_tokens, …)
};

}  // namespace glm53
