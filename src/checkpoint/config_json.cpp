#include "checkpoint/config_json.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/config_reader.h"
#include "checkpoint/json_file.h"
#include "glm53/core/contains.h"
#include "glm53/core/error.h"
#include "glm53/core/limits.h"
#include "glm53/core/printable.h"
#include "glm53/core/read_file.h"

namespace glm53 {
namespace {

constexpr int64_t kMaxConfigBytes = 16'000'000;  // a list of modules not to convert can be long
constexpr int kMaxConfigDepth = 32;

// Above any model of this family, and low enough that width × width and heads × head width stay inside an int.
constexpr int kMaxLayers = 1024;
constexpr int kMaxWidth = 1 << 15;
constexpr int kMaxHeads = 1 << 12;
constexpr int kMaxHeadDim = 1 << 12;
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxExperts = 1 << 12;
// Of all layers together (the real model: 13,248). The tensor table has three rows an expert, and a few bytes of
// configuration must not make it gigabytes.
constexpr int64_t kMaxExpertsInAll = 1 << 16;
constexpr int64_t kMaxPositions = int64_t{1} << 31;
constexpr double kMinEps = 1e-12;
constexpr double kMaxEps = 0.1;
constexpr double kMinScale = 1e-3;
constexpr double kMaxScale = 1e4;

/// Fills a Geometry section by section, in the order of spec 10 §1. `text_` is the text_config, or the whole file in
/// the flat form; `top_` is always the whole file.
class GeometryReader {
 public:
  GeometryReader(const ConfigReader& top, const ConfigReader& text) : top_(top), text_(text) {}

  Geometry read() {
    read_trunk();
    read_attention_kinds();
    read_mlp_kinds();
    read_kda();
    read_mla();
    read_indexer();
    read_moe();
    read_mhc();
    read_vision();
    read_token_ids();
    read_quantization();
    return std::move(g_);
  }

 private:
  size_t layers() const { return static_cast<size_t>(g_.layers); }

  void read_trunk() {
    check_model_type();
    g_.vocab = text_.require_int("vocab_size", 1, kMaxVocab);
    g_.hidden = text_.require_int("hidden_size", 1, kMaxWidth);
    g_.layers = text_.require_int("num_hidden_layers", 1, kMaxLayers);
    g_.mtp_layers = text_.int_or("num_nextn_predict_layers", 0, 0, 1);
    g_.rms_norm_eps = text_.float_or("rms_norm_eps", 1e-5F, kMinEps, kMaxEps);
    const std::optional<int64_t> positions = text_.integer("max_position_embeddings", 1, kMaxPositions);
    if (!positions) text_.fail("max_position_embeddings", "is missing");
    g_.max_positions = *positions;
    top_.only("tie_word_embeddings", false);
    text_.only("tie_word_embeddings", false);
    text_.only("hidden_act", "silu");
    text_.only("attention_bias", false);
  }

  void check_model_type() {
    for (const ConfigReader* reader : {&top_, &text_}) {
      const std::string type = reader->string("model_type").value_or("glm5_next");
      if (type != "glm5_next" && type != "glm5_next_text") {
        reader->fail("model_type", "is " + in_quotes(type) + "; only \"glm5_next\" (GLM-5.3-Flash) is supported");
      }
    }
  }

  void check_length(const char* key, size_t length) const {
    if (length != layers()) {
      text_.fail(key, "has " + std::to_string(length) + " entries for " + std::to_string(g_.layers) + " layers");
    }
  }

  [[noreturn]] void fail_entry(const char* key, size_t layer, const std::string& value) const {
    text_.fail(key, "has the unknown entry " + in_quotes(value) + " for layer " + std::to_string(layer));
  }

  void read_attention_kinds() {
    const std::optional<std::vector<std::string>> types = text_.strings("layer_types");
    if (types) check_length("layer_types", types->size());
    for (size_t i = 0; i < layers(); ++i) {
      if (!types) {
        g_.attention.push_back(i % 4 == 3 ? AttentionKind::kSparse : AttentionKind::kLinear);
      } else if (const std::string& type = (*types)[i]; type == "linear_attention") {
        g_.attention.push_back(AttentionKind::kLinear);
      } else if (type == "deepseek_sparse_attention" || type == "full_attention") {
        g_.attention.push_back(AttentionKind::kSparse);
      } else {
        fail_entry("layer_types", i, type);
      }
    }
  }

