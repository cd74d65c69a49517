// A sequence that never ran: for speed measurements at depths that would take hours to prefill.
#pragma once

#include <cstdint>

#include "backend/backend.h"

namespace glm53 {

/// Fills the latents and pool keys of every page of every sequence with seeded random rows and puts `slot`, which must
/// be empty, at `position`, a multiple of 16. Its KDA state stays zero. Benchmarks only. Throws std::invalid_argument
/// when `backend` is not the CUDA backend.
void fill_synthetic_history(Backend& backend, int slot, int64_t position, uint32_t seed);

}  // namespace glm53
