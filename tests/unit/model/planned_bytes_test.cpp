// The memory plan of the weights holds for every backend and every source of weights.
#include <gtest/gtest.h>

#include "backends_under_test.h"
#include "checkpoint/checkpoint_files.h"
#include "model/weights.h"
#include "tiny_model.h"

namespace glm53::test {
namespace {

class PlannedBytes : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override {
    if (!GetParam().problem.empty()) GTEST_SKIP() << GetParam().problem;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, PlannedBytes, testing::ValuesIn(backends_under_test()),
                         [](const auto& param) { return param.param.name; });

TEST_P(PlannedBytes, AreWhatLoadingTakes) {
  const Geometry geometry = load_geometry(data_path("models/glm53-tiny"));
  const CheckpointInventory dummy(geometry, DummyOptions{});
  const Checkpoint checkpoint = Checkpoint::open(data_path("models/glm53-tiny"));
  const CheckpointInventory stored(checkpoint, geometry);
  for (const CheckpointInventory* inventory : {&dummy, &stored}) {
    const auto backend = GetParam().make(geometry);
    const int64_t planned = plan_weights(*inventory, geometry, {}, *backend);
    std::vector<LoadStatus> seen;
    load_weights(*inventory, geometry, {}, *backend, [&seen](const LoadStatus& status) { seen.push_back(status); });
    EXPECT_GT(planned, 0);
    EXPECT_EQ(planned, backend->plan_memory({.sequences = 1, .pages = 1, .max_rows = 1}).weights);
    ASSERT_FALSE(seen.empty());
    EXPECT_EQ(seen.back().layers, geometry.layers);
    EXPECT_EQ(seen.back().bytes, seen.back().total_bytes);
    for (size_t i = 1; i < seen.size(); ++i) EXPECT_GE(seen[i].bytes, seen[i - 1].bytes);
  }
}

}  // namespace
}  // namespace glm53::test
