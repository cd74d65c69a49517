#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/gpu/kda_layer.h"

namespace glm53::kernels::kda_test {
namespace {

#define SKIP_WITHOUT_DEVICE() \
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device"

// ------------------------------------------------------------------------------------------------ windows

class KdaWindowHeads : public ::testing::TestWithParam<int> {};

TEST_P(KdaWindowHeads, MatchTheRecurrence) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.heads = GetParam(), .seed = 11};
  Layer layer(model, 3);
  std::vector<Oracle> oracles(3, Oracle(model, layer.weights));
  std::vector<int64_t> positions(3, 0);
  const int sizes[][3] = {{1, 16, 3}, {1, 1, 8}, {2, 5, 16}, {16, 1, 7}, {4, 9, 1}};
  for (const auto& rows : sizes) {
    std::vector<Part> parts;
    for (int i = 0; i < 3; ++i) parts.push_back({i, i, positions[static_cast<size_t>(i)], rows[i]});
    const auto results = layer.run(parts, true, 2, 1);
    for (size_t i = 0; i < 3; ++i) {
      const auto expected = expected_rows(oracles[i], model, static_cast<int>(i), positions[i], rows[i]);
      EXPECT_LE(relative_error(results[i], expected), 4e-3) << "sequence " << i << " at " << positions[i];
      positions[i] += rows[i];
      // Rounded q, k and v may differ by one bf16 step from the oracle's; StateFollowsTheLog is the sharp test of S.
      EXPECT_LE(relative_error(layer.settled(static_cast<int>(i)), oracles[i].state()), 1e-3);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Heads, KdaWindowHeads, ::testing::Values(2, 16, 64));

/// Runs the logged rows through fp64 from the state before them.
std::vector<double> replay_log(const Layer& layer, int slot, const std::vector<float>& before, int rows) {
  std::vector<double> state(before.begin(), before.end());
  const auto key = layer.log_key(slot);
  const auto value = layer.log_value(slot);
  const auto decay = layer.log_decay(slot);
  const auto beta = layer.log_beta(slot);
  const int w = layer.model.width();
  for (int r = 0; r < rows; ++r) {
    for (int h = 0; h < layer.model.heads; ++h) {
      double k[kD];
      double v[kD];
      double g[kD];
      for (int c = 0; c < kD; ++c) {
        const auto at = static_cast<size_t>(r * w + h * kD + c);
        k[c] = from_bf16(key[at]);
        v[c] = from_bf16(value[at]);
        g[c] = decay[at];
      }
      Oracle::recur(&state[static_cast<size_t>(h) * kD * kD], nullptr, k, v, g,
                    beta[static_cast<size_t>(r * layer.model.heads + h)], nullptr);
    }
  }
  return state;
}

TEST(KdaWindow, StateFollowsTheLog) {
  SKIP_WITHOUT_DEVICE();
  for (const float gate_shift : {0.0F, 40.0F, -40.0F}) {
    for (const float beta_shift : {0.0F, 60.0F, -200.0F}) {
      const Model model{.gate_shift = gate_shift, .beta_shift = beta_shift, .seed = 5};
      Layer layer(model, 1);
      int64_t position = 0;
      for (const int rows : {16, 1, 1, 7, 16}) {
        layer.window(0, 0, position, rows);
        position += rows;
        const auto expected = replay_log(layer, 0, layer.raw_state(0), rows);
        EXPECT_LE(relative_error(layer.settled(0), expected), 1e-5) << gate_shift << " " << beta_shift;
      }
      const float g = layer.log_decay(0)[0];
      const float beta = layer.log_beta(0)[0];
      if (gate_shift > 0.0F) {
        EXPECT_LE(g, -4.99F);
      }
      if (gate_shift < 0.0F) {
        EXPECT_GE(g, -1e-4F);
      }
      if (beta_shift > 0.0F) {
        EXPECT_EQ(beta, 1.0F);
      }
      if (beta_shift < 0.0F) {
        EXPECT_EQ(beta, 0.0F);
      }
    }
  }
}

TEST(KdaWindow, LongDecodeDoesNotDrift) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.heads = 1, .gate_shift = -8.0F, .seed = 21};
  Layer layer(model, 1);
  std::vector<double> state(static_cast<size_t>(kD) * kD);
  for (int64_t position = 0; position < 4096; position += 16) {
    layer.window(0, 0, position, 16);
    // The log holds what the device rounded; fp64 runs on from its own state.
    const auto key = layer.log_key(0);
    const auto value = layer.log_value(0);
    const auto decay = layer.log_decay(0);
    const auto beta = layer.log_beta(0);
    for (size_t r = 0; r < 16; ++r) {
      double k[kD];
      double v[kD];
      double g[kD];
      for (size_t c = 0; c < kD; ++c) {
        k[c] = from_bf16(key[r * kD + c]);
        v[c] = from_bf16(value[r * kD + c]);
        g[c] = decay[r * kD + c];
      }
      Oracle::recur(state.data(), nullptr, k, v, g, beta[r], nullptr);
    }
  }
  EXPECT_LE(relative_error(layer.settled(0), state), 1e-4);
}

