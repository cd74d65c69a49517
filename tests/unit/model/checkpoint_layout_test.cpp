// Both on-disk layouts give the same model; every problem with a checkpoint's tensors is reported at once.
#include <functional>
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
using testing::Not;

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

// A name says whether a tensor is fused; its shape must not, or a wrong one would be read as another's rows.
TEST(CheckpointLayout, tensors_that_may_be_fused_are_refused_in_any_other_shape) {
  const Geometry geometry = small_geometry();
  const std::string attention = "model.language_model.layers.0.self_attn.";
  const auto with_q_proj = [&](std::vector<int64_t> shape) {
    auto tensors = synthetic_tensors(geometry, Layout::kDequantised);
    TestTensor& q = find(tensors, attention + "q_proj.weight");
    const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    q.bytes.assign(static_cast<size_t>(4 * count), '\0');
    q.shape = std::move(shape);
    return problems_of(tensors, geometry);
  };
  EXPECT_THAT(with_q_proj({}), HasSubstr(attention + "q_proj.weight is [] F32, expected [128, 128]"));
  EXPECT_THAT(with_q_proj({384, 128}), HasSubstr(attention + "q_proj.weight is [384, 128] F32, expected [128, 128]"));

  auto stock = synthetic_tensors(geometry, Layout::kStock);
  std::erase_if(stock, [&](const TestTensor& tensor) { return tensor.name.starts_with(attention + "qkv_proj."); });
  std::ranges::move(RandomExl3(attention + "qkv_proj", 128, 128, 4).tensors(), std::back_inserter(stock));
  // Once, though three rows of the table lie in it.
  EXPECT_THAT(problems_of(stock, geometry), AllOf(HasSubstr(": 1 problem with the tensors: EXL3 tensor " + attention +
                                                            "qkv_proj is [out, in] = [128, 128], expected [384, 128]"),
                                                  Not(HasSubstr(";"))));
}

TEST(CheckpointLayout, the_message_names_the_first_problems_and_the_list_holds_all) {
  const Geometry geometry = small_geometry();
  auto tensors = synthetic_tensors(geometry, Layout::kDequantised);
  for (int i = 0; i < 30; ++i) {
    tensors.push_back({"extra." + std::to_string(10 + i), "F32", {1}, std::string(4, '\0')});
  }
  const TempDirectory directory;
  directory.write("model.safetensors", safetensors_file(tensors));
  const Checkpoint checkpoint = Checkpoint::open(directory.path());
  try {
    const CheckpointInventory inventory(checkpoint, geometry);
    FAIL() << "accepted";
  } catch (const TensorProblems& error) {
    EXPECT_EQ(error.problems().size(), 30U);
    EXPECT_EQ(error.problems().back(), "unexpected tensor extra.39");
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr(": 30 problems with"), HasSubstr("extra.29; and 10 more"), Not(HasSubstr("extra.30"))));
  }
}

TEST(CheckpointLayout, names_cannot_break_the_line) {
  const Geometry geometry = small_geometry();
  auto tensors = synthetic_tensors(geometry, Layout::kDequantised);
  tensors.push_back({"two\nlines", "F32", {1}, std::string(4, '\0')});
  EXPECT_THAT(problems_of(tensors, geometry),
              AllOf(HasSubstr("unexpected tensor two\\x0alines"), Not(HasSubstr("\n"))));
}

/// Rows [0, rows) and columns [0, columns) of a native F32 tensor.
TestTensor crop(const RandomExl3& quantised, const std::string& name, int64_t in, int64_t rows, int64_t columns) {
  const std::vector<float> whole = quantised.native_rows(0, rows);
  std::vector<float> cropped;
  for (int64_t r = 0; r < rows; ++r) {
    cropped.insert(cropped.end(), whole.begin() + r * in, whole.begin() + r * in + columns);
  }
  return {name, "F32", {rows, columns}, bytes_of(cropped)};
}

// Spec 20 §1.2: a dimension that is no multiple of 128 is stored padded; the padding takes no part.
TEST(CheckpointLayout, padded_exl3_equals_its_cropped_dequantised_form) {
  Geometry geometry = small_geometry();
  geometry.dense_intermediate = 192;
  auto padded = synthetic_tensors(geometry, Layout::kDequantised);
  auto cropped = padded;
  struct Module {
    const char* name;
    int64_t out, in, padded_out, padded_in;
  };
  for (const Module& m : {Module{"gate_proj", 192, 128, 256, 128}, Module{"up_proj", 192, 128, 256, 128},
                          Module{"down_proj", 128, 192, 128, 256}}) {
    const std::string name = std::string("model.language_model.layers.0.mlp.") + m.name;
    const RandomExl3 quantised(name, m.padded_in, m.padded_out, 3);
    find(cropped, name + ".weight") = crop(quantised, name + ".weight", m.padded_in, m.out, m.in);
    std::erase_if(padded, [&](const TestTensor& tensor) { return tensor.name == name + ".weight"; });
    std::ranges::move(quantised.tensors(), std::back_inserter(padded));
  }
  EXPECT_EQ(last_logits(padded, geometry), last_logits(cropped, geometry));
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
