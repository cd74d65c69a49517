// The steps of a start that need more than a line: what this build can do, the files of a checkpoint, the memory plan.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/safetensors.h"
#include "glm53/core/geometry.h"
#include "glm53/core/settings.h"
#include "model/checkpoint_inventory.h"
#include "model/weights.h"
#include "text/tokenizer.h"

namespace glm53 {

/// config.json of model.path. Throws Error: the path is not set or no directory, the file or section `dummy` is wrong.
Geometry open_geometry(const Settings& settings);

/// Refuses values that parse but that this build cannot serve, so that none is silently ignored. Throws one Error
/// naming key, value and what is supported, a line each.
void check_supported(const Settings& settings, const Geometry& geometry);

/// Everything of a checkpoint directory but the weights' data, validated.
struct ModelFiles {
  Geometry geometry;
  text::Tokenizer tokenizer;
  GenerationConfig generation;
  std::optional<Checkpoint> checkpoint;  ///< none with model.load_format dummy
};

/// Throws Error: a file is missing or malformed, the tokenizer lacks a marker of the chat format or exceeds the model's
/// vocabulary.
ModelFiles open_model_files(const Settings& settings, Geometry geometry);

/// Logs a warning where `directory` has a chat template that cannot be read or seems not to be this family's: prompts
/// are rendered as that one renders them (spec 40 §2.1).
void warn_of_other_template(const std::string& directory);

/// The checkpoint's tensors, or dummy ones by section `dummy`. `files` outlives it. Throws TensorProblems, or Error
/// naming the key.
CheckpointInventory take_inventory(const Settings& settings, const ModelFiles& files);

/// What the weights are, for the log: "173.2 MiB in 3 files exl3 4 bpw mcg".
std::string weights_text(const Settings& settings, const ModelFiles& files);

/// Slots, pages and buffers for one sequence of `context` tokens.
CachePlan plan_caches(const Settings& settings, int64_t context);

/// Logs how far loading is, about once a second and at the end.
class LoadProgress {
 public:
  explicit LoadProgress(int layers) : layers_(layers) {}
  void operator()(const LoadStatus& status);

 private:
  int layers_;
  bool warned_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = start_;
};

/// MemAvailable of /proc/meminfo, bytes.
int64_t available_memory();

/// Several lines: each part of the plan, its total, and what is available, in MiB.
std::string memory_table(const MemoryPlan& plan, const CachePlan& caches, int64_t available);

/// Throws Error with kExitDoesNotFit when the plan exceeds `available` bytes: needed, available and the largest context
/// that fits. `backend` gives the plan of other contexts; `weights` replaces its own count.
void require_fit(const Settings& settings, const Backend& backend, int64_t weights, int64_t available);

}  // namespace glm53
