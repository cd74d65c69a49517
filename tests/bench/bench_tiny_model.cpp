// Speed of the tiny checkpoint on the CPU backend: loading, prefill and decode. Prints medians; scripts/bench_tiny.sh
// builds and runs it. Arguments: checkpoint directory [threads].
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "checkpoint/config_json.h"
#include "comm/local_communicator.h"
#include "glm53/core/limits.h"
#include "model/glm53_model.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  using namespace glm53;
  constexpr int kRuns = 7;
  constexpr int kPromptTokens = 2000;
  constexpr int kShortContext = 64;
  constexpr int kDecodeTokens = 128;
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s CHECKPOINT_DIRECTORY [THREADS]\n", argv[0]);
    return 2;
  }
  const int threads = argc > 2 ? std::atoi(argv[2]) : 0;

  std::vector<double> load_seconds;
  std::unique_ptr<Glm53Model> model;
  for (int run = 0; run < 3; ++run) {
    model.reset();
    const auto start = Clock::now();
    const Geometry geometry = load_geometry(argv[1]);
    const Checkpoint checkpoint = Checkpoint::open(argv[1]);
    const CheckpointInventory inventory(checkpoint, geometry);
    auto backend = make_cpu_backend(geometry, {.threads = threads});
    ModelWeights weights = load_weights(inventory, geometry, {}, *backend, {});
    const CachePlan plan{.sequences = 1, .pages = 128, .max_rows = 2048, .max_logit_rows = 1};
    model = std::make_unique<Glm53Model>(geometry, std::move(backend), std::make_unique<LocalCommunicator>(),
                                         std::move(weights), plan);
    load_seconds.push_back(seconds_since(start));
  }

  std::vector<int32_t> pages(128);
  std::iota(pages.begin(), pages.end(), 0);
  std::vector<int32_t> ids(kPromptTokens);
  for (int i = 0; i < kPromptTokens; ++i) ids[static_cast<size_t>(i)] = 300 + (i * 7919) % 3000;

  int64_t position = 0;
  const auto forward = [&](int rows, SegmentKind kind) {
    Segment segment{.slot = 0, .first_position = position, .first_row = 0, .rows = rows, .kind = kind, .pages = pages};
    const int32_t last = rows - 1;
    model->forward({std::span(ids).first(static_cast<size_t>(rows)), {&segment, 1}, {&last, 1}});
    if (kind == SegmentKind::kWindow) model->backend().commit(0, rows);
    position += rows;
  };
  const auto reset = [&] {
    model->backend().reset_sequence(0);
    position = 0;
  };

  std::vector<double> prefill;
  std::vector<double> decode;
  for (int run = 0; run < kRuns; ++run) {
    reset();
    auto start = Clock::now();
    forward(kPromptTokens, SegmentKind::kPrompt);
    prefill.push_back(kPromptTokens / seconds_since(start));

    reset();
    forward(kShortContext, SegmentKind::kPrompt);
    SamplingParams greedy;
    greedy.temperature = 0.0F;
    start = Clock::now();
    for (int i = 0; i < kDecodeTokens; ++i) {
      forward(1, SegmentKind::kWindow);
      SampleRow row;
      row.position = position;
      row.params = &greedy;
      SampledToken token;
      model->backend().sample(model->logits(), {&row, 1}, {&token, 1});
    }
    decode.push_back(kDecodeTokens / seconds_since(start));
  }
  std::printf("load                       %8.3f s      (median of 3)\n", median(load_seconds));
  std::printf("prefill, %d tokens       %8.0f tok/s  (median of %d)\n", kPromptTokens, median(prefill), kRuns);
  std::printf("decode, context %d..%d    %8.0f tok/s  (median of %d)\n", kShortContext, kShortContext + kDecodeTokens,
              median(decode), kRuns);
  return 0;
}
