#include "backend/cpu/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <stdexcept>
#include <string>

#include "glm53/core/philox.h"

namespace glm53::cpu {
namespace {

using Candidate = SamplerScratch::Candidate;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// (l − l_max) / T: the tempered logit up to a constant of the row, which changes neither probabilities nor the argmax.
/// In double, so that 0.01 as the divisor can neither overflow nor merge different logits.
struct Temper {
  double max;
  double temperature;
  double operator()(float logit) const { return (logit - max) / temperature; }
};

int32_t argmax(std::span<const float> logits, int64_t position) {
  float best = -kInfinity;
  int32_t best_id = -1;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id];
    if (!(logit < kInfinity)) {
      throw SamplingError("logit of token " + std::to_string(id) + " at position " + std::to_string(position) +
                          " is not finite");
    }
    if (logit > best) {
      best = logit;
      best_id = static_cast<int32_t>(id);
    }
  }
  if (best_id < 0) throw SamplingError("no token is allowed at position " + std::to_string(position));
  return best_id;
}

/// Order of `candidates` is kept (by id): later sums then run in the same order with and without this filter.
void keep_top_k(SamplerScratch& scratch, std::size_t k) {
  auto& [logits, candidates, selection] = scratch;
  if (k >= candidates.size()) return;
  selection.clear();
  for (const Candidate& candidate : candidates) selection.push_back(candidate.logit);
  const auto kth = selection.begin() + static_cast<std::ptrdiff_t>(k) - 1;
  std::nth_element(selection.begin(), kth, selection.end(), std::greater<>());
  const float threshold = *kth;
  std::erase_if(candidates, [threshold](const Candidate& c) { return c.logit < threshold; });
}

/// Keeps a candidate iff the mass before it in descending order is < top_p, which is step 6 read from the other end:
/// only the kept head has to be sorted, and it is short for a model that knows what it wants.
void keep_top_p(std::vector<Candidate>& candidates, const Temper& temper, double top_p) {
  const auto weight = [&](const Candidate& c) { return std::exp(temper(c.logit)); };
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  };
  double total = 0;
  for (const Candidate& candidate : candidates) total += weight(candidate);

  double above = 0;
  std::size_t kept = 0;
  std::size_t sorted = 0;
  while (kept < candidates.size() && (kept == 0 || above < top_p * total)) {
    if (kept == sorted) {
      const auto from = candidates.begin() + static_cast<std::ptrdiff_t>(sorted);
      sorted = std::min(candidates.size(), std::max<std::size_t>(64, 4 * sorted));
      const auto to = candidates.begin() + static_cast<std::ptrdiff_t>(sorted);
      std::nth_element(from, to, candidates.end(), before);
      std::sort(from, to, before);
    }
    above += weight(candidates[kept++]);
  }
  candidates.resize(kept);
}

/// An upper bound of noise_gumbel(bits) without a logarithm: −ln u ≥ 1 − u ≥ 2^−(1 + leading ones of bits). The last
/// digit covers the rounding of the logarithms.
double gumbel_bound(uint32_t bits) { return (1 + std::countl_one(bits)) * (std::numbers::ln2 + 1e-9); }

int32_t draw(const std::vector<Candidate>& candidates, const Temper& temper, const SampleRow& row) {
  const PhiloxKey key = noise_key(row.params->seed, row.params->choice);
  const double largest_noise = gumbel_bound(~uint32_t{0});
  double best = -std::numeric_limits<double>::infinity();
  int32_t best_id = -1;
  for (const Candidate& candidate : candidates) {
    const double tempered = temper(candidate.logit);
    // Most ids of a vocabulary cannot win whatever their noise is; skipping them changes no result.
    if (tempered + largest_noise < best) continue;
    const uint32_t bits = noise_bits(key, row.position, candidate.id);
    if (tempered + gumbel_bound(bits) < best) continue;
    const double score = tempered + noise_gumbel(bits);
    if (score > best || (score == best && candidate.id < best_id)) {
      best = score;
      best_id = candidate.id;
    }
  }
  return best_id;
}

}  // namespace

int32_t sample_row(std::span<const float> logits, const SampleRow& row, SamplerScratch& scratch) {
  const SamplingParams& params = *row.params;
  scratch.logits.assign(logits.begin(), logits.end());
  for (const int32_t id : row.banned) {
    if (id < 0 || static_cast<std::size_t>(id) >= logits.size()) {
      throw std::logic_error("banned token " + std::to_string(id) + " is not in the vocabulary");
    }
    scratch.logits[static_cast<std::size_t>(id)] = -kInfinity;
  }
  const int32_t best = argmax(scratch.logits, row.position);
  if (params.greedy()) return best;

  const Temper temper{scratch.logits[static_cast<std::size_t>(best)], std::max(params.temperature, 0.01F)};
  const double lowest =
      params.min_p > 0 ? std::min(0.0, std::log(double{params.min_p})) : -std::numeric_limits<double>::max();
  scratch.candidates.clear();
  for (std::size_t id = 0; id < scratch.logits.size(); ++id) {
    const float logit = scratch.logits[id];
    if (temper(logit) >= lowest) scratch.candidates.push_back({logit, static_cast<int32_t>(id)});
  }
  if (params.top_k > 0) keep_top_k(scratch, static_cast<std::size_t>(params.top_k));
  if (params.top_p < 1.0F) keep_top_p(scratch.candidates, temper, params.top_p);
  return draw(scratch.candidates, temper, row);
}

}  // namespace glm53::cpu
