// The CPU backend's results do not depend on how many threads compute them.
#include <gtest/gtest.h>

#include "tiny_model.h"

namespace glm53::test {
namespace {

TEST(CpuThreads, results_do_not_depend_on_the_thread_count) {
  const std::vector<int32_t> ids = golden_ids("needle_mid");
  TinyModel one(1);
  const auto expected = one.prompt(ids);
  for (const int threads : {2, 3, 5}) {
    TinyModel many(threads);
    EXPECT_EQ(many.prompt(ids), expected) << threads << " threads";
    EXPECT_EQ(many.state(), one.state()) << threads << " threads";
  }
}

}  // namespace
}  // namespace glm53::test