TEST(KdaWindow, TogetherOrOneByOneGivesTheSameBits) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.heads = 3, .seed = 2};
  Layer layer(model, 4);
  std::mt19937 random(4);
  const int total = 64;
  std::vector<uint16_t> serial;
  for (int i = 0; i < total; ++i) {
    const auto y = layer.window(0, 9, i, 1);
    serial.insert(serial.end(), y.begin(), y.end());
  }
  for (int slot = 1; slot < 4; ++slot) {
    std::vector<uint16_t> cut;
    for (int done = 0; done < total;) {
      const int rows = slot == 1 ? 16 : std::min(total - done, static_cast<int>(random() % 16 + 1));
      const auto y = layer.window(slot, 9, done, rows);
      cut.insert(cut.end(), y.begin(), y.end());
      done += rows;
    }
    EXPECT_EQ(cut, serial);
    EXPECT_TRUE(same_bits(layer.settled(slot), layer.settled(0)));
    EXPECT_EQ(layer.ring(slot), layer.ring(0));
  }
}

TEST(KdaWindow, RejectedRowsLeaveNoTrace) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.seed = 31};
  std::mt19937 random(8);
  Layer layer(model, 2);
  int64_t position = 0;
  for (int round = 0; round < 60; ++round) {
    const int rows = static_cast<int>(random() % 16) + 1;
    const int kept = static_cast<int>(random() % static_cast<uint32_t>(rows + 1));
    // Rejected rows are another sequence's: what a wrong draft would have been.
    const auto speculated = layer.run({{0, 1, position, rows}}, true)[0];
    layer.commit(0, 0);
    EXPECT_EQ(speculated, layer.window(0, 1, position, rows));
    layer.commit(0, 0);
    const auto y = layer.window(0, 0, position, rows);
    layer.commit(0, rows);
    layer.commit(0, kept);
    for (int i = 0; i < kept; ++i) {
      const auto serial = layer.window(1, 0, position + i, 1);
      const auto w = static_cast<ptrdiff_t>(model.width());
      EXPECT_EQ(serial, std::vector<uint16_t>(y.begin() + i * w, y.begin() + (i + 1) * w));
    }
    position += kept;
    EXPECT_TRUE(same_bits(layer.settled(0), layer.settled(1))) << "round " << round;
  }
  EXPECT_EQ(layer.slot(0).state_position + layer.slot(0).kept, position);
}

TEST(KdaWindow, CommitStaysWithinTheLog) {
  SKIP_WITHOUT_DEVICE();
  Layer layer(Model{}, 1);
  layer.commit(0, 3);
  EXPECT_EQ(layer.slot(0).kept, 0);
  layer.window(0, 0, 0, 5);
  EXPECT_EQ(layer.slot(0).kept, 5);
  layer.commit(0, 9);
  EXPECT_EQ(layer.slot(0).kept, 5);
  layer.commit(0, -1);
  EXPECT_EQ(layer.slot(0).kept, 0);
  EXPECT_TRUE(same_bits(layer.settled(0), layer.raw_state(0)));
}

