// Weights at any geometry without a checkpoint (model.load_format: dummy): for speed, memory and robustness at sizes of
// which no files are at hand. Their values mean nothing; what the model computes with them is finite and varied.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "glm53/core/exl3.h"
#include "glm53/core/geometry.h"
#include "glm53/core/host_tensor.h"
#include "model/tensor_table.h"

namespace glm53 {

struct DummyOptions {
  int experts_k = 4;           ///< bits a weight of the routed experts, 1..8
  std::map<int, int> layer_k;  ///< the same for the experts of single layers
  uint64_t seed = 0;
};

/// Makes the tensors of the official routed-only layout (spec 10 §2): routed experts EXL3 (MCG, standard order), the
/// rest native with the dtypes of the official release. Linear weights have a standard deviation of 1/√in, so that
/// every product of normed rows is of order one; norm weights are 1, biases 0.
class DummyTensors {
 public:
  /// Throws Error: a layer of layer_k has no routed experts.
  DummyTensors(const Geometry& geometry, DummyOptions options);

  /// Routed experts are EXL3; everything else is native.
  static bool is_exl3(const TensorSpec& spec);
  /// The tensor of a row that is not EXL3, with the extents that the table leaves open filled in.
  const HostTensor& native(const TensorSpec& spec);
  /// The matrix of a routed expert. Throws Error when its dimensions are not multiples of 128.
  Exl3Stored exl3(const TensorSpec& spec);

 private:
  const HostTensor& add(std::string name, DType dtype, std::vector<int64_t> shape, SyntheticRule rule);

  const Geometry& geometry_;
  const DummyOptions options_;
  std::deque<HostTensor> tensors_;  ///< addresses stay
};

}  // namespace glm53
