// The memory of request bodies, of all connections together: how much is held, and how many are worked on at a time,
// since parsing and encoding take up to twenty times a body's size for a moment.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
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

  /// `limit` on what is held.
  explicit BodyMemory(uint64_t limit) : limit_(limit) {}
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
    /// Waits for the turn of a complete body. Large ones hold up large ones only. Throws ClientGone when `client_gone`
    /// says so meanwhile.
    void begin_work(uint64_t body, const std::function<bool()>& client_gone);
    /// Ends the work and gives everything back.
    void release();

   private:
    BodyMemory& all_;
    uint64_t held_ = 0;
    uint64_t at_work_ = 0;
  };

 private:
  const uint64_t limit_;
  std::atomic<uint64_t> held_{0};
  std::mutex mutex_;  ///< guards what follows
  std::condition_variable freed_;
  uint64_t at_work_ = 0;  ///< of bodies that are not large
  bool large_at_work_ = false;
};

}  // namespace glm53::server
