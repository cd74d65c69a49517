// A checkpoint matched against the tensor table: which stored tensor or EXL3 group serves each table row. Or the same
// without a checkpoint, every row served by a dummy tensor.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/weights.h"
#include "checkpoint/exl3_group.h"
#include "checkpoint/safetensors.h"
#include "glm53/core/error.h"
#include "glm53/core/geometry.h"
#include "model/dummy_weights.h"
#include "model/tensor_table.h"

namespace glm53 {

/// What is wrong with the tensors of a checkpoint. The message is one line that names the first problems.
class TensorProblems : public Error {
 public:
  TensorProblems(const std::string& directory, std::vector<std::string> problems);
  const std::vector<std::string>& problems() const { return problems_; }  ///< all, each one line

 private:
  std::vector<std::string> problems_;
};

class CheckpointInventory {
 public:
  /// Reads names, shapes and dtypes only. Throws TensorProblems with every missing, mis-shaped, mistyped, ambiguous and
  /// unexpected tensor. `checkpoint` outlives the inventory.
  CheckpointInventory(const Checkpoint& checkpoint, const Geometry& geometry);

  /// Dummy tensors for every row of `geometry`'s table, MTP layer and vision tower included; `geometry` outlives the
  /// inventory. Throws Error as DummyTensors does.
  CheckpointInventory(const Geometry& geometry, const DummyOptions& dummy);

  CheckpointInventory(const CheckpointInventory&) = delete;
  CheckpointInventory& operator=(const CheckpointInventory&) = delete;

  /// The whole [out, in] matrix of a table row of linear form (without the padding of an EXL3 group).
  LinearPart linear(std::string_view table_name) const;
  /// All elements of a table row of plain form.
  VectorPart values(std::string_view table_name) const;

  const TensorSpec& spec(std::string_view table_name) const { return *source(table_name).spec; }

  /// Whether the checkpoint has the MTP layer (always whole): what drafting with it needs.
  bool has_mtp() const { return has_mtp_; }
  /// Why the vision tower cannot be used; empty when it is complete and native.
  const std::string& vision_problem() const { return vision_problem_; }

 private:
  /// What serves a table row.
  struct Source {
    const TensorSpec* spec = nullptr;
    const HostTensor* native = nullptr;
    const Exl3Stored* exl3 = nullptr;
    bool is_fused = false;       ///< found under spec->fused_name; its name decides, never its shape
    int64_t row = 0;             ///< first row inside a fused tensor
    std::vector<int64_t> shape;  ///< as stored; any rank until check_shape
  };

  Source find_source(const Checkpoint& checkpoint, const TensorSpec& spec);
  void check_shape(const Source& source);
  void report_unexpected(const Checkpoint& checkpoint);
  const Source& source(std::string_view table_name) const;

  std::vector<TensorSpec> table_;
  std::unique_ptr<DummyTensors> dummy_;
  std::map<std::string, Exl3Stored, std::less<>> groups_;
  std::map<std::string, Source, std::less<>> sources_;  ///< by table name
  std::map<std::string, bool, std::less<>> used_;       ///< tensors and group prefixes that serve a row
  std::vector<std::string> problems_;
  bool has_mtp_ = false;
  std::string vision_problem_;
};

}  // namespace glm53
