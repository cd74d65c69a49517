#include "engine/page_pool.h"

#include <set>
#include <utility>

#include <gtest/gtest.h>

namespace glm53::engine {
namespace {

TEST(PagePool, GrowsLazilyAndGivesEverythingBack) {
  PagePool pool(4);
  {
    PageList list(pool);
    list.reserve_tokens(0);
    EXPECT_EQ(list.size(), 0);
    list.reserve_tokens(1);
    list.reserve_tokens(64);
    EXPECT_EQ(list.size(), 1);
    list.reserve_tokens(65);
    EXPECT_EQ(list.size(), 2);
    list.reserve_tokens(10);  // never shrinks
    EXPECT_EQ(list.size(), 2);
    EXPECT_EQ(pool.used(), 2);
    EXPECT_NE(list.ids()[0], list.ids()[1]);
  }
  EXPECT_EQ(pool.used(), 0);
}

TEST(PagePool, ExhaustionLeavesTheListAsItWas) {
  PagePool pool(3);
  PageList first(pool);
  first.reserve_tokens(128);
  PageList second(pool);
  EXPECT_THROW(second.reserve_tokens(65), PagesExhausted);
  EXPECT_EQ(second.size(), 0);
  EXPECT_EQ(pool.free(), 1);
  second.reserve_tokens(64);
  EXPECT_EQ(pool.free(), 0);
  first.clear();
  second.reserve_tokens(192);
  const std::set<int32_t> distinct(second.ids().begin(), second.ids().end());
  EXPECT_EQ(distinct, (std::set<int32_t>{0, 1, 2}));
}

TEST(PagePool, MovingHandsPagesOver) {
  PagePool pool(4);
  PageList a(pool);
  a.reserve_tokens(100);
  PageList b(std::move(a));
  EXPECT_EQ(pool.used(), 2);
  PageList c(pool);
  c.reserve_tokens(1);
  c = std::move(b);
  EXPECT_EQ(pool.used(), 2);
  EXPECT_EQ(c.size(), 2);
}

TEST(PagePool, RefusesImpossibleSizes) {
  EXPECT_THROW(PagePool(-1), std::invalid_argument);
  EXPECT_THROW(PagePool(int64_t{1} << 31), std::invalid_argument);
}

}  // namespace
}  // namespace glm53::engine
