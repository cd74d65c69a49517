#include "model/dummy_weights.h"

#include <cmath>
#include <utility>

#include "glm53/core/error.h"

namespace glm53 {
namespace {

constexpr const char* kFile = "model.load_format dummy";
constexpr double kCodebookDeviation = 1.24371088;  // of MCG codes (spec 20 §7.1)

/// "layers.7.mlp.experts.3.up_proj" → 7.
int layer_of(const std::string& table_name) { return std::stoi(table_name.substr(table_name.find('.') + 1)); }

struct Distribution {
  DType dtype = DType::kBF16;
  double mean = 0.0;
  double deviation = 0.0;
};

Distribution distribution_of(const TensorSpec& spec, const std::vector<int64_t>& shape) {
  const std::string_view name = spec.name;
  if (spec.form != TensorForm::kValues) {
    // The embedding is looked up, not multiplied.
    return {DType::kBF16, 0.0, name.ends_with("embed_tokens") ? 1.0 : 1.0 / std::sqrt(static_cast<double>(shape[1]))};
  }
  if (name.ends_with("_base")) return {DType::kF32, 0.0, 0.5};
  if (name.ends_with("_scale")) return {DType::kF32, 0.5, 0.1};
  if (name.ends_with("A_log")) return {DType::kF32, 0.0, 0.5};
  // Decay exp(−5·sigmoid(x − 4)), mostly between 0.8 and 0.97 a token.
  if (name.ends_with("dt_bias")) return {DType::kF32, -4.0, 1.0};
  if (name.ends_with("e_score_correction_bias")) return {DType::kF32, 0.0, 0.01};
  if (name.ends_with(".bias")) return {DType::kBF16, 0.0, 0.0};
  if (name.ends_with("conv1d.weight")) return {DType::kBF16, 0.0, 0.5};
  if (name.ends_with("compress_ape")) return {DType::kBF16, 0.0, 0.1};
  if (shape.size() == 1) return {DType::kBF16, 1.0, 0.0};  // norms
  double inputs = 1.0;
  for (size_t axis = 1; axis < shape.size(); ++axis) inputs *= static_cast<double>(shape[axis]);
  return {DType::kBF16, 0.0, 1.0 / std::sqrt(inputs)};
}

}  // namespace

DummyTensors::DummyTensors(const Geometry& geometry, DummyOptions options)
    : geometry_(geometry), options_(std::move(options)) {
  for (const auto& [layer, bits] : options_.layer_k) {
    const bool has_experts = layer < geometry.layers ? geometry.mlp[static_cast<size_t>(layer)] == MlpKind::kMoe
                                                     : layer < geometry.layers + geometry.mtp_layers;
    if (!has_experts) throw Error("dummy.layer_k: layer " + std::to_string(layer) + " has no routed experts");
  }
}

bool DummyTensors::is_exl3(const TensorSpec& spec) { return spec.name.find(".mlp.experts.") != std::string::npos; }

const HostTensor& DummyTensors::native(const TensorSpec& spec) {
  std::vector<int64_t> shape = spec.shape;
  for (int64_t& extent : shape) {
    if (extent == kAnyExtent) extent = geometry_.kda_head_dim;  // the width of the low-rank gates
  }
  const Distribution distribution = distribution_of(spec, shape);
  const std::string name = checkpoint_names(spec.name).front() + (spec.form == TensorForm::kLinear ? ".weight" : "");
  return add(name, distribution.dtype, std::move(shape),
             {SyntheticRule::Kind::kValues, synthetic_key(options_.seed, name), distribution.mean,
              distribution.deviation / kSyntheticDeviation});
}

Exl3Stored DummyTensors::exl3(const TensorSpec& spec) {
  const int64_t out = spec.shape[0];
  const int64_t in = spec.shape[1];
  if (in % kExl3HadamardBlock != 0 || out % kExl3HadamardBlock != 0) {
    throw Error(std::string(kFile) + ": routed experts are " + std::to_string(out) + " × " + std::to_string(in) +
                "; EXL3 needs multiples of 128");
  }
  const auto layer_k = options_.layer_k.find(layer_of(spec.name));
  Exl3Stored stored;
  stored.name = checkpoint_names(spec.name).front();
  stored.in = in;
  stored.out = out;
  stored.bits = layer_k != options_.layer_k.end() ? layer_k->second : options_.experts_k;

  const auto key = [this](const std::string& name) { return synthetic_key(options_.seed, name); };
  std::string name = stored.name + ".trellis";
  stored.trellis = &add(name, DType::kI16, {in / kExl3TileEdge, out / kExl3TileEdge, 16 * stored.bits},
                        {SyntheticRule::Kind::kBits, key(name), 0.0, 0.0});
  // gate and up share their input side, as the quantiser makes it (spec 20 §7.1).
  std::string input_side = stored.name;
  if (input_side.ends_with("up_proj")) input_side.replace(input_side.size() - 7, 7, "gate_proj");
  stored.suh =
      &add(stored.name + ".suh", DType::kF16, {in}, {SyntheticRule::Kind::kSigns, key(input_side + ".suh"), 0.0, 1.0});
  name = stored.name + ".svh";
  stored.svh = &add(
      name, DType::kF16, {out},
      {SyntheticRule::Kind::kSigns, key(name), 0.0, 1.0 / (std::sqrt(static_cast<double>(in)) * kCodebookDeviation)});
  return stored;
}

const HostTensor& DummyTensors::add(std::string name, DType dtype, std::vector<int64_t> shape, SyntheticRule rule) {
  HostTensor& tensor = tensors_.emplace_back();
  tensor.name = std::move(name);
  tensor.file = kFile;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.synthetic = rule;
  return tensor;
}

}  // namespace glm53
