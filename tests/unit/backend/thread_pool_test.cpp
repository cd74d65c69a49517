#include "backend/cpu/thread_pool.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace glm53::cpu {
namespace {

TEST(ThreadPool, CoversTheRangeOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t count : {0, 1, 2, 7, 16, 63, 64, 65, 1000, 4099}) {
      for (const int64_t grain : {1, 2, 3, 16, 5000}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
        std::mutex mutex;
        std::vector<std::pair<int64_t, int64_t>> ranges;
        pool.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
          const std::lock_guard lock(mutex);
          ranges.emplace_back(begin, end);
        });
        for (const auto& visit : visits) ASSERT_EQ(visit.load(), 1) << threads << " " << count << " " << grain;
        for (const auto& [begin, end] : ranges) {
          ASSERT_LT(begin, end);
          if (end != count) {
            ASSERT_EQ((end - begin) % grain, 0) << threads << " " << count << " " << grain;
          }
        }
        if (count == 0) {
          EXPECT_TRUE(ranges.empty());
        }
      }
    }
  }
}

TEST(ThreadPool, SmallCountsRunOnTheCaller) {
  ThreadPool pool(4);
  const std::thread::id caller = std::this_thread::get_id();
  for (int round = 0; round < 100; ++round) {
    int calls = 0;
    pool.parallel_for(8, 8, [&](int64_t begin, int64_t end) {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      EXPECT_EQ(begin, 0);
      EXPECT_EQ(end, 8);
      ++calls;
    });
    EXPECT_EQ(calls, 1);
  }
}

TEST(ThreadPool, WorkersTakePart) {
  ThreadPool pool(2);
  // Each of the two ranges waits for the other: only two threads can finish them.
  std::atomic<int> arrived{0};
  pool.parallel_for(2, 1, [&](int64_t, int64_t) {
    ++arrived;
    while (arrived.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived.load(), 2);
}

/// Visible writes of one region are read by the next, over many regions, with pauses that let the workers sleep.
TEST(ThreadPool, ManyRegions) {
  ThreadPool pool(3);
  std::vector<int64_t> values(257, 0);
  constexpr int kRegions = 3000;
  for (int region = 0; region < kRegions; ++region) {
    pool.parallel_for(static_cast<int64_t>(values.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += i;
    });
    if (region % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], static_cast<int64_t>(i) * kRegions);
}

TEST(ThreadPool, RethrowsTheLowestRangesExceptionAfterAllEnded) {
  ThreadPool pool(3);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int64_t> visited{0};
    try {
      pool.parallel_for(96, 1, [&](int64_t begin, int64_t end) {
        visited += end - begin;
        throw std::runtime_error(std::to_string(begin));
      });
      FAIL() << "nothing thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "0");
    }
    EXPECT_EQ(visited.load(), 96);
    // The pool stays usable.
    std::atomic<int64_t> sum{0};
    pool.parallel_for(10, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
    EXPECT_EQ(sum.load(), 10);
  }
  EXPECT_THROW(pool.parallel_for(1, 1, [](int64_t, int64_t) { throw std::runtime_error("one"); }), std::runtime_error);
}

TEST(ThreadPool, NestedRegionsAreRefused) {
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    const auto nothing = [](int64_t, int64_t) {};
    for (const int64_t count : {1, 64}) {
      EXPECT_THROW(pool.parallel_for(count, 1, [&](int64_t, int64_t) { pool.parallel_for(1, 1, nothing); }),
                   std::logic_error);
    }
    pool.parallel_for(64, 1, nothing);
  }
}

TEST(ThreadPool, SecondCallerIsRefused) {
  ThreadPool pool(2);
  std::atomic<bool> refused{false};
  pool.parallel_for(1, 1, [&](int64_t, int64_t) {
    std::thread other([&] {
      try {
        pool.parallel_for(1, 1, [](int64_t, int64_t) {});
      } catch (const std::logic_error&) {
        refused = true;
      }
    });
    other.join();
  });
  EXPECT_TRUE(refused.load());
}

TEST(ThreadPool, ThreadCount) {
  EXPECT_GE(ThreadPool(0).threads(), 1);
  EXPECT_THROW(ThreadPool(-1), std::invalid_argument);
  EXPECT_THROW(ThreadPool(1 << 20), std::invalid_argument);
}

TEST(ThreadPool, EndsWhileWorkersSpinOrSleep) {
  for (int round = 0; round < 100; ++round) {
    ThreadPool pool(3);
    if (round % 2 == 0) pool.parallel_for(32, 1, [](int64_t, int64_t) {});
    if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
}

}  // namespace
}  // namespace glm53::cpu
