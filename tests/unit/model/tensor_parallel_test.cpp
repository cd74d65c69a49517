// Gate tp2_equals_tp1: two ranks, each with its shard, give the single rank's logits within reduction noise.
#include <thread>

#include <gtest/gtest.h>

#include "comm/thread_communicator.h"
#include "tiny_model.h"

namespace glm53::test {
namespace {

/// This rank's columns of the logits of `ids`' last row.
std::vector<float> rank_logits(const Checkpoint& checkpoint, const Geometry& geometry, Shard shard,
                               std::unique_ptr<Communicator> communicator, const std::vector<int32_t>& ids) {
  auto backend = make_cpu_backend(geometry, {.threads = 1, .tensor_parallel = shard.world});
  const CheckpointInventory inventory(checkpoint, geometry);
  ModelWeights weights = load_weights(inventory, geometry, shard, *backend, {});
  const CachePlan plan{.sequences = 1, .pages = 16, .max_rows = 1024, .max_logit_rows = 1};
  Glm53Model model(geometry, std::move(backend), std::move(communicator), std::move(weights), plan);
  model.backend().reset_sequence(0);
  std::vector<int32_t> pages(16);
  std::iota(pages.begin(), pages.end(), 0);
  Segment segment;
  segment.rows = static_cast<int>(ids.size());
  segment.pages = pages;
  const int32_t last = segment.rows - 1;
  model.forward({ids, {&segment, 1}, {&last, 1}});
  std::vector<float> logits(static_cast<size_t>(model.logits().width));
  model.backend().read_rows(model.logits(), 0, 1, logits);
  return logits;
}

TEST(TensorParallel, tp2_equals_tp1) {
  const std::string directory = data_path("models/glm53-tiny");
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const Geometry geometry = load_geometry(directory);
  for (const char* name : {"needle_long", "tool", "json"}) {
    const std::vector<int32_t> ids = golden_ids(name);
    const auto single = rank_logits(checkpoint, geometry, {0, 1}, std::make_unique<LocalCommunicator>(), ids);
    auto ends = ThreadCommunicator::make_group(2);
    std::vector<std::vector<float>> shards(2);
    {
      std::vector<std::jthread> ranks;
      for (int rank = 0; rank < 2; ++rank) {
        ranks.emplace_back([&, rank] {
          shards[rank] = rank_logits(checkpoint, geometry, {rank, 2}, std::move(ends[rank]), ids);
        });
      }
    }
    std::vector<float> joined = shards[0];
    joined.insert(joined.end(), shards[1].begin(), shards[1].end());
    EXPECT_LE(difference(joined, single).largest, 2e-4) << name;
    EXPECT_EQ(argmax(joined), argmax(single)) << name;
  }
}

}  // namespace
}  // namespace glm53::test
