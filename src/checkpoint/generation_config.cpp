#include "checkpoint/generation_config.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/json_file.h"
#include "glm53/core/error.h"

namespace glm53 {

namespace {

using Json = nlohmann::json;

constexpr size_t kMaxFileBytes = 1024 * 1024;
constexpr int kMaxDepth = 32;

[[noreturn]] void fail(const std::string& file, const std::string& message) { throw Error(file + ": " + message); }

/// The value of `key`, or null when it is absent or null.
const Json* present(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

int token_id(const Json& value, const std::string& file, int vocab) {
  // Unsigned first: an id above 2^63 must not wrap to a negative number.
  const bool in_range = value.is_number_unsigned() && value.get<uint64_t>() < static_cast<uint64_t>(vocab);
  if (!in_range) fail(file, "eos_token_id must hold token ids from 0 to " + std::to_string(vocab - 1));
  return value.get<int>();
}

float number(const Json& value, const std::string& file, const char* key, bool zero_allowed, double high) {
  const double parsed = value.is_number() ? value.get<double>() : -1.0;
  if (parsed < 0.0 || (parsed == 0.0 && !zero_allowed) || parsed > high) {
    fail(file, std::string(key) + " must be a number " + (zero_allowed ? "from 0" : "above 0") + " to " +
                   std::to_string(static_cast<int>(high)));
  }
  return static_cast<float>(parsed);
}

}  // namespace

GenerationConfig generation_config_from_json(std::string_view json, const std::string& file, int vocab,
                                             GenerationConfig fallback) {
  const Json root = parse_json_object(json, file, kMaxDepth);
  GenerationConfig config = std::move(fallback);
  if (const Json* eos = present(root, "eos_token_id")) {
    config.eos_ids.clear();
    if (eos->is_array()) {
      for (const Json& id : *eos) {
        const int parsed = token_id(id, file, vocab);
        const bool known = std::find(config.eos_ids.begin(), config.eos_ids.end(), parsed) != config.eos_ids.end();
        if (!known) config.eos_ids.push_back(parsed);
      }
    } else {
      config.eos_ids.push_back(token_id(*eos, file, vocab));
    }
    if (config.eos_ids.empty()) fail(file, "eos_token_id is an empty list");
  }
  if (const Json* value = present(root, "temperature")) {
    config.temperature = number(*value, file, "temperature", true, 2.0);
  }
  if (const Json* value = present(root, "top_p")) config.top_p = number(*value, file, "top_p", false, 1.0);
  return config;
}

GenerationConfig load_generation_config(const std::string& directory, int vocab, const std::vector<int>& eos_ids) {
  GenerationConfig fallback;
  fallback.eos_ids = eos_ids;
  const std::filesystem::path path = std::filesystem::path(directory) / "generation_config.json";
  if (!std::filesystem::exists(path)) return fallback;
  const std::string text = read_text_file(path.string(), kMaxFileBytes);
  return generation_config_from_json(text, path.string(), vocab, std::move(fallback));
}

}  // namespace glm53
