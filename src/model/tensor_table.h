// Every tensor a GLM-5.3-Flash checkpoint may hold, as data: name, shape, form, necessity, shard rule (spec 10 §2, §5;
// spec 60 §1.3). Checking and loading walk the same table, so what is checked is what is loaded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "glm53/core/geometry.h"

namespace glm53 {

enum class TensorForm : uint8_t {
  kLinear,      ///< module: `name`.weight [out, in] F32|F16|BF16, or an EXL3 group `name` (dimensions padded to 128)
  kBareLinear,  ///< the same, but the native tensor is `name` itself, without ".weight"
  kValues,      ///< plain tensor `name`, F32|F16|BF16
};

/// An extent that the configuration does not decide: the tensor does.
inline constexpr int64_t kAnyExtent = -1;

/// Whose absence matters, and how: a group is either complete or, where optional, wholly absent.
enum class TensorGroup : uint8_t {
  kTrunk,   ///< required
  kMtp,     ///< required by MTP drafting; a checkpoint without it serves
  kVision,  ///< required by the vision tower; a checkpoint without it is text-only
  kExtra,   ///< accepted, never needed
};

/// How a tensor-parallel rank cuts it (spec 10 §5). Heads, vocabulary and 128-blocks divide evenly or the load fails.
enum class ShardRule : uint8_t { kReplicate, kRows, kColumns };

struct TensorSpec {
  std::string name;  ///< without the language-model or vision prefix for layered names; "lm_head" has none
  TensorForm form = TensorForm::kLinear;
  std::vector<int64_t> shape;  ///< kLinear: {out, in}; kAnyExtent where the tensor decides
  TensorGroup group = TensorGroup::kTrunk;
  ShardRule shard = ShardRule::kReplicate;
  /// kValues: a second accepted shape (A_log as [1, 1, H, 1], a conv without its middle 1); empty for none.
  std::vector<int64_t> other_shape;
  /// This tensor may be rows [fused_row, fused_row + shape[0]) of a fused one with this name; empty for none.
  std::string fused_name;
  int64_t fused_row = 0;
  int64_t fused_rows = 0;  ///< rows of the whole fused tensor
};

/// The table of one geometry. Names of layered tensors start with "layers.I." (the MTP layer has I = layers), of vision
/// tensors with "visual.".
std::vector<TensorSpec> tensor_table(const Geometry& geometry);

/// Every spelling of a table name that checkpoints use, the official one first: "layers.0.x" →
/// "model.language_model.layers.0.x", "model.layers.0.x"; "visual.x" → "model.visual.x", "visual.x", ….
std::vector<std::string> checkpoint_names(std::string_view table_name);

}  // namespace glm53
