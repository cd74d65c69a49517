#include "checkpoint/exl3_group.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_files.h"
#include "glm53/core/float_convert.h"

namespace glm53 {
namespace {

using test::bytes_of;
using test::safetensors_file;
using test::TempDirectory;
using test::TestTensor;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int32_t kMcg = -877912083;
constexpr int32_t kMul1 = -2082680531;

TestTensor trellis(std::vector<int64_t> shape, const std::string& prefix = "m") {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return {prefix + ".trellis", "I16", std::move(shape), std::string(static_cast<size_t>(count) * 2, '\x5A')};
}

TestTensor halves(const std::string& name, int64_t count, uint16_t value = 0x3C00) {
  return {name, "F16", {count}, bytes_of(std::vector<uint16_t>(static_cast<size_t>(count), value))};
}

TestTensor marker(const std::string& name, int32_t value, std::vector<int64_t> shape = {}) {
  return {name, "I32", std::move(shape), bytes_of<int32_t>({value})};
}

/// A sound group "m": in 128, out 256, K = 4, MCG.
std::vector<TestTensor> sound_group() {
  return {trellis({8, 16, 64}), halves("m.suh", 128, 0x3800), halves("m.svh", 256, 0xB800), marker("m.mcg", kMcg)};
}

struct Collected {
  TempDirectory directory;
  std::unique_ptr<Checkpoint> checkpoint;  ///< keeps the trellis views alive
  std::vector<std::string> problems;
  std::map<std::string, Exl3Stored, std::less<>> groups;

