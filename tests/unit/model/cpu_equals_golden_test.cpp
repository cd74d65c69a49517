// Gate cpu_equals_golden: every text value of tests/data/golden (see its README for the tolerances).
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "tiny_model.h"

namespace glm53::test {
namespace {

constexpr double kLogitTolerance = 2e-4;
constexpr float kArgmaxMargin = 4e-4F;
constexpr double kNllTolerance = 1e-5;
constexpr double kModuleTolerance = 2e-5;     // of the tensor's largest value
constexpr double kAttentionTolerance = 6e-5;  // layer3.self_attn: the reference's own fp32 scores are 1.7e-5 off

double negative_log_likelihood(std::span<const float> logits, int32_t id) {
  double largest = -INFINITY;
  for (float value : logits) largest = std::max(largest, static_cast<double>(value));
  double sum = 0.0;
  for (float value : logits) sum += std::exp(value - largest);
  return largest + std::log(sum) - logits[static_cast<size_t>(id)];
}

class CpuEqualsGolden : public testing::TestWithParam<std::string> {};

TEST_P(CpuEqualsGolden, Text) {
  const GoldenFile golden("text.safetensors");
  const auto prompts = golden_json("text.json");
  const auto prompt = *std::ranges::find_if(prompts, [&](const auto& p) { return p.at("name") == GetParam(); });
  const auto ids = prompt.at("ids").template get<std::vector<int32_t>>();
  const auto expected_argmax = prompt.at("argmax").template get<std::vector<int32_t>>();
  const auto greedy = prompt.at("greedy").template get<std::vector<int32_t>>();

  TinyModel tiny(2);
  const auto logits = tiny.prompt(ids);

  const std::vector<float> last = golden.floats(GetParam() + ".logits_last");
  const size_t vocab = logits.front().size();
  const size_t rows = last.size() / vocab;
  for (size_t i = 0; i < rows; ++i) {
    const Difference d = difference(logits[ids.size() - rows + i], std::span(last).subspan(i * vocab, vocab));
    EXPECT_LE(d.largest, kLogitTolerance) << "logits_last row " << i;
  }
  double nll = 0.0;
  for (size_t t = 0; t < ids.size(); ++t) {
    if (top_margin(logits[t]) > kArgmaxMargin) {
      EXPECT_EQ(argmax(logits[t]), expected_argmax[t]) << "position " << t;
    }
    if (t + 1 < ids.size()) nll += negative_log_likelihood(logits[t], ids[t + 1]);
  }
  if (!prompt.at("mean_nll").is_null()) {
    EXPECT_NEAR(nll / static_cast<double>(ids.size() - 1), prompt.at("mean_nll").template get<double>(), kNllTolerance);
  }

  int32_t next = argmax(logits.back());
  for (size_t i = 0; i < greedy.size(); ++i) {
    ASSERT_EQ(next, greedy[i]) << "greedy token " << i;
    const auto step = tiny.window({next});
    tiny.commit(1);
    next = argmax(step.front());
  }
}

INSTANTIATE_TEST_SUITE_P(Prompts, CpuEqualsGolden,
                         testing::Values("count", "story", "tool", "tool_result", "json", "multi", "code", "needle_mid",
                                         "needle_long", "one_token", "raw"),
                         [](const auto& param) { return param.param; });

/// Collects what the backend records.
class Recorder final : public TraceSink {
 public:
  void record(std::string_view name, std::span<const float> values, int) override {
    tensors[std::string(name)] = {values.begin(), values.end()};
  }
  void record_selection(int layer, int row, std::span<const int32_t> positions) override {
    selections[{layer, row}] = {positions.begin(), positions.end()};
  }
  void record_probabilities(int layer, int row, int head, std::span<const int32_t> positions,
                            std::span<const float> values) override {
    auto& row_values = probabilities[{layer, row, head}];
    for (size_t i = 0; i < positions.size(); ++i) row_values[positions[i]] = values[i];
  }

