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
  std::vector<float> logits;          ///< [vocab] after the penalties
  std::vector<Candidate> candidates;  ///< what the filters left
  std::vector<float> selection;       ///< work space of the top-k threshold

  /// Rows of up to `vocab` logits then allocate nothing.
  void reserve(std::size_t vocab);
};

/// In this order; logits and steps 1 to 5 in fp32, the rest in fp64:
///   1. ids outside row.mask → −inf;
///   2. raw logprobs, if asked: log_softmax, its largest entries;
///   3. row.banned → −inf;
///   4. row.biases added;
///   5. penalties on row.counts: repetition (l > 0 ? l / r : l · r), then l − frequency · output, then l − presence
///      where output > 0;
///   6. greedy: argmax, lowest id on ties;
///   7. l / max(temperature, 0.01);
///   8. min_p: drops p < min_p · max p;
///   9. top_k: keeps all that reach the k-th largest, ties included; top_p on the renormalised rest: ascending, drops
///      while the cumulative sum is ≤ 1 − top_p, never the largest; among equal ones the higher id goes first;
///  10. argmax of l/T + G(seed, choice, row.position, id) over what is left, lowest id on ties (philox.h).
/// `logits` [vocab] fp32; check_sample_rows holds.
SampledToken sample_row(std::span<const float> logits, const SampleRow& row, SamplerScratch& scratch);

}  // namespace glm53::cpu