  void read_mlp_kinds() {
    const int dense_first = text_.int_or("first_k_dense_replace", 3, 0, kMaxLayers);
    const std::optional<std::vector<std::string>> types = text_.strings("mlp_layer_types");
    if (types) check_length("mlp_layer_types", types->size());
    for (size_t i = 0; i < layers(); ++i) {
      if (!types) {
        g_.mlp.push_back(i < static_cast<size_t>(dense_first) ? MlpKind::kDense : MlpKind::kMoe);
      } else if (const std::string& type = (*types)[i]; type == "dense") {
        g_.mlp.push_back(MlpKind::kDense);
      } else if (type == "sparse") {
        g_.mlp.push_back(MlpKind::kMoe);
      } else {
        fail_entry("mlp_layer_types", i, type);
      }
    }
  }

  /// Where a KDA value stands: linear_attn_config's key wins over the scalar key of the text config.
  struct KdaKey {
    const ConfigReader& reader;
    const char* key;
  };

  KdaKey kda_key(const std::optional<ConfigReader>& linear, const char* nested_key, const char* scalar_key) const {
    if (linear && linear->has(nested_key)) return {*linear, nested_key};
    return {text_, scalar_key};
  }

  void read_kda() {
    const std::optional<ConfigReader> linear = text_.object("linear_attn_config");
    const KdaKey heads = kda_key(linear, "num_heads", "linear_num_heads");
    g_.kda_heads = heads.reader.require_int(heads.key, 1, kMaxHeads);
    const KdaKey dim = kda_key(linear, "head_dim", "linear_head_dim");
    dim.reader.only(dim.key, int64_t{128});
    g_.kda_head_dim = 128;
    const KdaKey kernel = kda_key(linear, "short_conv_kernel_size", "linear_conv_kernel_dim");
    kernel.reader.only(kernel.key, int64_t{4});
    g_.conv_kernel = 4;
    const KdaKey bound = kda_key(linear, "gate_lower_bound", "linear_lower_bound");
    const KdaKey safe = kda_key(linear, "safe_gate", "safe_gate");
    // The bounded gate is the only one; and 16 decay steps of −5 are the most whose inverse stays finite in fp32.
    safe.reader.only(safe.key, true);
    g_.gate_lower_bound = bound.reader.float_or(bound.key, -5.0F, -5.0, -kMinScale);
    if (linear) {
      check_layer_list(*linear, "kda_layers", AttentionKind::kLinear);
      check_layer_list(*linear, "full_attn_layers", AttentionKind::kSparse);
    }
  }

  /// The list, when there is one, must name exactly the layers of its kind.
  void check_layer_list(const ConfigReader& linear, const char* key, AttentionKind kind) const {
    const std::optional<std::vector<int64_t>> listed = linear.integers(key, 0, g_.layers - 1);
    if (!listed) return;
    std::vector<bool> is_listed(layers(), false);
    for (int64_t layer : *listed) is_listed[static_cast<size_t>(layer)] = true;
    for (size_t i = 0; i < layers(); ++i) {
      if (is_listed[i] != (g_.attention[i] == kind)) {
        linear.fail(key, std::string(is_listed[i] ? "names" : "omits") + " layer " + std::to_string(i) +
                             ", which contradicts layer_types (layers count from 0)");
      }
    }
  }

  void read_mla() {
    g_.mla_heads = text_.require_int("num_attention_heads", 1, kMaxHeads);
    if (text_.int_or("num_key_value_heads", g_.mla_heads, 1, kMaxHeads) != g_.mla_heads) {
      text_.fail("num_key_value_heads", "differs from num_attention_heads");
    }
    g_.q_lora = text_.require_int("q_lora_rank", 1, kMaxWidth);
    g_.latent = text_.require_int("kv_lora_rank", 1, kMaxWidth);
    g_.qk_dim = text_.require_int("qk_nope_head_dim", 1, kMaxHeadDim);
    text_.only("qk_rope_head_dim", int64_t{0});
    if (text_.int_or("qk_head_dim", g_.qk_dim, 1, kMaxHeadDim) != g_.qk_dim) {
      text_.fail("qk_head_dim", "differs from qk_nope_head_dim");
    }
    g_.v_dim = text_.require_int("v_head_dim", 1, kMaxHeadDim);
    text_.only("mla_use_nope", true);
  }

  void read_indexer() {
    g_.index_heads = text_.require_int("index_n_heads", 1, kMaxHeads);
    g_.index_dim = text_.require_int("index_head_dim", 1, kMaxHeadDim);
    g_.index_kpool = text_.require_int("index_kpool", 1, kPageTokens);
    if (kPageTokens % g_.index_kpool != 0) {
      text_.fail("index_kpool", "must divide the " + std::to_string(kPageTokens) + " tokens of a cache page");
    }
    g_.index_topk = text_.require_int("index_topk", 1, 1 << 20);
    if (g_.index_topk % g_.index_kpool != 0) text_.fail("index_topk", "is not a multiple of index_kpool");
    text_.only("index_kpool_compress", true);
    text_.only("index_kpool_always_select_tail", true);
    g_.index_share_for_mtp = text_.boolean("index_share_for_mtp_iteration").value_or(false);
    check_indexer_types();
  }

