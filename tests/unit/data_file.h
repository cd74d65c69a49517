#pragma once

#include <filesystem>
#include <string>

#include "glm53/core/read_file.h"

namespace glm53::test {

/// The whole of a file of the test data.
inline std::string read_file(const std::filesystem::path& path) { return glm53::read_file(path.string(), 1 << 30); }

}  // namespace glm53::test
