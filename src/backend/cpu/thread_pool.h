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
  /// Ranges hold at least `grain` indices (the last may hold fewer); count <= grain runs on the caller alone. An
  /// exception of one range is rethrown here after the others ended. One caller at a time.
  void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace glm53::cpu
