// The memory of request bodies, of all connections together: how much is held, and how many are worked on at a time,
// since one that is parsed and encoded takes twenty to thirty times its size until its request is submitted.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>

namespace glm53::server {

class BodyMemory {
 public:
  /// The beginning of every body that does not count as held: requests of ordinary size are served however much memory
  /// the large ones hold.
  static constexpr uint64_t kUncounted = 256 * 1024;
  static constexpr uint64_t kSmall = 32 * 1024;          ///< up to here work needs no turn
  static constexpr uint64_t kLarge = uint64_t{4} << 20;  ///< beyond it one body is worked on at a time
  static constexpr uint64_t kAtWork = 4 * kLarge;        ///< bytes at a time of those between
  static constexpr uint64_t kPaused = 2 * kAtWork;       ///< bytes at a time whose work waits for something else

  /// `limit` on what is held; `patience` for a turn.
  explicit BodyMemory(uint64_t limit, std::chrono::milliseconds patience = std::chrono::seconds(30))
      : limit_(limit), patience_(patience) {}
  BodyMemory(const BodyMemory&) = delete;
  BodyMemory& operator=(const BodyMemory&) = delete;

  /// One body's part. For one thread; the parts of a BodyMemory may be used at once.
  class Part {
   public:
    explicit Part(BodyMemory& all) : all_(all) {}
    ~Part() { release(); }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

    /// False, and nothing is taken, where all bodies together would exceed the limit.
    bool grow_to(uint64_t body);
    /// Waits for the turn of a complete body, in the order of arrival. Large ones hold up large ones only. Throws
    /// ClientGone when `client_gone` says so meanwhile, and ApiError 503 after the patience.
    void begin_work(uint64_t body, const std::function<bool()>& client_gone);
    /// The work goes on, but first waits for something else: gives the turn to the next body. Keeps it where what waits
    /// like this is too much already, so that its memory stays bounded.
    void pause_work();
    /// Ends the work and gives everything back but what a body of `kept` bytes holds.
    void release(uint64_t kept = 0);

   private:
    static uint64_t counted(uint64_t body) { return body - std::min(body, kUncounted); }

    BodyMemory& all_;
    uint64_t held_ = 0;
    uint64_t at_work_ = 0;
    uint64_t paused_ = 0;
  };

 private:
  /// Bodies that take turns with each other.
  struct Lane {
    const uint64_t most;  ///< bytes at work at a time; a single body may have more
    uint64_t at_work = 0;
    std::list<const Part*> waiting = {};  ///< next first

    bool takes(uint64_t body) const { return at_work == 0 || at_work + body <= most; }
  };
  Lane& lane_of(uint64_t body) { return body > kLarge ? large_ : medium_; }

  const uint64_t limit_;
  const std::chrono::milliseconds patience_;
  std::atomic<uint64_t> held_{0};  ///< never above limit_
  std::mutex mutex_;               ///< guards what follows
  std::condition_variable freed_;
  Lane medium_{kAtWork};
  Lane large_{0};
  uint64_t paused_ = 0;
};

}  // namespace glm53::server
