// SIGTERM, SIGINT and SIGHUP as an event that the main thread waits for.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace glm53 {

/// While one lives, a thread of its own receives these signals, so that nothing runs in a signal handler. The first
/// signal ends the process with code 0 as long as serve() was not called (a load is not worth finishing); afterwards it
/// is what wait() reports, and a second one ends the process with code 1 (the operator does not want to wait for the
/// drain).
///
/// SIGHUP is among them for the sake of a terminal that closes; under nohup it stays ignored. Create it before any
/// other thread starts: threads inherit the blocked signals. SIGPIPE is ignored for good; writers see EPIPE.
class ShutdownSignals {
 public:
  ShutdownSignals();
  ~ShutdownSignals();
  ShutdownSignals(const ShutdownSignals&) = delete;
  ShutdownSignals& operator=(const ShutdownSignals&) = delete;

  void serve() { serving_.store(true); }
  /// True once the first signal came; waits up to `timeout` for it.
  bool wait(std::chrono::milliseconds timeout);

 private:
  void receive();

  int signal_fd_ = -1;
  int end_fd_ = -1;
  std::atomic<bool> serving_{false};
  std::mutex mutex_;
  std::condition_variable came_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace glm53
