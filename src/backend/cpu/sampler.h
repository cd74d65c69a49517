// Picks one id from a row of logits (spec 40 §10.2, spec 30 §5.2). A pure function: the result depends on nothing but
// the arguments, so neither batch, chunking nor speculation can change what a seed gives.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glm53/core/sampling.h"

namespace glm53::cpu {

/// Reused between calls so that sampling allocates only while a row is the widest yet. One thread at a time.
struct SamplerScratch {
  struct Candidate {
    float logit;
    int32_t id;
  };
  std::vector<float> logits;          ///< [vocab] with bans applied
  std::vector<Candidate> candidates;  ///< what the filters left
  std::vector<float> selection;       ///< work space of the top-k threshold
};

/// In this order:
///   1. row.banned → −inf;
///   2. greedy: argmax, lowest id on ties;
///   3. l / max(temperature, 0.01);
///   4. min_p: drops p < min_p · max p;
///   5. top_k: keeps all that reach the k-th largest, ties included;
///   6. top_p on the renormalised rest: ascending, drops while the cumulative sum is ≤ 1 − top_p, never the largest;
///      among equal ones the higher id goes first;
///   7. argmax of l/T + G(seed, choice, row.position, id) over what is left, lowest id on ties (philox.h).
/// `logits` [vocab] fp32. Throws SamplingError when every logit is −inf or one that is not banned is NaN or +inf, and
/// std::logic_error for a banned id outside the row.
int32_t sample_row(std::span<const float> logits, const SampleRow& row, SamplerScratch& scratch);

}  // namespace glm53::cpu
