#include "model/tensor_table.h"

#include <utility>

namespace glm53 {
namespace {

/// Appends rows of the table with a common prefix and group.
class TableBuilder {
 public:
  explicit TableBuilder(std::vector<TensorSpec>& table) : table_(table) {}

  void begin(std::string prefix, TensorGroup group) {
    prefix_ = std::move(prefix);
    group_ = group;
  }

  TensorSpec& linear(std::string_view name, int64_t out, int64_t in, ShardRule shard) {
    return add(name, TensorForm::kLinear, {out, in}, shard);
  }

  TensorSpec& bare_linear(std::string_view name, int64_t out, int64_t in) {
    return add(name, TensorForm::kBareLinear, {out, in}, ShardRule::kReplicate);
  }

  TensorSpec& values(std::string_view name, std::vector<int64_t> shape, ShardRule shard = ShardRule::kReplicate) {
    return add(name, TensorForm::kValues, std::move(shape), shard);
  }

 private:
  TensorSpec& add(std::string_view name, TensorForm form, std::vector<int64_t> shape, ShardRule shard) {
    TensorSpec spec;
    spec.name = prefix_ + std::string(name);
    spec.form = form;
    spec.shape = std::move(shape);
    spec.group = group_;
    spec.shard = shard;
    return table_.emplace_back(std::move(spec));
  }

