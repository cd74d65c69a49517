// Whole checkpoints of a small geometry with random weights, in either on-disk layout of spec 10 §2.5.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_files.h"
#include "glm53/core/exl3.h"
#include "glm53/core/float_convert.h"
#include "glm53/core/geometry.h"
#include "model/tensor_table.h"

namespace glm53::test {

/// Every kind of layer once; all EXL3 dimensions are single Hadamard blocks.
inline Geometry small_geometry() {
  Geometry g;
  g.vocab = 256;
  g.hidden = 128;
  g.layers = 4;
  g.attention = {AttentionKind::kLinear, AttentionKind::kLinear, AttentionKind::kLinear, AttentionKind::kSparse};
  g.mlp = {MlpKind::kDense, MlpKind::kMoe, MlpKind::kMoe, MlpKind::kMoe};
  g.max_positions = 1024;
  g.kda_heads = 1;
  g.mla_heads = 1;
  g.q_lora = 128;
  g.latent = 128;
  g.qk_dim = 128;
  g.v_dim = 128;
  g.index_heads = 2;
  g.index_dim = 128;
  g.index_topk = 8;
  g.dense_intermediate = 128;
  g.moe_intermediate = 128;
  g.experts = 4;
  g.experts_per_token = 2;
  g.routed_scaling = 2.5F;
  return g;
}

enum class Layout {
  kStock,        ///< exllamav3: every linear EXL3 that can be, KDA q|k|v and conv fused
  kDequantised,  ///< the same weights: official names, linears native F32, only the experts EXL3
};

/// An EXL3 group of random bits whose W has a standard deviation of about 1/√in.
class RandomExl3 {
 public:
  RandomExl3(const std::string& name, int64_t in, int64_t out, int bits) {
    std::mt19937 random(static_cast<uint32_t>(std::hash<std::string>{}(name)));
    trellis_.resize(static_cast<size_t>(in / 16 * (out / 16) * 16 * bits));
    for (uint16_t& word : trellis_) word = static_cast<uint16_t>(random());
    matrix_.name = name;
    matrix_.in = in;
    matrix_.out = out;
    matrix_.bits = bits;
    matrix_.trellis = std::as_bytes(std::span(trellis_));
    const float scale = 0.8F / std::sqrt(static_cast<float>(in));
    for (int64_t i = 0; i < in; ++i) matrix_.suh.push_back(float_to_fp16(random() % 2 == 0 ? 1.0F : -1.0F));
    for (int64_t i = 0; i < out; ++i) matrix_.svh.push_back(float_to_fp16(random() % 2 == 0 ? scale : -scale));
  }

  std::vector<TestTensor> tensors() const {
    const std::vector<int32_t> marker = {static_cast<int32_t>(0xCBAC1FEDU)};
    return {
        {matrix_.name + ".trellis", "I16", {matrix_.in / 16, matrix_.out / 16, 16 * matrix_.bits}, bytes_of(trellis_)},
        {matrix_.name + ".suh", "F16", {matrix_.in}, bytes_of(matrix_.suh)},
        {matrix_.name + ".svh", "F16", {matrix_.out}, bytes_of(matrix_.svh)},
        {matrix_.name + ".mcg", "I32", {}, bytes_of(marker)}};
  }

  /// Rows [begin, end) of Wᵀ: a native [out, in] weight.
  std::vector<float> native_rows(int64_t begin, int64_t end) const {
    std::vector<float> weight(static_cast<size_t>(matrix_.in * matrix_.out));
    exl3_dequantise(matrix_, weight.data());
    std::vector<float> rows;
    for (int64_t o = begin; o < end; ++o) {
      for (int64_t i = 0; i < matrix_.in; ++i) rows.push_back(weight[static_cast<size_t>(i * matrix_.out + o)]);
    }
    return rows;
  }

 private:
  std::vector<uint16_t> trellis_;
  Exl3Matrix matrix_;
};

inline std::vector<float> random_values(const std::string& name, int64_t count, float scale, float offset) {
  std::mt19937 random(static_cast<uint32_t>(std::hash<std::string>{}(name)));
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> values(static_cast<size_t>(count));
  // Rounded to fp16, so that F16 storage holds them exactly.
  for (float& value : values) value = fp16_to_float(float_to_fp16(offset + normal(random)));
  return values;
}

/// All trunk tensors of `geometry` in the layout.
inline std::vector<TestTensor> synthetic_tensors(const Geometry& geometry, Layout layout) {
  std::vector<TestTensor> tensors;
  const auto append = [&](std::vector<TestTensor> more) { std::ranges::move(more, std::back_inserter(tensors)); };
  for (const TensorSpec& spec : tensor_table(geometry)) {
    if (spec.group != TensorGroup::kTrunk) continue;
    std::vector<int64_t> shape = spec.shape;
    int64_t count = 1;
    for (int64_t& extent : shape) {
      if (extent == kAnyExtent) extent = 128;
      count *= extent;
    }
    const std::string name = checkpoint_names(spec.name).front();
    const std::string fused = spec.fused_name.empty() ? "" : checkpoint_names(spec.fused_name).front();
    const bool is_expert = spec.name.find(".experts.") != std::string::npos;
    const bool can_be_exl3 =
        spec.form == TensorForm::kLinear && shape[0] % 128 == 0 && shape[1] % 128 == 0 && spec.name != "embed_tokens";
    if (can_be_exl3) {
      const bool is_fused = !fused.empty();
      const std::string& module = is_fused ? fused : name;
      const int bits = 2 + static_cast<int>(std::hash<std::string>{}(module) % 5);
      const RandomExl3 quantised(module, shape[1], is_fused ? spec.fused_rows : shape[0], bits);
      if (is_expert || layout == Layout::kStock) {
        if (!is_fused || spec.fused_row == 0) append(quantised.tensors());
      } else {
        const int64_t first = is_fused ? spec.fused_row : 0;
        append({{name + ".weight", "F32", shape, bytes_of(quantised.native_rows(first, first + shape[0]))}});
      }
      continue;
    }
    const bool is_norm = spec.name.ends_with("norm.weight");
    const float scale = spec.form == TensorForm::kValues ? 0.1F : 1.0F / std::sqrt(static_cast<float>(shape.back()));
    if (!fused.empty() && layout == Layout::kStock) {
      if (spec.fused_row != 0) continue;
      std::vector<float> values;
      for (const char* part : {"q", "k", "v"}) {
        std::string part_name = name;
        part_name.replace(part_name.find("q_conv1d"), 1, part);
        const auto rows = random_values(part_name, count, 0.5F, 0.0F);
        values.insert(values.end(), rows.begin(), rows.end());
      }
      shape[0] = spec.fused_rows;
      append({{fused, "F32", shape, bytes_of(values)}});
      continue;
    }
    const auto values = random_values(name, count, fused.empty() ? scale : 0.5F, is_norm ? 1.0F : 0.0F);
    const std::string stored_name = name + (spec.form == TensorForm::kLinear ? ".weight" : "");
    if (layout == Layout::kStock) {
      append({{stored_name, "F32", shape, bytes_of(values)}});
    } else {
      std::vector<uint16_t> halves;
      for (float value : values) halves.push_back(float_to_fp16(value));
      append({{stored_name, "F16", shape, bytes_of(halves)}});
    }
  }
  return tensors;
}

}  // namespace glm53::test
