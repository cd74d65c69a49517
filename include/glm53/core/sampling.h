// How the next token is picked from one row of logits (spec 40 §10), and what comes of it.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>

namespace glm53 {

/// Temperatures below this are greedy.
inline constexpr float kGreedyTemperature = 1e-5F;
/// Most entries of a list of top logprobs.
inline constexpr int kMaxTopLogprobs = 20;

struct SamplingParams {
  float temperature = 1.0F;  ///< < kGreedyTemperature: argmax, lowest id on ties; the filters below are ignored
  float top_p = 1.0F;        ///< (0, 1]
  int top_k = 0;             ///< 0 = off
  float min_p = 0.0F;        ///< [0, 1]
  float repetition = 1.0F;   ///< > 0: of ids in prompt or output
  float frequency = 0.0F;    ///< times an id's number in the output
  float presence = 0.0F;     ///< of ids in the output
  uint64_t seed = 0;         ///< Philox key, low words; negative API seeds keep their two's complement bits
  uint32_t choice = 0;       ///< which of n choices: second part of the key

  bool greedy() const { return temperature < kGreedyTemperature; }
  bool penalizes() const { return repetition != 1.0F || frequency != 0.0F || presence != 0.0F; }
};

struct LogitBias {
  int32_t id = 0;
  float value = 0.0F;
};

/// An id of the prompt or the output.
struct TokenCount {
  int32_t id = 0;
  int32_t output = 0;  ///< times in the output, accepted rows of the window before this one included
};

/// One row to sample. Ids lie within the vocabulary; none occurs twice in `biases` or in `counts`. The spans are read
/// during the call alone; rows of one call that share a list should share its memory.
struct SampleRow {
  int logits_row = 0;    ///< row of the forward call's logits; several rows may name one
  int64_t position = 0;  ///< absolute position of the token that is drawn: counter word of the noise
  const SamplingParams* params = nullptr;
  int logprobs = -1;                   ///< −1 off; else raw logprobs: the picked id's and this many of the largest
  std::span<const uint32_t> mask;      ///< [ceil(vocab / 32)], bit i of word w allows id 32·w + i; empty: all allowed
  std::span<const int32_t> banned;     ///< → −inf after the raw logprobs (bad words, end ids below min_tokens)
  std::span<const LogitBias> biases;   ///< added to the logits
  std::span<const TokenCount> counts;  ///< what the penalties apply to; may be empty when the params have none
};

enum class SampleStatus : uint8_t {
  kPicked,
  kNotFinite,       ///< a logit that neither mask nor ban covers is NaN or +inf
  kNothingAllowed,  ///< all −inf
};

struct TokenLogprob {
  int32_t id = -1;
  float logprob = -std::numeric_limits<float>::infinity();
};

/// What became of a SampleRow; without kPicked the other fields keep their defaults. A row from which nothing can be
/// drawn ends its request, not the engine.
struct SampledToken {
  SampleStatus status = SampleStatus::kNothingAllowed;
  int32_t id = -1;  ///< −1 unless kPicked
  /// ln of the picked id's share of softmax(logits after the mask), before bans, biases, penalties and temperature; NaN
  /// unless asked for.
  float logprob = std::numeric_limits<float>::quiet_NaN();
  int top_count = 0;  ///< SampleRow::logprobs, less where fewer ids are allowed
  /// Descending, lower id first on ties; the defaults from top_count on.
  std::array<TokenLogprob, kMaxTopLogprobs> top{};
};

}  // namespace glm53
