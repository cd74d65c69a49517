// What a request offers to be called, and what its calls are written with (spec 40 §4).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/prompt_json.h"

namespace glm53::text {

/// A function that a reply may call.
struct OfferedTool {
  std::string name;
  PromptJson parameters;  ///< JSON schema of its arguments; null: none given
  bool strict = false;    ///< calls must follow the schema
};
using OfferedTools = std::vector<OfferedTool>;

/// Ids of the tags of a call (spec 40 §4.1).
struct ToolTags {
  int32_t call_open = -1;
  int32_t call_close = -1;
  int32_t key_open = -1;
  int32_t key_close = -1;
  int32_t value_open = -1;
  int32_t value_close = -1;
};

/// Of one reply; the last one ends it (spec 40 §4.5).
inline constexpr int kMaxCalls = 128;

}  // namespace glm53::text
