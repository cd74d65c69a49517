// The immutable geometry of one GLM-5.3-Flash checkpoint: everything config.json decides (spec 10 §1). Built by
// checkpoint/config_json, which applies every fall-back and check; nobody else fills one except tests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "glm53/core/exl3.h"

namespace glm53 {

enum class AttentionKind : uint8_t { kLinear, kSparse };  ///< KDA, or sparse MLA with the pooled indexer
enum class MlpKind : uint8_t { kDense, kMoe };

/// Vision tower geometry (spec 60); present when config.json has a vision_config.
struct VisionGeometry {
  int depth = 0;
  int hidden = 0;
  int heads = 0;
  int intermediate = 0;             ///< MLP of a block
  int projection_intermediate = 0;  ///< SwiGLU of the merger
  int patch = 14;
  int temporal_patch = 2;
  int merge = 2;
  int channels = 3;
  int image_size = 0;  ///< pretraining square, pixels
  int out_hidden = 0;  ///< = Geometry::hidden
  float rms_norm_eps = 1e-5F;
  float rope_theta = 10000.0F;
  float swiglu_limit = 10.0F;
};

struct Geometry {
  // ---- trunk
  int vocab = 0;
  int hidden = 0;
  int layers = 0;                        ///< decoder layers; the MTP layer has index `layers`
  int mtp_layers = 0;                    ///< 0 or 1
  std::vector<AttentionKind> attention;  ///< [layers]
  std::vector<MlpKind> mlp;              ///< [layers]
  float rms_norm_eps = 1e-5F;
  int64_t max_positions = 0;  ///< max_position_embeddings

  // ---- KDA
  int kda_heads = 0;
  int kda_head_dim = 128;
  int conv_kernel = 4;
  float gate_lower_bound = -5.0F;

  // ---- sparse MLA
  int mla_heads = 0;
  int q_lora = 0;  ///< q_lora_rank
  int latent = 0;  ///< kv_lora_rank: width of a cached latent row
  int qk_dim = 0;  ///< qk_nope_head_dim; there is no RoPE part
  int v_dim = 0;   ///< v_head_dim
  int index_heads = 0;
  int index_dim = 0;
  int index_topk = 0;  ///< positions selected by score; index_topk / index_kpool pools
  int index_kpool = 4;
  bool index_share_for_mtp = false;

  // ---- MLP and MoE
  int dense_intermediate = 0;
  int moe_intermediate = 0;
  int experts = 0;
  int experts_per_token = 0;
  int shared_experts = 1;
  float routed_scaling = 1.0F;
  bool norm_topk_prob = true;
  float swiglu_limit = 10.0F;

  // ---- mHC
  int hc_streams = 4;
  float hc_eps = 1e-6F;
  int hc_sinkhorn_iters = 20;

  // ---- special token ids
  std::vector<int> eos_ids;  ///< all end generation
  int pad_id = -1;
  int image_token_id = -1, video_token_id = -1;
  int image_start_id = -1, image_end_id = -1, video_start_id = -1, video_end_id = -1;

  // ---- files
  std::optional<VisionGeometry> vision;
  std::optional<Exl3TileOrder> exl3_order;  ///< of EXL3 tensors, where config.json names one
  std::string quantization_summary;         ///< for the log: "exl3 4 bpw mcg", or empty

  int pools_per_query() const { return index_topk / index_kpool; }
  /// Widest selection of one query: all pools by score plus an incomplete tail pool.
  int selection_width() const { return index_topk + index_kpool - 1; }
  int kda_width() const { return kda_heads * kda_head_dim; }
  int kda_layer_count() const;
  int sparse_layer_count() const;
};

inline int Geometry::kda_layer_count() const {
  int count = 0;
  for (AttentionKind kind : attention) count += kind == AttentionKind::kLinear ? 1 : 0;
  return count;
}

inline int Geometry::sparse_layer_count() const { return layers - kda_layer_count(); }

}  // namespace glm53
