#include "server/body_memory.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "server/api_error.h"
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

TEST(BodyMemory, WhatFitsIsNotRefusedForWhatDoesNot) {
  constexpr uint64_t kLimit = 1000;
  BodyMemory all(kLimit);
  std::atomic<bool> over{false};
  std::thread too_large([&] {
    BodyMemory::Part part(all);
    while (!over) EXPECT_FALSE(part.grow_to(BodyMemory::kUncounted + kLimit + 1));
  });
  int refused = 0;
  BodyMemory::Part part(all), ordinary(all);
  for (int i = 0; i < 200'000; ++i) {
    refused += part.grow_to(BodyMemory::kUncounted + kLimit) ? 0 : 1;
    refused += ordinary.grow_to(BodyMemory::kUncounted) ? 0 : 1;
    part.release();
  }
  over = true;
  too_large.join();
  EXPECT_EQ(refused, 0);
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

TEST(BodyMemory, NobodyWaitsForATurnForEver) {
  BodyMemory all(0, std::chrono::milliseconds(10));
  BodyMemory::Part first(all), second(all);
  first.begin_work(BodyMemory::kLarge + 1, stays);
  try {
    second.begin_work(BodyMemory::kLarge + 1, stays);
    FAIL() << "two large bodies at a time";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 503);
    EXPECT_GT(error.retry_after_s, 0);
  }
  first.release();
  second.begin_work(BodyMemory::kLarge + 1, gone);  // the one that gave up holds nobody up
}

TEST(BodyMemory, TurnsComeInTheOrderOfArrival) {
  BodyMemory all(0);
  std::vector<std::unique_ptr<BodyMemory::Part>> working;
  for (uint64_t i = 0; i < BodyMemory::kAtWork / BodyMemory::kLarge; ++i) {
    working.push_back(std::make_unique<BodyMemory::Part>(all));
    working.back()->begin_work(BodyMemory::kLarge - 1, stays);
  }
  std::atomic<bool> waits{false}, served{false};
  std::thread large_one([&] {
    BodyMemory::Part part(all);
    part.begin_work(BodyMemory::kLarge, [&] {
      waits = true;
      return false;
    });
    served = true;
  });
  while (!waits) std::this_thread::yield();
  // There is room for a small one, but the other has come before.
  BodyMemory::Part late(all);
  EXPECT_THROW(late.begin_work(BodyMemory::kSmall + 1, gone), ClientGone);
  working.pop_back();
  large_one.join();
  EXPECT_TRUE(served);
  late.begin_work(BodyMemory::kSmall + 1, gone);
}

TEST(BodyMemory, PausedWorkGivesItsTurnAwayAsLongAsLittleIsPaused) {
  BodyMemory all(0);
  std::vector<std::unique_ptr<BodyMemory::Part>> parts;
  const auto begin = [&](uint64_t body) {
    parts.push_back(std::make_unique<BodyMemory::Part>(all));
    parts.back()->begin_work(body, gone);
  };
  for (uint64_t i = 0; i < BodyMemory::kPaused / BodyMemory::kLarge; ++i) {
    begin(BodyMemory::kLarge);
    parts.back()->pause_work();
    parts.back()->pause_work();  // again: nothing more to give
  }
  begin(BodyMemory::kLarge + 1);
  parts.back()->pause_work();
  EXPECT_THROW(begin(BodyMemory::kLarge + 1), ClientGone) << "more is paused than the bound";
  parts.clear();
  begin(BodyMemory::kLarge + 1);
  parts.back()->pause_work();
  begin(BodyMemory::kLarge + 1);
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