  Exl3Matrix matrix() const { return read_exl3(groups.at("m")); }
};

std::unique_ptr<Collected> collect(const std::vector<TestTensor>& tensors,
                                   std::optional<Exl3TileOrder> order = std::nullopt) {
  auto result = std::make_unique<Collected>();
  result->directory.write("model.safetensors", safetensors_file(tensors));
  result->checkpoint = std::make_unique<Checkpoint>(Checkpoint::open(result->directory.path()));
  result->groups = collect_exl3_groups(*result->checkpoint, order, result->problems);
  return result;
}

/// sound_group() with the tensors of `changes` replaced (same name) or added; one of empty dtype is taken out.
std::vector<TestTensor> changed_group(const std::vector<TestTensor>& changes) {
  std::vector<TestTensor> tensors = sound_group();
  for (const TestTensor& change : changes) {
    std::erase_if(tensors, [&](const TestTensor& tensor) { return tensor.name == change.name; });
    if (!change.dtype.empty()) tensors.push_back(change);
  }
  return tensors;
}

TestTensor without(const std::string& name) { return {name, "", {}, ""}; }

TEST(Exl3Group, SoundGroup) {
  const auto collected = collect(sound_group());
  EXPECT_THAT(collected->problems, IsEmpty());
  ASSERT_EQ(collected->groups.size(), 1U);
  const Exl3Matrix matrix = collected->matrix();
  EXPECT_EQ(matrix.name, "m");
  EXPECT_EQ(matrix.in, 128);
  EXPECT_EQ(matrix.out, 256);
  EXPECT_EQ(matrix.bits, 4);
  EXPECT_EQ(matrix.codebook, Exl3Codebook::kMcg);
  EXPECT_EQ(matrix.order, Exl3TileOrder::kStandard);
  EXPECT_EQ(matrix.trellis.size(), 8U * 16 * 64 * 2);
  EXPECT_EQ(matrix.suh, std::vector<uint16_t>(128, 0x3800));
  EXPECT_EQ(matrix.svh, std::vector<uint16_t>(256, 0xB800));
  EXPECT_TRUE(matrix.bias.empty());
}

TEST(Exl3Group, TheShapeDecidesTheRate) {
  for (int bits = 1; bits <= 8; ++bits) {
    const auto collected = collect(changed_group({trellis({8, 16, 16 * bits})}));
    EXPECT_THAT(collected->problems, IsEmpty());
    EXPECT_EQ(collected->groups.at("m").bits, bits);
  }
}

TEST(Exl3Group, MarkersDecideTheCodebook) {
  EXPECT_EQ(collect(changed_group({without("m.mcg")}))->groups.at("m").codebook, Exl3Codebook::k3Inst);
  const auto mul1 = collect(changed_group({without("m.mcg"), marker("m.mul1", kMul1, {1})}));
  EXPECT_THAT(mul1->problems, IsEmpty());
  EXPECT_EQ(mul1->groups.at("m").codebook, Exl3Codebook::kMul1);
}

TEST(Exl3Group, LegacySignsAreExpanded) {
  std::vector<uint16_t> su(8, 0);
  su[0] = 0x0001;  // element 0
  su[7] = 0x8000;  // element 127
  const auto collected = collect(changed_group({without("m.suh"),
                                                without("m.svh"),
                                                {"m.su", "I16", {8}, bytes_of(su)},
                                                {"m.sv", "I16", {16}, bytes_of(std::vector<uint16_t>(16, 0x5555))}}));
  EXPECT_THAT(collected->problems, IsEmpty());
  const Exl3Matrix matrix = collected->matrix();
  for (size_t i = 0; i < 128; ++i) EXPECT_EQ(matrix.suh[i], i == 0 || i == 127 ? 0xBC00 : 0x3C00) << i;
  for (size_t i = 0; i < 256; ++i) EXPECT_EQ(matrix.svh[i], i % 2 == 0 ? 0xBC00 : 0x3C00) << i;
}

TEST(Exl3Group, TileOrderComesFromMarkerElseConfig) {
  const std::vector<TestTensor> marked = changed_group({marker("m.tile_order", 0x70C0)});
  EXPECT_EQ(collect(marked)->groups.at("m").order, Exl3TileOrder::kColumnMajor);
  const auto agreeing = collect(marked, Exl3TileOrder::kColumnMajor);
  EXPECT_THAT(agreeing->problems, IsEmpty());
  EXPECT_EQ(agreeing->groups.at("m").order, Exl3TileOrder::kColumnMajor);
  EXPECT_EQ(collect(sound_group(), Exl3TileOrder::kColumnMajor)->groups.at("m").order, Exl3TileOrder::kColumnMajor);
  EXPECT_THAT(collect(marked, Exl3TileOrder::kStandard)->problems,
              ElementsAre(AllOf(HasSubstr("m.tile_order"), HasSubstr("column-major"), HasSubstr("config"))));
}

TEST(Exl3Group, BiasOfEitherTypeBecomesFp16) {
  const auto f16 = collect(changed_group({halves("m.bias", 256, 0x4200)}));
  EXPECT_EQ(f16->matrix().bias, std::vector<uint16_t>(256, 0x4200));
  const auto f32 = collect(changed_group({{"m.bias", "F32", {256}, bytes_of(std::vector<float>(256, -2.5F))}}));
  EXPECT_THAT(f32->problems, IsEmpty());
  EXPECT_EQ(f32->matrix().bias, std::vector<uint16_t>(256, 0xC100));
}

TEST(Exl3Group, NamesWithoutTrellisArePlainTensors) {
  const auto collected = collect({halves("attn.qkv.bias", 16), halves("attn.qkv.weight", 16), halves("x.scale", 4)});
  EXPECT_THAT(collected->problems, IsEmpty());
  EXPECT_TRUE(collected->groups.empty());
  EXPECT_FALSE(is_exl3_member("attn.qkv.bias", collected->groups));
}

TEST(Exl3Group, Members) {
  const auto collected = collect(sound_group());
  for (const char* name :
       {"m.trellis", "m.suh", "m.svh", "m.su", "m.sv", "m.mcg", "m.mul1", "m.tile_order", "m.bias", "m.scale"}) {
    EXPECT_TRUE(is_exl3_member(name, collected->groups)) << name;
  }
  for (const char* name : {"m.weight", "m", "n.suh", "xm.suh", "m.x.suh", ".suh", ""}) {
    EXPECT_FALSE(is_exl3_member(name, collected->groups)) << name;
  }
}

/// A changed group, the tensor at fault and what is said of it.
struct Row {
  std::vector<TestTensor> changes;
  std::string tensor;
  std::string what;
};

TEST(Exl3Group, EveryProblemNamesTheTensor) {
  const auto i16 = [](const std::string& name, int64_t count) {
    return TestTensor{name, "I16", {count}, std::string(static_cast<size_t>(count) * 2, '\0')};
  };
  const std::vector<Row> rows = {
      {{{"m.trellis", "I32", {8, 16, 64}, std::string(8 * 16 * 64 * 4, '\0')}}, "m.trellis", "I16"},
      {{trellis({8, 1024})}, "m.trellis", "expected [in/16, out/16, 16·K] I16"},
      {{trellis({8, 16, 24})}, "m.trellis", "half-integer"},
      {{trellis({8, 16, 40})}, "m.trellis", "half-integer"},
      {{trellis({8, 16, 56})}, "m.trellis", "half-integer"},
      {{trellis({8, 16, 60})}, "m.trellis", "1 to 8 bits"},
      {{trellis({8, 16, 144})}, "m.trellis", "1 to 8 bits"},
      {{trellis({8, 16, 0})}, "m.trellis", "1 to 8 bits"},
      {{trellis({4, 16, 64})}, "m.trellis", "128×128"},
      {{trellis({8, 15, 64})}, "m.trellis", "128×128"},
      {{trellis({0, 16, 64})}, "m.trellis", "128×128"},
      {{without("m.suh")}, "m.trellis", "has no suh"},
      {{without("m.svh")}, "m.trellis", "has no svh"},
      {{halves("m.suh", 64)}, "m.suh", "is [64] F16; expected [128] F16"},
      {{halves("m.svh", 128)}, "m.svh", "expected [256] F16"},
      {{{"m.svh", "F32", {256}, std::string(1024, '\0')}}, "m.svh", "expected [256] F16"},
      {{i16("m.su", 8)}, "m.su", "beside suh"},
      {{i16("m.sv", 16)}, "m.sv", "beside svh"},
      {{without("m.suh"), i16("m.su", 16)}, "m.su", "expected [8] I16"},
      {{marker("m.mul1", kMul1)}, "m.mul1", "beside mcg"},
      {{{"m.mcg", "I32", {2}, bytes_of<int32_t>({kMcg, kMcg})}}, "m.mcg", "expected one I32"},
      {{{"m.mcg", "I32", {0}, ""}}, "m.mcg", "expected one I32"},
      {{{"m.mcg", "I16", {}, std::string(2, '\0')}}, "m.mcg", "expected one I32"},
      {{halves("m.bias", 128)}, "m.bias", "expected [256] F16"},
      {{halves("m.scale", 1)}, "m.scale", "obsolete"},
  };
  for (const Row& row : rows) {
    const auto collected = collect(changed_group(row.changes));
    ASSERT_EQ(collected->problems.size(), 1U) << row.tensor << ' ' << row.what;
    EXPECT_THAT(collected->problems[0],
                AllOf(HasSubstr("model.safetensors: tensor " + row.tensor + " "), HasSubstr(row.what)));
    EXPECT_TRUE(collected->groups.contains("m"));
  }
}

TEST(Exl3Group, WhatTensorsHoldIsCheckedWhenRead) {
  const std::vector<Row> rows = {
      {{halves("m.suh", 128, 0x7C00)}, "m.suh", "infinity or NaN"},
      {{halves("m.svh", 256, 0xFE00)}, "m.svh", "infinity or NaN"},
      {{marker("m.mcg", kMul1)}, "m.mcg", "holds 2212286765; expected 3417055213"},
      {{without("m.mcg"), marker("m.mul1", 1)}, "m.mul1", "expected 2212286765"},
      {{marker("m.tile_order", 0x70C1)}, "m.tile_order", "expected 28864"},
      {{{"m.bias", "F32", {256}, bytes_of(std::vector<float>(256, 1e6F))}}, "m.bias", "infinity or NaN in fp16"},
  };
  for (const Row& row : rows) {
    const auto collected = collect(changed_group(row.changes));
    EXPECT_THAT(collected->problems, IsEmpty()) << row.tensor;
    EXPECT_THAT(test::error_of([&] { collected->matrix(); }),
                AllOf(HasSubstr("model.safetensors: tensor " + row.tensor + " "), HasSubstr(row.what)));
  }
}

TEST(Exl3Group, OrphansAreReported) {
  for (const char* suffix : {".suh", ".svh", ".su", ".sv", ".mcg", ".mul1", ".tile_order"}) {
    const auto collected = collect({halves(std::string("x.up_proj") + suffix, 16)});
    EXPECT_THAT(collected->problems, ElementsAre(AllOf(HasSubstr(std::string("tensor x.up_proj") + suffix),
                                                       HasSubstr("x.up_proj.trellis"))));
  }
}

TEST(Exl3Group, AllProblemsOfAllGroupsAreReported) {
  std::vector<TestTensor> tensors = changed_group({without("m.suh"), without("m.svh")});
  tensors.push_back(trellis({8, 8, 24}, "n"));
  const auto collected = collect(tensors);
  EXPECT_EQ(collected->problems.size(), 3U);
}

TEST(Exl3Group, RankSlicedLayoutIsRefused) {
  for (const char* name : {"model.layers.3.mlp.experts.0.up_proj.rank0.trellis",
                           "model.layers.3.mlp.experts.shared_h.up_proj.rank12.suh"}) {
    const std::string message = test::error_of([&] { collect({halves(name, 16)}); });
    EXPECT_THAT(message, AllOf(HasSubstr(name), HasSubstr("rank-sliced"), HasSubstr("not supported")));
  }
  EXPECT_EQ(test::error_of([&] {
              collect({halves("a.rank.b", 16), halves("a.ranking0.b", 16), halves("rank1", 4)});
            }),
            "");
}

TEST(Exl3Group, TinyCheckpointHasItsGroups) {
  const Checkpoint checkpoint = Checkpoint::open(GLM53_TEST_DATA "/models/glm53-tiny");
  std::vector<std::string> problems;
  const auto groups = collect_exl3_groups(checkpoint, std::nullopt, problems);
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(groups.size(), 7U * 8 * 3);  // MoE layers 2..7 and the MTP layer, 8 experts, 3 matrices
  for (const auto& [name, matrix] : groups) {
    EXPECT_EQ(matrix.in, 256);
    EXPECT_EQ(matrix.out, 256);
    EXPECT_EQ(matrix.bits, 4);
    EXPECT_EQ(matrix.codebook, Exl3Codebook::kMcg);
  }
}

}  // namespace
}  // namespace glm53
