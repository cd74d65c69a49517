// Visits a row of logits with one block, and finds where its descending order is cut (top-k, top-p, top-n).
#pragma once

#include <cfloat>
#include <cstdint>
#include <type_traits>

#include "kernels/sampler/sampler.h"

namespace glm53::kernels::sampler {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFU;
constexpr uint32_t kIdMask = (1U << kSamplerIdBits) - 1;
constexpr int kBuckets = 16;
constexpr int kSorted = 4096;  // most elements that are sorted at once
static_assert(kBuckets == kWarps, "a warp adds up a bucket");
static_assert(kSorted % kThreads == 0);

struct Shared {
  union {
    /// Every thread has its own column: sums without atomics, in an order fixed by the row's width.
    struct {
      double mass[kBuckets][kThreads];
      uint16_t count[kBuckets][kThreads];
    } histogram;
    uint64_t list[kSorted];
  };
  double bucket_mass[kBuckets];
  int bucket_count[kBuckets];
  double warp_score[kWarps];
  uint64_t warp_place[kWarps];
  float warp_sum[kWarps];
  float lowest;
  int list_size;
  int last_kept;
};

/// Logits of a row with the mask's bans.
struct Source {
  const float* logits;   ///< [round_up(vocab, 4)]
  const uint32_t* mask;  ///< null: all allowed
  int vocab;
};

/// (l − max) / T as the CPU computes it; by the reciprocal, where one more rounding of a double does not matter; and in
/// fp32 for decisions with a margin.
struct Temper {
  double max;
  double temperature;
  double inverse;
  float max_f;
  float inverse_f;
  __device__ Temper(float largest, float t)
      : max(largest), temperature(t), inverse(1.0 / t), max_f(largest), inverse_f(1.0F / t) {}
  __device__ double exact(float l) const { return (l - max) / temperature; }
  __device__ float approximate(float l) const { return (l - max_f) * inverse_f; }
};

/// Order of fp32 values as integers; −0 counts as +0. NaN has no place in it.
__device__ inline uint32_t order_key(float l) {
  const uint32_t bits = __float_as_uint(l + 0.0F);
  return bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFU : 0x80000000U);
}

__device__ inline float key_value(uint32_t key) {
  return __uint_as_float(key ^ ((key >> 31) != 0 ? 0x80000000U : 0xFFFFFFFFU));
}

/// Descending places are the order of a sorted row: larger logit first, lower id first on ties. No two are equal.
__device__ inline uint64_t place_of(float l, int id) {
  return uint64_t{order_key(l)} << kSamplerIdBits | (kIdMask - static_cast<uint32_t>(id));
}
__device__ inline float place_value(uint64_t place) {
  return key_value(static_cast<uint32_t>(place >> kSamplerIdBits));
}
__device__ inline int place_id(uint64_t place) { return static_cast<int>(kIdMask - (place & kIdMask)); }

/// Calls f(logit, id) for every `parts`-th piece of the row, each thread in ascending ids. f must take no notice of
/// −inf: it also stands for what lies beyond the row.
template <typename F>
__device__ void visit(const Source& source, const F& f, int part = 0, int parts = 1) {
  constexpr int kInFlight = 4;
  const int quads = (source.vocab + 3) / 4;
  const auto* logits = reinterpret_cast<const float4*>(source.logits);
  const int step = parts * kThreads;
  for (int first = part * kThreads + static_cast<int>(threadIdx.x); first < quads; first += kInFlight * step) {
    float4 values[kInFlight];
    uint32_t allowed[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int quad = first + j * step;
      allowed[j] = 0;
      if (quad >= quads) continue;
      values[j] = logits[quad];
      const int left = source.vocab - 4 * quad;
      allowed[j] = left >= 4 ? 0xFU : (1U << left) - 1;
      if (source.mask != nullptr) allowed[j] &= source.mask[quad / 8] >> (4 * (quad % 8));
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const float v[4] = {values[j].x, values[j].y, values[j].z, values[j].w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        f((allowed[j] >> e & 1) != 0 ? v[e] : -INFINITY, 4 * (first + j * step) + e);
      }
    }
  }
}

