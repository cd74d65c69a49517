// The functions that a request offers (spec 40 §4).
#pragma once

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

}  // namespace glm53::text
