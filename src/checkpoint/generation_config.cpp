#include "checkpoint/generation_config.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/config_reader.h"
#include "checkpoint/json_file.h"
#include "glm53/core/error.h"
#include "glm53/core/printable.h"
#include "glm53/core/read_file.h"

namespace glm53 {

namespace {

constexpr int64_t kMaxFileBytes = 1024 * 1024;
constexpr int kMaxDepth = 32;
constexpr double kMaxRepetition = 1e20;  // beyond it every logit is as good as zero

}  // namespace

GenerationConfig generation_config_from_json(std::string_view json, const std::string& file, int vocab,
                                             GenerationConfig fallback) {
  const nlohmann::json root = parse_json_object(json, file, kMaxDepth);
  const ConfigReader reader(root, file, "");
  GenerationConfig config = std::move(fallback);
  config.eos_ids = reader.token_ids("eos_token_id", vocab).value_or(std::move(config.eos_ids));
  config.temperature = reader.float_or("temperature", config.temperature, 0.0, 2.0);
  config.top_p = reader.float_or("top_p", config.top_p, 0.0, 1.0);
  if (config.top_p == 0.0F) reader.fail("top_p", "is 0; expected a number above 0");
  config.top_k = std::max(0, reader.int_or("top_k", config.top_k, -1, std::numeric_limits<int>::max()));
  config.min_p = reader.float_or("min_p", config.min_p, 0.0, 1.0);
  config.repetition = reader.float_or("repetition_penalty", config.repetition, 0.0, kMaxRepetition);
  if (config.repetition == 0.0F) reader.fail("repetition_penalty", "is 0; expected a number above 0");
  return config;
}

GenerationConfig override_generation_config(std::string_view json, const std::string& source, int vocab,
                                            GenerationConfig config) {
  static constexpr std::string_view kKeys[] = {"eos_token_id", "temperature", "top_p",
                                               "top_k",        "min_p",       "repetition_penalty"};
  const nlohmann::json root = parse_json_object(json, source, kMaxDepth);
  for (const auto& [key, value] : root.items()) {
    if (std::find(std::begin(kKeys), std::end(kKeys), key) == std::end(kKeys)) {
      throw Error(source + ": unknown key " + in_quotes(key) +
                  "; the keys are eos_token_id, temperature, top_p, top_k, min_p, repetition_penalty");
    }
  }
  return generation_config_from_json(json, source, vocab, std::move(config));
}

GenerationConfig load_generation_config(const std::string& directory, int vocab, const std::vector<int>& eos_ids) {
  GenerationConfig fallback;
  fallback.eos_ids = eos_ids;
  const std::filesystem::path path = std::filesystem::path(directory) / "generation_config.json";
  std::error_code ignored;  // a file that is there but cannot be looked at is read_file's to refuse
  if (std::filesystem::status(path, ignored).type() == std::filesystem::file_type::not_found) return fallback;
  return generation_config_from_json(read_file(path.string(), kMaxFileBytes), path.string(), vocab,
                                     std::move(fallback));
}

}  // namespace glm53