  /// Every sparse layer must run its own indexer. A "shared" one would take over the selection of the layer before, but
  /// the linear layers between reset it. Entries of linear layers mean nothing.
  void check_indexer_types() const {
    if (const std::optional<std::vector<std::string>> types = text_.strings("indexer_types")) {
      check_length("indexer_types", types->size());
      for (size_t i = 0; i < layers(); ++i) {
        if ((*types)[i] != "full" && (*types)[i] != "shared") fail_entry("indexer_types", i, (*types)[i]);
        if ((*types)[i] == "shared") refuse_shared("indexer_types", i);
      }
    } else if (const std::optional<std::string> pattern = text_.string("index_topk_pattern")) {
      check_length("index_topk_pattern", pattern->size());
      for (size_t i = 0; i < layers(); ++i) {
        if ((*pattern)[i] != 'F' && (*pattern)[i] != 'S') {
          fail_entry("index_topk_pattern", i, std::string(1, (*pattern)[i]));
        }
        if ((*pattern)[i] == 'S') refuse_shared("index_topk_pattern", i);
      }
    } else {
      const int frequency = text_.int_or("index_topk_freq", 1, 1, kMaxLayers);
      const int offset = text_.int_or("index_skip_topk_offset", 2, 0, kMaxLayers);
      for (int i = 0; i < g_.layers; ++i) {
        if (std::max(i - offset + 1, 0) % frequency != 0) refuse_shared("index_topk_freq", static_cast<size_t>(i));
      }
    }
  }

  void refuse_shared(const char* key, size_t layer) const {
    if (g_.attention[layer] != AttentionKind::kSparse) return;
    text_.fail(key, "asks for a shared indexer at layer " + std::to_string(layer) + ", which is not supported");
  }

  void read_moe() {
    const bool has_moe = g_.mtp_layers > 0 || contains(g_.mlp, MlpKind::kMoe);
    const bool has_dense = contains(g_.mlp, MlpKind::kDense);
    if (has_dense) g_.dense_intermediate = text_.require_int("intermediate_size", 1, kMaxWidth);
    g_.swiglu_limit = text_.float_or("swiglu_limit", 10.0F, kMinScale, kMaxScale);
    if (!has_moe) return;
    g_.moe_intermediate = text_.require_int("moe_intermediate_size", 1, kMaxWidth);
    g_.experts = text_.require_int("n_routed_experts", 1, kMaxExperts);
    if (int64_t{g_.layers + g_.mtp_layers} * g_.experts > kMaxExpertsInAll) {
      text_.fail("n_routed_experts", "makes more than " + std::to_string(kMaxExpertsInAll) + " experts in all layers");
    }
    g_.experts_per_token = text_.require_int("num_experts_per_tok", 1, kMaxExperts);
    if (g_.experts_per_token > g_.experts) text_.fail("num_experts_per_tok", "is more than n_routed_experts");
    g_.shared_experts = text_.int_or("n_shared_experts", 1, 1, 16);
    if (!text_.has("routed_scaling_factor")) text_.fail("routed_scaling_factor", "is missing");
    g_.routed_scaling = text_.float_or("routed_scaling_factor", 1.0F, kMinScale, kMaxScale);
    g_.norm_topk_prob = text_.boolean("norm_topk_prob").value_or(true);
    text_.only("n_group", int64_t{1});
    text_.only("topk_group", int64_t{1});
    text_.only("scoring_func", "sigmoid");
    text_.only("topk_method", "noaux_tc");
    text_.only("moe_router_dtype", "float32");
  }

  void read_mhc() {
    text_.only("mhc", true);
    text_.only("hc_mult", int64_t{4});
    g_.hc_streams = 4;
    g_.hc_eps = text_.float_or("hc_eps", 1e-6F, kMinEps, kMaxEps);
    g_.hc_sinkhorn_iters = text_.int_or("hc_sinkhorn_iters", 20, 1, 1000);
  }

