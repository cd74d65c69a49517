// EXL3 groups of a checkpoint: the tensors that share a module prefix with a ".trellis" (spec 20 §1.1, §4.3).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"
#include "glm53/core/exl3.h"

namespace glm53 {

/// Every name ending in ".trellis" → its matrix, by module prefix. Reads headers only: what the tensors hold is checked
/// by read_exl3(). The views are on `checkpoint`, which outlives them. Problems of single groups are appended to
/// `problems` (one line each, naming the tensor), so that one start reports all of them; such a group is in the result
/// only for its name and must not be used. A rank-sliced layout (".rank0.") throws Error at once. `config_order` is the
/// tile order that the configuration states, if any: it holds for groups without a marker of their own (standard order
/// when neither says anything), and a marker that contradicts it is a problem.
std::map<std::string, Exl3Stored, std::less<>> collect_exl3_groups(const Checkpoint& checkpoint,
                                                                   std::optional<Exl3TileOrder> config_order,
                                                                   std::vector<std::string>& problems);

/// True for a tensor that belongs to some EXL3 group (trellis, suh, svh, su, sv, mcg, mul1, tile_order, bias, scale).
bool is_exl3_member(std::string_view name, const std::map<std::string, Exl3Stored, std::less<>>& groups);

}  // namespace glm53
