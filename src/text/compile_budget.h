// What compiling one grammar may cost.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

#include "text/grammar_error.h"

namespace glm53::text {

/// Everything that a compilation does in a loop is paid from one budget, so that no combination of keywords, each
/// within its own limit, keeps a thread busy. Work decides, so that a schema is refused on any machine or on none; time
/// is there for machines that are far too slow. For one thread.
class CompileBudget {
 public:
  /// Units are of a few nanoseconds: a comparison, an edge looked at. One or two seconds altogether.
  static constexpr int64_t kWork = 400'000'000;
  static constexpr std::chrono::seconds kTime{10};

  explicit CompileBudget(int64_t work = kWork, std::chrono::steady_clock::duration time = kTime)
      : left_(work), next_look_(work), end_(std::chrono::steady_clock::now() + time) {}

  /// Throws GrammarTooLarge when work or time is used up, and from then on always: whoever catches it meets it again.
  void spend(uint64_t work) {
    left_ = work < static_cast<uint64_t>(kLargest) ? left_ - static_cast<int64_t>(work) : -1;
    if (left_ < next_look_) look();
  }

 private:
  static constexpr int64_t kLook = 1'000'000;  ///< units between looks at the clock
  static constexpr int64_t kLargest = std::numeric_limits<int64_t>::max() / 4;

  void look();

  int64_t left_;
  int64_t next_look_;
  std::chrono::steady_clock::time_point end_;
};

}  // namespace glm53::text
