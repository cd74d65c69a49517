// Writes a checkpoint of real shapes and meaningless contents, past the page cache, for the loading benchmark.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "glm53/core/geometry.h"

namespace glm53::bench {

/// The real model's widths with few layers: a dense KDA layer, a sparse MoE layer and KDA MoE layers, with as many
/// layers and experts as give about `bytes` of weights with `bits`-bit experts.
Geometry geometry_of_size(int64_t bytes, int bits);

/// The trunk of `geometry`: experts as EXL3 groups, the rest in bf16. Shards of about a gigabyte, tensors in the order
/// of their names, an index. Returns the paths of the shards.
std::vector<std::string> write_shards(const std::string& directory, const Geometry& geometry, int bits);

}  // namespace glm53::bench
