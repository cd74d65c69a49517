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

TEST(GrammarCache, WaitsForAPlaceAndGivesUp) {
  GrammarCache cache(trie(), {.compiling = 1, .patience = std::chrono::seconds(0)});
  std::latch begun(1);
  std::latch may_end(1);
  std::thread other([&] {
    cache.get("slow", [&] {
      begun.count_down();
      may_end.wait();
      return text::compile_regex("a");
    });
  });
  begun.wait();
  std::atomic<int> compiled{0};
  try {
    cache.get("k", counted(compiled));
    ADD_FAILURE() << "compiled beside another";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 429);
  }
  may_end.count_down();
  other.join();
  EXPECT_NE(cache.get("k", counted(compiled)), nullptr);
}

}  // namespace
}  // namespace glm53::server
