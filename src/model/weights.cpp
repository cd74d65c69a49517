#include "model/weights.h"

#include <array>
#include <memory>
#include <utility>

#include "checkpoint/direct_reader.h"
#include "glm53/core/error.h"

namespace glm53 {
namespace {

/// Loads one rank's share of named table rows, with the fusions of spec 10 §2.3.
class WeightLoader {
 public:
  WeightLoader(const CheckpointInventory& inventory, const Geometry& geometry, Shard shard, Backend& backend)
      : inventory_(inventory), g_(geometry), shard_(shard), backend_(backend) {}

  Matrix embedding() { return matrix("embed_tokens", Precision::kServing); }

  HeadWeights head() {
    HeadWeights head;
    head.norm = vector("norm.weight");
    head.lm_head = linear("lm_head", LinearGroup::kHead, {part("lm_head")});
    return head;
  }

  LayerWeights layer(int index) {
    index_ = index;
    prefix_ = "layers." + std::to_string(index) + ".";
    LayerWeights layer;
    layer.attention_site = mhc_site(false);
    layer.ffn_site = mhc_site(true);
    if (g_.attention[index] == AttentionKind::kLinear) {
      layer.kda = kda();
    } else {
      layer.sparse_attention = sparse_attention();
    }
    if (g_.mlp[index] == MlpKind::kDense) {
      layer.mlp = mlp(prefix_ + "mlp.", LinearGroup::kMlp, g_.dense_intermediate);
    } else {
      layer.moe = moe();
    }
    return layer;
  }

 private:
  MhcSite mhc_site(bool is_ffn) {
    const std::string name = prefix_ + (is_ffn ? "hc_ffn_" : "hc_attn_");
    MhcSite site;
    site.layer = index_;
    site.is_ffn = is_ffn;
    site.fn = matrix(name + "fn", Precision::kFp32);
    site.base = vector(name + "base");
    site.scale = vector(name + "scale");
    site.norm = vector(prefix_ + (is_ffn ? "post_attention_layernorm.weight" : "input_layernorm.weight"));
    return site;
  }

  KdaWeights kda() {
    const std::string name = prefix_ + "self_attn.";
    const int64_t d = g_.kda_head_dim;
    KdaWeights w;
    w.layer = index_;
    w.kda_index = kda_index_++;
    w.heads = static_cast<int>(share(g_.kda_heads, "KDA heads").size());
    w.gate_rank = part(name + "f_a_proj").out();
    if (part(name + "g_a_proj").out() != w.gate_rank || part(name + "f_b_proj").in() != w.gate_rank ||
        part(name + "g_b_proj").in() != w.gate_rank) {
      throw Error("layer " + std::to_string(index_) +
                  ": f_a_proj, f_b_proj, g_a_proj and g_b_proj disagree on the width of the low-rank gates");
    }
    w.input = linear(name + "input", LinearGroup::kKda,
                     {part(name + "q_proj", d), part(name + "k_proj", d), part(name + "v_proj", d),
                      part(name + "b_proj"), part(name + "f_a_proj"), part(name + "g_a_proj")});
    w.forget_up = linear(name + "f_b_proj", LinearGroup::kKda, {part(name + "f_b_proj", d)});
    w.gate_up = linear(name + "g_b_proj", LinearGroup::kKda, {part(name + "g_b_proj", d)});
    w.output = linear(name + "o_proj", LinearGroup::kKda, {part(name + "o_proj", d)});
    const int64_t taps = d * g_.conv_kernel;
    const std::array conv = {vector_part(name + "q_conv1d.weight", taps), vector_part(name + "k_conv1d.weight", taps),
                             vector_part(name + "v_conv1d.weight", taps)};
    w.conv = backend_.load_vector(name + "conv1d", conv);
    w.a_log = vector(name + "A_log", 1);
    w.dt_bias = vector(name + "dt_bias", d);
    w.output_norm = vector(name + "o_norm.weight");
    return w;
  }