TEST(KdaWindow, OtherSequencesDoNotMatter) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.heads = 5, .seed = 3};
  Layer alone(model, 8);
  Layer together(model, 8);
  for (int step = 0; step < 4; ++step) {
    std::vector<Part> parts;
    for (int i = 0; i < 8; ++i) {
      const int slot = (i * 3 + step) % 8;
      parts.push_back({slot, slot, step * 7, 7});
    }
    const auto results = together.run(parts, true, step, 8 - step);
    for (size_t i = 0; i < parts.size(); ++i) EXPECT_EQ(alone.run({parts[i]}, true)[0], results[i]);
  }
  for (int slot = 0; slot < 8; ++slot) {
    EXPECT_TRUE(same_bits(alone.settled(slot), together.settled(slot)));
    EXPECT_EQ(alone.log_key(slot), together.log_key(slot));
  }
}

TEST(KdaWindow, SettlingIsWhatTheNextWindowWouldDo) {
  SKIP_WITHOUT_DEVICE();
  Layer layer(Model{.seed = 14}, 2);
  for (int slot = 0; slot < 2; ++slot) layer.window(slot, 0, 0, 12);
  layer.commit(0, 10);
  layer.commit(1, 10);
  const auto copy = layer.settled(0);
  layer.settle(0);
  EXPECT_TRUE(same_bits(layer.raw_state(0), copy));
  EXPECT_EQ(layer.slot(0).state_position, 10);
  EXPECT_EQ(layer.slot(0).logged, 0);
  EXPECT_EQ(layer.window(0, 0, 10, 4), layer.window(1, 0, 10, 4));
  EXPECT_TRUE(same_bits(layer.raw_state(0), layer.raw_state(1)));
}

TEST(KdaWindow, GraphsReplayWithNewTables) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.seed = 15};
  Layer eager(model, 2);
  Layer graphed(model, 2);
  Layer::Call call = graphed.make_call({{0, 0, 0, 4}, {1, 1, 0, 4}}, 0, 0);
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreate(&stream), "cudaStreamCreate");
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  kda_window(call.rows, graphed.parameters, graphed.state, call.tables, stream);
  kda_advance(graphed.slot_table(), call.tables, true, stream);
  check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
  cudaGraphExec_t replay = nullptr;
  check_cuda(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
  int64_t position = 0;
  for (const int kept : {4, 0, 2, 3}) {
    const std::vector<Part> parts = {{0, 0, position, 4}, {1, 1, position, 4}};
    const Layer::Call fresh = graphed.make_call(parts, 0, 0);
    call.projected.write(fresh.projected.read());
    call.forget.write(fresh.forget.read());
    call.gate.write(fresh.gate.read());
    call.segments.write(fresh.segments.read());
    check_cuda(cudaDeviceSynchronize(), "upload");
    check_cuda(cudaGraphLaunch(replay, stream), "replay");
    check_cuda(cudaStreamSynchronize(stream), "replay");
    const auto expected = eager.run(parts, true);
    std::vector<uint16_t> all = expected[0];
    all.insert(all.end(), expected[1].begin(), expected[1].end());
    EXPECT_EQ(call.out.read(), all);
    for (int slot = 0; slot < 2; ++slot) {
      eager.commit(slot, kept);
      graphed.commit(slot, kept);
    }
    position += kept;
  }
  check_cuda(cudaGraphExecDestroy(replay), "destroy");
  check_cuda(cudaGraphDestroy(graph), "destroy");
  check_cuda(cudaStreamDestroy(stream), "destroy");
}

// ------------------------------------------------------------------------------------------------ prompts

void expect_prompt_close(const Model& model, int64_t rows, double out_tolerance = 5e-3, double state_tolerance = 2e-3) {
  Layer layer(model, 1);
  Oracle oracle(model, layer.weights);
  const auto y = layer.prompt(0, 0, 0, static_cast<int>(rows));
  const auto expected = expected_rows(oracle, model, 0, 0, static_cast<int>(rows));
  const double out_error = relative_error(y, expected);
  const double state_error = relative_error(layer.settled(0), oracle.state());
  EXPECT_LE(out_error, out_tolerance) << rows << " rows";
  EXPECT_LE(state_error, state_tolerance) << rows << " rows";
  ::testing::Test::RecordProperty("errors", std::to_string(out_error) + " " + std::to_string(state_error));
  EXPECT_EQ(layer.slot(0).state_position, rows / 16 * 16);
  EXPECT_EQ(layer.slot(0).logged, rows % 16);
}

