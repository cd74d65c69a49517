// Picks one id from a row of logits on the device (spec 40 §10.2), with the order, the noise and the ids of the CPU's
// sample_row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <cuda_runtime_api.h>

namespace glm53::kernels {

inline constexpr int kSamplerIdBits = 18;  ///< vocabularies up to 262,144
inline constexpr int kMaxTopLogprobs = 32;

struct LogitBias {
  int32_t id;
  float value;
};

struct LogitPenalty {
  int32_t id;            ///< occurs in prompt or output
  int32_t output_count;  ///< times in the output, accepted rows of the window before this one included
};

/// A range of one of SamplerTables' lists.
struct SamplerList {
  int32_t begin = 0;
  int32_t count = 0;
};

/// What one row asks for; read on the device when the kernel runs. Ids outside the vocabulary are ignored; in `biases`
/// and `penalties` of a row an id occurs once.
struct SamplerRow {
  int32_t logits_row = -1;   ///< −1: no row, its outputs are left alone. Several entries may share one
  int32_t mask = -1;         ///< row of SamplerTables::masks, −1 = all allowed
  int32_t patch_slot = -1;   ///< row of the workspace, one user at a time; needed iff one of the lists is not empty
  int32_t logprobs = -1;     ///< −1 off, else also that many of the largest raw logprobs, up to kMaxTopLogprobs
  int64_t position = 0;      ///< absolute position of the drawn token
  uint32_t key[2] = {0, 0};  ///< noise_key(seed, choice) of core/philox.h
  float temperature = 1.0F;  ///< < 1e-5 greedy; < 0.01 counts as 0.01
  float top_p = 1.0F;        ///< (0, 1]
  int32_t top_k = 0;         ///< 0 = off
  float repetition = 1.0F;
  float frequency = 0.0F;
  float presence = 0.0F;
  double lowest = -std::numeric_limits<double>::max();  ///< sampler_lowest(min_p)
  SamplerList banned;  ///< ids → −inf: bad words, end ids below min_tokens, padding ids
  SamplerList biases;
  SamplerList penalties;
};

/// ln(min_p) on the host, so that both backends cut at the same bits: the smallest (l − l_max) / T that stays.
inline double sampler_lowest(float min_p) {
  return min_p > 0 ? std::min(0.0, std::log(double{min_p})) : -std::numeric_limits<double>::max();
}

/// Device memory.
struct SamplerTables {
  const SamplerRow* rows = nullptr;  ///< [capacity]
  const uint32_t* masks = nullptr;   ///< [·, ceil(vocab / 32)]; bit i of word w allows id 32·w + i
  const int32_t* banned = nullptr;   ///< lists of all rows
  const LogitBias* biases = nullptr;
  const LogitPenalty* penalties = nullptr;
};

enum class SamplerStatus : int32_t {
  kPicked = 0,
  kNotFinite = 1,       ///< a logit that no ban covers is NaN or +inf
  kNothingAllowed = 2,  ///< all −inf
};

/// Device memory. Nothing but `ids` and `status` is touched where no row asks for logprobs.
struct SamplerOutputs {
  int32_t* ids = nullptr;           ///< [capacity] picked id, −1 unless kPicked
  SamplerStatus* status = nullptr;  ///< [capacity]
  float* logprobs = nullptr;        ///< [capacity] raw logprob of the picked id; NaN if there is none
  int32_t* top_ids = nullptr;       ///< [capacity, kMaxTopLogprobs] raw logprobs descending, lower id first on ties
  float* top_logprobs = nullptr;    ///< [capacity, kMaxTopLogprobs]; (−1, −inf) where a row has no more
};

/// Workspace of a launch of `capacity` entries, of which `slots` have lists. Need not be initialised.
size_t sampler_workspace_bytes(int capacity, int slots, int vocab);

/// One entry of tables.rows each, in this order (spec 40 §10.2):
///   mask → −inf; raw logprobs; banned → −inf; biases; penalties (repetition, then frequency, then presence); greedy:
///   argmax; temperature; min_p; top_k, ties at the threshold kept; top_p; argmax of l/T + Gumbel noise.
/// Lowest id on ties everywhere. logits [·, stride] fp32, 16-byte aligned, stride a multiple of 4 and at least vocab.
/// A row's results depend on its entry and its logits alone. Throws std::invalid_argument, CudaError.
void sample(const float* logits, int64_t stride, int vocab, const SamplerTables& tables, int capacity, void* workspace,
            const SamplerOutputs& outputs, cudaStream_t stream);

}  // namespace glm53::kernels
