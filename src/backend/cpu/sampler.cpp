#include "backend/cpu/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <optional>

#include "glm53/core/philox.h"
#include "glm53/core/token_mask.h"

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

struct Largest {
  SampleStatus status;
  int32_t id;
};

Largest find_largest(std::span<const float> logits) {
  float best = -kInfinity;
  int32_t best_id = -1;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id];
    if (!(logit < kInfinity)) return {SampleStatus::kNotFinite, -1};
    if (logit > best) {
      best = logit;
      best_id = static_cast<int32_t>(id);
    }
  }
  return {best_id < 0 ? SampleStatus::kNothingAllowed : SampleStatus::kPicked, best_id};
}

/// Turns logits into raw logprobs.
struct RawTotal {
  double max = -kInfinity;
  double log_sum = 0;
  explicit RawTotal(std::span<const float> logits) {
    for (const float logit : logits) max = std::max(max, double{logit});
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - max);
    log_sum = std::log(sum);
  }
  float operator()(float logit) const { return static_cast<float>(logit - max - log_sum); }
};

/// The `wanted` largest logits in out.top, as logprobs.
void keep_largest(std::span<const float> logits, const RawTotal& total, int wanted, SampledToken& out) {
  if (wanted == 0) return;
  std::size_t count = 0;
  const auto most = static_cast<std::size_t>(wanted);
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id];
    if (!(logit > -kInfinity) || (count == most && !(logit > out.top[count - 1].logprob))) continue;
    std::size_t at = count < most ? count++ : count - 1;
    for (; at > 0 && logit > out.top[at - 1].logprob; --at) out.top[at] = out.top[at - 1];
    out.top[at] = {static_cast<int32_t>(id), logit};
  }
  out.top_count = static_cast<int>(count);
  for (std::size_t i = 0; i < count; ++i) out.top[i].logprob = total(out.top[i].logprob);
}

void apply_mask(std::span<float> logits, std::span<const uint32_t> mask) {
  for (std::size_t word = 0; word < mask.size(); ++word) {
    if (mask[word] == ~uint32_t{0}) continue;
    const std::size_t end = std::min(logits.size(), 32 * (word + 1));
    for (std::size_t id = 32 * word; id < end; ++id) {
      if (!allows_id(mask, static_cast<int32_t>(id))) logits[id] = -kInfinity;
    }
  }
}

/// Steps 3 to 5.
void patch(std::span<float> logits, const SampleRow& row) {
  const SamplingParams& params = *row.params;
  for (const int32_t id : row.banned) logits[static_cast<std::size_t>(id)] = -kInfinity;
  for (const LogitBias& bias : row.biases) logits[static_cast<std::size_t>(bias.id)] += bias.value;
  for (const TokenCount& count : row.counts) {
    float& logit = logits[static_cast<std::size_t>(count.id)];
    logit = logit > 0 ? logit / params.repetition : logit * params.repetition;
    logit -= params.frequency * static_cast<float>(count.output);
    if (count.output > 0) logit -= params.presence;
  }
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

void SamplerScratch::reserve(std::size_t vocab) {
  logits.reserve(vocab);
  candidates.reserve(vocab);
  selection.reserve(vocab);
}

SampledToken sample_row(std::span<const float> logits, const SampleRow& row, SamplerScratch& scratch) {
  const SamplingParams& params = *row.params;
  scratch.logits.assign(logits.begin(), logits.end());
  apply_mask(scratch.logits, row.mask);

  SampledToken out;
  std::optional<RawTotal> raw;
  if (row.logprobs >= 0) {
    raw.emplace(scratch.logits);
    keep_largest(scratch.logits, *raw, row.logprobs, out);
  }
  patch(scratch.logits, row);
  const Largest largest = find_largest(scratch.logits);
  if (largest.status != SampleStatus::kPicked) return {.status = largest.status};
  out.status = SampleStatus::kPicked;
  out.id = largest.id;

  if (!params.greedy()) {
    const Temper temper{scratch.logits[static_cast<std::size_t>(largest.id)], std::max(params.temperature, 0.01F)};
    const double lowest =
        params.min_p > 0 ? std::min(0.0, std::log(double{params.min_p})) : -std::numeric_limits<double>::max();
    scratch.candidates.clear();
    for (std::size_t id = 0; id < scratch.logits.size(); ++id) {
      const float logit = scratch.logits[id];
      if (temper(logit) >= lowest) scratch.candidates.push_back({logit, static_cast<int32_t>(id)});
    }
    if (params.top_k > 0) keep_top_k(scratch, static_cast<std::size_t>(params.top_k));
    if (params.top_p < 1.0F) keep_top_p(scratch.candidates, temper, params.top_p);
    out.id = draw(scratch.candidates, temper, row);
  }
  // An id that is drawn passed the mask, so its raw logit is the given one.
  if (raw) out.logprob = (*raw)(logits[static_cast<std::size_t>(out.id)]);
  return out;
}

}  // namespace glm53::cpu