TEST(KdaPrompt, MatchesTheRecurrence) {
  SKIP_WITHOUT_DEVICE();
  for (const int rows : {1, 15, 16, 17, 63, 64, 65, 2048}) expect_prompt_close(Model{.seed = 6}, rows);
  for (const int heads : {16, 64}) expect_prompt_close(Model{.heads = heads, .seed = 7}, 77);
}

TEST(KdaPrompt, HoldsAtTheExtremes) {
  SKIP_WITHOUT_DEVICE();
  for (const float gate_shift : {-40.0F, 0.0F, 40.0F}) {
    for (const float beta_shift : {-200.0F, 0.0F, 60.0F}) {
      for (const bool identical : {false, true}) {
        SCOPED_TRACE(::testing::Message() << gate_shift << " " << beta_shift << " " << identical);
        const Model model{.gate_shift = gate_shift, .beta_shift = beta_shift, .identical_keys = identical, .seed = 12};
        expect_prompt_close(model, 200);
      }
    }
  }
  // Channels of one head at both ends of the gate.
  expect_prompt_close(Model{.gate_spread = 60.0F, .seed = 13}, 200);
}

TEST(KdaPrompt, LongPromptDoesNotDrift) {
  SKIP_WITHOUT_DEVICE();
  expect_prompt_close(Model{.heads = 1, .gate_shift = -6.0F, .seed = 16}, 16384);
}

TEST(KdaPrompt, CutsDoNotChangeBits) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.heads = 3, .seed = 17};
  const int total = 150;
  std::mt19937 random(99);
  Layer layer(model, 5);
  const auto whole = layer.prompt(0, 4, 0, total);
  for (int slot = 1; slot < 5; ++slot) {
    std::vector<uint16_t> cut;
    for (int done = 0; done < total;) {
      const int most = slot == 1 ? 1 : slot == 2 ? 5 : slot == 3 ? 20 : 70;
      const int rows = std::min(total - done, static_cast<int>(random() % static_cast<uint32_t>(most)) + 1);
      const auto y = layer.prompt(slot, 4, done, rows);
      cut.insert(cut.end(), y.begin(), y.end());
      done += rows;
    }
    EXPECT_EQ(cut, whole) << "slot " << slot;
    EXPECT_TRUE(same_bits(layer.raw_state(slot), layer.raw_state(0)));
    EXPECT_EQ(layer.ring(slot), layer.ring(0));
    const size_t logged = static_cast<size_t>(total % 16 * model.width());
    const auto head_of = [logged](auto values) {
      return decltype(values)(values.begin(), values.begin() + static_cast<ptrdiff_t>(logged));
    };
    EXPECT_EQ(head_of(layer.log_key(slot)), head_of(layer.log_key(0)));
    EXPECT_EQ(head_of(layer.log_value(slot)), head_of(layer.log_value(0)));
    EXPECT_TRUE(same_bits(head_of(layer.log_decay(slot)), head_of(layer.log_decay(0))));
    // Decoding goes on alike.
    EXPECT_TRUE(same_bits(layer.settled(slot), layer.settled(0)));
  }
  const auto next = layer.window(0, 4, total, 6);
  for (int slot = 1; slot < 5; ++slot) EXPECT_EQ(layer.window(slot, 4, total, 6), next);
}

TEST(KdaPrompt, OtherSequencesDoNotMatter) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.heads = 4, .seed = 18};
  Layer alone(model, 4);
  Layer together(model, 4);
  const int sizes[][4] = {{5, 40, 16, 1}, {27, 1, 33, 16}};
  std::vector<int64_t> positions(4, 0);
  for (const auto& rows : sizes) {
    std::vector<Part> parts;
    for (int i = 0; i < 4; ++i) parts.push_back({3 - i, i, positions[static_cast<size_t>(i)], rows[i]});
    const auto results = together.run(parts, false, 3, 2);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(alone.run({parts[i]}, false)[0], results[i]);
      positions[i] += rows[i];
    }
  }
  for (int slot = 0; slot < 4; ++slot) EXPECT_TRUE(same_bits(alone.settled(slot), together.settled(slot)));
}

