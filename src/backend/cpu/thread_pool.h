// A fixed set of threads that run index ranges. Results never depend on the number of threads: callers give each index
// its own output.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace glm53::cpu {

class ThreadPool {
 public:
  /// `threads` >= 1 in all, the caller included; 0 = all cores of the machine.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  /// Calls body(begin, end) for disjoint ranges that cover [0, count), on all threads; returns when all are done.
  /// Every range but the last holds a multiple of `grain` indices; count <= grain runs on the caller alone. If ranges
  /// throw, the exception of the lowest one is rethrown here after the others ended. One region at a time: a nested
  /// call, or one by a second thread meanwhile, throws std::logic_error.
  /// Workers watch for the next region for some 30 µs and then sleep until one is posted.
  void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace glm53::cpu
