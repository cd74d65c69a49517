// Whether a range holds a value.
#pragma once

#include <algorithm>
#include <iterator>

namespace glm53 {

template <typename Range, typename Value>
bool contains(const Range& range, const Value& value) {
  return std::find(std::begin(range), std::end(range), value) != std::end(range);
}

}  // namespace glm53
