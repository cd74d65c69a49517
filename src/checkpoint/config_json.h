// config.json → Geometry: every fall-back and every check of spec 10 §1.
#pragma once

#include <string>
#include <string_view>

#include "glm53/core/geometry.h"

namespace glm53 {

/// Parses the text of a config.json, nested (`text_config`) or flat. Throws Error naming `file` and the key at fault.
Geometry geometry_from_json(std::string_view json, const std::string& file);

/// Reads `directory`/config.json.
Geometry load_geometry(const std::string& directory);

}  // namespace glm53
