// How close each row's routers came to another choice, from a backend's trace.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>
#include <vector>

#include "backend/backend.h"

namespace glm53::test {

/// A row whose router had a closer call than this in some layer may take another expert under rounding: the largest gap
/// of a first turn that tests/data/golden/README.md gives.
inline constexpr float kRouterGap = 6.3e-3F;

/// The smallest router gap of every row over all layers.
class RouterGaps final : public TraceSink {
 public:
  void record(std::string_view name, std::span<const float> values, int rows) override {
    if (!name.ends_with("router.margin")) return;
    gaps.resize(static_cast<size_t>(rows), INFINITY);
    for (size_t r = 0; r < gaps.size(); ++r) gaps[r] = std::min(gaps[r], values[r]);
  }
  void record_selection(int, int, std::span<const int32_t>) override {}
  void record_probabilities(int, int, int, std::span<const int32_t>, std::span<const float>) override {}
  std::vector<float> gaps;
};

}  // namespace glm53::test
