// Loading on the GPU: every path from a file, or a rule, to device memory, and what a bad file does.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/cuda/cuda_backend.h"
#include "checkpoint/checkpoint_files.h"
#include "model/weights.h"
#include "tiny_model.h"

namespace glm53::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class CudaLoading : public testing::Test {
 protected:
  void SetUp() override {
    const std::string problem = cuda_device_problem(0);
    if (!problem.empty()) GTEST_SKIP() << "no CUDA device: " << problem;
  }

  static std::unique_ptr<Backend> make(const Geometry& geometry) { return make_cuda_backend(geometry, {}); }
};

double largest_difference(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double largest = 0.0;
  for (size_t r = 0; r < a.size(); ++r) {
    for (size_t c = 0; c < a[r].size(); ++c) largest = std::max(largest, std::abs(double{a[r][c]} - b[r][c]));
  }
  return largest;
}

TEST_F(CudaLoading, PlannedBytesAreWhatLoadingTakes) {
  const Geometry geometry = load_geometry(data_path("models/glm53-tiny"));
  const CheckpointInventory dummy(geometry, DummyOptions{});
  const Checkpoint checkpoint = Checkpoint::open(data_path("models/glm53-tiny"));
  const CheckpointInventory stored(checkpoint, geometry);
  for (const CheckpointInventory* inventory : {&dummy, &stored}) {
    const auto backend = make(geometry);
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

TEST_F(CudaLoading, DummyWeightsAreThoseOfTheCpu) {
  const DummyOptions dummy{.experts_k = 2, .layer_k = {{4, 3}}, .seed = 1};
  TinyModel cuda(make, dummy);
  TinyModel cpu(
      [](const Geometry& geometry) { return make_cpu_backend(geometry, {.threads = 0, .mode = CpuMode::kServing}); },
      dummy);
  const std::vector<int32_t> ids = {11, 48, 85, 122, 159, 196, 7, 44};
  // Routers of random weights decide closely; with other weights the difference would be several units.
  EXPECT_LT(largest_difference(cuda.prompt(ids), cpu.prompt(ids)), 0.5);
}

TEST_F(CudaLoading, ABadTensorIsNamed) {
  const TempDirectory directory;
  std::filesystem::copy(data_path("models/glm53-tiny"), directory.path());
  const Geometry geometry = load_geometry(directory.path());
  const auto load = [&](const Checkpoint& checkpoint) {
    const auto backend = make(geometry);
    load_weights(CheckpointInventory(checkpoint, geometry), geometry, {}, *backend, {});
  };
  const Checkpoint checkpoint = Checkpoint::open(directory.path());
  EXPECT_EQ(error_of([&] { load(checkpoint); }), "");
  for (const char* suffix : {"experts.3.up_proj.svh", "experts.2.down_proj.mcg", "A_log", "embed_tokens.weight",
                             "q_proj.weight", "kv_b_proj.weight", "mlp.gate.weight"}) {
    const auto found =
        std::ranges::find_if(checkpoint.tensors(), [&](const auto& entry) { return entry.first.ends_with(suffix); });
    ASSERT_NE(found, checkpoint.tensors().end());
    const HostTensor& tensor = found->second;
    const std::string stored(reinterpret_cast<const char*>(tensor.bytes.data()), 4);
    const auto write = [&](const std::string& bytes) {
      std::fstream file(tensor.file, std::ios::binary | std::ios::in | std::ios::out);
      file.seekp(static_cast<std::streamoff>(tensor.file_offset)).write(bytes.data(), 4);
    };
    write("\xFF\xFF\xFF\xFF");
    EXPECT_THAT(error_of([&] { load(checkpoint); }), AllOf(HasSubstr(tensor.file), HasSubstr(tensor.name)));
    write(stored);
  }
  // Cut while it is open: the last tensors are no longer there.
  const std::string last = checkpoint.tensors().begin()->second.file;
  std::filesystem::resize_file(last, std::filesystem::file_size(last) - 1000);
  EXPECT_THAT(error_of([&] { load(checkpoint); }), AllOf(HasSubstr(last), HasSubstr("ends before")));
}

}  // namespace
}  // namespace glm53::test
