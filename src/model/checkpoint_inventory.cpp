#include "model/checkpoint_inventory.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "glm53/core/printable.h"

namespace glm53 {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ", ";
    text += shape[i] == kAnyExtent ? std::string("any") : std::to_string(shape[i]);
  }
  return text + "]";
}

bool shape_matches(const std::vector<int64_t>& actual, const std::vector<int64_t>& expected) {
  return std::ranges::equal(actual, expected, [](int64_t a, int64_t e) { return e == kAnyExtent || a == e; });
}

int64_t pad_to_hadamard_block(int64_t extent) {
  if (extent == kAnyExtent) return extent;
  return (extent + kExl3HadamardBlock - 1) / kExl3HadamardBlock * kExl3HadamardBlock;
}

bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

/// One line of bounded length.
std::string summary(const std::vector<std::string>& problems) {
  constexpr size_t kListed = 20;
  std::string text;
  for (size_t i = 0; i < std::min(problems.size(), kListed); ++i) text += (i == 0 ? "" : "; ") + problems[i];
  if (problems.size() > kListed) text += "; and " + std::to_string(problems.size() - kListed) + " more";
  return text;
}

/// Several table rows may find the same fault in one fused tensor.
void remove_repeated(std::vector<std::string>& problems) {
  std::set<std::string> seen;
  std::erase_if(problems, [&seen](const std::string& problem) { return !seen.insert(problem).second; });
}

}  // namespace

TensorProblems::TensorProblems(const std::string& directory, std::vector<std::string> problems)
    : Error(directory + ": " + std::to_string(problems.size()) + (problems.size() == 1 ? " problem" : " problems") +
            " with the tensors: " + summary(problems)),
      problems_(std::move(problems)) {}

CheckpointInventory::CheckpointInventory(const Checkpoint& checkpoint, const Geometry& geometry)
    : table_(tensor_table(geometry)) {
  groups_ = collect_exl3_groups(checkpoint, geometry.exl3_order, problems_);

  std::array<std::vector<std::string>, 4> missing;  // by TensorGroup
  std::array<int, 4> present{};
  bool vision_is_quantised = false;
  for (const TensorSpec& spec : table_) {
    Source source = find_source(checkpoint, spec);
    const auto group = static_cast<size_t>(spec.group);
    if (source.native == nullptr && source.exl3 == nullptr) {
      missing[group].push_back("missing tensor " + checkpoint_names(spec.name).front() +
                               (spec.form == TensorForm::kLinear ? ".weight " : " ") + shape_text(spec.shape));
      continue;
    }
    ++present[group];
    if (spec.group == TensorGroup::kVision && source.exl3 != nullptr) vision_is_quantised = true;
    check_shape(source);
    sources_.emplace(spec.name, std::move(source));
  }

  const auto trunk = static_cast<size_t>(TensorGroup::kTrunk);
  const auto mtp = static_cast<size_t>(TensorGroup::kMtp);
  const auto vision = static_cast<size_t>(TensorGroup::kVision);
  problems_.insert(problems_.end(), missing[trunk].begin(), missing[trunk].end());
  has_mtp_ = present[mtp] > 0;
  if (has_mtp_) problems_.insert(problems_.end(), missing[mtp].begin(), missing[mtp].end());
  if (vision_is_quantised) {
    vision_problem_ = "quantised vision tower is not supported";
  } else if (!missing[vision].empty()) {
    vision_problem_ = present[vision] == 0 ? "the checkpoint holds no vision tower" : summary(missing[vision]);
  } else if (!geometry.vision) {
    vision_problem_ = "config.json has no vision_config";
  }
  report_unexpected(checkpoint);

  remove_repeated(problems_);
  if (!problems_.empty()) throw TensorProblems(checkpoint.directory(), std::move(problems_));
}

CheckpointInventory::CheckpointInventory(const Geometry& geometry, const DummyOptions& dummy)
    : table_(tensor_table(geometry)), dummy_(std::make_unique<DummyTensors>(geometry, dummy)) {
  for (const TensorSpec& spec : table_) {
    if (spec.group == TensorGroup::kExtra) continue;
    Source source;
    source.spec = &spec;
    if (DummyTensors::is_exl3(spec)) {
      source.exl3 = &groups_.emplace(spec.name, dummy_->exl3(spec)).first->second;
      source.shape = spec.shape;
    } else {
      source.native = &dummy_->native(spec);
      source.shape = source.native->shape;
    }
    sources_.emplace(spec.name, std::move(source));
  }
  has_mtp_ = geometry.mtp_layers > 0;
  if (!geometry.vision) vision_problem_ = "config.json has no vision_config";
}

