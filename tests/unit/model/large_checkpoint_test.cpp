// A directory of the real model's 120 shards is checked by its headers alone, and every fault is named.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "checkpoint/config_json.h"
#include "model/checkpoint_inventory.h"
#include "model/weights.h"
#include "sparse_checkpoint.h"

namespace glm53::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

constexpr int kShards = 120;

const Geometry& flash_geometry() {
  static const Geometry geometry = load_geometry(GLM53_TEST_DATA "/../../configs/glm53-flash");
  return geometry;
}

/// Bytes of files under `directory` that are mapped and in this process's memory: what was read through mappings.
uint64_t resident_bytes(const std::string& directory) {
  std::ifstream maps("/proc/self/smaps");
  uint64_t kib = 0;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    long long value = 0;
    if (line.find('-') != std::string::npos && line.find(" r") != std::string::npos) {
      inside = line.find(directory) != std::string::npos;
    } else if (inside && std::sscanf(line.c_str(), "Rss: %lld kB", &value) == 1) {
      kib += static_cast<uint64_t>(value);
    }
  }
  return kib * 1024;
}

/// Bytes that read() returned to this process so far.
uint64_t read_bytes() {
  std::ifstream io("/proc/self/io");
  std::string key;
  uint64_t value = 0;
  io >> key >> value;
  return key == "rchar:" ? value : 0;
}

TEST(LargeCheckpoint, OnlyHeadersAreRead) {
  const TempDirectory directory;
  const SparseCheckpoint written =
      write_sparse_checkpoint(directory.path(), routed_only_tensors(flash_geometry(), 4), kShards);
  EXPECT_EQ(written.data_bytes, 175'622'979'576U);  // spec 10 §2.6

  const uint64_t read_before = read_bytes();
  const Checkpoint checkpoint = Checkpoint::open(directory.path());
  EXPECT_EQ(checkpoint.file_count(), static_cast<size_t>(kShards));
  EXPECT_EQ(checkpoint.total_bytes(), written.data_bytes);
  const CheckpointInventory inventory(checkpoint, flash_geometry());
  EXPECT_TRUE(inventory.has_mtp());
  EXPECT_EQ(inventory.vision_problem(), "");
  const auto backend = make_cpu_backend(flash_geometry(), {.threads = 1});
  // Two bytes a weight of the trunk: 315 G weights without the MTP layer and the vision tower.
  EXPECT_GT(plan_weights(inventory, flash_geometry(), {}, *backend), 600'000'000'000);
  const uint64_t read = read_bytes() - read_before;
  const uint64_t mapped = resident_bytes(directory.path());
  EXPECT_GT(read, 0U);  // the index
  EXPECT_LT(read, 64U << 20);
  EXPECT_GE(mapped, written.header_bytes);
  // The kernel maps a little around each page that is touched.
  EXPECT_LT(mapped, written.header_bytes + kShards * (256U << 10));
}

TEST(LargeCheckpoint, FaultyTensorsAreNamed) {
  const std::string layers = "model.language_model.layers.";
  const std::string no_svh = layers + "17.mlp.experts.211.up_proj";
  const std::string narrow = layers + "17.mlp.experts.212.up_proj";
  const std::string query = layers + "23.self_attn.q_b_proj.weight";
  const std::string output = layers + "23.self_attn.o_proj.weight";
  std::vector<SparseTensor> tensors = routed_only_tensors(flash_geometry(), 2);
  const auto named = [&](const std::string& name) { return std::ranges::find(tensors, name, &SparseTensor::name); };
  tensors.erase(named(no_svh + ".svh"));
  named(narrow + ".trellis")->shape = {256, 120, 32};
  named(narrow + ".svh")->shape = {1920};
  named(query)->shape = {16384, 1535};
  tensors.erase(named(output));

  const TempDirectory directory;
  write_sparse_checkpoint(directory.path(), tensors, kShards);
  const Checkpoint checkpoint = Checkpoint::open(directory.path());
  std::vector<std::string> problems;
  try {
    const CheckpointInventory inventory(checkpoint, flash_geometry());
  } catch (const TensorProblems& found) {
    problems = found.problems();
  }
  EXPECT_THAT(problems,
              UnorderedElementsAre(AllOf(HasSubstr(no_svh + ".trellis"), HasSubstr("has no svh")),
                                   AllOf(HasSubstr(narrow), HasSubstr("[1920, 4096]"), HasSubstr("[2048, 4096]")),
                                   AllOf(HasSubstr(query), HasSubstr("[16384, 1535]"), HasSubstr("[16384, 1536]")),
                                   HasSubstr("missing tensor " + output)));
}

TEST(LargeCheckpoint, FaultyShardsAreNamed) {
  const TempDirectory directory;
  write_sparse_checkpoint(directory.path(), routed_only_tensors(flash_geometry(), 2), kShards);
  const auto open = [&] { return error_of([&] { Checkpoint::open(directory.path()); }); };
  const std::string shard = directory.path() + "/" + shard_name(76, kShards);

  ASSERT_EQ(::truncate(shard.c_str(), static_cast<off_t>(std::filesystem::file_size(shard) - 1)), 0);
  EXPECT_THAT(open(), HasSubstr(shard));
  std::filesystem::remove(shard);
  EXPECT_THAT(open(), AllOf(HasSubstr(shard), HasSubstr("shard is missing")));
  // Another shard in its place: its tensors belong elsewhere.
  std::filesystem::copy_file(directory.path() + "/" + shard_name(119, kShards), shard);
  EXPECT_THAT(open(), AllOf(HasSubstr(shard), HasSubstr("according to model.safetensors.index.json")));
}

}  // namespace
}  // namespace glm53::test