  SparseAttentionWeights sparse_attention() {
    const std::string name = prefix_ + "self_attn.";
    SparseAttentionWeights w;
    w.layer = index_;
    w.sparse_index = sparse_index_++;
    const Range heads = share(g_.mla_heads, "MLA heads");
    w.heads = static_cast<int>(heads.size());
    w.latents =
        linear(name + "latents", LinearGroup::kMla, {part(name + "q_a_proj"), part(name + "kv_a_proj_with_mqa")});
    w.query_norm = vector(name + "q_a_layernorm.weight");
    w.latent_norm = vector(name + "kv_a_layernorm.weight");
    w.query_up = linear(name + "q_b_proj", LinearGroup::kMla, {part(name + "q_b_proj", g_.qk_dim)});
    std::vector<LinearPart> keys;
    std::vector<LinearPart> values;
    for (int64_t h = heads.begin; h < heads.end; ++h) {
      // Rows of head h in kv_b_proj: qk_dim key rows, then v_dim value rows (spec 10 §3.6 item 4).
      LinearPart key = inventory_.linear(name + "kv_b_proj");
      const int64_t first = key.rows.begin + h * (g_.qk_dim + g_.v_dim);
      LinearPart value = key;
      key.rows = {first, first + g_.qk_dim};
      key.transposed = true;
      value.rows = {first + g_.qk_dim, first + g_.qk_dim + g_.v_dim};
      keys.push_back(key);
      values.push_back(value);
    }
    w.key_absorb = backend_.load_linear_batch(name + "kv_b_proj.key", LinearGroup::kKvB, keys);
    w.value_up = backend_.load_linear_batch(name + "kv_b_proj.value", LinearGroup::kKvB, values);
    w.output = linear(name + "o_proj", LinearGroup::kMla, {part(name + "o_proj", g_.v_dim)});
    w.index_query_up = linear(name + "indexer.wq_b", LinearGroup::kIndexer, {part(name + "indexer.wq_b")});
    w.index_input = linear(name + "indexer.input", LinearGroup::kIndexer,
                           {part(name + "indexer.wk"), part(name + "indexer.index_kpool_compress_gate"),
                            part(name + "indexer.weights_proj")});
    w.index_key_norm = vector(name + "indexer.k_norm.weight");
    w.index_key_bias = vector(name + "indexer.k_norm.bias");
    w.pool_position = vector(name + "indexer.index_kpool_compress_ape");
    return w;
  }

  MlpWeights mlp(const std::string& name, LinearGroup group, int64_t width) {
    MlpWeights w;
    w.layer = index_;
    w.width = share(width, name + "gate_proj rows").size();
    w.gate_up = linear(name + "gate_up", group, {part(name + "gate_proj"), part(name + "up_proj")});
    w.down = linear(name + "down_proj", group, {part(name + "down_proj", 1)});
    return w;
  }

  MoeWeights moe() {
    const std::string name = prefix_ + "mlp.";
    MoeWeights w;
    w.layer = index_;
    w.router = matrix(name + "gate", Precision::kFp32);
    w.router_bias = vector(name + "gate.e_score_correction_bias");
    w.shared = mlp(name + "shared_experts.", LinearGroup::kShared,
                   static_cast<int64_t>(g_.moe_intermediate) * g_.shared_experts);
    std::vector<ExpertParts> experts;
    for (int e = 0; e < g_.experts; ++e) {
      const std::string expert = name + "experts." + std::to_string(e) + ".";
      // Whole Hadamard blocks, so that every transform stays on its rank (spec 20 §6.2).
      experts.push_back({part(expert + "gate_proj", kExl3HadamardBlock), part(expert + "up_proj", kExl3HadamardBlock),
                         part(expert + "down_proj", kExl3HadamardBlock)});
    }
    w.experts = backend_.load_experts(name + "experts", experts);
    return w;
  }

