// dense.format and dense.groups on the tiny model: every group takes its own matrices, and the memory plan counts them.
#include <gtest/gtest.h>

#include "model/backends_under_test.h"
#include "model/tiny_model.h"

namespace glm53::test {
namespace {

constexpr LinearGroup kGroups[] = {LinearGroup::kKda,    LinearGroup::kMla,     LinearGroup::kKvB, LinearGroup::kMlp,
                                   LinearGroup::kShared, LinearGroup::kIndexer, LinearGroup::kHead};
static_assert(std::size(kGroups) == kLinearGroups);

struct Loaded {
  int64_t weight_bytes = 0;
  std::vector<float> logits;  ///< of a prompt's last row
};

Loaded load(const DenseFormats& formats) {
  TinyModel tiny([&](const Geometry& geometry) {
    CudaBackendOptions options;
    options.dense = formats;
    return make_cuda_backend(geometry, options);
  });
  Loaded loaded;
  loaded.weight_bytes = tiny.backend().plan_memory({.sequences = 1, .pages = 1, .max_rows = 1}).weights;
  loaded.logits = tiny.prompt_last(golden_ids("tool"));
  return loaded;
}

TEST(DenseFormats, groups_part_the_dense_weights) {
  const std::string problem = cuda_device_problem(0);
  if (!problem.empty()) GTEST_SKIP() << "no CUDA device: " << problem;
  const Loaded stored = load({});
  for (const DenseFormat format : {DenseFormat::kFp8, DenseFormat::kQ4}) {
    int64_t saved = 0;
    DenseFormats all;
    for (const LinearGroup group : kGroups) {
      DenseFormats one;
      one[group] = all[group] = format;
      const Loaded loaded = load(one);
      EXPECT_LT(loaded.weight_bytes, stored.weight_bytes) << "group " << static_cast<int>(group);
      // The indexer shows only where it selects other pools.
      if (group != LinearGroup::kIndexer) {
        EXPECT_NE(loaded.logits, stored.logits) << "group " << static_cast<int>(group);
      }
      saved += stored.weight_bytes - loaded.weight_bytes;
    }
    EXPECT_EQ(stored.weight_bytes - load(all).weight_bytes, saved);
  }
}

}  // namespace
}  // namespace glm53::test