  /// Spec 60 §1.1, with its defaults.
  void read_vision() {
    const std::optional<ConfigReader> config = top_.object("vision_config");
    if (!config) return;
    const std::string type = config->string("model_type").value_or("glm5_next_vision");
    if (type != "glm5_next_vision" && type != "glm_ocr_vision") {
      config->fail("model_type", "is " + in_quotes(type) + "; only \"glm5_next_vision\" is supported");
    }
    VisionGeometry v;
    v.depth = config->int_or("depth", 24, 1, kMaxLayers);
    v.hidden = config->int_or("hidden_size", 1024, 1, kMaxWidth);
    v.heads = config->int_or("num_heads", 16, 1, kMaxHeads);
    // Rotary angles are given to pairs of rows and columns in turn.
    if (v.hidden % v.heads != 0 || v.hidden / v.heads % 4 != 0) {
      config->fail("num_heads", "must divide hidden_size into heads whose width is a multiple of 4");
    }
    v.intermediate = config->int_or("intermediate_size", 4096, 1, kMaxWidth);
    v.projection_intermediate = config->int_or("projection_intermediate_size", 10240, 1, kMaxWidth);
    config->only("in_channels", int64_t{3});
    v.patch = config->int_or("patch_size", 14, 1, 256);
    v.temporal_patch = config->int_or("temporal_patch_size", 2, 1, 16);
    v.merge = config->int_or("spatial_merge_size", 2, 1, 16);
    v.image_size = config->int_or("image_size", 336, 1, kMaxWidth);
    v.out_hidden = config->require_int("out_hidden_size", 1, kMaxWidth);
    if (v.out_hidden != g_.hidden) config->fail("out_hidden_size", "differs from the text model's hidden_size");
    v.rms_norm_eps = config->float_or("rms_norm_eps", 1e-5F, kMinEps, kMaxEps);
    v.swiglu_limit = config->float_or("swiglu_limit", g_.swiglu_limit, kMinScale, kMaxScale);
    config->only("attention_bias", true);
    config->only("hidden_act", "silu");
    const std::optional<ConfigReader> rope = config->object("rope_parameters");
    const ConfigReader& theta_of = rope && rope->has("rope_theta") ? *rope : *config;
    v.rope_theta = theta_of.float_or("rope_theta", 10000.0F, 1.0, 1e9);
    g_.vision = v;
  }

  void read_token_ids() {
    const ConfigReader& eos = text_.has("eos_token_id") ? text_ : top_;
    const std::optional<std::vector<int>> eos_ids = eos.token_ids("eos_token_id", g_.vocab);
    if (!eos_ids) text_.fail("eos_token_id", "is missing: without it no reply would end");
    g_.eos_ids = *eos_ids;
    const ConfigReader& pad = text_.has("pad_token_id") ? text_ : top_;
    g_.pad_id = pad.int_or("pad_token_id", -1, 0, g_.vocab - 1);
    g_.image_start_id = media_id("image_start_token_id", 154830);
    g_.image_end_id = media_id("image_end_token_id", 154831);
    g_.video_start_id = media_id("video_start_token_id", 154832);
    g_.video_end_id = media_id("video_end_token_id", 154833);
    g_.image_token_id = media_id("image_token_id", 154854);
    g_.video_token_id = media_id("video_token_id", 154855);
  }

  /// −1 where there is no vision tower, or where the real model's number lies outside a small vocabulary.
  int media_id(const char* key, int real_id) const {
    return top_.int_or(key, g_.vision && real_id < g_.vocab ? real_id : -1, 0, g_.vocab - 1);
  }

  /// Tensor shapes decide the rate and markers the codebook; only the method and the tile order matter here.
  void read_quantization() {
    constexpr const char* kKey = "quantization_config";
    std::optional<ConfigReader> config = top_.object(kKey);
    if (!config) config = text_.object(kKey);
    if (!config) return;
    const std::optional<std::string> method = config->string("quant_method");
    if (!method) config->fail("quant_method", "is missing");
    if (*method != "exl3") {
      config->fail("quant_method", "is " + in_quotes(*method) + "; only \"exl3\" checkpoints can be served");
    }
    std::ostringstream summary;
    summary << "exl3";
    if (const std::optional<double> bits = config->number("bits", 0.0, 16.0)) summary << ' ' << *bits << " bpw";
    if (const std::optional<std::string> codebook = config->string("codebook")) summary << ' ' << printable(*codebook);
    g_.quantization_summary = summary.str();
    const std::optional<std::string> order = config->string("tile_order");
    if (!order) return;
    if (*order == "sm80") {
      g_.exl3_order = Exl3TileOrder::kStandard;
    } else if (*order == "colmajor" || order->ends_with("_colmajor")) {
      g_.exl3_order = Exl3TileOrder::kColumnMajor;
    } else {
      config->fail("tile_order", "names the unknown order " + in_quotes(*order));
    }
  }

  const ConfigReader& top_;
  const ConfigReader& text_;
  Geometry g_;
};

}  // namespace

Geometry geometry_from_json(std::string_view json, const std::string& file) {
  const nlohmann::json root = parse_json_object(json, file, kMaxConfigDepth);
  const ConfigReader top(root, file, "");
  const std::optional<ConfigReader> text = top.object("text_config");
  return GeometryReader(top, text ? *text : top).read();
}

Geometry load_geometry(const std::string& directory) {
  const std::string path = (std::filesystem::path(directory) / "config.json").string();
  return geometry_from_json(read_file(path, kMaxConfigBytes), path);
}

}  // namespace glm53
