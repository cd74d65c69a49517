// Sampler: one block a row, everything of spec 40 §10.2 in one kernel.
//
// Operation   id = argmax over the kept ids of l/T + G(key, position, id); greedy: argmax of l
// Shapes      logits [·, stride] fp32, vocab up to 262,144; one SamplerRow an entry
// Rounding    as the CPU: mask, bias and penalties fp32; l/T, masses and scores fp64 (masses below e^-16 of the largest
//             fp32); sums in an order fixed by vocab. logprobs fp32.
// Bound       the row's bytes through one SM's L2 port, once for greedy, twice for plain temperature, four times with
//             top-p or top-k; a flat row may take more passes to split its crossing bucket.
#include <stdexcept>
#include <string>

#include "kernels/common/cuda_check.h"
#include "kernels/common/philox.h"
#include "kernels/sampler/row_select.cuh"
#include "kernels/sampler/sampler.h"

namespace glm53::kernels {
namespace sampler {
namespace {

constexpr float kGreedyTemperature = 1e-5F;
constexpr float kLowestTemperature = 0.01F;

__host__ __device__ int64_t patch_stride(int vocab) { return (int64_t{vocab} + 3) / 4 * 4; }

/// Place of the largest logit, 0 if there is none above −inf. `not_finite`: NaN or +inf occurs.
__device__ uint64_t find_largest(const Source& source, bool& not_finite, Shared& shared) {
  float best = -INFINITY;
  int best_id = -1;
  bool bad = false;
  visit(source, [&](float l, int id) {
    bad = bad || !(l < INFINITY);
    if (l > best) {
      best = l;
      best_id = id;
    }
  });
  uint64_t place = best_id < 0 ? 0 : place_of(best, best_id);
  for (int step = 16; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(kAllLanes, place, step);
    place = other > place ? other : place;
  }
  if (threadIdx.x % 32 == 0) shared.warp_place[threadIdx.x / 32] = place;
  not_finite = __syncthreads_or(static_cast<int>(bad)) != 0;
  for (const uint64_t other : shared.warp_place) place = other > place ? other : place;
  __syncthreads();
  return place;
}

/// ln Σ e^(l − max), fp32.
__device__ float log_sum(const Source& source, float max, Shared& shared) {
  float sum = 0.0F;
  visit(source, [&](float l, int) { sum += expf(l - max); });
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (threadIdx.x % 32 == 0) shared.warp_sum[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.0F;
  for (const float other : shared.warp_sum) sum += other;
  __syncthreads();
  return logf(sum);
}

/// The row with mask, bans, biases and penalties into `to`. Stages touch the same ids, hence the barriers.
__device__ void write_patched(const Source& source, const SamplerRow& row, const SamplerTables& tables, float* to) {
  const int vocab = source.vocab;
  for (int id = static_cast<int>(threadIdx.x); id < patch_stride(vocab); id += kThreads) {
    const bool allowed = id < vocab && (source.mask == nullptr || (source.mask[id / 32] >> (id % 32) & 1) != 0);
    to[id] = allowed ? source.logits[id] : -INFINITY;
  }
  __syncthreads();
  const auto in_row = [vocab](int32_t id) { return id >= 0 && id < vocab; };
  for (int i = static_cast<int>(threadIdx.x); i < row.banned.count; i += kThreads) {
    const int32_t id = tables.banned[row.banned.begin + i];
    if (in_row(id)) to[id] = -INFINITY;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < row.biases.count; i += kThreads) {
    const LogitBias bias = tables.biases[row.biases.begin + i];
    if (in_row(bias.id)) to[bias.id] += bias.value;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < row.penalties.count; i += kThreads) {
    const LogitPenalty penalty = tables.penalties[row.penalties.begin + i];
    if (!in_row(penalty.id)) continue;
    float l = to[penalty.id];
    l = l > 0 ? l / row.repetition : l * row.repetition;
    // Not fused: the CPU rounds the product.
    l = __fsub_rn(l, __fmul_rn(row.frequency, static_cast<float>(penalty.output_count)));
    to[penalty.id] = penalty.output_count > 0 ? l - row.presence : l;
  }
  __syncthreads();
}

__device__ __noinline__ double exact_score(float l, double max, double temperature, uint32_t bits) {
  return (l - max) / temperature + noise_gumbel(bits);
}

/// The draw over everything at or before `cut` in descending order and >= lowest.
__device__ int draw(const Source& source, const SamplerRow& row, const Temper& temper, float lowest, uint64_t cut,
                    int top_id, Shared& shared) {
  const auto position = static_cast<uint32_t>(row.position);
  const auto bits_of = [&](int id) {
    return noise_bits(row.key[0], row.key[1], position, static_cast<uint32_t>(id), 0);
  };
  // The largest logit's own score rules out most of the row from the start.
  if (threadIdx.x == 0) {
    shared.warp_score[0] = exact_score(temper.max_f, temper.max, temper.temperature, bits_of(top_id));
  }
  __syncthreads();
  double best = shared.warp_score[0];
  int best_id = top_id;
  float best_below = __double2float_rd(best);
  __syncthreads();

  // Skipping what cannot win changes no result: x is off by less than 1e-6 of itself, the sums by less than 1e-4.
  constexpr float kSlack = 1e-4F;
  constexpr float kUpper = 1.0F - 1e-6F;
  const float cut_value = cut == 0 ? lowest : place_value(cut);
  const int cut_id = cut == 0 ? static_cast<int>(kIdMask) : place_id(cut);
  visit(source, [&](float l, int id) {
    if (!(l >= lowest && (l > cut_value || (l == cut_value && id <= cut_id)))) return;
    const float x = temper.approximate(l) * kUpper + kSlack;
    if (x + kLargestNoise < best_below) return;
    const uint32_t bits = bits_of(id);
    if (x + noise_gumbel_bound(bits) < best_below) return;
    const double score = exact_score(l, temper.max, temper.temperature, bits);
    if (score > best || (score == best && id < best_id)) {
      best = score;
      best_id = id;
      best_below = __double2float_rd(best);
    }
  });
  const auto take = [&](double score, int id) {
    if (score > best || (score == best && id < best_id)) {
      best = score;
      best_id = id;
    }
  };
  for (int step = 16; step > 0; step /= 2) {
    const double score = __shfl_xor_sync(kAllLanes, best, step);
    const int id = __shfl_xor_sync(kAllLanes, best_id, step);
    take(score, id);
  }
  if (threadIdx.x % 32 == 0) {
    shared.warp_score[threadIdx.x / 32] = best;
    shared.warp_place[threadIdx.x / 32] = static_cast<uint64_t>(best_id);
  }
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) take(shared.warp_score[w], static_cast<int>(shared.warp_place[w]));
  return best_id;
}

/// Smallest fp32 value that min_p keeps; the largest logit is always one.
__device__ float lowest_kept(const Temper& temper, double lowest, Shared& shared) {
  if (lowest <= -DBL_MAX) return -FLT_MAX;
  if (threadIdx.x == 0) {
    uint32_t low = order_key(-FLT_MAX);
    uint32_t high = order_key(temper.max_f);
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (temper.exact(key_value(middle)) >= lowest) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    shared.lowest = key_value(low);
  }
  __syncthreads();
  return shared.lowest;
}

/// The largest raw logprobs of the row.
__device__ void write_top(const Source& raw, float max, float log_total, int wanted, int32_t* ids, float* logprobs,
                          Shared& shared) {
  const uint64_t cut = find_cut(raw, Temper(max, 1.0F), CountWeight{}, -FLT_MAX, wanted, shared);
  const int count = collect(raw, -FLT_MAX, cut, ~uint64_t{0}, shared);
  for (int i = static_cast<int>(threadIdx.x); i < wanted; i += kThreads) {
    const bool present = i < count;
    ids[i] = present ? place_id(shared.list[i]) : -1;
    logprobs[i] = present ? place_value(shared.list[i]) - max - log_total : -INFINITY;
  }
}

__global__ void __launch_bounds__(kThreads)
    sample_kernel(const float* logits, int64_t stride, int vocab, SamplerTables tables, float* workspace,
                  SamplerOutputs outputs) {
  extern __shared__ uint4 dynamic[];
  auto& shared = *reinterpret_cast<Shared*>(dynamic);
  const int entry = static_cast<int>(blockIdx.x);
  const SamplerRow row = tables.rows[entry];
  if (row.logits_row < 0) return;
  const Source raw{logits + row.logits_row * stride,
                   row.mask < 0 ? nullptr : tables.masks + static_cast<int64_t>(row.mask) * ((vocab + 31) / 32), vocab};
  const bool writer = threadIdx.x == 0;

  float raw_max = 0.0F;
  float raw_log_total = 0.0F;
  if (row.logprobs >= 0) {
    bool not_finite = false;
    const uint64_t largest = find_largest(raw, not_finite, shared);
    raw_max = largest == 0 ? -INFINITY : place_value(largest);
    raw_log_total = log_sum(raw, raw_max, shared);
    const int wanted = min(row.logprobs, kMaxTopLogprobs);
    if (wanted > 0) {
      const int64_t at = static_cast<int64_t>(entry) * kMaxTopLogprobs;
      write_top(raw, raw_max, raw_log_total, wanted, outputs.top_ids + at, outputs.top_logprobs + at, shared);
    }
  }

  Source source = raw;
  if (row.banned.count + row.biases.count + row.penalties.count > 0) {
    float* patched = workspace + row.patch_slot * patch_stride(vocab);
    write_patched(raw, row, tables, patched);
    source = {patched, nullptr, vocab};
  }

  bool not_finite = false;
  const uint64_t largest = find_largest(source, not_finite, shared);
  if (not_finite || largest == 0) {
    if (writer) {
      outputs.ids[entry] = -1;
      outputs.status[entry] = not_finite ? SamplerStatus::kNotFinite : SamplerStatus::kNothingAllowed;
      if (row.logprobs >= 0) outputs.logprobs[entry] = NAN;
    }
    return;
  }

  int id = place_id(largest);
  if (!(row.temperature < kGreedyTemperature)) {
    const Temper temper(place_value(largest), fmaxf(row.temperature, kLowestTemperature));
    float lowest = lowest_kept(temper, row.lowest, shared);
    if (row.top_k > 0) {
      const uint64_t kth = find_cut(source, temper, CountWeight{}, lowest, row.top_k, shared);
      if (kth != 0) lowest = place_value(kth);  // ties at the threshold stay
    }
    uint64_t cut = 0;
    if (row.top_p < 1.0F) cut = find_cut(source, temper, MassWeight{temper}, lowest, row.top_p, shared);
    id = draw(source, row, temper, lowest, cut, id, shared);
  }
  if (writer) {
    outputs.ids[entry] = id;
    outputs.status[entry] = SamplerStatus::kPicked;
    if (row.logprobs >= 0) outputs.logprobs[entry] = raw.logits[id] - raw_max - raw_log_total;
  }
}

}  // namespace
}  // namespace sampler

size_t sampler_workspace_bytes(int slots, int vocab) {
  return static_cast<size_t>(slots) * static_cast<size_t>(sampler::patch_stride(vocab)) * sizeof(float);
}

void sample(const float* logits, int64_t stride, int vocab, const SamplerTables& tables, int capacity, void* workspace,
            const SamplerOutputs& outputs, cudaStream_t stream) {
  if (vocab < 1 || vocab > (1 << kSamplerIdBits) || stride % 4 != 0 || stride < vocab) {
    throw std::invalid_argument("sample: vocabulary of " + std::to_string(vocab) + " in rows of " +
                                std::to_string(stride));
  }
  if (capacity < 1) return;
  constexpr int kBytes = sizeof(sampler::Shared);
  check_cuda(cudaFuncSetAttribute(sampler::sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "sample shared memory");
  sampler::sample_kernel<<<static_cast<unsigned>(capacity), sampler::kThreads, kBytes, stream>>>(
      logits, stride, vocab, tables, static_cast<float*>(workspace), outputs);
  check_cuda(cudaGetLastError(), "sample launch");
}

}  // namespace glm53::kernels
