#include "checkpoint/config_json.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_files.h"

namespace glm53 {
namespace {

using nlohmann::json;
using test::error_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::filesystem::path kMalformed = GLM53_TEST_DATA "/malformed/config_json";

/// config.json of the real GLM-5.3-Flash in its routed-only EXL3 release (spec 10 §1).
json real_config() {
  json config = json::parse(R"({
    "architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next", "tie_word_embeddings": false,
    "image_start_token_id": 154830, "image_end_token_id": 154831, "video_start_token_id": 154832,
    "video_end_token_id": 154833, "image_token_id": 154854, "video_token_id": 154855,
    "text_config": {
      "model_type": "glm5_next_text", "dtype": "bfloat16", "vocab_size": 154880, "hidden_size": 4096,
      "num_hidden_layers": 45, "intermediate_size": 12288, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
      "n_routed_experts": 288, "n_shared_experts": 1, "num_experts_per_tok": 8, "scoring_func": "sigmoid",
      "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1,
      "moe_router_dtype": "float32", "swiglu_limit": 10.0, "hidden_act": "silu", "rms_norm_eps": 1e-5,
      "max_position_embeddings": 1048576,
      "linear_attn_config": {"num_heads": 64, "head_dim": 128, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0},
      "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512,
      "qk_head_dim": 256, "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256, "head_dim": 0,
      "mla_use_nope": true, "attention_bias": false, "attention_dropout": 0.0, "index_topk": 2048,
      "index_n_heads": 32, "index_head_dim": 128, "index_kpool": 4, "index_kpool_compress": true,
      "index_kpool_always_select_tail": true, "indexer_rope_interleave": true, "index_share_for_mtp_iteration": true,
      "mhc": true, "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20, "num_nextn_predict_layers": 1,
      "eos_token_id": [154820, 154827, 154829], "pad_token_id": 154820, "bos_token_id": null,
      "tie_word_embeddings": false, "initializer_range": 0.02, "use_cache": true
    },
    "vision_config": {
      "model_type": "glm5_next_vision", "depth": 24, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 4096,
      "in_channels": 3, "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2, "image_size": 448,
      "out_hidden_size": 4096, "projection_intermediate_size": 10240, "rms_norm_eps": 1e-5, "swiglu_limit": 10.0,
      "attention_bias": true, "hidden_act": "silu"
    },
    "quantization_config": {
      "quant_method": "exl3", "bits": 4, "head_bits": 16, "codebook": "mcg", "scope": "glm53_routed_experts_only",
      "non_routed_dtype_policy": "official_source_native", "version": "0.0.43", "serving_reader_qualified": false
    }
  })");
  json& text = config["text_config"];
  for (int i = 0; i < 45; ++i) {
    const bool sparse = i % 4 == 3;
    text["layer_types"].push_back(sparse ? "deepseek_sparse_attention" : "linear_attention");
    text["mlp_layer_types"].push_back(i < 3 ? "dense" : "sparse");
    text["indexer_types"].push_back("full");
    text["linear_attn_config"][sparse ? "full_attn_layers" : "kda_layers"].push_back(i);
  }
  return config;
}

json tiny_config() { return json::parse(test::read_file(GLM53_TEST_DATA "/models/glm53-tiny/config.json")); }

Geometry parse(const json& config) { return geometry_from_json(config.dump(), "config.json"); }

/// The tiny configuration after `edit`; `text` is its text_config.
json edited(const std::function<void(json& config, json& text)>& edit) {
  json config = tiny_config();
  edit(config, config["text_config"]);
  return config;
}

TEST(ConfigJson, RealModel) {
  const Geometry g = parse(real_config());
  EXPECT_EQ(g.vocab, 154880);
  EXPECT_EQ(g.hidden, 4096);
  EXPECT_EQ(g.layers, 45);
  EXPECT_EQ(g.mtp_layers, 1);
  EXPECT_EQ(g.kda_layer_count(), 34);
  EXPECT_EQ(g.sparse_layer_count(), 11);
  for (size_t i = 0; i < 45; ++i) {
    EXPECT_EQ(g.attention[i], i % 4 == 3 ? AttentionKind::kSparse : AttentionKind::kLinear) << i;
    EXPECT_EQ(g.mlp[i], i < 3 ? MlpKind::kDense : MlpKind::kMoe) << i;
  }
  EXPECT_EQ(g.rms_norm_eps, 1e-5F);
  EXPECT_EQ(g.max_positions, 1048576);
  EXPECT_EQ(g.kda_heads, 64);
  EXPECT_EQ(g.kda_head_dim, 128);
  EXPECT_EQ(g.kda_width(), 8192);
  EXPECT_EQ(g.conv_kernel, 4);
  EXPECT_EQ(g.gate_lower_bound, -5.0F);
  EXPECT_EQ(g.mla_heads, 64);
  EXPECT_EQ(g.q_lora, 1536);
  EXPECT_EQ(g.latent, 512);
  EXPECT_EQ(g.qk_dim, 256);
  EXPECT_EQ(g.v_dim, 256);
  EXPECT_EQ(g.index_heads, 32);
  EXPECT_EQ(g.index_dim, 128);
  EXPECT_EQ(g.index_topk, 2048);
  EXPECT_EQ(g.index_kpool, 4);
  EXPECT_EQ(g.pools_per_query(), 512);
  EXPECT_EQ(g.selection_width(), 2051);
  EXPECT_TRUE(g.index_share_for_mtp);
  EXPECT_EQ(g.dense_intermediate, 12288);
  EXPECT_EQ(g.moe_intermediate, 2048);
  EXPECT_EQ(g.experts, 288);
  EXPECT_EQ(g.experts_per_token, 8);
  EXPECT_EQ(g.shared_experts, 1);
  EXPECT_EQ(g.routed_scaling, 2.5F);
  EXPECT_TRUE(g.norm_topk_prob);
  EXPECT_EQ(g.swiglu_limit, 10.0F);
  EXPECT_EQ(g.hc_streams, 4);
  EXPECT_EQ(g.hc_eps, 1e-6F);
  EXPECT_EQ(g.hc_sinkhorn_iters, 20);
  EXPECT_THAT(g.eos_ids, ElementsAre(154820, 154827, 154829));
  EXPECT_EQ(g.pad_id, 154820);
  EXPECT_EQ(g.image_start_id, 154830);
  EXPECT_EQ(g.image_end_id, 154831);
  EXPECT_EQ(g.video_start_id, 154832);
  EXPECT_EQ(g.video_end_id, 154833);
  EXPECT_EQ(g.image_token_id, 154854);
  EXPECT_EQ(g.video_token_id, 154855);
  ASSERT_TRUE(g.vision.has_value());
  EXPECT_EQ(g.vision->depth, 24);
  EXPECT_EQ(g.vision->hidden, 1024);
  EXPECT_EQ(g.vision->heads, 16);
  EXPECT_EQ(g.vision->intermediate, 4096);
  EXPECT_EQ(g.vision->projection_intermediate, 10240);
  EXPECT_EQ(g.vision->patch, 14);
  EXPECT_EQ(g.vision->temporal_patch, 2);
  EXPECT_EQ(g.vision->merge, 2);
  EXPECT_EQ(g.vision->channels, 3);
  EXPECT_EQ(g.vision->image_size, 448);
  EXPECT_EQ(g.vision->out_hidden, 4096);
  EXPECT_EQ(g.vision->rms_norm_eps, 1e-5F);
  EXPECT_EQ(g.vision->rope_theta, 10000.0F);
  EXPECT_EQ(g.vision->swiglu_limit, 10.0F);
  EXPECT_FALSE(g.exl3_order.has_value());
  EXPECT_EQ(g.quantization_summary, "exl3 4 bpw mcg");
}

TEST(ConfigJson, TinyModel) {
  const Geometry g = load_geometry(GLM53_TEST_DATA "/models/glm53-tiny");
  EXPECT_EQ(g.vocab, 4096);
  EXPECT_EQ(g.hidden, 256);
  EXPECT_EQ(g.layers, 8);
  EXPECT_EQ(g.sparse_layer_count(), 2);
  EXPECT_EQ(std::count(g.mlp.begin(), g.mlp.end(), MlpKind::kDense), 2);
  EXPECT_EQ(g.kda_heads, 2);
  EXPECT_EQ(g.index_topk, 256);
  EXPECT_EQ(g.selection_width(), 259);
  EXPECT_THAT(g.eos_ids, ElementsAre(4060, 4067, 4069));
  EXPECT_EQ(g.image_token_id, 4094);
  EXPECT_EQ(g.vision->projection_intermediate, 512);
}

/// All fields that the tests of equal geometries compare.
std::string summary(const Geometry& g) {
  json all = {g.vocab,
              g.hidden,
              g.layers,
              g.mtp_layers,
              g.kda_heads,
              g.gate_lower_bound,
              g.mla_heads,
              g.q_lora,
              g.latent,
              g.index_topk,
              g.index_kpool,
              g.experts,
              g.eos_ids,
              g.pad_id,
              g.image_token_id,
              g.dense_intermediate,
              g.swiglu_limit,
              g.index_share_for_mtp,
              g.max_positions,
              g.vision ? g.vision->depth : 0,
              g.quantization_summary};
  for (AttentionKind kind : g.attention) all.push_back(static_cast<int>(kind));
  for (MlpKind kind : g.mlp) all.push_back(static_cast<int>(kind));
  return all.dump();
}

TEST(ConfigJson, FlatFormIsTheSame) {
  json flat = real_config();
  const json text = flat["text_config"];
  flat.erase("text_config");
  flat.update(text);
  EXPECT_EQ(summary(parse(flat)), summary(parse(real_config())));
}

TEST(ConfigJson, MissingListsFallBackToTheRealPattern) {
  json config = real_config();
  for (const char* key : {"layer_types", "mlp_layer_types", "indexer_types"}) config["text_config"].erase(key);
  EXPECT_EQ(summary(parse(config)), summary(parse(real_config())));
  config["text_config"].erase("first_k_dense_replace");
  EXPECT_EQ(summary(parse(config)), summary(parse(real_config())));
}

TEST(ConfigJson, DenseLayersNeverExceedTheLayerCount) {
  const Geometry g = parse(edited([](json&, json& text) {
    for (const char* key : {"layer_types", "mlp_layer_types", "indexer_types", "linear_attn_config"}) text.erase(key);
    text.erase("first_k_dense_replace");
    text["num_hidden_layers"] = 2;
  }));
  EXPECT_THAT(g.mlp, ElementsAre(MlpKind::kDense, MlpKind::kDense));
}

TEST(ConfigJson, FullAttentionIsAnAlias) {
  const Geometry g = parse(edited([](json&, json& text) { text["layer_types"][3] = "full_attention"; }));
  EXPECT_EQ(g.attention[3], AttentionKind::kSparse);
}

TEST(ConfigJson, LinearAttentionConfigWinsOverScalarKeys) {
  const json both = edited([](json&, json& text) {
    text["linear_num_heads"] = 16;
    text["linear_lower_bound"] = -1.0;
    text["linear_attn_config"]["gate_lower_bound"] = -4.0;
  });
  EXPECT_EQ(parse(both).kda_heads, 2);
  EXPECT_EQ(parse(both).gate_lower_bound, -4.0F);
  const json scalars = edited([](json&, json& text) {
    text.erase("linear_attn_config");
    text["linear_num_heads"] = 16;
    text["linear_lower_bound"] = -1.0;
  });
  EXPECT_EQ(parse(scalars).kda_heads, 16);
  EXPECT_EQ(parse(scalars).gate_lower_bound, -1.0F);
}

TEST(ConfigJson, NullLowerBoundOfASafeGateIsMinusFive) {
  const Geometry g = parse(edited([](json&, json& text) {
    text["linear_lower_bound"] = nullptr;
    text["linear_attn_config"]["gate_lower_bound"] = nullptr;
  }));
  EXPECT_EQ(g.gate_lower_bound, -5.0F);
}

TEST(ConfigJson, SharedIndexersOfLinearLayersMeanNothing) {
  EXPECT_NO_THROW(parse(edited([](json&, json& text) { text["indexer_types"][0] = "shared"; })));
  EXPECT_NO_THROW(parse(edited([](json&, json& text) {
    text.erase("indexer_types");
    text["index_topk_pattern"] = "SFSFSSSF";
  })));
}

TEST(ConfigJson, IndexerTypesFromPatternElseFrequency) {
  const auto without_types = [](const std::function<void(json&)>& edit) {
    return error_of([&] {
      parse(edited([&](json&, json& text) {
        text.erase("indexer_types");
        edit(text);
      }));
    });
  };
  EXPECT_EQ(without_types([](json&) {}), "");
  EXPECT_THAT(without_types([](json& text) { text["index_topk_pattern"] = "FFFSFFFF"; }),
              AllOf(HasSubstr("index_topk_pattern"), HasSubstr("layer 3")));
  EXPECT_THAT(without_types([](json& text) { text["index_topk_pattern"] = "FFFXFFFF"; }), HasSubstr("\"X\""));
  EXPECT_THAT(without_types([](json& text) { text["index_topk_pattern"] = "FFF"; }), HasSubstr("3 entries"));
  // Layers 3 and 7 are sparse: full when (i − 2 + 1) % 2 == 0 holds for both.
  EXPECT_EQ(without_types([](json& text) { text["index_topk_freq"] = 2; }), "");
  EXPECT_THAT(without_types([](json& text) {
                text["index_topk_freq"] = 2;
                text["index_skip_topk_offset"] = 1;
              }),
              AllOf(HasSubstr("index_topk_freq"), HasSubstr("layer 3")));
}

TEST(ConfigJson, OptionalKeysMayBeAbsentOrNull) {
  const auto rest = [](bool as_null) {
    return edited([&](json& config, json& text) {
      for (const char* key : {"n_group",
                              "topk_group",
                              "scoring_func",
                              "topk_method",
                              "moe_router_dtype",
                              "mla_use_nope",
                              "mhc",
                              "hc_mult",
                              "hc_eps",
                              "hc_sinkhorn_iters",
                              "hidden_act",
                              "attention_bias",
                              "tie_word_embeddings",
                              "index_kpool_compress",
                              "index_kpool_always_select_tail",
                              "swiglu_limit",
                              "rms_norm_eps",
                              "qk_head_dim",
                              "qk_rope_head_dim",
                              "num_key_value_heads",
                              "n_shared_experts",
                              "norm_topk_prob",
                              "pad_token_id",
                              "num_nextn_predict_layers",
                              "head_dim",
                              "model_type",
                              "index_share_for_mtp_iteration"}) {
        if (as_null) {
          text[key] = nullptr;
        } else {
          text.erase(key);
        }
      }
      config.erase("vision_config");
      config.erase("quantization_config");
    });
  };
  const Geometry g = parse(rest(false));
  EXPECT_EQ(g.mtp_layers, 0);
  EXPECT_EQ(g.pad_id, -1);
  EXPECT_EQ(g.hc_sinkhorn_iters, 20);
  EXPECT_EQ(g.swiglu_limit, 10.0F);
  EXPECT_FALSE(g.vision.has_value());
  EXPECT_EQ(g.quantization_summary, "");
  EXPECT_EQ(summary(parse(rest(true))), summary(g));
}

TEST(ConfigJson, EosMayBeOneIdAndStandAtTheTop) {
  EXPECT_THAT(parse(edited([](json&, json& text) { text["eos_token_id"] = 7; })).eos_ids, ElementsAre(7));
  EXPECT_THAT(parse(edited([](json& config, json& text) {
                text.erase("eos_token_id");
                config["eos_token_id"] = {1, 2};
              })).eos_ids,
              ElementsAre(1, 2));
}

TEST(ConfigJson, MediaIdsFallBackToTheRealNumbersInsideTheVocabulary) {
  const auto erase_ids = [](json config) {
    for (const char* key : {"image_token_id", "video_token_id", "image_start_token_id"}) config.erase(key);
    return config;
  };
  EXPECT_EQ(parse(erase_ids(real_config())).image_token_id, 154854);
  EXPECT_EQ(parse(erase_ids(tiny_config())).image_token_id, -1);
}

TEST(ConfigJson, VisionDefaults) {
  json config = real_config();
  config["vision_config"] = {{"out_hidden_size", 4096}, {"rope_theta", 5000}};
  config["text_config"]["swiglu_limit"] = 7.0;
  const VisionGeometry v = *parse(config).vision;
  EXPECT_EQ(v.depth, 24);
  EXPECT_EQ(v.hidden, 1024);
  EXPECT_EQ(v.projection_intermediate, 10240);
  EXPECT_EQ(v.swiglu_limit, 7.0F);
  EXPECT_EQ(v.rope_theta, 5000.0F);
  config["vision_config"]["rope_parameters"] = {{"rope_theta", 20000.0}, {"rope_type", "axial"}};
  EXPECT_EQ(parse(config).vision->rope_theta, 20000.0F);
  config["vision_config"]["model_type"] = "glm_ocr_vision";
  EXPECT_NO_THROW(parse(config));
}

TEST(ConfigJson, TileOrders) {
  const auto order_of = [](const char* name) {
    return parse(edited([&](json& config, json&) { config["quantization_config"]["tile_order"] = name; })).exl3_order;
  };
  EXPECT_EQ(order_of("sm80"), Exl3TileOrder::kStandard);
  EXPECT_EQ(order_of("colmajor"), Exl3TileOrder::kColumnMajor);
  EXPECT_EQ(order_of("sm70_colmajor"), Exl3TileOrder::kColumnMajor);
}

TEST(ConfigJson, QuantizationConfigMayStandInTheTextConfig) {
  const Geometry g = parse(edited([](json& config, json& text) {
    text["quantization_config"] = {{"quant_method", "exl3"}, {"bits", 2.12}, {"tile_order", "sm70_colmajor"}};
    config.erase("quantization_config");
    config["original_quantization_config"] = {{"quant_method", "fp8"}};
  }));
  EXPECT_EQ(g.exl3_order, Exl3TileOrder::kColumnMajor);
  EXPECT_EQ(g.quantization_summary, "exl3 2.12 bpw");
}

TEST(ConfigJson, UnknownKeysAreIgnored) {
  EXPECT_NO_THROW(parse(edited([](json& config, json& text) {
    config["something"] = {{"new", true}};
    text["rope_parameters"] = "whatever";
    text["ep_size"] = -1;
  })));
}

/// Files are named KEY--FAULT.json; faults of the JSON itself have the key "syntax".
TEST(ConfigJson, MalformedFilesAreRefusedInOneLineThatNamesTheKey) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kMalformed)) {
    ++files;
    const std::string name = entry.path().filename().string();
    const std::string key = name.substr(0, name.find("--"));
    const std::string message = error_of([&] { geometry_from_json(test::read_file(entry.path()), name); });
    EXPECT_THAT(message, testing::StartsWith(name + ": ")) << name;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    if (key != "syntax") {
      EXPECT_THAT(message.substr(name.size()), HasSubstr(key)) << name;
    } else {
      EXPECT_THAT(message, HasSubstr("JSON")) << name;
    }
  }
  EXPECT_GT(files, 80U);
}

