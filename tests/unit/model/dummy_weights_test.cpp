#include "model/dummy_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/weight_source.h"
#include "checkpoint/config_json.h"
#include "data_file.h"
#include "model/checkpoint_inventory.h"
#include "tiny_model.h"

namespace glm53 {
namespace {

using testing::HasSubstr;

int64_t bytes_of(const HostTensor& tensor) {
  return tensor.element_count() * static_cast<int64_t>(dtype_bytes(tensor.dtype));
}

Geometry flash_geometry() { return load_geometry(GLM53_TEST_DATA "/../../configs/glm53-flash"); }

// spec 10 §2.6: with these shapes and dtypes the sums of the published releases come out to the byte.
TEST(DummyWeights, RealGeometryHasThePublishedSize) {
  const Geometry geometry = flash_geometry();
  DummyTensors tensors(geometry, DummyOptions{});
  int64_t text = 0;
  int64_t vision = 0;
  int64_t experts = 0;
  for (const TensorSpec& spec : tensor_table(geometry)) {
    if (spec.group == TensorGroup::kExtra) continue;
    if (DummyTensors::is_exl3(spec)) {
      const Exl3Stored stored = tensors.exl3(spec);
      experts += bytes_of(*stored.trellis) + bytes_of(*stored.suh) + bytes_of(*stored.svh) + 4;  // the marker
    } else {
      (spec.group == TensorGroup::kVision ? vision : text) += bytes_of(tensors.native(spec));
    }
  }
  EXPECT_EQ(text, 18'212'270'968);
  EXPECT_EQ(vision, 1'127'254'016);
  EXPECT_EQ(experts, 156'283'454'592);
}

TEST(DummyWeights, ExpertsHaveTheRateOfTheirLayer) {
  const Geometry geometry = flash_geometry();
  const CheckpointInventory inventory(geometry, {.experts_k = 2, .layer_k = {{4, 3}, {45, 4}}});
  EXPECT_EQ(inventory.linear("layers.3.mlp.experts.0.up_proj").exl3->bits, 2);
  EXPECT_EQ(inventory.linear("layers.4.mlp.experts.287.down_proj").exl3->bits, 3);
  EXPECT_EQ(inventory.linear("layers.45.mlp.experts.0.gate_proj").exl3->bits, 4);
  EXPECT_TRUE(inventory.has_mtp());
  EXPECT_EQ(inventory.vision_problem(), "");
  for (const int layer : {0, 2, 46}) {
    EXPECT_THAT(test::error_of([&] {
                  const CheckpointInventory bad(geometry, {.layer_k = {{layer, 3}}});
                }),
                HasSubstr("dummy.layer_k: layer " + std::to_string(layer) + " has no routed experts"));
  }
}

TEST(DummyWeights, ExpertsAndProjectionsHaveTheirScale) {
  const Geometry geometry = load_geometry(test::data_path("models/glm53-tiny"));
  const CheckpointInventory inventory(geometry, {.experts_k = 3, .layer_k = {}, .seed = 5});
  for (const char* name :
       {"layers.2.mlp.experts.1.up_proj", "layers.2.mlp.experts.7.down_proj", "layers.0.self_attn.q_proj", "lm_head"}) {
    const LinearPart part = inventory.linear(name);
    double squares = 0;
    const std::vector<float> values = read_part(part);
    for (const float value : values) squares += double{value} * value;
    EXPECT_NEAR(squares / static_cast<double>(values.size()) * static_cast<double>(part.in()), 1.0, 0.05) << name;
  }
  // gate and up of an expert share their input side, and nothing else.
  const Exl3Matrix gate = read_exl3(*inventory.linear("layers.2.mlp.experts.1.gate_proj").exl3);
  const Exl3Matrix up = read_exl3(*inventory.linear("layers.2.mlp.experts.1.up_proj").exl3);
  EXPECT_EQ(gate.suh, up.suh);
  EXPECT_NE(gate.svh, up.svh);
  EXPECT_NE(read_exl3(*inventory.linear("layers.2.mlp.experts.2.up_proj").exl3).suh, up.suh);
}

TEST(DummyWeights, ModelComputesFiniteVariedRows) {
  const test::BackendFactory cpu = [](const Geometry& geometry) { return make_cpu_backend(geometry, {.threads = 2}); };
  test::TinyModel model(cpu, DummyOptions{.experts_k = 2, .layer_k = {{4, 3}}, .seed = 1});
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 300; ++i) ids.push_back((i * 37 + 11) % model.geometry().vocab);
  const auto logits = model.prompt(ids);
  double squares = 0;
  for (const std::vector<float>& row : logits) {
    for (const float value : row) {
      ASSERT_TRUE(std::isfinite(value));
      squares += double{value} * value;
    }
  }
  EXPECT_NEAR(squares / static_cast<double>(logits.size() * logits[0].size()), 1.0, 0.3);
  EXPECT_NE(test::argmax(logits[10]), test::argmax(logits[200]));
}

}  // namespace
}  // namespace glm53
