// What the CPU backend will take for a plan, before any of it is taken.
#include <algorithm>

#include "backend/cpu/cpu_backend_impl.h"
#include "glm53/core/contains.h"

namespace glm53::cpu {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

/// One rank's widths.
struct Widths {
  Widths(const Geometry& g, int64_t rank_kda_heads)
      : kda_heads(rank_kda_heads),
        kda(kda_heads * g.kda_head_dim),
        ranks(g.kda_heads / kda_heads),
        mla_heads(g.mla_heads / ranks),
        dense(g.dense_intermediate / ranks),
        moe(g.moe_intermediate / ranks),
        shared(moe * g.shared_experts) {}

  int64_t kda_heads, kda, ranks, mla_heads, dense, moe, shared;
};

/// Floats a row of the scratch buffers of all operations: each name in the cpu_*.cpp is a buffer of its own, as wide
/// as its widest user.
int64_t scratch_row_floats(const Geometry& g, const Widths& w) {
  const int64_t mhc = 2 * g.hc_streams + g.hc_streams * g.hc_streams;  // z
  // input (q | k | v | b | f_a | g_a; the checkpoints' low ranks are one head wide), decay, gate, qkv, beta, out
  const int64_t kda = (3 * w.kda + w.kda_heads + 2 * g.kda_head_dim) + 6 * w.kda + w.kda_heads;
  const int64_t attention = (g.q_lora + g.latent)                                  // low
                            + (2 * g.index_dim + g.index_heads)                    // index
                            + w.mla_heads * (g.qk_dim + 2LL * g.latent + g.v_dim)  // query, absorbed, attended, values
                            + int64_t{g.index_heads} * g.index_dim;                // index_query
  const int64_t moe = g.experts + g.experts_per_token                              // logits, routing
                      + int64_t{g.experts_per_token} * g.hidden + g.hidden;        // expert_rows, shared_rows
  const bool has_moe = contains(g.mlp, MlpKind::kMoe);
  return mhc + (g.kda_layer_count() > 0 ? kda : 0) + (g.sparse_layer_count() > 0 ? attention : 0) + 2 * w.dense +
         (has_moe ? moe : 0);
}

/// Most floats that one thread holds inside an operation.
int64_t thread_floats(const Geometry& g, const Widths& w, int64_t positions) {
  // A task of 64 rows: gathered rows, their result, gate | up.
  const int64_t moe = 64 * (2LL * g.hidden + 2 * std::max(w.moe, w.shared));
  // Scores and ids of all pools, then of all selected positions.
  const int64_t selection = 3 * std::max<int64_t>(positions / g.index_kpool, g.index_topk + g.index_kpool);
  const int64_t kda = std::max<int64_t>(g.kda_head_dim * g.kda_head_dim, kKdaChunk * w.kda);
  return std::max({moe, selection, kda});
}

}  // namespace

MemoryPlan CpuBackend::plan_memory(const CachePlan& plan) const {
  const Geometry& g = geometry_;
  const Widths w(g, kda_heads_);
  // streams, x, y, mix of the forward pass
  const int64_t row_floats = (g.hc_streams + 2LL) * g.hidden + g.hc_streams + g.hc_streams * g.hc_streams;
  // hidden and logits of the forward pass
  const int64_t logit_row_floats = int64_t{g.hidden} + g.vocab;
  const int64_t sampler_bytes =
      int64_t{g.vocab} * (2 * kFloatBytes + static_cast<int64_t>(sizeof(SamplerScratch::Candidate)));
  const int64_t page_floats = int64_t{kPageTokens} * g.latent + int64_t{kPageTokens / g.index_kpool} * g.index_dim;

  MemoryPlan memory;
  memory.weights = weight_bytes_;
  memory.sequence_state = plan.sequences * sequence_state_bytes(g, kda_heads_);
  memory.pages = plan.pages * page_floats * g.sparse_layer_count() * kFloatBytes;
  memory.activations =
      (plan.max_rows * (row_floats + scratch_row_floats(g, w)) + plan.max_logit_rows * logit_row_floats +
       int64_t{g.index_kpool} * g.index_dim + pool_.threads() * thread_floats(g, w, plan.pages * kPageTokens)) *
          kFloatBytes +
      sampler_bytes;
  return memory;
}

int64_t CpuBackend::activation_bytes() const {
  int64_t floats = 0;
  for (const std::vector<float>& buffer : activations_) floats += static_cast<int64_t>(buffer.size());
  for (const auto& [name, buffer] : scratch_) floats += static_cast<int64_t>(buffer.size());
  return floats * kFloatBytes;
}

}  // namespace glm53::cpu
