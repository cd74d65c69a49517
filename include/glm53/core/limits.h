// Sizes that several layers must agree on. Changing one changes bits or memory plans, never only speed.
#pragma once

namespace glm53 {

inline constexpr int kPageTokens = 64;     ///< positions a cache page holds (latents; pool keys: 64 / kpool of them)
inline constexpr int kMaxWindowRows = 16;  ///< R_max: rows of one sequence in one window segment
inline constexpr int kKdaChunk = 16;       ///< KDA prompt sub-chunk, on the grid from position 0 (00-decisions §4)

}  // namespace glm53
