#include "text/stop_matcher.h"

#include <algorithm>
#include <stdexcept>

namespace glm53::text {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    if (stop.empty()) {
      throw std::invalid_argument("empty stop string");
    }
    Pattern pattern{stop, std::vector<size_t>(stop.size() + 1, 0)};
    for (size_t n = 2; n <= stop.size(); ++n) {
      size_t border = pattern.border[n - 1];
      while (border > 0 && stop[border] != stop[n - 1]) {
        border = pattern.border[border];
      }
      pattern.border[n] = stop[border] == stop[n - 1] ? border + 1 : 0;
    }
    patterns_.push_back(std::move(pattern));
  }
}

int StopMatcher::push(char byte) {
  int found = -1;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    Pattern& pattern = patterns_[i];
    while (pattern.matched > 0 && pattern.text[pattern.matched] != byte) {
      pattern.matched = pattern.border[pattern.matched];
    }
    if (pattern.text[pattern.matched] == byte) {
      ++pattern.matched;
    }
    if (pattern.matched == pattern.text.size()) {
      if (found < 0 || pattern.text.size() > patterns_[static_cast<size_t>(found)].text.size()) {
        found = static_cast<int>(i);
      }
      pattern.matched = pattern.border[pattern.matched];
    }
  }
  return found;
}

size_t StopMatcher::held() const {
  size_t longest = 0;
  for (const Pattern& pattern : patterns_) {
    longest = std::max(longest, pattern.matched);
  }
  return longest;
}

void StopMatcher::reset() {
  for (Pattern& pattern : patterns_) {
    pattern.matched = 0;
  }
}

}  // namespace glm53::text
