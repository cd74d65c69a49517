#include "checkpoint/exl3_group.h"

#include <algorithm>
#include <array>

#include "glm53/core/error.h"
#include "glm53/core/printable.h"

namespace glm53 {
namespace {

constexpr std::string_view kTrellis = ".trellis";

constexpr std::array<std::string_view, 10> kMembers = {kTrellis, ".suh",  ".svh",        ".su",   ".sv",
                                                       ".mcg",   ".mul1", ".tile_order", ".bias", ".scale"};

/// Members that no native tensor ends in: without a trellis beside them something is missing.
constexpr std::array<std::string_view, 7> kOnlyExl3 = {".suh", ".svh", ".su", ".sv", ".mcg", ".mul1", ".tile_order"};

/// "….rank0.…": the trellis was cut for one tensor-parallel size when it was written.
bool is_rank_sliced(std::string_view name) {
  constexpr std::string_view kRank = ".rank";
  for (size_t at = name.find(kRank); at != std::string_view::npos; at = name.find(kRank, at + 1)) {
    size_t end = at + kRank.size();
    while (end < name.size() && name[end] >= '0' && name[end] <= '9') ++end;
    if (end > at + kRank.size() && end < name.size() && name[end] == '.') return true;
  }
  return false;
}

/// Fills one matrix from the tensors of its prefix; collects problems instead of throwing.
class GroupFinder {
 public:
  GroupFinder(const Checkpoint& checkpoint, std::string prefix, std::vector<std::string>& problems)
      : checkpoint_(checkpoint), problems_(problems) {
    stored_.name = std::move(prefix);
  }

  Exl3Stored find(std::optional<Exl3TileOrder> config_order) {
    if (!find_trellis()) return std::move(stored_);
    stored_.suh = find_side(".suh", ".su", stored_.in);
    stored_.svh = find_side(".svh", ".sv", stored_.out);
    find_codebook();
    find_order(config_order);
    find_bias();
    if (const HostTensor* scale = member(".scale")) {
      problem(*scale, "is a scale of an obsolete EXL3 version; convert the checkpoint again");
    }
    return std::move(stored_);
  }

 private:
  const HostTensor* member(std::string_view suffix) const {
    return checkpoint_.find(stored_.name + std::string(suffix));
  }

  void problem(const HostTensor& tensor, const std::string& what) {
    problems_.push_back(tensor.file + ": tensor " + printable(tensor.name) + " " + what);
  }

  bool find_trellis() {
    const HostTensor& trellis = *member(kTrellis);
    const std::string is = "is " + describe(trellis.shape, trellis.dtype) + "; ";
    if (trellis.dtype != DType::kI16 || trellis.shape.size() != 3) {
      problem(trellis, is + "expected [in/16, out/16, 16·K] I16");
      return false;
    }
    const int64_t words = trellis.shape[2];
    if (words == 24 || words == 40 || words == 56) {
      problem(trellis, is + "half-integer rates (1.5, 2.5, 3.5 bits a weight) are not supported");
      return false;
    }
    if (words % 16 != 0 || words < 16 || words > 16 * 8) {
      problem(trellis, is + "its last dimension is not 16 times a rate of 1 to 8 bits");
      return false;
    }
    constexpr int64_t kTiles = kExl3HadamardBlock / kExl3TileEdge;
    if (trellis.shape[0] == 0 || trellis.shape[1] == 0 || trellis.shape[0] % kTiles != 0 ||
        trellis.shape[1] % kTiles != 0) {
      problem(trellis, is + "its matrix is not made of whole 128×128 blocks");
      return false;
    }
    stored_.in = trellis.shape[0] * kExl3TileEdge;
    stored_.out = trellis.shape[1] * kExl3TileEdge;
    stored_.bits = static_cast<int>(words / 16);
    stored_.trellis = &trellis;
    return true;
  }

  /// True when `tensor` has the wanted form; otherwise notes the problem.
  bool expect(const HostTensor& tensor, DType dtype, int64_t length) {
    const std::vector<int64_t> shape = {length};
    if (tensor.dtype == dtype && tensor.shape == shape) return true;
    problem(tensor, "is " + describe(tensor.shape, tensor.dtype) + "; expected " + describe(shape, dtype));
    return false;
  }