// Out of line: rare, and inlined sixteen times it would crowd out the loop around it.
__device__ __noinline__ double exact_weight(float l, double max, double inverse) { return exp((l - max) * inverse); }

/// e^((l − max) / T). Below e^-16 fp32 is enough: that much of the whole mass is off by some 1e-6 of itself, and
/// doubles are slow on GB10.
struct MassWeight {
  Temper temper;
  __device__ double operator()(float l) const {
    const float x = temper.approximate(l);
    return x > -10.0F ? exact_weight(l, temper.max, temper.inverse) : double{expf(x)};
  }
};

struct CountWeight {
  __device__ double operator()(float) const { return 1.0; }
};

/// Adds up bucket(logit, id) of the row, −1 = none, into bucket_mass and bucket_count. The last bucket, where most of a
/// row falls, is added up in registers.
template <typename Weight, typename Bucket>
__device__ void fill_histogram(const Source& source, const Weight& weight, const Bucket& bucket, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int kLast = kBuckets - 1;
  double last_mass = 0.0;
  int last_count = 0;
  __syncthreads();
  for (int b = 0; b < kLast; ++b) {
    shared.histogram.mass[b][thread] = 0.0;
    shared.histogram.count[b][thread] = 0;
  }
  visit(source, [&](float l, int id) {
    const int b = bucket(l, id);
    if (b < 0) return;
    if (b == kLast) {
      last_mass += weight(l);
      ++last_count;
    } else {
      shared.histogram.mass[b][thread] += weight(l);
      ++shared.histogram.count[b][thread];
    }
  });
  shared.histogram.mass[kLast][thread] = last_mass;
  shared.histogram.count[kLast][thread] = static_cast<uint16_t>(last_count);
  __syncthreads();
  const int warp = thread / 32;
  const int lane = thread % 32;
  double mass = 0.0;
  int count = 0;
  for (int i = lane; i < kThreads; i += 32) {
    mass += shared.histogram.mass[warp][i];
    count += shared.histogram.count[warp][i];
  }
  for (int step = 16; step > 0; step /= 2) {
    mass += __shfl_xor_sync(kAllLanes, mass, step);
    count += __shfl_xor_sync(kAllLanes, count, step);
  }
  if (lane == 0) {
    shared.bucket_mass[warp] = mass;
    shared.bucket_count[warp] = count;
  }
  __syncthreads();
}

/// First bucket whose end reaches the target; the last that is not empty where rounding lets none. Adds the mass before
/// it to `above`.
__device__ inline int crossing_bucket(const Shared& shared, double target, double& above) {
  int crossing = 0;
  double sum = above;
  for (int b = 0; b < kBuckets; ++b) {
    if (shared.bucket_count[b] == 0) continue;
    crossing = b;
    above = sum;
    sum += shared.bucket_mass[b];
    if (sum >= target) break;
  }
  return crossing;
}

/// list[0, 2^n) descending.
__device__ inline void sort_descending(uint64_t* list, int size) {
  for (int width = 2; width <= size; width *= 2) {
    for (int step = width / 2; step > 0; step /= 2) {
      for (int i = static_cast<int>(threadIdx.x); i < size / 2; i += kThreads) {
        const int low = 2 * i - (i & (step - 1));
        const uint64_t a = list[low];
        const uint64_t b = list[low + step];
        if ((a < b) == ((low & width) == 0)) {
          list[low] = b;
          list[low + step] = a;
        }
      }
      __syncthreads();
    }
  }
}

/// Collects the row's places within [low, high], at most kSorted, in descending order; zeros follow. Returns their
/// number.
__device__ inline int collect(const Source& source, float lowest, uint64_t low, uint64_t high, Shared& shared) {
  __syncthreads();
  if (threadIdx.x == 0) shared.list_size = 0;
  __syncthreads();
  const float low_value = fmaxf(lowest, low == 0 ? lowest : place_value(low));
  visit(source, [&](float l, int id) {
    if (!(l >= low_value)) return;
    const uint64_t place = place_of(l, id);
    if (place < low || place > high) return;
    // Any order will do: the places are sorted next, and no two are equal.
    const int at = atomicAdd(&shared.list_size, 1);
    if (at < kSorted) shared.list[at] = place;
  });
  __syncthreads();
  // Only a row that is not finite can have more.
  const int count = min(shared.list_size, kSorted);
  int size = 2;
  while (size < count) size *= 2;
  for (int i = count + static_cast<int>(threadIdx.x); i < size; i += kThreads) shared.list[i] = 0;
  __syncthreads();
  sort_descending(shared.list, size);
  return count;
}