CheckpointInventory::Source CheckpointInventory::find_source(const Checkpoint& checkpoint, const TensorSpec& spec) {
  const bool may_be_exl3 = spec.form != TensorForm::kValues;
  const std::string suffix = spec.form == TensorForm::kLinear ? ".weight" : "";
  const auto find_by_name = [&](const std::string& table_name) {
    Source found;
    found.spec = &spec;
    for (const std::string& name : checkpoint_names(table_name)) {
      const HostTensor* native = checkpoint.find(name + suffix);
      const auto group = may_be_exl3 ? groups_.find(name) : groups_.end();
      if (native != nullptr && group != groups_.end()) {
        problems_.push_back("ambiguous: both " + name + suffix + " and " + name + ".trellis are stored");
        used_[name] = used_[native->name] = true;
      }
      if (native == nullptr && group == groups_.end()) continue;
      if (group != groups_.end()) {
        found.exl3 = &group->second;
        found.shape = {found.exl3->out, found.exl3->in};
        used_[name] = true;
      } else {
        found.native = native;
        found.shape = native->shape;
        used_[native->name] = true;
      }
      return found;
    }
    return found;
  };

  Source source = find_by_name(spec.name);
  if (source.native != nullptr || source.exl3 != nullptr || spec.fused_name.empty()) return source;
  source = find_by_name(spec.fused_name);
  source.is_fused = true;
  source.row = spec.fused_row;
  return source;
}

void CheckpointInventory::check_shape(const Source& source) {
  const TensorSpec& spec = *source.spec;
  std::vector<int64_t> expected = spec.shape;
  std::vector<int64_t> other = spec.other_shape;
  if (source.is_fused) {
    expected.front() = spec.fused_rows;
    if (!other.empty()) other.front() = spec.fused_rows;
  }
  if (source.exl3 != nullptr) {
    for (int64_t& extent : expected) extent = pad_to_hadamard_block(extent);
    if (!shape_matches(source.shape, expected)) {
      problems_.push_back("EXL3 tensor " + source.exl3->name + " is [out, in] = " + shape_text(source.shape) +
                          ", expected " + shape_text(expected));
    }
    return;
  }
  if (!is_float(source.native->dtype)) {
    problems_.push_back("tensor " + source.native->name + " is " + describe(source.shape, source.native->dtype) +
                        ", expected dtype F32, F16 or BF16");
  }
  if (!shape_matches(source.shape, expected) && (other.empty() || !shape_matches(source.shape, other))) {
    problems_.push_back("tensor " + source.native->name + " is " + describe(source.shape, source.native->dtype) +
                        ", expected " + shape_text(expected));
  }
}

void CheckpointInventory::report_unexpected(const Checkpoint& checkpoint) {
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (!used_.contains(name) && !is_exl3_member(name, groups_))
      problems_.push_back("unexpected tensor " + printable(name));
  }
  for (const auto& [name, matrix] : groups_) {
    if (!used_.contains(name)) problems_.push_back("unexpected EXL3 tensor " + printable(name));
  }
}

const CheckpointInventory::Source& CheckpointInventory::source(std::string_view table_name) const {
  const auto found = sources_.find(table_name);
  if (found == sources_.end()) throw Error("the checkpoint has no tensor " + std::string(table_name));
  return found->second;
}

LinearPart CheckpointInventory::linear(std::string_view table_name) const {
  const Source& found = source(table_name);
  // An extent that the table leaves open is the stored one; padding exists only where the table knows better.
  const auto extent = [&](size_t axis) {
    return found.spec->shape[axis] == kAnyExtent ? found.shape[axis] : found.spec->shape[axis];
  };
  LinearPart part;
  part.native = found.native;
  part.exl3 = found.exl3;
  part.rows = {found.row, found.row + extent(0)};
  part.columns = {0, extent(1)};
  return part;
}

VectorPart CheckpointInventory::values(std::string_view table_name) const {
  const Source& found = source(table_name);
  int64_t count = 1;
  for (int64_t extent : found.spec->shape) count *= extent;
  const int64_t first = found.row * (count / found.spec->shape.front());
  return {found.native, {first, first + count}};
}

}  // namespace glm53