  /// The vector of one side: fp16 [length], or packed signs [length / 16] of the legacy form. Null with a problem
  /// noted.
  const HostTensor* find_side(std::string_view suffix, std::string_view legacy_suffix, int64_t length) {
    const HostTensor* vector = member(suffix);
    const HostTensor* signs = member(legacy_suffix);
    if (vector != nullptr && signs != nullptr) {
      problem(*signs, "is stored beside " + std::string(suffix.substr(1)) + "; only one of the two may be");
      return nullptr;
    }
    if (vector == nullptr && signs == nullptr) {
      problem(*member(kTrellis), "has no " + std::string(suffix.substr(1)));
      return nullptr;
    }
    if (vector != nullptr) return expect(*vector, DType::kF16, length) ? vector : nullptr;
    return expect(*signs, DType::kI16, length / 16) ? signs : nullptr;
  }

  /// The marker if it is stored and has a marker's form.
  const HostTensor* find_marker(std::string_view suffix) {
    const HostTensor* marker = member(suffix);
    if (marker == nullptr) return nullptr;
    const bool is_scalar = marker->shape.empty() || (marker->shape.size() == 1 && marker->shape[0] == 1);
    if (marker->dtype == DType::kI32 && is_scalar) return marker;
    problem(*marker, "is " + describe(marker->shape, marker->dtype) + "; expected one I32");
    return nullptr;
  }

  void find_codebook() {
    const HostTensor* mcg = find_marker(".mcg");
    const HostTensor* mul1 = find_marker(".mul1");
    if (member(".mcg") != nullptr && member(".mul1") != nullptr) {
      problem(*member(".mul1"), "is stored beside mcg; a matrix has one codebook");
    }
    stored_.codebook_marker = mcg != nullptr ? mcg : mul1;
    stored_.codebook = mcg != nullptr    ? Exl3Codebook::kMcg
                       : mul1 != nullptr ? Exl3Codebook::kMul1
                                         : Exl3Codebook::k3Inst;
  }

  void find_order(std::optional<Exl3TileOrder> config_order) {
    stored_.order = config_order.value_or(Exl3TileOrder::kStandard);
    stored_.order_marker = find_marker(".tile_order");
    if (stored_.order_marker == nullptr) return;
    stored_.order = Exl3TileOrder::kColumnMajor;
    if (config_order == Exl3TileOrder::kStandard) {
      problem(*stored_.order_marker, "says column-major, but quantization_config.tile_order says the standard order");
    }
  }

  void find_bias() {
    const HostTensor* bias = member(".bias");
    if (bias == nullptr) return;
    if (expect(*bias, bias->dtype == DType::kF32 ? DType::kF32 : DType::kF16, stored_.out)) stored_.bias = bias;
  }

  const Checkpoint& checkpoint_;
  std::vector<std::string>& problems_;
  Exl3Stored stored_;
};

}  // namespace

std::map<std::string, Exl3Stored, std::less<>> collect_exl3_groups(const Checkpoint& checkpoint,
                                                                   std::optional<Exl3TileOrder> config_order,
                                                                   std::vector<std::string>& problems) {
  std::map<std::string, Exl3Stored, std::less<>> groups;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (is_rank_sliced(name)) {
      throw Error(
          tensor.file + ": tensor " + printable(name) +
          " is cut for one tensor-parallel rank; rank-sliced TR3 layouts are not supported, only whole matrices");
    }
    if (name.ends_with(kTrellis)) {
      const std::string prefix = name.substr(0, name.size() - kTrellis.size());
      groups.emplace(prefix, GroupFinder(checkpoint, prefix, problems).find(config_order));
      continue;
    }
    for (std::string_view suffix : kOnlyExl3) {
      if (!name.ends_with(suffix)) continue;
      const std::string trellis = name.substr(0, name.size() - suffix.size()).append(kTrellis);
      if (checkpoint.find(trellis) == nullptr) {
        problems.push_back(tensor.file + ": tensor " + printable(name) + " belongs to " + printable(trellis) +
                           ", which is missing");
      }
    }
  }
  return groups;
}

bool is_exl3_member(std::string_view name, const std::map<std::string, Exl3Stored, std::less<>>& groups) {
  return std::any_of(kMembers.begin(), kMembers.end(), [&](std::string_view suffix) {
    return name.ends_with(suffix) && groups.contains(name.substr(0, name.size() - suffix.size()));
  });
}

}  // namespace glm53
