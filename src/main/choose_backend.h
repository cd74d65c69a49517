// Which backend computes, and how much memory it may take.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "glm53/core/geometry.h"
#include "glm53/core/settings.h"

namespace glm53 {

/// Settings that the chosen backend does not do, or one that this build lacks: a line each, beginning with the key.
std::vector<std::string> backend_problems(const Settings& settings);

/// `settings` have no backend_problems.
std::unique_ptr<Backend> make_backend(const Settings& settings, const Geometry& geometry);

/// Bytes that the chosen backend's memory has free now.
int64_t available_backend_memory(const Settings& settings);

}  // namespace glm53
