// Whether a text runs in circles (spec 40 §3, end): an exact cycle of at most 16 tokens that has held for 256 tokens,
// or one token that fills half of the last 256.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace glm53::engine {

class LoopGuard {
 public:
  static constexpr int kWindow = 256;
  static constexpr int kLongestCycle = 16;

  void push(int32_t id) {
    for (int period = 1; period <= kLongestCycle; ++period) {
      int& held = held_[static_cast<std::size_t>(period - 1)];
      const bool repeats = tokens_ >= period && at(tokens_ - period) == id;
      held = repeats ? held + 1 : 0;
    }
    if (tokens_ >= kWindow) {
      const auto oldest = counts_.find(at(tokens_ - kWindow));
      if (oldest->second == kWindow / 2) --fill_half_;
      if (--oldest->second == 0) counts_.erase(oldest);
    }
    at(tokens_) = id;
    ++tokens_;
    if (++counts_[id] == kWindow / 2) ++fill_half_;
  }

  /// As of the last token pushed.
  bool looping() const {
    if (tokens_ < kWindow) return false;
    for (int period = 1; period <= kLongestCycle; ++period) {
      if (held_[static_cast<std::size_t>(period - 1)] >= kWindow - period) return true;
    }
    return fill_half_ > 0;
  }

 private:
  int32_t& at(int64_t index) { return ring_[static_cast<std::size_t>(index % kWindow)]; }

  std::array<int32_t, kWindow> ring_{};
  std::array<int, kLongestCycle> held_{};  ///< of period i + 1: last tokens in a row that equal the one a period before
  std::unordered_map<int32_t, int> counts_;  ///< in the window
  int fill_half_ = 0;                        ///< ids that make up half of the window or more
  int64_t tokens_ = 0;
};

}  // namespace glm53::engine
