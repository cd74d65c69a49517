// generation_config.json: the checkpoint's end ids and sampling defaults (spec 40 §1.1, §10.1). The file is optional.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace glm53 {

struct GenerationConfig {
  std::vector<int> eos_ids;  ///< any of them ends a reply; not empty
  float temperature = 1.0F;  ///< of requests that name none
  float top_p = 1.0F;        ///< idem, as the rest
  int top_k = 0;             ///< 0 = off
  float min_p = 0.0F;
  float repetition = 1.0F;  ///< repetition_penalty
};

/// Parses the text of a generation_config.json. Keys that are absent or null keep the values of `fallback`; keys that
/// this server has no use for are ignored. Throws Error naming `file` and the key: eos_token_id that is not an id or a
/// list of ids in [0, vocab), temperature outside [0, 2], top_p outside (0, 1], top_k below −1, min_p outside [0, 1],
/// repetition_penalty not above 0.
GenerationConfig generation_config_from_json(std::string_view json, const std::string& file, int vocab,
                                             GenerationConfig fallback);

/// The same for text that an operator wrote, called `source` in messages: a key that would be ignored is an error.
GenerationConfig override_generation_config(std::string_view json, const std::string& source, int vocab,
                                            GenerationConfig config);

/// Reads `directory`/generation_config.json; without one the result has config.json's `eos_ids` and 1.0 / 1.0.
GenerationConfig load_generation_config(const std::string& directory, int vocab, const std::vector<int>& eos_ids);

}  // namespace glm53
