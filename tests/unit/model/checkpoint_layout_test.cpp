// Both on-disk layouts give the same model; every problem with a checkpoint's tensors is reported at once.
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "comm/local_communicator.h"
#include "model/checkpoint_inventory.h"
#include "model/glm53_model.h"
#include "synthetic_checkpoint.h"

namespace glm53::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<float> last_logits(const std::vector<TestTensor>& tensors, const Geometry& geometry) {
  const TempDirectory directory;
  directory.write("model.safetensors", safetensors_file(tensors));
  const Checkpoint checkpoint = Checkpoint::open(directory.path());
  auto backend = make_cpu_backend(geometry, {.threads = 1});
  const CheckpointInventory inventory(checkpoint, geometry);
  ModelWeights weights = load_weights(inventory, geometry, {}, *backend, {});
  const CachePlan plan{.sequences = 1, .pages = 1, .max_rows = 64, .max_logit_rows = 1};
  Glm53Model model(geometry, std::move(backend), std::make_unique<LocalCommunicator>(), std::move(weights), plan);
  model.backend().reset_sequence(0);
  std::vector<int32_t> ids(37);
  std::iota(ids.begin(), ids.end(), 3);
  const int32_t page = 0;
  Segment segment;
  segment.rows = static_cast<int>(ids.size());
  segment.pages = {&page, 1};
  const int32_t last = segment.rows - 1;
  model.forward({ids, {&segment, 1}, {&last, 1}});
  std::vector<float> logits(static_cast<size_t>(geometry.vocab));
  model.backend().read_rows(model.logits(), 0, 1, logits);
  return logits;
}

std::string problems_of(const std::vector<TestTensor>& tensors, const Geometry& geometry) {
  const TempDirectory directory;
  directory.write("model.safetensors", safetensors_file(tensors));
  return error_of([&] {
    const Checkpoint checkpoint = Checkpoint::open(directory.path());
    const CheckpointInventory inventory(checkpoint, geometry);
  });
}

TestTensor& find(std::vector<TestTensor>& tensors, const std::string& name) {
  return *std::ranges::find_if(tensors, [&](const TestTensor& tensor) { return tensor.name == name; });
}

TEST(CheckpointLayout, stock_exl3_equals_its_dequantised_form) {
  const Geometry geometry = small_geometry();
  const auto stock = synthetic_tensors(geometry, Layout::kStock);
  const auto native = synthetic_tensors(geometry, Layout::kDequantised);
  EXPECT_TRUE(std::ranges::any_of(
      stock, [](const TestTensor& t) { return t.name == "model.language_model.layers.0.self_attn.qkv_proj.trellis"; }));
  EXPECT_TRUE(std::ranges::any_of(stock, [](const TestTensor& t) { return t.name == "lm_head.trellis"; }));
  const std::vector<float> logits = last_logits(stock, geometry);
  EXPECT_EQ(logits, last_logits(native, geometry));
  const auto [least, most] = std::ranges::minmax(logits);
  EXPECT_GT(most - least, 0.1F);
}

TEST(CheckpointLayout, text_only_names_are_accepted) {
  const Geometry geometry = small_geometry();
  auto flat = synthetic_tensors(geometry, Layout::kDequantised);
  const std::vector<float> expected = last_logits(flat, geometry);
  for (TestTensor& tensor : flat) {
    const std::string prefix = "model.language_model.";
    if (tensor.name.starts_with(prefix)) tensor.name = "model." + tensor.name.substr(prefix.size());
  }
  EXPECT_EQ(last_logits(flat, geometry), expected);
}

TEST(CheckpointLayout, every_problem_is_listed) {
  const Geometry geometry = small_geometry();
  auto tensors = synthetic_tensors(geometry, Layout::kDequantised);
  std::erase_if(tensors, [](const TestTensor& tensor) {
    return tensor.name == "model.language_model.norm.weight" ||
           tensor.name == "model.language_model.layers.1.mlp.experts.2.up_proj.trellis";
  });
  find(tensors, "model.language_model.layers.0.self_attn.o_proj.weight").shape = {64, 256};
  TestTensor& bias = find(tensors, "model.language_model.layers.2.self_attn.A_log");
  bias.dtype = "I32";
  bias.bytes.assign(4, '\0');
  tensors.push_back({"model.language_model.layers.0.self_attn.rotary.inv_freq", "F32", {1}, std::string(4, '\0')});
  EXPECT_THAT(problems_of(tensors, geometry),
              AllOf(HasSubstr("missing tensor model.language_model.norm.weight [128]"),
                    HasSubstr("layers.1.mlp.experts.2.up_proj"),
                    HasSubstr("tensor model.language_model.layers.0.self_attn.o_proj.weight is [64, 256] F32, "
                              "expected [128, 128]"),
                    HasSubstr("layers.2.self_attn.A_log is [1] I32, expected dtype F32, F16 or BF16"),
                    HasSubstr("unexpected tensor model.language_model.layers.0.self_attn.rotary.inv_freq")));
}

TEST(CheckpointLayout, a_module_stored_twice_is_ambiguous) {
  const Geometry geometry = small_geometry();
  auto tensors = synthetic_tensors(geometry, Layout::kStock);
  tensors.push_back({"lm_head.weight",
                     "F32",
                     {geometry.vocab, geometry.hidden},
                     std::string(static_cast<size_t>(4 * geometry.vocab * geometry.hidden), '\0')});
  EXPECT_THAT(problems_of(tensors, geometry), HasSubstr("both lm_head.weight and lm_head.trellis are stored"));
}

TEST(CheckpointLayout, part_of_an_mtp_layer_is_an_error_and_none_is_fine) {
  Geometry geometry = small_geometry();
  geometry.mtp_layers = 1;
  auto tensors = synthetic_tensors(geometry, Layout::kStock);
  EXPECT_EQ(problems_of(tensors, geometry), "");
  tensors.push_back({"model.language_model.layers.4.enorm.weight", "F32", {128}, std::string(512, '\0')});
  EXPECT_THAT(problems_of(tensors, geometry), HasSubstr("missing tensor model.language_model.layers.4.hnorm.weight"));
}

}  // namespace
}  // namespace glm53::test