  /// This rank's share of `count` equal units.
  Range share(int64_t count, const std::string& what) const {
    if (count % shard_.world != 0) {
      throw Error("cluster.tp: " + std::to_string(count) + " " + what + " do not divide by " +
                  std::to_string(shard_.world) + " ranks");
    }
    const int64_t size = count / shard_.world;
    return {shard_.rank * size, (shard_.rank + 1) * size};
  }

  /// This rank's share by the table's rule, cut at multiples of `unit` rows or columns.
  LinearPart part(const std::string& name, int64_t unit = 1) const {
    LinearPart part = inventory_.linear(name);
    const ShardRule rule = inventory_.spec(name).shard;
    if (rule == ShardRule::kRows) part.rows = cut(part.rows, unit, name + " rows");
    if (rule == ShardRule::kColumns) part.columns = cut(part.columns, unit, name + " columns");
    return part;
  }

  Range cut(Range whole_range, int64_t unit, const std::string& what) const {
    if (shard_.world == 1) return whole_range;
    if (whole_range.size() % unit != 0) {
      throw Error(what + ": " + std::to_string(whole_range.size()) + " is not a multiple of " + std::to_string(unit));
    }
    const Range units = share(whole_range.size() / unit, "blocks of " + what);
    return {whole_range.begin + units.begin * unit, whole_range.begin + units.end * unit};
  }

  Linear linear(const std::string& name, LinearGroup group, const std::vector<LinearPart>& parts) {
    return backend_.load_linear(name, group, parts);
  }

  Matrix matrix(const std::string& name, Precision precision) {
    return backend_.load_matrix(name, part(name), precision);
  }

  VectorPart vector_part(const std::string& name, int64_t unit = 1) const {
    VectorPart part = inventory_.values(name);
    if (inventory_.spec(name).shard == ShardRule::kRows) part.range = cut(part.range, unit, name);
    return part;
  }

  Vector vector(const std::string& name, int64_t unit = 1) {
    const std::array parts = {vector_part(name, unit)};
    return backend_.load_vector(name, parts);
  }

  const CheckpointInventory& inventory_;
  const Geometry& g_;
  const Shard shard_;
  Backend& backend_;
  int index_ = 0;
  std::string prefix_;
  int kda_index_ = 0;
  int sparse_index_ = 0;
};

}  // namespace

ModelWeights load_weights(const CheckpointInventory& inventory, const Geometry& geometry, Shard shard, Backend& backend,
                          const std::function<void(const LoadStatus&)>& progress) {
  WeightLoader loader(inventory, geometry, shard, backend);
  ModelWeights weights;
  weights.embedding = loader.embedding();
  std::vector<int64_t> layer_ends;  // bytes put off when a layer had been asked for
  for (int i = 0; i < geometry.layers; ++i) {
    weights.layers.push_back(loader.layer(i));
    layer_ends.push_back(backend.bytes_to_load());
    if (progress && layer_ends.back() == 0) progress({i + 1, 0, 0, false});
  }
  weights.head = loader.head();

  LoadStatus status{0, 0, backend.bytes_to_load(), true};
  if (status.total_bytes == 0) return weights;  // all is read
  const DirectReader* reader = nullptr;
  const auto open = [&reader](std::vector<TensorRange> ranges, StagingRing& ring) {
    auto opened = std::make_unique<DirectReader>(std::move(ranges), ring);
    reader = opened.get();
    return opened;
  };
  backend.finish_loading(open, [&](int64_t bytes) {
    if (!progress) return;
    status.bytes = bytes;
    while (status.layers < geometry.layers && layer_ends[static_cast<size_t>(status.layers)] <= bytes) ++status.layers;
    status.direct = reader == nullptr || reader->is_direct();
    progress(status);
  });
  return weights;
}

int64_t plan_weights(const CheckpointInventory& inventory, const Geometry& geometry, Shard shard, Backend& backend) {
  backend.plan_weights(true);
  load_weights(inventory, geometry, shard, backend, {});
  const int64_t bytes = backend.plan_memory({}).weights;
  backend.plan_weights(false);
  return bytes;
}

}  // namespace glm53
