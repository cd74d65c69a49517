// Recorded window calls: the bits of the eager run, and no memory taken while serving.
#include <gtest/gtest.h>

#include "backend/cuda/cuda_backend.h"
#include "tiny_model.h"

namespace glm53::test {
namespace {

BackendFactory cuda(bool graphs) {
  return [graphs](const Geometry& geometry) {
    CudaBackendOptions options;
    options.graphs = graphs;
    return make_cuda_backend(geometry, options);
  };
}

class CudaGraphs : public testing::Test {
 protected:
  void SetUp() override {
    const std::string problem = cuda_device_problem(0);
    if (!problem.empty()) GTEST_SKIP() << "no CUDA device: " << problem;
  }
};

TEST_F(CudaGraphs, graph_equals_eager) {
  const std::vector<int32_t> ids = golden_ids("needle_long");
  constexpr int kSequences = 8;
  TinyModel eager(cuda(false), kSequences);
  TinyModel recorded(cuda(true), kSequences);
  // Slot s holds 20 + 90·s tokens: some calls select among pools, some do not.
  const auto tokens = [](int slot) { return size_t{20} + size_t{90} * static_cast<size_t>(slot); };
  for (TinyModel* tiny : {&eager, &recorded}) {
    for (int slot = 0; slot < kSequences; ++slot)
      tiny->prompt({ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(tokens(slot))}, slot);
  }
  // Every number of window rows from 1 to 64, over 1 to 8 sequences; a third of them asks for the last row's logits.
  for (int rows = 1; rows <= 64; ++rows) {
    const int sequences = std::max((rows + kMaxWindowRows - 1) / kMaxWindowRows, 1 + rows % kSequences);
    std::vector<TinyModel::Piece> pieces;
    int left = rows;
    for (int i = 0; i < sequences && left > 0; ++i) {
      const int slot = (rows + i) % kSequences;
      const int count =
          i + 1 == sequences ? left : std::min({left, kMaxWindowRows, (rows + sequences - 1) / sequences});
      const auto from = ids.begin() + (rows * 7 + i * 31) % 700;
      pieces.push_back({slot, {from, from + count}, SegmentKind::kWindow});
      left -= count;
    }
    const bool last_only = rows % 3 == 0;
    const auto expected = eager.run(pieces, last_only);
    EXPECT_FALSE(eager.model().was_replayed());
    const auto actual = recorded.run(pieces, last_only);
    ASSERT_TRUE(recorded.model().was_replayed()) << rows << " rows";
    ASSERT_EQ(actual, expected) << rows << " rows";
    for (const TinyModel::Piece& piece : pieces) {
      const int kept = static_cast<int>(piece.ids.size()) / 2;
      eager.commit(kept, piece.slot);
      recorded.commit(kept, piece.slot);
    }
  }
  for (int slot = 0; slot < kSequences; ++slot) {
    EXPECT_EQ(recorded.state(slot), eager.state(slot)) << "slot " << slot;
  }
}

TEST_F(CudaGraphs, serving_takes_no_device_memory) {
  const std::vector<int32_t> ids = golden_ids("needle_long");
  TinyModel tiny(cuda(true), 2, 4096, 2048);
  const int64_t before = cuda_free_memory(0);
  for (int turn = 0; turn < 3; ++turn) {
    tiny.prompt(ids, turn % 2);
    for (int step = 0; step < 16; ++step) {
      tiny.window({ids[static_cast<size_t>(step)]}, turn % 2);
      tiny.commit(1, turn % 2);
    }
    tiny.reset(turn % 2);
  }
  EXPECT_EQ(cuda_free_memory(0), before);
}

}  // namespace
}  // namespace glm53::test