TEST(ConfigJson, MessagesGiveTheFullKeyAndTheValue) {
  const auto message = [](const std::function<void(json&, json&)>& edit) {
    return error_of([&] { parse(edited(edit)); });
  };
  EXPECT_EQ(message([](json&, json& text) { text["hidden_size"] = 1.9; }),
            "config.json: text_config.hidden_size is 1.9; expected an integer from 1 to 32768");
  EXPECT_EQ(message([](json&, json& text) { text.erase("q_lora_rank"); }),
            "config.json: text_config.q_lora_rank is missing");
  EXPECT_EQ(message([](json& config, json&) { config["quantization_config"]["quant_method"] = "fp8"; }),
            "config.json: quantization_config.quant_method is \"fp8\"; only \"exl3\" checkpoints can be served");
  EXPECT_EQ(message([](json&, json& text) { text["linear_attn_config"]["kda_layers"] = {1, 2, 3, 5, 6, 7}; }),
            "config.json: text_config.linear_attn_config.kda_layers omits layer 0, which contradicts layer_types "
            "(layers count from 0)");
  EXPECT_EQ(message([](json&, json& text) { text["scoring_func"] = "soft\nmax"; }),
            "config.json: text_config.scoring_func is \"soft\\x0amax\"; only \"sigmoid\" is supported");
}

TEST(ConfigJson, FileErrors) {
  test::TempDirectory directory;
  EXPECT_THAT(error_of([&] { load_geometry(directory.path()); }), HasSubstr("config.json: No such file"));
  std::filesystem::create_directory(directory.path() + "/config.json");
  EXPECT_THAT(error_of([&] { load_geometry(directory.path()); }), HasSubstr("config.json: is a directory"));
}

}  // namespace
}  // namespace glm53