  std::map<std::string, std::vector<float>> tensors;
  std::map<std::pair<int, int>, std::vector<int32_t>> selections;
  std::map<std::tuple<int, int, int>, std::map<int32_t, float>> probabilities;
};

std::set<int32_t> golden_selection(std::span<const int32_t> line) {
  std::set<int32_t> positions(line.begin(), line.end());
  positions.erase(-1);
  return positions;
}

TEST(CpuEqualsGoldenLayers, EveryModule) {
  const GoldenFile golden("layers.safetensors");
  const std::vector<int32_t> ids = golden.ints("ids");
  const int rows = static_cast<int>(ids.size());
  TinyModel tiny;
  Recorder recorder;
  tiny.backend().set_trace(&recorder);
  const auto logits = tiny.prompt(ids);
  tiny.backend().set_trace(nullptr);

  std::vector<std::string> names;
  for (int i = 0; i < 8; ++i) names.push_back("layer" + std::to_string(i) + ".out0");
  for (const char* layer : {"layer0", "layer2", "layer3"}) {
    for (const char* name : {".attn_hc.in", ".attn_hc.out0", ".attn_hc.out1", ".attn_hc.out2", ".ffn_hc.in",
                             ".ffn_hc.out0", ".ffn_hc.out1", ".ffn_hc.out2", ".input_layernorm.in",
                             ".input_layernorm.out0", ".self_attn.in", ".self_attn.out0", ".mlp.in", ".mlp.out0"}) {
      names.push_back(std::string(layer) + name);
    }
  }
  for (const char* name : {"layer0.forget_gate.in", "layer0.forget_gate.out0", "layer2.router.in", "layer2.router.out0",
                           "layer2.shared_experts.in", "layer2.shared_experts.out0"}) {
    names.emplace_back(name);
  }
  for (const std::string& name : names) {
    ASSERT_TRUE(golden.has(name)) << name;
    ASSERT_TRUE(recorder.tensors.contains(name)) << name;
    const double tolerance = name == "layer3.self_attn.out0" ? kAttentionTolerance : kModuleTolerance;
    EXPECT_LE(difference(recorder.tensors[name], golden.floats(name)).relative(), tolerance) << name;
  }

  // Router choices: as sets with their weights.
  const auto weights = golden.floats("layer2.router.out1");
  const auto experts = golden.ints("layer2.router.out2");
  for (int r = 0; r < rows; ++r) {
    std::map<int, float> expected;
    std::map<int, float> actual;
    for (int slot = 0; slot < 2; ++slot) {
      expected[experts[2 * r + slot]] = weights[2 * r + slot];
      actual[static_cast<int>(recorder.tensors["layer2.router.out2"][2 * r + slot])] =
          recorder.tensors["layer2.router.out1"][2 * r + slot];
    }
    for (const auto& [expert, weight] : expected) {
      ASSERT_TRUE(actual.contains(expert)) << "row " << r << " expert " << expert;
      EXPECT_NEAR(actual[expert], weight, 2.5 * kModuleTolerance) << "row " << r;
    }
  }

  // Attention of layer 3: selections as sets, probabilities with exact zeros beyond them.
  const auto selected = golden.ints("layer3.indexer.out0");
  const auto probabilities = golden.floats("layer3.self_attn.out1");
  const size_t width = selected.size() / static_cast<size_t>(rows);
  for (int r = 0; r < rows; ++r) {
    const auto& actual = recorder.selections.at({3, r});
    EXPECT_EQ(std::set<int32_t>(actual.begin(), actual.end()),
              golden_selection(std::span(selected).subspan(r * width, width)))
        << "row " << r;
    for (int head = 0; head < 2; ++head) {
      auto& row_values = recorder.probabilities.at({3, r, head});
      for (int key = 0; key < rows; ++key) {
        const float expected = probabilities[static_cast<size_t>((head * rows + r) * rows + key)];
        if (!row_values.contains(key)) {
          EXPECT_EQ(expected, 0.0F) << "row " << r << " key " << key;
        } else {
          EXPECT_NEAR(row_values[key], expected, kAttentionTolerance) << "row " << r << " key " << key;
        }
      }
    }
  }

  // States after the call. Golden conv rows are [channel][4], oldest first, and the oldest is never read.
  EXPECT_LE(difference(tiny.backend().read_kda_state(0, 0), golden.floats("layer0.kda_state")).relative(),
            kModuleTolerance);
  const std::vector<float> conv = golden.floats("layer0.conv_state");
  const size_t channels = conv.size() / 4;
  std::vector<float> newest(3 * channels);
  for (size_t c = 0; c < channels; ++c) {
    for (size_t j = 0; j < 3; ++j) newest[j * channels + c] = conv[4 * c + j + 1];
  }
  EXPECT_LE(difference(tiny.backend().read_conv_state(0, 0), newest).relative(), kModuleTolerance);

  const std::vector<float> last4 = golden.floats("logits_last4");
  const size_t vocab = logits.front().size();
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_LE(difference(logits[ids.size() - 4 + i], std::span(last4).subspan(i * vocab, vocab)).largest,
              kLogitTolerance);
  }
}

TEST(CpuEqualsGoldenSelection, SparseRows) {
  const GoldenFile golden("sparse_selection.safetensors");
  const std::vector<int32_t> rows = golden.ints("rows");
  TinyModel tiny;
  Recorder recorder;
  tiny.backend().set_trace(&recorder);
  tiny.prompt(golden.ints("ids"));
  tiny.backend().set_trace(nullptr);
  for (const int layer : {3, 7}) {
    const std::vector<int32_t> selected = golden.ints("layer" + std::to_string(layer) + ".selected");
    const size_t width = selected.size() / rows.size();
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto& actual = recorder.selections.at({layer, rows[i]});
      EXPECT_EQ(std::set<int32_t>(actual.begin(), actual.end()),
                golden_selection(std::span(selected).subspan(i * width, width)))
          << "layer " << layer << " query " << rows[i];
    }
  }
}

}  // namespace
}  // namespace glm53::test
