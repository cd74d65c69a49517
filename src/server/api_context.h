// What the API handlers need from the rest of the program, as one value.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "glm53/core/settings.h"
#include "text/tokenizer.h"

namespace glm53::server {

class GrammarCache;
class RequestCounts;

/// Where requests go: the engine, or a fake in tests. Called from many threads at once.
class Generator {
 public:
  virtual ~Generator() = default;
  /// Takes all requests or none. Throws engine::SubmitError.
  virtual std::vector<std::shared_ptr<engine::Generation>> submit(std::vector<engine::GenerationRequest> requests) = 0;
  /// Ends what runs or waits as cancelled; later submissions are refused.
  virtual void stop() = 0;
  virtual engine::EngineStatus status() const = 0;
  virtual engine::EngineMetrics metrics() const = 0;
  virtual int64_t context() const = 0;  ///< tokens of prompt and reply together
};

/// What the checkpoint says about generating: generation_config.json and config.json.
struct GenerationDefaults {
  float temperature = 1.0F;
  float top_p = 1.0F;
  int top_k = 0;
  float min_p = 0.0F;
  float repetition = 1.0F;
  std::vector<int32_t> eos_ids;  ///< the first is the primary one
  int32_t vocab = 0;             ///< columns of the logits: bound for ids in requests
};

/// Enough to check a request, without model or tokenizer.
struct RequestRules {
  Settings settings;
  GenerationDefaults defaults;
};

struct ApiContext {
  RequestRules rules;
  Generator& generator;
  const text::Tokenizer& tokenizer;
  GrammarCache& grammars;
  const RequestCounts& requests;
  size_t longest_token = 0;  ///< bytes; 0 without a vocabulary
  std::string version;
  int64_t started = 0;  ///< unix seconds
};

}  // namespace glm53::server
