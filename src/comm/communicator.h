// Collectives between tensor-parallel ranks. Every rank ends with the same bits (reduce, then broadcast semantics), or
// router and top-k choices would diverge (spec 10 §5).
#pragma once

#include <span>

namespace glm53 {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world() const = 0;
  /// values ← Σ over ranks in rank order; identical bits on all ranks.
  virtual void all_reduce(std::span<float> values) = 0;
};

}  // namespace glm53
