// Finds stop strings in text that arrives in pieces (spec 40 §11). Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace glm53::text {

/// Knuth–Morris–Pratt over all stop strings at once: a byte costs amortised O(number of stops), and the longest suffix
/// that may still become a match is known without looking back.
class StopMatcher {
 public:
  /// Throws std::invalid_argument for an empty stop string.
  explicit StopMatcher(const std::vector<std::string>& stops);

  /// Advances over one byte. Returns the index of the stop string that ends here, the longest if several do (the
  /// earliest start), or -1.
  int push(char byte);
  /// Length of the longest suffix of the text since reset() that is a proper prefix of a stop string.
  size_t held() const;
  /// Forgets the text.
  void reset();

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> border;  ///< border[n]: longest proper prefix of text[0, n) that is also its suffix
    size_t matched = 0;          ///< longest prefix of text that is a suffix of the input
  };
  std::vector<Pattern> patterns_;
};

}  // namespace glm53::text
