#include "backend/cpu/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace glm53::cpu {
namespace {

/// How long a thread watches for work before it sleeps: longer than the serial code between two regions of a decode
/// step, shorter than anything a user would notice as load.
constexpr std::chrono::microseconds kSpinTime{30};
constexpr int kRangesPerThread = 4;  // the unit by which a fast thread takes over work of a slow one
constexpr int kMaxThreads = 4096;    // so that a job's ranges fit in 16 bits

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

/// Watches until ready() or kSpinTime passed; true when ready. Gives the core away now and then, so that where threads
/// outnumber cores the thread that is waited for can run.
template <typename Ready>
bool spin_until(Ready ready) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      relax();
    }
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::yield();
  }
}

/// A job's ranges are claimed through one word, so that a thread that arrives late can never claim from a job that has
/// ended: its compare-exchange fails on the number.
struct Ticket {
  uint32_t job;    ///< number of the current job
  uint16_t next;   ///< first range not yet claimed
  uint16_t count;  ///< ranges in all
};

uint64_t pack(Ticket t) { return uint64_t{t.job} << 32 | uint64_t{t.next} << 16 | t.count; }
Ticket unpack(uint64_t word) {
  return {static_cast<uint32_t>(word >> 32), static_cast<uint16_t>(word >> 16), static_cast<uint16_t>(word)};
}

class FlagGuard {
 public:
  explicit FlagGuard(std::atomic<bool>& flag) : flag_(flag) {}
  ~FlagGuard() { flag_.store(false, std::memory_order_release); }
  FlagGuard(const FlagGuard&) = delete;
  FlagGuard& operator=(const FlagGuard&) = delete;

 private:
  std::atomic<bool>& flag_;
};

}  // namespace

struct ThreadPool::Impl {
  using Body = std::function<void(int64_t, int64_t)>;

  explicit Impl(int threads) {
    try {
      for (int i = 1; i < threads; ++i) workers.emplace_back([this] { work(); });
    } catch (...) {
      shut_down();
      throw;
    }
  }
  ~Impl() { shut_down(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void shut_down() {
    {
      const std::lock_guard lock(mutex);
      stopping.store(true);
    }
    job_posted.notify_all();
    for (std::thread& worker : workers) worker.join();
    workers.clear();
  }

  void run(int64_t count, int64_t range_size, const Body& job_body) {
    const int64_t ranges = (count + range_size - 1) / range_size;
    body = &job_body;
    total = count;
    range = range_size;
    unfinished.store(static_cast<int>(ranges), std::memory_order_relaxed);
    const Ticket last = unpack(ticket.load(std::memory_order_relaxed));
    // Sequentially consistent with `sleepers` below: either this thread sees the sleeper or the sleeper sees the job.
    ticket.store(pack({last.job + 1, 0, static_cast<uint16_t>(ranges)}));
    if (sleepers.load() > 0) {
      { const std::lock_guard lock(mutex); }
      job_posted.notify_all();
    }
    run_ranges();
    const auto done = [this] { return unfinished.load(std::memory_order_acquire) == 0; };
    if (!spin_until(done)) {
      std::unique_lock lock(mutex);
      caller_sleeps.store(true);
      job_finished.wait(lock, [this] { return unfinished.load() == 0; });
      caller_sleeps.store(false);
    }
    if (failure != nullptr) std::rethrow_exception(std::exchange(failure, nullptr));
  }

  bool has_ranges() const {
    const Ticket t = unpack(ticket.load());
    return t.next < t.count;
  }

  /// Claims and runs ranges until none is left.
  void run_ranges() {
    uint64_t word = ticket.load(std::memory_order_acquire);
    for (;;) {
      Ticket t = unpack(word);
      if (t.next >= t.count) return;
      const int64_t index = t.next++;
      if (!ticket.compare_exchange_weak(word, pack(t), std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      // The job cannot end before this range does, so its fields are stable from here on.
      const int64_t begin = index * range;
      try {
        (*body)(begin, std::min(begin + range, total));
      } catch (...) {
        const std::lock_guard lock(mutex);
        // The lowest range's exception wins, whichever thread was faster.
        if (failure == nullptr || begin < failure_begin) {
          failure = std::current_exception();
          failure_begin = begin;
        }
      }
      if (unfinished.fetch_sub(1) == 1 && caller_sleeps.load()) {
        { const std::lock_guard lock(mutex); }
        job_finished.notify_one();
      }
      word = ticket.load(std::memory_order_acquire);
    }
  }

  void work() {
    for (;;) {
      run_ranges();
      if (stopping.load()) return;
      if (spin_until([this] { return has_ranges() || stopping.load(std::memory_order_relaxed); })) continue;
      std::unique_lock lock(mutex);
      sleepers.fetch_add(1);
      job_posted.wait(lock, [this] { return has_ranges() || stopping.load(); });
      sleepers.fetch_sub(1);
    }
  }

  // The current job; written before `ticket` announces it, read after a claim.
  const Body* body = nullptr;
  int64_t total = 0;
  int64_t range = 0;
  std::exception_ptr failure;  // under `mutex`; read by the caller after the last range
  int64_t failure_begin = 0;

  alignas(64) std::atomic<uint64_t> ticket{0};
  alignas(64) std::atomic<int> unfinished{0};
  alignas(64) std::atomic<int> sleepers{0};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<bool> stopping{false};
  std::atomic<bool> busy{false};
  std::mutex mutex;
  std::condition_variable job_posted;
  std::condition_variable job_finished;
  std::vector<std::thread> workers;
};

ThreadPool::ThreadPool(int threads) {
  if (threads < 0 || threads > kMaxThreads) {
    throw std::invalid_argument("ThreadPool: threads must be 0 .. " + std::to_string(kMaxThreads));
  }
  if (threads == 0) threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
  impl_ = std::make_unique<Impl>(threads);
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (impl_->busy.exchange(true, std::memory_order_acquire)) {
    throw std::logic_error("ThreadPool::parallel_for called while a region is running (nested, or by a second thread)");
  }
  const FlagGuard guard(impl_->busy);
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (count <= grain || threads() == 1) {
    body(0, count);
    return;
  }
  const int64_t ranges = int64_t{threads()} * kRangesPerThread;
  const int64_t grains = (count - 1) / grain + 1;
  impl_->run(count, ((grains - 1) / ranges + 1) * grain, body);
}

}  // namespace glm53::cpu
