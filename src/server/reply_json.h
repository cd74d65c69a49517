// JSON as replies are made of it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "text/prompt_json.h"

namespace glm53::server {

/// JSON text with anything that is not UTF-8 replaced.
std::string dump(const nlohmann::ordered_json& value);

/// As deep as the parser of PromptJson lets a text be; integers beyond 64 bits become the nearest double.
nlohmann::ordered_json to_json(const text::PromptJson& value);

}  // namespace glm53::server
