// What the engine needs of a model. Glm53Model is behind it while serving; unit tests put a scripted one there, so that
// scheduling is tested without weights.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "glm53/core/batch.h"
#include "glm53/core/sampling.h"

namespace glm53 {
class Glm53Model;
}

namespace glm53::engine {

/// Called by the engine thread alone. Any exception means that the model's state is unknown: the
/// engine then fails for good.
class ModelRunner {
 public:
  /// What the caches and buffers were made for.
  struct Capacity {
    int vocab = 0;      ///< width of a logits row
    int sequences = 0;  ///< slots
    int64_t pages = 0;
    int rows = 0;        ///< most rows of one call
    int logit_rows = 0;  ///< most Batch::logit_rows of one call
  };

  virtual ~ModelRunner() = default;
  virtual Capacity capacity() const = 0;
  /// Empties a slot.
  virtual void reset_sequence(int slot) = 0;
  /// Runs the rows; the logits of batch.logit_rows wait for sample().
  virtual void forward(const Batch& batch) = 0;
  /// Picks out[i] by rows[i] from the logits of the last forward call.
  virtual void sample(std::span<const SampleRow> rows, std::span<SampledToken> out) = 0;
  /// Keeps the first `kept_rows` of the slot's last window (backend.h).
  virtual void commit(int slot, int kept_rows) = 0;
};

/// Thin adapter that owns the model.
std::unique_ptr<ModelRunner> make_model_runner(std::unique_ptr<Glm53Model> model);

}  // namespace glm53::engine
