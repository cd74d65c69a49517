#include "server/body_memory.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "server/http_types.h"

namespace glm53::server {
namespace {

bool stays() { return false; }
bool gone() { return true; }

TEST(BodyMemory, CountsWhatIsBeyondTheBeginningOfEachBody) {
  constexpr uint64_t kLimit = 1000;
  BodyMemory all(kLimit);
  BodyMemory::Part first(all), second(all), third(all);
  EXPECT_TRUE(first.grow_to(10));
  EXPECT_TRUE(first.grow_to(BodyMemory::kUncounted + 600));
  EXPECT_FALSE(second.grow_to(BodyMemory::kUncounted + 401));
  EXPECT_TRUE(second.grow_to(BodyMemory::kUncounted + 400));
  EXPECT_TRUE(third.grow_to(BodyMemory::kUncounted));
  EXPECT_FALSE(third.grow_to(BodyMemory::kUncounted + 1));
  first.release();
  EXPECT_TRUE(third.grow_to(BodyMemory::kUncounted + 600));
  first.release();
  EXPECT_FALSE(first.grow_to(BodyMemory::kUncounted + 1));
}

TEST(BodyMemory, TurnsBySize) {
  BodyMemory all(0);
  BodyMemory::Part large(all);
  large.begin_work(BodyMemory::kLarge + 1, stays);
  std::vector<std::unique_ptr<BodyMemory::Part>> medium;
  for (uint64_t i = 0; i < BodyMemory::kAtWork / BodyMemory::kLarge; ++i) {
    medium.push_back(std::make_unique<BodyMemory::Part>(all));
    medium.back()->begin_work(BodyMemory::kLarge, stays);
  }
  BodyMemory::Part late(all);
  EXPECT_THROW(late.begin_work(BodyMemory::kLarge + 1, gone), ClientGone);
  EXPECT_THROW(late.begin_work(BodyMemory::kSmall + 1, gone), ClientGone);
  late.begin_work(BodyMemory::kSmall, gone);  // needs no turn
  medium.pop_back();
  late.begin_work(BodyMemory::kLarge, gone);
  late.release();
  large.release();
  late.begin_work(BodyMemory::kLarge + 1, gone);
}

TEST(BodyMemory, ThreadsTakeTurns) {
  BodyMemory all(0);
  std::atomic<int> inside{0}, most{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        BodyMemory::Part part(all);
        part.begin_work(BodyMemory::kLarge + 1, stays);
        most = std::max(most.load(), ++inside);
        std::this_thread::yield();
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
}

}  // namespace
}  // namespace glm53::server