  std::vector<TensorSpec>& table_;
  std::string prefix_;
  TensorGroup group_ = TensorGroup::kTrunk;
};

void add_mhc(TableBuilder& table, const Geometry& g) {
  const int64_t mixes = 2 * g.hc_streams + static_cast<int64_t>(g.hc_streams) * g.hc_streams;
  for (const char* site : {"attn", "ffn"}) {
    const std::string prefix = std::string("hc_") + site;
    table.bare_linear(prefix + "_fn", mixes, static_cast<int64_t>(g.hc_streams) * g.hidden);
    table.values(prefix + "_base", {mixes});
    table.values(prefix + "_scale", {3});
  }
}

void add_kda(TableBuilder& table, const Geometry& g, const std::string& layer, TensorGroup group) {
  const int64_t width = g.kda_width();
  table.begin(layer + "self_attn.", group);
  const char* const parts[] = {"q", "k", "v"};
  for (int i = 0; i < 3; ++i) {
    TensorSpec& projection = table.linear(std::string(parts[i]) + "_proj", width, g.hidden, ShardRule::kRows);
    projection.fused_name = layer + "self_attn.qkv_proj";
    projection.fused_row = i * width;
    projection.fused_rows = 3 * width;
  }
  for (int i = 0; i < 3; ++i) {
    TensorSpec& conv =
        table.values(std::string(parts[i]) + "_conv1d.weight", {width, 1, g.conv_kernel}, ShardRule::kRows);
    conv.other_shape = {width, g.conv_kernel};
    conv.fused_name = layer + "self_attn.conv1d.weight";
    conv.fused_row = i * width;
    conv.fused_rows = 3 * width;
  }
  table.linear("f_a_proj", kAnyExtent, g.hidden, ShardRule::kReplicate);
  table.linear("f_b_proj", width, kAnyExtent, ShardRule::kRows);
  table.linear("g_a_proj", kAnyExtent, g.hidden, ShardRule::kReplicate);
  table.linear("g_b_proj", width, kAnyExtent, ShardRule::kRows);
  table.linear("b_proj", g.kda_heads, g.hidden, ShardRule::kRows);
  table.values("dt_bias", {width}, ShardRule::kRows);
  table.values("A_log", {g.kda_heads}, ShardRule::kRows).other_shape = {1, 1, g.kda_heads, 1};
  table.values("o_norm.weight", {g.kda_head_dim});
  table.linear("o_proj", g.hidden, width, ShardRule::kColumns);
}

void add_sparse_attention(TableBuilder& table, const Geometry& g, const std::string& layer, TensorGroup group) {
  table.begin(layer + "self_attn.", group);
  table.linear("q_a_proj", g.q_lora, g.hidden, ShardRule::kReplicate);
  table.values("q_a_layernorm.weight", {g.q_lora});
  table.linear("q_b_proj", static_cast<int64_t>(g.mla_heads) * g.qk_dim, g.q_lora, ShardRule::kRows);
  table.linear("kv_a_proj_with_mqa", g.latent, g.hidden, ShardRule::kReplicate);
  table.values("kv_a_layernorm.weight", {g.latent});
  table.linear("kv_b_proj", static_cast<int64_t>(g.mla_heads) * (g.qk_dim + g.v_dim), g.latent, ShardRule::kRows);
  table.linear("o_proj", g.hidden, static_cast<int64_t>(g.mla_heads) * g.v_dim, ShardRule::kColumns);
  table.linear("indexer.wq_b", static_cast<int64_t>(g.index_heads) * g.index_dim, g.q_lora, ShardRule::kReplicate);
  table.linear("indexer.wk", g.index_dim, g.hidden, ShardRule::kReplicate);
  table.values("indexer.k_norm.weight", {g.index_dim});
  table.values("indexer.k_norm.bias", {g.index_dim});
  table.linear("indexer.weights_proj", g.index_heads, g.hidden, ShardRule::kReplicate);
  table.bare_linear("indexer.index_kpool_compress_gate", g.index_dim, g.hidden);
  table.values("indexer.index_kpool_compress_ape", {g.index_kpool, g.index_dim});
}

void add_swiglu(TableBuilder& table, const std::string& prefix, int64_t width, int64_t hidden) {
  table.linear(prefix + "gate_proj", width, hidden, ShardRule::kRows);
  table.linear(prefix + "up_proj", width, hidden, ShardRule::kRows);
  table.linear(prefix + "down_proj", hidden, width, ShardRule::kColumns);
}

void add_moe(TableBuilder& table, const Geometry& g, const std::string& layer, TensorGroup group) {
  table.begin(layer + "mlp.", group);
  table.linear("gate", g.experts, g.hidden, ShardRule::kReplicate);
  table.values("gate.e_score_correction_bias", {g.experts});
  add_swiglu(table, "shared_experts.", static_cast<int64_t>(g.moe_intermediate) * g.shared_experts, g.hidden);
  for (int e = 0; e < g.experts; ++e) {
    add_swiglu(table, "experts." + std::to_string(e) + ".", g.moe_intermediate, g.hidden);
  }
}

void add_layer(TableBuilder& table, const Geometry& g, int index) {
  const std::string layer = "layers." + std::to_string(index) + ".";
  table.begin(layer, TensorGroup::kTrunk);
  table.values("input_layernorm.weight", {g.hidden});
  table.values("post_attention_layernorm.weight", {g.hidden});
  add_mhc(table, g);
  if (g.attention[index] == AttentionKind::kLinear) {
    add_kda(table, g, layer, TensorGroup::kTrunk);
  } else {
    add_sparse_attention(table, g, layer, TensorGroup::kTrunk);
  }
  if (g.mlp[index] == MlpKind::kDense) {
    table.begin(layer + "mlp.", TensorGroup::kTrunk);
    add_swiglu(table, "", g.dense_intermediate, g.hidden);
  } else {
    add_moe(table, g, layer, TensorGroup::kTrunk);
  }
}

void add_mtp(TableBuilder& table, const Geometry& g) {
  const std::string layer = "layers." + std::to_string(g.layers) + ".";
  table.begin(layer, TensorGroup::kMtp);
  table.values("input_layernorm.weight", {g.hidden});
  table.values("post_attention_layernorm.weight", {g.hidden});
  table.values("enorm.weight", {g.hidden});
  table.values("hnorm.weight", {g.hidden});
  table.linear("eh_proj", g.hidden, 2LL * g.hidden, ShardRule::kReplicate);
  table.values("shared_head.norm.weight", {g.hidden});
  table.begin(layer, TensorGroup::kExtra);
  table.linear("embed_tokens", g.vocab, g.hidden, ShardRule::kReplicate);
  table.linear("shared_head.head", g.vocab, g.hidden, ShardRule::kRows);
  add_sparse_attention(table, g, layer, TensorGroup::kMtp);
  add_moe(table, g, layer, TensorGroup::kMtp);
}

void add_vision(TableBuilder& table, const VisionGeometry& v) {
  const int64_t d = v.hidden;
  const int64_t o = v.out_hidden;
  const int64_t head = v.hidden / v.heads;
  table.begin("visual.", TensorGroup::kVision);
  table.values("patch_embed.proj.weight", {d, v.channels, v.temporal_patch, v.patch, v.patch});
  table.values("patch_embed.proj.bias", {d});
  for (int b = 0; b < v.depth; ++b) {
    const std::string block = "blocks." + std::to_string(b) + ".";
    table.values(block + "norm1.weight", {d});
    table.values(block + "norm2.weight", {d});
    const char* const parts[] = {"q", "k", "v"};
    for (int i = 0; i < 3; ++i) {
      for (const bool is_bias : {false, true}) {
        // Official files fuse q, k and v; stock EXL3 packs split them.
        const std::string suffix = is_bias ? ".bias" : "";
        const std::string name = block + "attn." + parts[i] + "_proj" + suffix;
        TensorSpec& spec = is_bias ? table.values(name, {d}) : table.linear(name, d, d, ShardRule::kReplicate);
        spec.fused_name = "visual." + block + "attn.qkv" + suffix;
        spec.fused_row = i * d;
        spec.fused_rows = 3 * d;
      }
    }
    table.values(block + "attn.q_norm.weight", {head});
    table.values(block + "attn.k_norm.weight", {head});
    table.linear(block + "attn.proj", d, d, ShardRule::kReplicate);
    table.values(block + "attn.proj.bias", {d});
    table.linear(block + "mlp.gate_proj", v.intermediate, d, ShardRule::kReplicate);
    table.values(block + "mlp.gate_proj.bias", {v.intermediate});
    table.linear(block + "mlp.up_proj", v.intermediate, d, ShardRule::kReplicate);
    table.values(block + "mlp.up_proj.bias", {v.intermediate});
    table.linear(block + "mlp.down_proj", d, v.intermediate, ShardRule::kReplicate);
    table.values(block + "mlp.down_proj.bias", {d});
  }
  table.values("post_layernorm.weight", {d});
  table.values("downsample.weight", {o, d, v.merge, v.merge});
  table.values("downsample.bias", {o});
  table.linear("merger.proj", o, o, ShardRule::kReplicate);
  table.values("merger.post_projection_norm.weight", {o});
  table.values("merger.post_projection_norm.bias", {o});
  table.linear("merger.gate_proj", v.projection_intermediate, o, ShardRule::kReplicate);
  table.linear("merger.up_proj", v.projection_intermediate, o, ShardRule::kReplicate);
  table.linear("merger.down_proj", o, v.projection_intermediate, ShardRule::kReplicate);
}

}  // namespace

std::vector<TensorSpec> tensor_table(const Geometry& g) {
  std::vector<TensorSpec> specs;
  TableBuilder table(specs);
  table.begin("", TensorGroup::kTrunk);
  table.linear("embed_tokens", g.vocab, g.hidden, ShardRule::kReplicate);
  table.values("norm.weight", {g.hidden});
  table.linear("lm_head", g.vocab, g.hidden, ShardRule::kRows);
  for (int i = 0; i < g.layers; ++i) add_layer(table, g, i);
  if (g.mtp_layers > 0) add_mtp(table, g);
  if (g.vision) add_vision(table, *g.vision);
  return specs;
}

std::vector<std::string> checkpoint_names(std::string_view table_name) {
  const std::string name(table_name);
  if (name.starts_with("lm_head")) return {name, "model.language_model." + name, "model." + name};
  if (name.starts_with("visual.")) return {"model." + name, name, "model.language_model." + name};
  return {"model.language_model." + name, "model." + name};
}

}  // namespace glm53
