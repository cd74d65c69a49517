// Sparse MLA in absorbed form with the pooled indexer (spec 10 §3.6, §3.7).
#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_backend_impl.h"
#include "glm53/core/e4m3.h"

namespace glm53::cpu {
namespace {

constexpr int64_t kRowGrain = 16;
constexpr int64_t kAttentionGrain = 4;
constexpr float kIndexKeyEps = 1e-6F;  // of the LayerNorm; every other norm uses rms_norm_eps

/// LayerNorm with weight and bias, in place.
void layer_norm(float* x, const float* weight, const float* bias, int64_t width) {
  float mean = 0.0F;
  for (int64_t i = 0; i < width; ++i) mean += x[i];
  mean /= static_cast<float>(width);
  float variance = 0.0F;
  for (int64_t i = 0; i < width; ++i) variance += (x[i] - mean) * (x[i] - mean);
  const float scale = 1.0F / std::sqrt(variance / static_cast<float>(width) + kIndexKeyEps);
  for (int64_t i = 0; i < width; ++i) x[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

/// Physical row of a position in arrays of `per_page` rows a page.
int64_t page_row(std::span<const int32_t> pages, int64_t index, int64_t per_page) {
  return pages[static_cast<size_t>(index / per_page)] * per_page + index % per_page;
}

/// Work space of one thread.
struct RowScratch {
  std::vector<float> scores;       // of pools, then of positions
  std::vector<int32_t> pools;      // candidates, best first
  std::vector<int32_t> positions;  // the selection
};

/// The `keep` best pools by score, best first; ties go to the lower pool (spec 10 §3.7.5).
void select_pools(RowScratch& scratch, int pool_count, int keep) {
  scratch.pools.resize(static_cast<size_t>(pool_count));
  for (int p = 0; p < pool_count; ++p) scratch.pools[p] = p;
  const auto better = [&](int32_t a, int32_t b) {
    return scratch.scores[a] != scratch.scores[b] ? scratch.scores[a] > scratch.scores[b] : a < b;
  };
  std::nth_element(scratch.pools.begin(), scratch.pools.begin() + keep, scratch.pools.end(), better);
  scratch.pools.resize(static_cast<size_t>(keep));
  std::ranges::sort(scratch.pools, better);
}

/// Nearest multiples of a power-of-two scale that e4m3 holds: one scale a row, 2^ceil(log2(largest / 448)).
void round_to_e4m3_row(const float* values, int64_t count, float* rounded) {
  float largest = 1e-4F;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(values[i]));
  const float scale = std::exp2(std::ceil(std::log2(largest / kLargestE4m3)));
  for (int64_t i = 0; i < count; ++i) rounded[i] = round_to_e4m3(values[i] / scale) * scale;
}

/// The orthonormal Walsh–Hadamard transform in Sylvester order, in place; `count` a power of two.
void hadamard(float* values, int64_t count) {
  for (int64_t step = 1; step < count; step *= 2) {
    for (int64_t i = 0; i < count; ++i) {
      if ((i & step) != 0) continue;
      const float a = values[i];
      const float b = values[i + step];
      values[i] = a + b;
      values[i + step] = a - b;
    }
  }
  const float scale = 1.0F / std::sqrt(static_cast<float>(count));
  for (int64_t i = 0; i < count; ++i) values[i] *= scale;
}

}  // namespace

/// A latent row as the cache would give it back.
void CpuBackend::write_latent(const float* latent, float* page_row) const {
  std::copy_n(latent, geometry_.latent, page_row);
  if (!serving_ || latent_format_ == LatentFormat::kBf16) return;  // bf16 rows hold the norm's result exactly
  round_to_e4m3_row(latent, geometry_.latent, page_row);
}

/// A pool key or index query as scores see it with fp8 keys (spec 70 §3.2). Both are rotated, so products stay.
void CpuBackend::quantise_index_vector(float* values) const {
  hadamard(values, geometry_.index_dim);
  round_bf16(values, geometry_.index_dim);
  round_to_e4m3_row(values, geometry_.index_dim, values);
}

/// kP[c] = Σ_j π_j·kI_{first+j}[c], π = softmax over the pool's positions of (γI_{first+j}[c] + ape[j][c]).
void CpuBackend::write_pool_key(const IndexRing& ring, int64_t first, const float* pool_position, float* weights,
                                float* pool_key) const {
  const int64_t dim = geometry_.index_dim;
  const int kpool = geometry_.index_kpool;
  const auto ring_offset = [&](int j) { return (first + j) % ring.ring * dim; };
  for (int64_t c = 0; c < dim; ++c) {
    float largest = -INFINITY;
    for (int j = 0; j < kpool; ++j) {
      weights[j * dim + c] = ring.gate[ring_offset(j) + c] + pool_position[j * dim + c];
      largest = std::max(largest, weights[j * dim + c]);
    }
    for (int j = 0; j < kpool; ++j) weights[j * dim + c] -= largest;
  }
  kernels_.exp(weights, weights, kpool * dim);
  for (int64_t c = 0; c < dim; ++c) {
    float sum = 0.0F;
    float key = 0.0F;
    for (int j = 0; j < kpool; ++j) {
      sum += weights[j * dim + c];
      key += weights[j * dim + c] * ring.key[ring_offset(j) + c];
    }
    pool_key[c] = key / sum;
  }
  round_bf16(pool_key, dim);
  if (fp8_index_) quantise_index_vector(pool_key);
}

void CpuBackend::sparse_attention(const SparseAttentionWeights& weights, Tensor x, Tensor y) {
  const Geometry& g = geometry_;
  const int rows = batch_.rows();
  const int heads = weights.heads;
  const int64_t latent_width = g.latent;
  const int64_t index_dim = g.index_dim;
  const int64_t pools_per_page = kPageTokens / g.index_kpool;
  LatentPages& pages = pages_[static_cast<size_t>(weights.sparse_index)];

  // Projections: q_a | kv_a, then wk | compress_gate | weights_proj of the indexer.
  const PackedLinear& latent_input = linear(weights.latents);
  const int64_t low_width = latent_input.out;
  float* low = scratch("dsa.low", rows * low_width);
  multiply(latent_input, row_of(x, 0), x.width, rows, low, low_width);
  const PackedLinear& index_input = linear(weights.index_input);
  const int64_t index_width = index_input.out;
  float* index_rows = scratch("dsa.index", rows * index_width);
  multiply(index_input, row_of(x, 0), x.width, rows, index_rows, index_width, Rounding::kNone);

  const float* query_norm = vector(weights.query_norm);
  const float* latent_norm = vector(weights.latent_norm);
  const float* key_norm = vector(weights.index_key_norm);
  const float* key_bias = vector(weights.index_key_bias);
  pool_.parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* query_low = low + r * low_width;
      rms_norm(query_low, query_norm, g.q_lora, query_low);
      rms_norm(query_low + g.q_lora, latent_norm, latent_width, query_low + g.q_lora);
      // Key and gate are bf16 when serving; the head weights stay fp32, where rounding would flip near-tied pools.
      float* index_row = index_rows + r * index_width;
      round_bf16(index_row, 2 * index_dim);
      layer_norm(index_row, key_norm, key_bias, index_dim);
      round_bf16(index_row, index_dim);
    }
  });

  // Caches are written for the whole call before any row reads them; the bound of a candidate pool keeps causality.
  const float* pool_position = vector(weights.pool_position);
  float* pool_weights = scratch("dsa.pool_weights", g.index_kpool * index_dim);
  for (const Segment& segment : batch_.segments) {
    IndexRing& ring = sequences_[static_cast<size_t>(segment.slot)].rings[static_cast<size_t>(weights.sparse_index)];
    for (int64_t i = 0; i < segment.rows; ++i) {
      const int64_t position = segment.first_position + i;
      const int64_t row = segment.first_row + i;
      write_latent(low + row * low_width + g.q_lora,
                   pages.latents.data() + page_row(segment.pages, position, kPageTokens) * latent_width);
      const int64_t at = position % ring.ring * index_dim;
      std::copy_n(index_rows + row * index_width, index_dim, ring.key.begin() + at);
      std::copy_n(index_rows + row * index_width + index_dim, index_dim, ring.gate.begin() + at);
      if ((position + 1) % g.index_kpool != 0) continue;

      write_pool_key(
          ring, position + 1 - g.index_kpool, pool_position, pool_weights,
          pages.pool_keys.data() + page_row(segment.pages, position / g.index_kpool, pools_per_page) * index_dim);
    }
  }

  // Queries: q_h, absorbed to a_h = Wk_hᵀ q_h, and the indexer's own.
  const int64_t query_width = int64_t{heads} * g.qk_dim;
  float* query = scratch("dsa.query", rows * query_width);
  multiply(linear(weights.query_up), low, low_width, rows, query, query_width);
  const int64_t absorbed_width = heads * latent_width;
  float* absorbed = scratch("dsa.absorbed", rows * absorbed_width);
  for (int h = 0; h < heads; ++h) {
    multiply(linear(weights.key_absorb, h), query + int64_t{h} * g.qk_dim, query_width, rows,
             absorbed + h * latent_width, absorbed_width);
  }
  const int64_t index_query_width = int64_t{g.index_heads} * index_dim;
  float* index_query = scratch("dsa.index_query", rows * index_query_width);
  multiply(linear(weights.index_query_up), low, low_width, rows, index_query, index_query_width);
  if (fp8_index_) {
    for (int64_t v = 0; v < int64_t{rows} * g.index_heads; ++v) quantise_index_vector(index_query + v * index_dim);
  }

  // Selection and attention, row by row.
  const float attention_scale = 1.0F / std::sqrt(static_cast<float>(g.qk_dim));
  const float index_scale = 1.0F / std::sqrt(static_cast<float>(index_dim));
  const float head_scale = 1.0F / std::sqrt(static_cast<float>(g.index_heads));
  float* attended = scratch("dsa.attended", rows * absorbed_width);  // z_h = Σ p_j c_j
  const auto attend = [&](const Segment& segment, int64_t i, RowScratch& scratch_row) {
    const int64_t row = segment.first_row + i;
    const int64_t position = segment.first_position + i;
    const int pool_count = static_cast<int>((position + 1) / g.index_kpool);
    scratch_row.positions.clear();
    if (pool_count > g.pools_per_query()) {
      scratch_row.scores.resize(static_cast<size_t>(pool_count));
      const float* head_weights = index_rows + row * index_width + 2 * index_dim;
      for (int p = 0; p < pool_count; ++p) {
        const float* key = pages.pool_keys.data() + page_row(segment.pages, p, pools_per_page) * index_dim;
        float score = 0.0F;
        for (int h = 0; h < g.index_heads; ++h) {
          const float dot = kernels_.dot(index_query + row * index_query_width + h * index_dim, key, index_dim);
          score += head_weights[h] * head_scale * std::max(dot * index_scale, 0.0F);
        }
        scratch_row.scores[p] = nan_lowest(score);
      }
      select_pools(scratch_row, pool_count, g.pools_per_query());
      for (int32_t pool : scratch_row.pools) {
        for (int j = 0; j < g.index_kpool; ++j) scratch_row.positions.push_back(pool * g.index_kpool + j);
      }
    } else {
      for (int p = 0; p < pool_count * g.index_kpool; ++p) scratch_row.positions.push_back(p);
    }
    for (int64_t p = int64_t{pool_count} * g.index_kpool; p <= position; ++p) {
      scratch_row.positions.push_back(static_cast<int32_t>(p));
    }

    const auto count = static_cast<int64_t>(scratch_row.positions.size());
    const auto latent_of = [&](int64_t n) {
      return pages.latents.data() + page_row(segment.pages, scratch_row.positions[n], kPageTokens) * latent_width;
    };
    scratch_row.scores.resize(static_cast<size_t>(count));
    float* probabilities = scratch_row.scores.data();
    for (int h = 0; h < heads; ++h) {
      const float* a = absorbed + row * absorbed_width + h * latent_width;
      float largest = -INFINITY;
      for (int64_t n = 0; n < count; ++n) {
        probabilities[n] = kernels_.dot(a, latent_of(n), latent_width) * attention_scale;
        largest = std::max(largest, probabilities[n]);
      }
      for (int64_t n = 0; n < count; ++n) probabilities[n] -= largest;
      kernels_.exp(probabilities, probabilities, count);
      float sum = 0.0F;
      for (int64_t n = 0; n < count; ++n) sum += probabilities[n];
      for (int64_t n = 0; n < count; ++n) probabilities[n] /= sum;
      float* out = attended + row * absorbed_width + h * latent_width;
      std::fill_n(out, latent_width, 0.0F);
      for (int64_t n = 0; n < count; ++n) kernels_.axpy(probabilities[n], latent_of(n), out, latent_width);
      round_bf16(out, latent_width);
      if (trace_ != nullptr) {
        trace_->record_probabilities(weights.layer, static_cast<int>(row), h, scratch_row.positions,
                                     scratch_row.scores);
      }
    }
    if (trace_ != nullptr) trace_->record_selection(weights.layer, static_cast<int>(row), scratch_row.positions);
  };
  for (const Segment& segment : batch_.segments) {
    // A traced call stays on one thread: sinks need not be thread-safe.
    const int64_t grain = trace_ == nullptr ? kAttentionGrain : segment.rows;
    pool_.parallel_for(segment.rows, grain, [&](int64_t begin, int64_t end) {
      RowScratch scratch_row;
      for (int64_t i = begin; i < end; ++i) attend(segment, i, scratch_row);
    });
  }

  // o_h = Wv_h z_h, then the output projection.
  const int64_t value_width = int64_t{heads} * g.v_dim;
  float* values = scratch("dsa.values", rows * value_width);
  for (int h = 0; h < heads; ++h) {
    multiply(linear(weights.value_up, h), attended + h * latent_width, absorbed_width, rows,
             values + int64_t{h} * g.v_dim, value_width);
  }
  multiply(linear(weights.output), values, value_width, rows, row_of(y, 0), y.width);
}

}  // namespace glm53::cpu
