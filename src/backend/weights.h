// Weights as the forward pass sees them: handles on memory that a backend owns, with the fusions of spec 10 §2.3.
// `model/weights` fills these from a checkpoint; shapes are those of one tensor-parallel rank.
#pragma once

#include <cstdint>
#include <span>

#include "glm53/core/exl3.h"
#include "glm53/core/host_tensor.h"

namespace glm53 {

/// Which part of the model a dense projection belongs to. A backend may store each group in a format of its own.
enum class LinearGroup : uint8_t {
  kKda,
  kMla,      ///< query, latent and output projections
  kKvB,      ///< kv_b_proj, absorbed head by head
  kMlp,      ///< of the dense layers
  kShared,   ///< shared experts
  kIndexer,  ///< projections of the pooled indexer
  kHead,     ///< lm_head
};
inline constexpr int kLinearGroups = 7;

/// y [rows, out] = x [rows, in] · Wᵀ, W [out, in]. `handle` indexes the backend's own table.
struct Linear {
  int64_t out = 0;
  int64_t in = 0;
  int handle = -1;
  bool empty() const { return handle < 0; }
};

/// `matrices` Linears of one shape, one a head: product m reads and writes its own columns.
struct LinearBatch {
  int64_t out = 0;
  int64_t in = 0;
  int matrices = 0;
  int handle = -1;
};

/// [rows, columns] kept row-major in the serving dtype: rows are looked up (embedding), or few rows are multiplied with
/// fp32 results (router, mHC).
struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  int handle = -1;
};

/// fp32 values.
struct Vector {
  int64_t size = 0;
  int handle = -1;
};

/// Routed experts of one layer.
struct ExpertBank {
  int experts = 0;
  int64_t hidden = 0;
  int64_t width = 0;  ///< intermediate width on this rank
  int handle = -1;
};

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

/// A block of rows of a Linear: a slice of a native [out, in] tensor (F32, F16 or BF16) or of an EXL3 matrix.
struct LinearPart {
  const HostTensor* native = nullptr;  ///< exactly one of the two is set
  const Exl3Stored* exl3 = nullptr;
  Range rows;               ///< of `out`
  Range columns;            ///< of `in`
  bool transposed = false;  ///< the slice is stored [in, out] and enters as its transpose (absorbed key projection)

  int64_t out() const { return transposed ? columns.size() : rows.size(); }
  int64_t in() const { return transposed ? rows.size() : columns.size(); }
};

/// Elements [range) of a native tensor, row-major.
struct VectorPart {
  const HostTensor* tensor = nullptr;
  Range range;
};

/// One expert: gate and up cut by output columns (whole 128-blocks), down by input rows.
struct ExpertParts {
  LinearPart gate, up, down;
};

/// Both mHC sites of a layer have this form. H = 4 streams.
struct MhcSite {
  int layer = 0;
  bool is_ffn = false;
  Matrix fn;     ///< [2·H + H², H·hidden]
  Vector base;   ///< [2·H + H²]
  Vector scale;  ///< [3]: pre, post, comb
  Vector norm;   ///< [hidden] input_layernorm or post_attention_layernorm
};

/// H = KDA heads of this rank, F = width of the low-rank inputs f_a and g_a.
struct KdaWeights {
  int layer = 0;
  int kda_index = 0;  ///< 0-based among KDA layers: which state
  int heads = 0;
  int64_t gate_rank = 0;  ///< F
  Linear input;           ///< [3·H·128 + H + 2·F, hidden] rows q | k | v | b | f_a | g_a
  Linear forget_up;       ///< [H·128, F] f_b
  Linear gate_up;         ///< [H·128, F] g_b
  Linear output;          ///< [hidden, H·128]
  Vector conv;            ///< [3·H·128, 4] q | k | v; column 3 multiplies the current token
  Vector a_log;           ///< [H]
  Vector dt_bias;         ///< [H·128]
  Vector output_norm;     ///< [128]
};

/// H = MLA heads of this rank; the indexer is replicated.
struct SparseAttentionWeights {
  int layer = 0;
  int sparse_index = 0;  ///< 0-based among the layers with a latent cache
  int heads = 0;
  Linear latents;          ///< [q_lora + latent, hidden] rows q_a | kv_a
  Vector query_norm;       ///< [q_lora]
  Vector latent_norm;      ///< [latent]
  Linear query_up;         ///< [H·qk_dim, q_lora]
  LinearBatch key_absorb;  ///< H × [latent, qk_dim]: a_h = Wk_hᵀ q_h
  LinearBatch value_up;    ///< H × [v_dim, latent]
  Linear output;           ///< [hidden, H·v_dim]
  Linear index_query_up;   ///< [index_heads·index_dim, q_lora]
  Linear index_input;      ///< [index_dim + index_dim + index_heads, hidden] rows wk | compress_gate | weights_proj
  Vector index_key_norm;   ///< [index_dim] LayerNorm weight
  Vector index_key_bias;   ///< [index_dim]
  Vector pool_position;    ///< [kpool, index_dim] index_kpool_compress_ape
};

struct MlpWeights {
  int layer = 0;
  int64_t width = 0;  ///< intermediate width on this rank
  Linear gate_up;     ///< [2·width, hidden] gate rows first
  Linear down;        ///< [hidden, width]
};

struct MoeWeights {
  int layer = 0;
  Matrix router;       ///< [experts, hidden]
  Vector router_bias;  ///< [experts] selects, never weights
  ExpertBank experts;
  MlpWeights shared;
};

struct HeadWeights {
  Vector norm;     ///< [hidden]
  Linear lm_head;  ///< [vocab shard, hidden]
};

}  // namespace glm53
