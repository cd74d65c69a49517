// Which backend computes, and how much memory it may take.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "glm53/core/geometry.h"
#include "glm53/core/settings.h"

namespace glm53 {

/// `backend: auto` resolved: "cuda" where this build has it and cuda.device can be used, else "cpu".
const char* resolve_backend(const Settings& settings);

/// Throws Error naming the key for settings that the chosen backend does not do.
std::unique_ptr<Backend> make_backend(const Settings& settings, const Geometry& geometry);

/// Bytes that the chosen backend's memory has free now.
int64_t available_backend_memory(const Settings& settings);

}  // namespace glm53
