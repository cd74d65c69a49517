// One wait over several generations: each sets the signal that its reader waits for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace glm53::engine {

/// Thread-safe.
class ReadySignal {
 public:
  void set() {
    {
      const std::lock_guard lock(mutex_);
      set_ = true;
    }
    changed_.notify_one();
  }
  /// Waits until it is set, `timeout` at most, and takes it back.
  void wait(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [this] { return set_; });
    set_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

}  // namespace glm53::engine
