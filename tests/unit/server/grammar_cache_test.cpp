#include "server/grammar_cache.h"

#include <array>
#include <atomic>
#include <latch>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "glm53/core/error.h"
#include "server/api_error.h"

namespace glm53::server {
namespace {

std::shared_ptr<const text::TokenTrie> trie() {
  static constexpr std::array<std::string_view, 3> kTokens = {"a", "b", ""};
  return std::make_shared<const text::TokenTrie>(kTokens, 3, std::vector<int32_t>{2});
}

GrammarCache::Compile counted(std::atomic<int>& compiled, std::string pattern = "a+") {
  return [&compiled, pattern] {
    ++compiled;
    return text::compile_regex(pattern);
  };
}

TEST(GrammarCache, CompilesAKeyOnce) {
  GrammarCache cache(trie());
  std::atomic<int> compiled{0};
  const auto first = cache.get("k", counted(compiled));
  EXPECT_EQ(cache.get("k", counted(compiled)), first);
  EXPECT_NE(cache.get("l", counted(compiled)), first);
  EXPECT_EQ(compiled, 2);
  EXPECT_EQ(cache.size(), 2U);
  EXPECT_GT(cache.bytes(), 0U);
}

TEST(GrammarCache, TheLeastRecentlyUsedMakesWay) {
  GrammarCache cache(trie(), {.entries = 2});
  std::atomic<int> compiled{0};
  const auto a = cache.get("a", counted(compiled));
  cache.get("b", counted(compiled));
  cache.get("a", counted(compiled));
  cache.get("c", counted(compiled));
  EXPECT_EQ(cache.size(), 2U);
  EXPECT_EQ(cache.get("a", counted(compiled)), a);
  EXPECT_EQ(compiled, 3);
  cache.get("b", counted(compiled));
  EXPECT_EQ(compiled, 4);
}

TEST(GrammarCache, BytesAreBounded) {
  GrammarCache cache(trie(), {.bytes = 20'000});
  std::atomic<int> compiled{0};
  for (int i = 0; i < 30; ++i) cache.get(std::string(1000, 'k') + std::to_string(i), counted(compiled));
  EXPECT_LE(cache.bytes(), 20'000U);
  EXPECT_GT(cache.size(), 3U);
  // Too large to be kept at all, and still handed out.
  EXPECT_NE(cache.get("large", counted(compiled, "a{5000}")), nullptr);
  EXPECT_LE(cache.bytes(), 20'000U);
}

TEST(GrammarCache, WhatTheEngineKeepsCounts) {
  GrammarCache cache(trie());
  std::atomic<int> compiled{0};
  const auto tables = cache.get("k", counted(compiled));
  const size_t before = cache.bytes();
  text::GrammarMatcher matcher(tables);
  matcher.next_mask();
  EXPECT_GT(cache.bytes(), before);
}

TEST(GrammarCache, AFailureIsNotKept) {
  GrammarCache cache(trie());
  const auto fail = []() -> std::shared_ptr<const text::Grammar> { throw Error("bad schema"); };
  EXPECT_THROW(cache.get("k", fail), Error);
  std::atomic<int> compiled{0};
  EXPECT_NE(cache.get("k", counted(compiled)), nullptr);
  EXPECT_EQ(cache.size(), 1U);
}

TEST(GrammarCache, NoGrammarIsKeptToo) {
  GrammarCache cache(trie());
  int compiled = 0;
  const auto none = [&]() -> std::shared_ptr<const text::Grammar> {
    ++compiled;
    return nullptr;
  };
  EXPECT_EQ(cache.get("k", none), nullptr);
  EXPECT_EQ(cache.get("k", none), nullptr);
  EXPECT_EQ(compiled, 1);
  EXPECT_EQ(cache.size(), 1U);
}

TEST(GrammarCache, EqualRequestsAtOnceShareOneCompilation) {
  GrammarCache cache(trie());
  std::atomic<int> compiled{0};
  std::latch begun(1);
  const GrammarCache::Compile slow = [&] {
    ++compiled;
    begun.count_down();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return text::compile_regex("a");
  };
  std::vector<std::shared_ptr<text::GrammarTables>> got(4);
  std::vector<std::thread> threads;
  threads.emplace_back([&] { got[0] = cache.get("k", slow); });
  begun.wait();
  for (size_t i = 1; i < got.size(); ++i) threads.emplace_back([&, i] { got[i] = cache.get("k", slow); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiled, 1);
  for (const auto& tables : got) EXPECT_EQ(tables, got[0]);
}

TEST(GrammarCache, WhatGrowsLaterMakesWayToo) {
  std::atomic<int> compiled{0};
  const auto grow = [](const std::shared_ptr<text::GrammarTables>& tables) {
    text::GrammarMatcher matcher(tables);
    for (int i = 0; i < 40; ++i) {
      matcher.next_mask();
      ASSERT_TRUE(matcher.accept(0));
    }
  };
  GrammarCache unbounded(trie());
  const auto measured = unbounded.get("a", counted(compiled, "a{50}"));
  const size_t fresh = unbounded.bytes();
  grow(measured);
  const size_t large = unbounded.bytes();
  ASSERT_GT(large, fresh);

  GrammarCache cache(trie(), {.bytes = 2 * large - 1});
  grow(cache.get("a", counted(compiled, "a{50}")));
  const auto b = cache.get("b", counted(compiled, "a{50}"));
  ASSERT_EQ(cache.size(), 2U);
  grow(b);
  EXPECT_EQ(cache.get("b", counted(compiled)), b);
  EXPECT_EQ(cache.size(), 1U);
  EXPECT_LE(cache.bytes(), 2 * large - 1);
}

/// A compilation that is under way until told to end.
struct Compiling {
  std::latch begun{1};
  std::latch may_end{1};
  GrammarCache::Compile then(GrammarCache::Compile compile) {
    return [this, compile] {
      begun.count_down();
      may_end.wait();
      return compile();
    };
  }
};

TEST(GrammarCache, WaitsForAnotherThreadAndGivesUp) {
  GrammarCache cache(trie(), {.compiling = 2, .patience = std::chrono::seconds(0)});
  std::atomic<int> compiled{0};
  Compiling slow;
  std::thread other([&] { cache.get("k", slow.then(counted(compiled))); });
  slow.begun.wait();
  try {
    cache.get("k", counted(compiled));
    ADD_FAILURE() << "compiled twice";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 429);
    EXPECT_EQ(error.retry_after_s, kRetryAfterSeconds);
  }
  slow.may_end.count_down();
  other.join();
  EXPECT_EQ(compiled, 1);
}

TEST(GrammarCache, AFailureReachesThoseWhoWait) {
  GrammarCache cache(trie());
  std::atomic<int> compiled{0};
  Compiling slow;
  const GrammarCache::Compile fail = [&]() -> std::shared_ptr<const text::Grammar> {
    ++compiled;
    throw Error("bad schema");
  };
  std::atomic<int> failed{0};
  const auto ask = [&](const GrammarCache::Compile& compile) {
    try {
      cache.get("k", compile);
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "bad schema");
      ++failed;
    }
  };
  std::vector<std::thread> threads;
  threads.emplace_back([&] { ask(slow.then(fail)); });
  slow.begun.wait();
  for (int i = 0; i < 3; ++i) threads.emplace_back([&] { ask(fail); });
  while (cache.waiting() < 3) std::this_thread::yield();
  slow.may_end.count_down();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 4);
  EXPECT_EQ(cache.waiting(), 0);
  EXPECT_EQ(compiled, 1);
  EXPECT_EQ(cache.size(), 0U);
}

TEST(GrammarCache, WaitsForAPlaceAndGivesUp) {
  GrammarCache cache(trie(), {.compiling = 1, .patience = std::chrono::seconds(0)});
  Compiling slow;
  std::thread other([&] { cache.get("slow", slow.then([] { return text::compile_regex("a"); })); });
  slow.begun.wait();
  std::atomic<int> compiled{0};
  try {
    cache.get("k", counted(compiled));
    ADD_FAILURE() << "compiled beside another";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 429);
  }
  slow.may_end.count_down();
  other.join();
  EXPECT_NE(cache.get("k", counted(compiled)), nullptr);
}

}  // namespace
}  // namespace glm53::server
