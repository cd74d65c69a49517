// Sampler: all of spec 40 §10.2 up to the cut in one block a row, then the draw in kDrawParts blocks a row.
//
// Operation   id = argmax over the kept ids of l/T + G(key, position, id); greedy: argmax of l
// Shapes      logits [·, stride] fp32, vocab up to 262,144; one SamplerRow an entry
// Rounding    as the CPU: mask, bias and penalties fp32; l/T, masses and scores fp64 (masses below e^-10 of the largest
//             fp32); sums in an order fixed by vocab. logprobs fp32.
// Bound       the row's bytes through one SM: once for greedy and plain temperature, three times with top-p or top-k; a
//             flat row may take more passes to split its crossing bucket. The draw: integer multiplies of Philox.
#include <stdexcept>
#include <string>

#include "kernels/common/cuda_check.h"
#include "kernels/common/dynamic_shared.h"
#include "kernels/common/philox.h"
#include "kernels/sampler/row_select.cuh"
#include "kernels/sampler/sampler.h"

namespace glm53::kernels {
namespace sampler {
namespace {

constexpr float kGreedyTemperature = 1e-5F;
constexpr float kLowestTemperature = 0.01F;
constexpr int kDrawParts = 16;

/// Of the logits after the mask. Subtracted one after the other: their sum would round away what is small beside max.
struct RawTotal {
  float max;
  float log_sum;
  __device__ float logprob(float logit) const { return logit - max - log_sum; }
};

/// What the draw of an entry needs to know.
struct DrawState {
  uint64_t cut;  // place of the last that stays, 0: all
  double score;  // of the largest logit
  float max;
  float lowest;  // what stays is >= this
  RawTotal raw;
  int32_t top_id;    // id of the largest logit; −1: nothing to draw
  int32_t finished;  // parts that are done
};

struct DrawPart {
  double score;
  int32_t id;
};

struct Workspace {
  DrawState* states;  // [capacity]
  DrawPart* parts;    // [capacity, kDrawParts]
  float* patched;     // [slots, patch_stride]
};

size_t draw_bytes(int capacity) {
  const auto count = static_cast<size_t>(capacity);
  return (count * (sizeof(DrawState) + kDrawParts * sizeof(DrawPart)) + 15) / 16 * 16;
}

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
__device__ void write_top(const Source& raw, const RawTotal& total, int wanted, int32_t* ids, float* logprobs,
                          Shared& shared) {
  const uint64_t cut = find_cut(raw, Temper(total.max, 1.0F), CountWeight{}, -FLT_MAX, wanted, shared);
  const int count = collect(raw, -FLT_MAX, cut, ~uint64_t{0}, shared);
  for (int i = static_cast<int>(threadIdx.x); i < wanted; i += kThreads) {
    const bool present = i < count;
    ids[i] = present ? place_id(shared.list[i]) : -1;
    logprobs[i] = present ? total.logprob(place_value(shared.list[i])) : -INFINITY;
  }
}

__device__ Source raw_source(const float* logits, int64_t stride, int vocab, const SamplerTables& tables,
                             const SamplerRow& row) {
  const int64_t words = (vocab + 31) / 32;
  return {logits + row.logits_row * stride, row.mask < 0 ? nullptr : tables.masks + row.mask * words, vocab};
}

__device__ bool has_lists(const SamplerRow& row) {
  return row.banned.count + row.biases.count + row.penalties.count > 0;
}

__device__ Temper temper_of(const SamplerRow& row, float max) {
  return {max, fmaxf(row.temperature, kLowestTemperature)};
}

__device__ uint32_t bits_of(const SamplerRow& row, int id) {
  return noise_bits(row.key[0], row.key[1], static_cast<uint32_t>(row.position), static_cast<uint32_t>(id), 0);
}

/// Everything but the draw.
__global__ void __launch_bounds__(kThreads, 1)
    select_kernel(const float* logits, int64_t stride, int vocab, SamplerTables tables, Workspace workspace,
                  SamplerOutputs outputs) {
  extern __shared__ uint4 dynamic[];
  auto& shared = *reinterpret_cast<Shared*>(dynamic);
  const int entry = static_cast<int>(blockIdx.x);
  const SamplerRow row = tables.rows[entry];
  if (row.logits_row < 0) return;
  const Source raw = raw_source(logits, stride, vocab, tables, row);
  const bool writer = threadIdx.x == 0;
  DrawState& state = workspace.states[entry];
  if (writer) state.top_id = -1;

  RawTotal raw_total{};
  if (row.logprobs >= 0) {
    bool not_finite = false;
    const uint64_t largest = find_largest(raw, not_finite, shared);
    raw_total.max = largest == 0 ? -INFINITY : place_value(largest);
    raw_total.log_sum = log_sum(raw, raw_total.max, shared);
    const int wanted = min(row.logprobs, kMaxTopLogprobs);
    if (wanted > 0) {
      const int64_t at = static_cast<int64_t>(entry) * kMaxTopLogprobs;
      write_top(raw, raw_total, wanted, outputs.top_ids + at, outputs.top_logprobs + at, shared);
    }
  }

  Source source = raw;
  if (has_lists(row)) {
    float* patched = workspace.patched + row.patch_slot * patch_stride(vocab);
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

  const int top_id = place_id(largest);
  if (writer) outputs.status[entry] = SamplerStatus::kPicked;
  if (row.temperature < kGreedyTemperature) {
    if (writer) {
      outputs.ids[entry] = top_id;
      if (row.logprobs >= 0) outputs.logprobs[entry] = raw_total.logprob(raw.logits[top_id]);
    }
    return;
  }
  const Temper temper = temper_of(row, place_value(largest));
  float lowest = lowest_kept(temper, row.lowest, shared);
  if (row.top_k > 0) {
    const uint64_t kth = find_cut(source, temper, CountWeight{}, lowest, row.top_k, shared);
    if (kth != 0) lowest = place_value(kth);  // ties at the threshold stay
  }
  uint64_t cut = 0;
  if (row.top_p < 1.0F) cut = find_cut(source, temper, MassWeight{temper}, lowest, row.top_p, shared);
  if (writer) {
    const double score = exact_score(temper.max_f, temper.max, temper.temperature, bits_of(row, top_id));
    state = {cut, score, temper.max_f, lowest, raw_total, top_id, 0};
  }
}

/// Block (p, entry) draws from part p of the row; the entry's last block picks the best of all parts.
__global__ void __launch_bounds__(kThreads, 1)
    draw_kernel(const float* logits, int64_t stride, int vocab, SamplerTables tables, Workspace workspace,
                SamplerOutputs outputs) {
  __shared__ double warp_score[kWarps];
  __shared__ int warp_id[kWarps];
  const int entry = static_cast<int>(blockIdx.y);
  const int part = static_cast<int>(blockIdx.x);
  const SamplerRow row = tables.rows[entry];
  if (row.logits_row < 0) return;
  const DrawState state = workspace.states[entry];
  if (state.top_id < 0) return;
  const Source raw = raw_source(logits, stride, vocab, tables, row);
  const Source source =
      has_lists(row) ? Source{workspace.patched + row.patch_slot * patch_stride(vocab), nullptr, vocab} : raw;
  const Temper temper = temper_of(row, state.max);

  // The largest logit's own score rules out much of the row from the start. Skipping what cannot win changes no result:
  // x is off by less than 1e-6 of itself, the sums by less than 1e-4.
  constexpr float kSlack = 1e-4F;
  constexpr float kUpper = 1.0F - 1e-6F;
  double best = state.score;
  int best_id = state.top_id;
  float best_below = __double2float_rd(best);
  const float lowest = state.cut == 0 ? state.lowest : place_value(state.cut);
  const int cut_id = state.cut == 0 ? static_cast<int>(kIdMask) : place_id(state.cut);
  visit(
      source,
      [&](float l, int id) {
        if (!(l > lowest || (l == lowest && id <= cut_id))) return;
        const float x = temper.approximate(l) * kUpper + kSlack;
        if (x + kLargestNoise < best_below) return;
        const uint32_t bits = bits_of(row, id);
        if (x + noise_gumbel_bound(bits) < best_below) return;
        const double score = exact_score(l, temper.max, temper.temperature, bits);
        if (score > best || (score == best && id < best_id)) {
          best = score;
          best_id = id;
          best_below = __double2float_rd(best);
        }
      },
      part, kDrawParts);
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
    warp_score[threadIdx.x / 32] = best;
    warp_id[threadIdx.x / 32] = best_id;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kWarps; ++w) take(warp_score[w], warp_id[w]);
  auto* parts = workspace.parts + static_cast<int64_t>(entry) * kDrawParts;
  parts[part] = {best, best_id};
  __threadfence();
  if (atomicAdd(&workspace.states[entry].finished, 1) != kDrawParts - 1) return;
  __threadfence();
  for (int p = 0; p < kDrawParts; ++p) {
    take(__ldcg(&parts[p].score), __ldcg(&parts[p].id));
  }
  outputs.ids[entry] = best_id;
  if (row.logprobs >= 0) outputs.logprobs[entry] = state.raw.logprob(raw.logits[best_id]);
}

}  // namespace
}  // namespace sampler

size_t sampler_workspace_bytes(int capacity, int slots, int vocab) {
  return sampler::draw_bytes(capacity) +
         static_cast<size_t>(slots) * static_cast<size_t>(sampler::patch_stride(vocab)) * sizeof(float);
}

void sample(const float* logits, int64_t stride, int vocab, const SamplerTables& tables, int capacity, void* workspace,
            const SamplerOutputs& outputs, cudaStream_t stream) {
  if (vocab < 1 || vocab > (1 << kSamplerIdBits) || stride % 4 != 0 || stride < vocab) {
    throw std::invalid_argument("sample: vocabulary of " + std::to_string(vocab) + " in rows of " +
                                std::to_string(stride));
  }
  if (capacity < 1) return;
  constexpr int kBytes = sizeof(sampler::Shared);
  allow_dynamic_shared<sampler::select_kernel, kBytes>("sample shared memory");
  auto* memory = static_cast<char*>(workspace);
  sampler::Workspace parts{};
  parts.states = reinterpret_cast<sampler::DrawState*>(memory);
  parts.parts = reinterpret_cast<sampler::DrawPart*>(parts.states + capacity);
  parts.patched = reinterpret_cast<float*>(memory + sampler::draw_bytes(capacity));
  const auto rows = static_cast<unsigned>(capacity);
  sampler::select_kernel<<<rows, sampler::kThreads, kBytes, stream>>>(logits, stride, vocab, tables, parts, outputs);
  check_cuda(cudaGetLastError(), "sample selection launch");
  sampler::draw_kernel<<<dim3(sampler::kDrawParts, rows), sampler::kThreads, 0, stream>>>(logits, stride, vocab, tables,
                                                                                          parts, outputs);
  check_cuda(cudaGetLastError(), "sample draw launch");
}

}  // namespace glm53::kernels