/// The last of the descending order that has less than `target` before it, `above` being before list[0].
template <typename Weight>
__device__ uint64_t last_below(int count, double above, double target, const Weight& weight, Shared& shared) {
  constexpr int kEach = kSorted / kThreads;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  double weights[kEach];
  double mine = 0.0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = kEach * thread + i;
    weights[i] = at < count ? weight(place_value(shared.list[at])) : 0.0;
    mine += weights[i];
  }
  double before = mine;
  for (int step = 1; step < 32; step *= 2) {
    const double other = __shfl_up_sync(kAllLanes, before, static_cast<unsigned>(step));
    if (lane >= step) before += other;
  }
  if (lane == 31) shared.warp_score[warp] = before;
  if (thread == 0) shared.last_kept = 0;
  __syncthreads();
  before = above + (before - mine);
  for (int w = 0; w < warp; ++w) before += shared.warp_score[w];
  int last = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = kEach * thread + i;
    if (at < count && before < target) last = at;
    before += weights[i];
  }
  if (last > 0) atomicMax(&shared.last_kept, last);
  __syncthreads();
  return shared.list[shared.last_kept];
}

/// Among the logits >= lowest in descending order, keeps each that has less than the target before it; returns the last
/// one's place, or 0 where all stay. The target is `share` of the whole mass, or `share` elements for CountWeight.
///
/// One pass sorts the row into buckets of width T; the one that holds the cut is split further until it can be sorted.
template <typename Weight>
__device__ uint64_t find_cut(const Source& source, const Temper& temper, const Weight& weight, float lowest,
                             double share, Shared& shared) {
  const auto bucket_of = [&](float l) {
    const float x = -temper.approximate(l);
    return x < static_cast<float>(kBuckets) ? static_cast<int>(x) : kBuckets - 1;
  };
  fill_histogram(
      source, weight, [&](float l, int) { return l >= lowest ? bucket_of(l) : -1; }, shared);
  double target = share;
  double total = 0.0;
  for (int b = 0; b < kBuckets; ++b) total += shared.bucket_mass[b];
  if constexpr (!std::is_same_v<Weight, CountWeight>) target *= total;
  if (target >= total) return 0;

  double above = 0.0;
  int crossing = crossing_bucket(shared, target, above);
  int count = shared.bucket_count[crossing];
  // The first key whose bucket is at most b; buckets descend while keys ascend.
  const auto first_key = [&](int b) {
    uint32_t low = order_key(lowest);
    uint32_t high = order_key(temper.max_f);
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (bucket_of(key_value(middle)) <= b) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return uint64_t{low};
  };
  uint64_t low = first_key(crossing) << kSamplerIdBits;
  uint64_t high = crossing == 0 ? place_of(temper.max_f, 0) : (first_key(crossing - 1) << kSamplerIdBits) - 1;
  while (count > kSorted) {
    const float low_value = fmaxf(lowest, place_value(low));
    const int bits = 64 - __clzll(static_cast<long long>(high - low));
    const int shift = bits > 4 ? bits - 4 : 0;
    fill_histogram(
        source, weight,
        [&](float l, int id) {
          if (!(l >= low_value)) return -1;
          const uint64_t place = place_of(l, id);
          return place >= low && place <= high ? static_cast<int>((high - place) >> shift) : -1;
        },
        shared);
    crossing = crossing_bucket(shared, target, above);
    count = shared.bucket_count[crossing];
    high -= static_cast<uint64_t>(crossing) << shift;
    const uint64_t width = (uint64_t{1} << shift) - 1;
    low = high - low > width ? high - width : low;
  }
  return last_below(collect(source, lowest, low, high, shared), above, target, weight, shared);
}

}  // namespace glm53::kernels::sampler
