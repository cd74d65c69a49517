// Sparse MLA in absorbed form with the pooled indexer (spec 10 §3.6, §3.7).
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "backend/cuda/cuda_backend_impl.h"
#include "glm53/core/limits.h"
#include "kernels/indexer/index_score.h"
#include "kernels/indexer/index_select.h"
#include "kernels/indexer/index_write.h"
#include "kernels/latent_cache/latent_write.h"
#include "kernels/sparse_attention/sparse_attention.h"

namespace glm53::cuda {
namespace {

constexpr int64_t kSelectWorkspaceBytes = int64_t{8} << 20;

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

/// Most scores of one block, whatever the context of its rows: score_block_rows(c) · c for c up to `pools`.
int64_t most_scores(int64_t rows, int64_t pools) {
  return std::min(rows * pools, std::max(int64_t{16} << 20, 16 * pools));
}

}  // namespace

void CudaBackend::sparse_attention(const SparseAttentionWeights& weights, Tensor x, Tensor y) {
  const Geometry& g = geometry_;
  const int64_t low_width = g.q_lora + g.latent;
  const int64_t query_width = int64_t{weights.heads} * g.qk_dim;
  const int64_t absorbed_width = int64_t{weights.heads} * g.latent;
  const int64_t value_width = int64_t{weights.heads} * g.v_dim;
  const int64_t index_width = align_part(linear(weights.index_input.handle).out);
  const int64_t index_query_width = int64_t{g.index_heads} * g.index_dim;
  const int64_t rows = plan_.max_rows;
  SparseCaches& caches = sparse_[static_cast<size_t>(weights.sparse_index)];

  scratch_.begin();
  Bf16* low = scratch_.take<Bf16>(rows * low_width);
  Bf16* query_low = scratch_.take<Bf16>(rows * g.q_lora);
  float* index_rows = scratch_.take<float>(rows * index_width);
  Bf16* query = scratch_.take<Bf16>(rows * query_width);
  Bf16* absorbed = scratch_.take<Bf16>(rows * absorbed_width);
  Bf16* attended = scratch_.take<Bf16>(rows * absorbed_width);
  Bf16* values = scratch_.take<Bf16>(rows * value_width);
  Bf16* index_query_rows = scratch_.take<Bf16>(rows * index_query_width);
  Bf16* prepared_query = scratch_.take<Bf16>(rows * index_query_width);
  float* prepared_weight = scratch_.take<float>(rows * g.index_heads);
  int32_t* selected = scratch_.take<int32_t>(rows * g.pools_per_query());
  float* scores = scratch_.take<float>(most_scores(rows, round_up(plan_.most_tokens() / g.index_kpool, 4)));
  void* select_workspace = scratch_.take<uint8_t>(kSelectWorkspaceBytes);
  void* splits = scratch_.take<uint8_t>(
      kernels::sparse_attention_workspace(kernels::kWindowRows, weights.heads, g.index_kpool, g.pools_per_query()));

  for (const Run& run : tables_->runs()) {
    const bool window = run.window();
    const Bf16* input = bf16_row(x, run.first_row);

    // Latents and pool keys of the whole call are written before any row reads them.
    multiply(linear(weights.latents.handle), window, run.rows, input, x.width, low, low_width);
    kernels::latent_write({.tables = run.tables,
                           .rows = run.rows,
                           .q_lora = g.q_lora,
                           .latent = g.latent,
                           .eps = g.rms_norm_eps,
                           .low = low,
                           .query_norm = vector(weights.query_norm),
                           .latent_norm = vector(weights.latent_norm),
                           .query_low = query_low,
                           .format = latent_format_,
                           .pages = caches.latents.as<uint8_t>()},
                          stream_);
    multiply(linear(weights.index_input.handle), window, run.rows, input, x.width, index_rows, index_width);
    kernels::index_write({.tables = run.tables,
                          .prompt = !window,
                          .rows = run.rows,
                          .input = index_rows,
                          .input_stride = index_width,
                          .key_norm = vector(weights.index_key_norm),
                          .key_bias = vector(weights.index_key_bias),
                          .pool_position = vector(weights.pool_position),
                          .kpool = g.index_kpool,
                          .ring = kIndexRing,
                          .rings = caches.rings.as<Bf16>(),
                          .format = index_format_,
                          .pages = caches.pool_keys.as<uint8_t>()},
                         stream_);

    // Selection, where some row sees more pools than it may attend to.
    const int64_t pools = run.most_tokens / g.index_kpool;
    if (pools > g.pools_per_query()) {
      multiply(linear(weights.index_query_up.handle), window, run.rows, query_low, g.q_lora, index_query_rows,
               index_query_width);
      kernels::index_query({.tables = run.tables,
                            .rows = run.rows,
                            .heads = g.index_heads,
                            .format = index_format_,
                            .query = index_query_rows,
                            .head_weight = index_rows + 2 * g.index_dim,
                            .head_weight_stride = index_width,
                            .prepared_query = prepared_query,
                            .prepared_weight = prepared_weight},
                           stream_);
      const int64_t capacity = round_up(pools, 4);
      const int64_t block = std::min<int64_t>(kernels::score_block_rows(capacity), run.rows);
      if (kernels::index_select_workspace(static_cast<int>(block), capacity, g.pools_per_query(), !window) >
          kSelectWorkspaceBytes) {
        throw std::logic_error("cuda backend: pool selection needs more than its planned workspace");
      }
      for (int64_t first = 0; first < run.rows; first += block) {
        const int count = static_cast<int>(std::min(block, run.rows - first));
        kernels::index_score({.tables = run.tables,
                              .first_row = static_cast<int>(first),
                              .rows = count,
                              .heads = g.index_heads,
                              .kpool = g.index_kpool,
                              .pools_per_query = g.pools_per_query(),
                              .pool_capacity = capacity,
                              .format = index_format_,
                              .query = index_format_ == kernels::IndexFormat::kBf16 ? index_query_rows : prepared_query,
                              .weight = prepared_weight,
                              .pages = caches.pool_keys.as<uint8_t>(),
                              .scores = scores},
                             stream_);
        kernels::index_select({.tables = run.tables,
                               .prompt = !window,
                               .first_row = static_cast<int>(first),
                               .rows = count,
                               .kpool = g.index_kpool,
                               .pools_per_query = g.pools_per_query(),
                               .pool_capacity = capacity,
                               .scores = scores,
                               .selected = selected,
                               .workspace = select_workspace},
                              stream_);
      }
    }

    // Queries, absorbed head by head: a_h = Wk_hᵀ q_h; attention; o_h = Wv_h z_h; output projection.
    multiply(linear(weights.query_up.handle), window, run.rows, query_low, g.q_lora, query, query_width);
    multiply(linear(weights.key_absorb.handle), window, run.rows, query, query_width, absorbed, absorbed_width,
             g.qk_dim, g.latent);
    const kernels::SparseAttention attention{.tables = run.tables,
                                             .rows = run.rows,
                                             .heads = weights.heads,
                                             .kpool = g.index_kpool,
                                             .pools_per_query = g.pools_per_query(),
                                             .scale = 1.0F / std::sqrt(static_cast<float>(g.qk_dim)),
                                             .format = latent_format_,
                                             .pages = caches.latents.as<uint8_t>(),
                                             .query = absorbed,
                                             .selected = selected,
                                             .output = attended,
                                             .workspace = splits};
    if (window) {
      kernels::sparse_attention_window(attention, stream_);
    } else {
      kernels::sparse_attention_prompt(attention, stream_);
    }
    multiply(linear(weights.value_up.handle), window, run.rows, attended, absorbed_width, values, value_width, g.latent,
             g.v_dim);
    multiply(linear(weights.output.handle), window, run.rows, values, value_width, bf16_row(y, run.first_row), y.width);
  }
}

}  // namespace glm53::cuda