TEST(KdaPrompt, FollowsDecodedRows) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.seed = 19};
  Layer layer(model, 3);
  Oracle oracle(model, layer.weights);
  std::vector<std::vector<uint16_t>> results(3);
  for (int slot = 0; slot < 3; ++slot) {
    layer.prompt(slot, 0, 0, 20);
    layer.window(slot, 0, 20, 8);
    layer.commit(slot, 5);
    layer.window(slot, 0, 25, 16);
    layer.commit(slot, 2);
  }
  expected_rows(oracle, model, 0, 0, 27);
  for (int slot = 0; slot < 3; ++slot) EXPECT_LE(relative_error(layer.settled(slot), oracle.state()), 2e-3);
  // Position 27: the first sub-chunk has 5 rows.
  results[0] = layer.prompt(0, 0, 27, 60);
  for (int done = 0; done < 60; done += 3) {
    const auto y = layer.prompt(1, 0, 27 + done, 3);
    results[1].insert(results[1].end(), y.begin(), y.end());
  }
  layer.settle(2);
  results[2] = layer.prompt(2, 0, 27, 60);
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
  EXPECT_LE(relative_error(results[0], expected_rows(oracle, model, 0, 27, 60)), 5e-3);
  EXPECT_EQ(layer.slot(0).state_position, 80);
  EXPECT_EQ(layer.slot(0).logged, 7);
  for (int slot = 1; slot < 3; ++slot) EXPECT_TRUE(same_bits(layer.settled(slot), layer.settled(0)));
  EXPECT_LE(relative_error(layer.settled(0), oracle.state()), 2e-3);
}

TEST(KdaPrompt, ShortPromptAfterDecodedRowsStaysInTheLog) {
  SKIP_WITHOUT_DEVICE();
  Layer layer(Model{.seed = 20}, 1);
  layer.window(0, 0, 0, 3);
  layer.prompt(0, 0, 3, 4);
  EXPECT_EQ(layer.slot(0).state_position, 3);
  EXPECT_EQ(layer.slot(0).logged, 4);
  layer.prompt(0, 0, 7, 9);
  EXPECT_EQ(layer.slot(0).state_position, 16);
  EXPECT_EQ(layer.slot(0).logged, 0);
}

TEST(KdaReset, ReusedSlotsStartEmpty) {
  SKIP_WITHOUT_DEVICE();
  const Model model{.seed = 22};
  Layer layer(model, 2);
  layer.prompt(0, 1, 0, 37);
  layer.window(0, 1, 37, 16);
  layer.reset({0});
  const KdaSlot slot = layer.slot(0);
  EXPECT_EQ(slot.state_position + slot.logged + slot.kept + slot.log_kind, 0);
  EXPECT_EQ(layer.window(0, 0, 0, 9), layer.window(1, 0, 0, 9));
  layer.reset({0, 1});
  EXPECT_EQ(layer.prompt(0, 0, 0, 19), layer.prompt(1, 0, 0, 19));
}

TEST(Kda, RefusesBadSizes) {
  KdaLayerState layer;
  layer.heads = 2;
  KdaRows rows;
  rows.projected_stride = 3 * 256 + 8;
  KdaParameters parameters;
  const BatchTables tables;
  EXPECT_NO_THROW(kda_window(rows, parameters, layer, tables, nullptr));
  rows.projected_stride = 3 * 256 + 4;
  EXPECT_THROW(kda_window(rows, parameters, layer, tables, nullptr), std::invalid_argument);
  rows.projected_stride = 3 * 256;
  EXPECT_THROW(kda_prompt(rows, parameters, layer, tables, nullptr), std::invalid_argument);
  rows.projected_stride = 3 * 256 + 8;
  for (const float bound : {0.0F, 1.0F, -6.0F, NAN}) {
    parameters.lower_bound = bound;
    EXPECT_THROW(kda_prompt(rows, parameters, layer, tables, nullptr), std::invalid_argument);
  }
  parameters.lower_bound = -5.0F;
  layer.heads = 0;
  EXPECT_THROW(kda_window(rows, parameters, layer, tables, nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace glm53::kernels::kda_test
