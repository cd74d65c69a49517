// The text model's weights on one rank, and the loader that fills them from a checked checkpoint (spec 10 §2.3, §5;
// spec 20 §6.2).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/weights.h"
#include "glm53/core/geometry.h"
#include "model/checkpoint_inventory.h"

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
  Matrix embedding;  ///< [vocab, hidden], replicated
  std::vector<LayerWeights> layers;
  HeadWeights head;
};

/// Which tensor-parallel rank of how many.
struct Shard {
  int rank = 0;
  int world = 1;
};

/// How far loading is.
struct LoadStatus {
  int layers = 0;           ///< done, 0..Geometry::layers
  int64_t bytes = 0;        ///< done, of tensors as stored; 0 throughout where the backend reads the mapping at once
  int64_t total_bytes = 0;  ///< idem
  bool direct = true;       ///< no byte went through the page cache so far; false also for the mapping
};

/// Loads this rank's share of the trunk into `backend`. `progress` is called now and then and at the end, and may be
/// empty. Throws Error when heads, vocabulary or 128-blocks do not divide by shard.world, and naming the file and
/// tensor that cannot be read.
ModelWeights load_weights(const CheckpointInventory& inventory, const Geometry& geometry, Shard shard, Backend& backend,
                          const std::function<void(const LoadStatus&)>& progress);

/// Bytes of `backend`'s memory that load_weights would take. Reads no weights; call it before load_weights.
int64_t plan_weights(const CheckpointInventory& inventory, const Geometry& geometry, Shard shard, Backend& backend);

}  // namespace glm53
