// Loading on the GPU: what a bad file does.
#include <algorithm>
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
