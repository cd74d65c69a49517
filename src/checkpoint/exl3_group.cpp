#include "checkpoint/exl3_group.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "glm53/core/error.h"
#include "glm53/core/float_convert.h"
#include "glm53/core/printable.h"

namespace glm53 {
namespace {

constexpr std::string_view kTrellis = ".trellis";
constexpr uint32_t kMcgMarker = 0xCBAC1FEDU;
constexpr uint32_t kMul1Marker = 0x83DCD12DU;
constexpr uint32_t kColumnMajorMarker = 0x70C0U;

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
class GroupReader {
 public:
  GroupReader(const Checkpoint& checkpoint, std::string prefix, std::vector<std::string>& problems)
      : checkpoint_(checkpoint), problems_(problems) {
    matrix_.name = std::move(prefix);
  }

  Exl3Matrix read(std::optional<Exl3TileOrder> config_order) {
    if (!read_trellis()) return std::move(matrix_);
    matrix_.suh = read_side(".suh", ".su", matrix_.in);
    matrix_.svh = read_side(".svh", ".sv", matrix_.out);
    read_codebook();
    read_order(config_order);
    read_bias();
    if (const HostTensor* scale = member(".scale")) {
      problem(*scale, "is a scale of an obsolete EXL3 version; convert the checkpoint again");
    }
    return std::move(matrix_);
  }

 private:
  const HostTensor* member(std::string_view suffix) const {
    return checkpoint_.find(matrix_.name + std::string(suffix));
  }

  void problem(const HostTensor& tensor, const std::string& what) {
    problems_.push_back(tensor.file + ": tensor " + printable(tensor.name) + " " + what);
  }

  bool read_trellis() {
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
    matrix_.in = trellis.shape[0] * kExl3TileEdge;
    matrix_.out = trellis.shape[1] * kExl3TileEdge;
    matrix_.bits = static_cast<int>(words / 16);
    matrix_.trellis = trellis.bytes;
    return true;
  }

  /// True when `tensor` has the wanted form; otherwise notes the problem.
  bool expect(const HostTensor& tensor, DType dtype, int64_t length) {
    const std::vector<int64_t> shape = {length};
    if (tensor.dtype == dtype && tensor.shape == shape) return true;
    problem(tensor, "is " + describe(tensor.shape, tensor.dtype) + "; expected " + describe(shape, dtype));
    return false;
  }

  /// The vector of one side [length] fp16, or packed signs (bit set: −1) of the legacy form expanded.
  std::vector<uint16_t> read_side(std::string_view suffix, std::string_view legacy_suffix, int64_t length) {
    const HostTensor* vector = member(suffix);
    const HostTensor* signs = member(legacy_suffix);
    if (vector != nullptr && signs != nullptr) {
      problem(*signs, "is stored beside " + std::string(suffix.substr(1)) + "; only one of the two may be");
      return {};
    }
    if (vector == nullptr && signs == nullptr) {
      problem(*member(kTrellis), "has no " + std::string(suffix.substr(1)));
      return {};
    }
    if (vector != nullptr) {
      if (!expect(*vector, DType::kF16, length)) return {};
      std::vector<uint16_t> values(static_cast<size_t>(length));
      std::memcpy(values.data(), vector->bytes.data(), vector->bytes.size());
      check_finite(*vector, values);
      return values;
    }
    if (!expect(*signs, DType::kI16, length / 16)) return {};
    constexpr uint16_t kOne = 0x3C00;
    constexpr uint16_t kMinusOne = 0xBC00;
    std::vector<uint16_t> values(static_cast<size_t>(length));
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t word;
      std::memcpy(&word, signs->bytes.data() + i / 16 * sizeof word, sizeof word);
      values[i] = ((word >> (i % 16)) & 1U) != 0 ? kMinusOne : kOne;
    }
    return values;
  }

  void check_finite(const HostTensor& tensor, const std::vector<uint16_t>& values) {
    const auto not_finite = [](uint16_t bits) { return (bits & 0x7C00U) == 0x7C00U; };
    if (std::any_of(values.begin(), values.end(), not_finite)) problem(tensor, "holds an infinity or NaN in fp16");
  }

  /// True when the marker exists and holds `value`. A different value would be a different format.
  bool read_marker(std::string_view suffix, uint32_t value) {
    const HostTensor* marker = member(suffix);
    if (marker == nullptr) return false;
    const bool is_scalar = marker->shape.empty() || (marker->shape.size() == 1 && marker->shape[0] == 1);
    if (marker->dtype != DType::kI32 || !is_scalar) {
      problem(*marker, "is " + describe(marker->shape, marker->dtype) + "; expected one I32");
      return false;
    }
    uint32_t stored;
    std::memcpy(&stored, marker->bytes.data(), sizeof stored);
    if (stored != value) {
      problem(*marker, "holds " + std::to_string(stored) + "; expected " + std::to_string(value));
      return false;
    }
    return true;
  }

  void read_codebook() {
    const bool mcg = read_marker(".mcg", kMcgMarker);
    const bool mul1 = read_marker(".mul1", kMul1Marker);
    if (member(".mcg") != nullptr && member(".mul1") != nullptr) {
      problem(*member(".mul1"), "is stored beside mcg; a matrix has one codebook");
    }
    matrix_.codebook = mcg ? Exl3Codebook::kMcg : mul1 ? Exl3Codebook::kMul1 : Exl3Codebook::k3Inst;
  }

  void read_order(std::optional<Exl3TileOrder> config_order) {
    matrix_.order = config_order.value_or(Exl3TileOrder::kStandard);
    if (!read_marker(".tile_order", kColumnMajorMarker)) return;
    matrix_.order = Exl3TileOrder::kColumnMajor;
    if (config_order == Exl3TileOrder::kStandard) {
      problem(*member(".tile_order"), "says column-major, but quantization_config.tile_order says the standard order");
    }
  }

  void read_bias() {
    const HostTensor* bias = member(".bias");
    if (bias == nullptr) return;
    if (!expect(*bias, bias->dtype == DType::kF32 ? DType::kF32 : DType::kF16, matrix_.out)) return;
    for (float value : to_floats(*bias)) matrix_.bias.push_back(float_to_fp16(value));
    check_finite(*bias, matrix_.bias);
  }

  const Checkpoint& checkpoint_;
  std::vector<std::string>& problems_;
  Exl3Matrix matrix_;
};

}  // namespace

std::map<std::string, Exl3Matrix, std::less<>> collect_exl3_groups(const Checkpoint& checkpoint,
                                                                   std::optional<Exl3TileOrder> config_order,
                                                                   std::vector<std::string>& problems) {
  std::map<std::string, Exl3Matrix, std::less<>> groups;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (is_rank_sliced(name)) {
      throw Error(
          tensor.file + ": tensor " + printable(name) +
          " is cut for one tensor-parallel rank; rank-sliced TR3 layouts are not supported, only whole matrices");
    }
    if (name.ends_with(kTrellis)) {
      const std::string prefix = name.substr(0, name.size() - kTrellis.size());
      groups.emplace(prefix, GroupReader(checkpoint, prefix, problems).read(config_order));
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

bool is_exl3_member(std::string_view name, const std::map<std::string, Exl3Matrix, std::less<>>& groups) {
  return std::any_of(kMembers.begin(), kMembers.end(), [&](std::string_view suffix) {
    return name.ends_with(suffix) && groups.contains(name.substr(0, name.size() - suffix.size()));
  });
}

}  // namespace glm53
