// The tensor table: every tensor a GLM-5.3-Flash checkpoint may hold, with its shape, accepted dtypes, necessity and
// shard rule; and the loader that walks it (spec 10 §2, §5; spec 20 §1).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/weights.h"
#include "checkpoint/safetensors.h"
#include "glm53/core/geometry.h"

namespace glm53 {

struct LayerWeights {
  MhcSite attention_site;
  MhcSite ffn_site;
  KdaWeights kda;                           ///< of a KDA layer
  SparseAttentionWeights sparse_attention;  ///< of a sparse layer
  MlpWeights mlp;                           ///< of a dense layer
  MoeWeights moe;                           ///< of an MoE layer
};

struct ModelWeights {
  Linear embedding;  ///< [vocab, hidden], replicated
  std::vector<LayerWeights> layers;
  HeadWeights head;
};

/// Which tensor-parallel rank of how many.
struct Shard {
  int rank = 0;
  int world = 1;
};

/// Checks names, shapes and dtypes of the whole checkpoint against the table, without reading tensor data. Throws one
/// Error that lists every missing, mis-shaped, mistyped and unexpected tensor.
void check_tensors(const Checkpoint& checkpoint, const Geometry& geometry);

/// check_tensors, then loads this rank's share of the trunk into `backend`. `progress` is called with the layers done
/// so far (0..layers) and may be empty.
ModelWeights load_weights(const Checkpoint& checkpoint, const Geometry& geometry, Shard shard, Backend& backend,
                          const std::function<void(int)>& progress);

}  // namespace glm53
