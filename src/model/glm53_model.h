// The text model: geometry, weights and activations bound to one backend. `forward` is the whole forward pass, in
// glm53_model.cpp.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "glm53/core/batch.h"
#include "glm53/core/geometry.h"
#include "model/weights.h"

namespace glm53 {

class Glm53Model {
 public:
  /// Creates caches and activations for `plan`; after this, forward calls allocate nothing on the device.
  Glm53Model(Geometry geometry, std::unique_ptr<Backend> backend, std::unique_ptr<Communicator> communicator,
             ModelWeights weights, const CachePlan& plan);

  /// Runs the trunk over all rows and the head over batch.logit_rows. Results stay in hidden() and logits() until the
  /// next call. Sequence states advance: prompt rows at once, window rows when commit() keeps them.
  void forward(const Batch& batch);

  /// Whether the backend ran the last call from a recording.
  bool was_replayed() const { return was_replayed_; }

  /// [logit rows of the last call, vocab] fp32.
  Tensor logits() const { return logits_; }
  /// [logit rows of the last call, hidden] final-normed rows: input of the head and of the MTP layer.
  Tensor hidden() const { return hidden_; }

  const Geometry& geometry() const { return geometry_; }
  const CachePlan& plan() const { return plan_; }
  Backend& backend() { return *backend_; }

 private:
  /// The forward pass. `rows` are those of the call, which collectives on the host need; 0 while the backend prepares.
  void run_operations(int rows);
  void reduce(Tensor y, int rows);

  Geometry geometry_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Communicator> communicator_;
  ModelWeights weights_;
  CachePlan plan_;
  Tensor streams_;  ///< [rows, 4, hidden]
  Tensor mix_;      ///< [rows, 20] post | C of the current mHC site
  Tensor x_;        ///< [rows, hidden] normed input of the current sub-block
  Tensor y_;        ///< [rows, hidden] its output
  Tensor hidden_;   ///< [logit rows, hidden]
  Tensor logits_;   ///< [logit rows, vocab]
  bool was_replayed_ = false;
  std::vector<float> reduce_buffer_;  ///< host copy of y for the CPU's collectives
};

}  // namespace glm53
