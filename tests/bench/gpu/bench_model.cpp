// Speed of the whole text model at the real geometry on one GPU, over dummy weights.
//
//   bench_model [--config DIR] [--experts-k K] [--dense bf16|fp8|q4] [--parts LIST]
//
// Parts (all of them if none is named): decode, steps, prefill, long, depth. Prints a table of each: ms a step, bytes
// over the copy rate, TFLOP/s over the mma.sync rate, both measured first in the same run. Times are the host's, from
// the call to the picked id, medians of several.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/synthetic_history.h"
#include "ceilings.h"
#include "checkpoint/config_json.h"
#include "comm/local_communicator.h"
#include "glm53/core/limits.h"
#include "model/checkpoint_inventory.h"
#include "model/dummy_weights.h"
#include "model/glm53_model.h"
#include "model/weights.h"

namespace glm53::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kChunk = 2048;
constexpr int kSlots = 8;
constexpr int64_t kContext = 1048576;

struct Options {
  std::string config = "configs/glm53-flash";
  int experts_k = 2;
  std::string dense = "bf16";
  std::string parts = "decode,steps,prefill,long,depth";

  bool has(const char* part) const {
    return ("," + parts + ",").find("," + std::string(part) + ",") != std::string::npos;
  }
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

int64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    long long kib = 0;
    if (std::sscanf(line.c_str(), "VmRSS: %lld kB", &kib) == 1) return kib * 1024;
  }
  return 0;
}

DenseFormat dense_format(const std::string& name) {
  if (name == "bf16") return DenseFormat::kBf16;
  if (name == "fp8") return DenseFormat::kFp8;
  if (name == "q4") return DenseFormat::kQ4;
  throw std::invalid_argument("--dense: " + name + " is not bf16, fp8 or q4");
}

/// One model and its sequences. Slot s owns an eighth of the pages, or all of them when it is used alone.
class Bench {
 public:
  Bench(const Options& options, const Ceilings& ceilings)
      : options_(options), ceilings_(ceilings), geometry_(load_geometry(options.config)) {
    const auto start = Clock::now();
    const int64_t free_before = cuda_free_memory(0);
    model_ = make_model();
    ids_.resize(131072);
    std::mt19937 random(7);
    for (int32_t& id : ids_) id = static_cast<int32_t>(random() % static_cast<uint32_t>(geometry_.vocab));
    pages_.resize(static_cast<size_t>(kContext / kPageTokens));
    std::iota(pages_.begin(), pages_.end(), 0);
    const MemoryPlan plan = model_->backend().plan_memory(model_->plan());
    std::printf(
        "K = %d experts, %s dense: ready in %.1f s, %.2f GiB taken, %.2f GiB planned (weights %.2f, state %.2f, "
        "pages %.2f, activations %.2f)\n",
        options.experts_k, options.dense.c_str(), seconds_since(start), gib(free_before - cuda_free_memory(0)),
        gib(plan.total()), gib(plan.weights), gib(plan.sequence_state), gib(plan.pages), gib(plan.activations));
  }

  void run() {
    if (options_.has("decode")) decode();
    if (options_.has("steps")) steps();
    if (options_.has("prefill")) prefill();
    if (options_.has("long")) long_prompt();
    if (options_.has("depth")) depth();
  }

 private:
  static double gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

  std::unique_ptr<Glm53Model> make_model();

  std::span<const int32_t> pages_of(int slot, int64_t tokens) const {
    const auto first = static_cast<size_t>(slot) * pages_.size() / kSlots;
    return std::span(pages_).subspan(first, static_cast<size_t>((tokens + kPageTokens - 1) / kPageTokens));
  }

  /// Runs `rows` more rows of each slot in one call; logits of all window rows, or of a prompt's last one.
  void call(std::span<const int> slots, int rows, SegmentKind kind) {
    std::vector<Segment> segments;
    std::vector<int32_t> ids;
    for (const int slot : slots) {
      const int64_t position = positions_[static_cast<size_t>(slot)];
      Segment segment;
      segment.slot = slot;
      segment.first_position = position;
      segment.first_row = static_cast<int>(ids.size());
      segment.rows = rows;
      segment.kind = kind;
      segment.pages = pages_of(slot, position + rows);
      segments.push_back(segment);
      for (int r = 0; r < rows; ++r) ids.push_back(ids_[static_cast<size_t>(position + r) % ids_.size()]);
      if (kind == SegmentKind::kPrompt) positions_[static_cast<size_t>(slot)] += rows;
    }
    std::vector<int32_t> logit_rows(kind == SegmentKind::kPrompt ? 1 : ids.size());
    std::iota(logit_rows.begin(), logit_rows.end(),
              kind == SegmentKind::kPrompt ? static_cast<int>(ids.size()) - 1 : 0);
    logit_rows_ = static_cast<int>(logit_rows.size());
    model_->forward({ids, segments, logit_rows});
  }

  /// Picks from all logit rows of the last call: what the host waits for.
  void pick(const SamplingParams& params) {
    std::vector<SampleRow> rows(static_cast<size_t>(logit_rows_));
    for (int i = 0; i < logit_rows_; ++i) {
      rows[static_cast<size_t>(i)].logits_row = i;
      rows[static_cast<size_t>(i)].position = positions_[0] + i;
      rows[static_cast<size_t>(i)].params = &params;
    }
    std::vector<SampledToken> picked(rows.size());
    model_->backend().sample(model_->logits(), rows, picked);
  }

  void prompt(int slot, int64_t tokens) {
    for (int64_t done = 0; done < tokens; done += kChunk) {
      call(std::array{slot}, static_cast<int>(std::min<int64_t>(kChunk, tokens - done)), SegmentKind::kPrompt);
    }
    pick(kGreedy);
  }

  void reset(int slot) {
    model_->backend().reset_sequence(slot);
    positions_[static_cast<size_t>(slot)] = 0;
  }

  /// Median seconds of a decode step of `rows` rows of each slot; all rows but the first are rejected.
  double step_seconds(std::span<const int> slots, int rows, const SamplingParams& params, int repeats) {
    std::vector<double> times;
    for (int i = 0; i < repeats + 3; ++i) {
      const auto start = Clock::now();
      call(slots, rows, SegmentKind::kWindow);
      pick(params);
      for (const int slot : slots) {
        model_->backend().commit(slot, 1);
        positions_[static_cast<size_t>(slot)] += 1;
      }
      if (i >= 3) times.push_back(seconds_since(start));
    }
    return median(std::move(times));
  }

  /// Spec 10 §6.2 and §6.3, uniform routing.
  double step_bytes(int sequences, int rows, int64_t context) const {
    const int64_t all = int64_t{sequences} * rows;
    const double distinct = 288.0 * (1.0 - std::pow(1.0 - 8.0 / 288.0, static_cast<double>(all)));
    const double experts = 42.0 * distinct * 25165824.0 * options_.experts_k / 8.0;
    const double dense = options_.dense == "bf16" ? 16.57e9 : options_.dense == "fp8" ? 9.09e9 : 5.3e9;
    const double latents = 11.0 * static_cast<double>(std::min<int64_t>(context, 2051)) * 528.0;
    const double keys = 11.0 * static_cast<double>(context) / 4.0 * 132.0;
    return dense + experts + sequences * 0.285e9 + static_cast<double>(all) * latents + sequences * keys;
  }

  /// Spec 10 §6.4 without the head: FLOPs of prompt rows [first, first + rows).
  static double prompt_flops(int64_t first, int64_t rows) {
    double flops = 1.2688e9;  // the head, for the last row
    for (int64_t t = first; t < first + rows; ++t) {
      const double keys = static_cast<double>(std::min<int64_t>(t + 1, 2051));
      const double pools = t + 1 > 2051 ? static_cast<double>((t + 1) / 4) : 0.0;
      flops += 2.0 * 16.106e9 + 11.0 * 131072.0 * keys + 11.0 * 32.0 * 128.0 * 2.0 * pools + 0.25e9;
    }
    return flops;
  }

  void print_step(const char* what, int sequences, int rows, int64_t context, double seconds) const {
    const double bytes = step_bytes(sequences, rows, context);
    std::printf("%-34s %8.3f ms  %6.2f GB  %5.2f x bytes / copy rate (%4.1f %%)\n", what, 1e3 * seconds, bytes * 1e-9,
                seconds * ceilings_.copy_bytes / bytes, 100.0 * bytes / ceilings_.copy_bytes / seconds);
  }

  void decode() {
    constexpr int64_t kDepth = 8192;
    const std::array<int, 4> slots = {0, 1, 2, 3};
    for (const int slot : slots) {
      reset(slot);
      prompt(slot, kDepth);
    }
    std::printf("\ndecode at %lld tokens of context\n", static_cast<long long>(kDepth));
    const std::span one = std::span(slots).first(1);
    for (const int rows : {1, 2, 4, 8, 16}) {
      const std::string name = "1 sequence, " + std::to_string(rows) + " rows, greedy";
      print_step(name.c_str(), 1, rows, kDepth, step_seconds(one, rows, kGreedy, 60));
    }
    print_step("4 sequences, 1 row, greedy", 4, 1, kDepth, step_seconds(slots, 1, kGreedy, 40));
    print_step("4 sequences, 8 rows, greedy", 4, 8, kDepth, step_seconds(slots, 8, kGreedy, 40));
    for (const int rows : {1, 8}) {
      const double greedy = step_seconds(one, rows, kGreedy, 60);
      const double sampled = step_seconds(one, rows, kSampled, 60);
      std::printf("sampled (T = 1, top_p 0.95, top_k 40), %d rows: %.3f ms, %.1f %% above greedy (%.3f ms)\n", rows,
                  1e3 * sampled, 100.0 * (sampled / greedy - 1.0), 1e3 * greedy);
    }
  }

  void steps() {
    const std::array<int, 4> slots = {0, 1, 2, 3};
    for (const int slot : slots) {
      reset(slot);
      prompt(slot, 2048);
    }
    step_seconds(slots, 8, kGreedy, 100);
    const int64_t device_before = cuda_free_memory(0);
    const int64_t host_before = resident_bytes();
    const auto start = Clock::now();
    step_seconds(slots, 8, kGreedy, 1997);
    std::printf(
        "\n2,000 steps of 4 sequences x 8 rows in %.1f s: device memory grew by %lld bytes, the process by %lld\n",
        seconds_since(start), static_cast<long long>(device_before - cuda_free_memory(0)),
        static_cast<long long>(resident_bytes() - host_before));
  }

  void print_prompt(const char* what, int64_t first, int64_t rows, double seconds) const {
    const double flops = prompt_flops(first, rows);
    std::printf("%-34s %8.1f ms  %6.0f tok/s  %5.0f TFLOP/s  %4.1f %% of mma.sync\n", what, 1e3 * seconds,
                static_cast<double>(rows) / seconds, flops / seconds * 1e-12,
                100.0 * flops / seconds / ceilings_.mma_flops);
  }

  void prefill() {
    std::printf("\nprefill\n");
    for (const int64_t tokens : {int64_t{2048}, int64_t{8192}}) {
      std::vector<double> times;
      for (int i = 0; i < 4; ++i) {
        reset(0);
        const auto start = Clock::now();
        prompt(0, tokens);
        if (i > 0) times.push_back(seconds_since(start));
      }
      print_prompt((std::to_string(tokens) + " tokens").c_str(), 0, tokens, median(std::move(times)));
    }
  }

  void long_prompt() {
    reset(0);
    const auto start = Clock::now();
    prompt(0, 131072);
    std::printf("\none long prompt\n");
    print_prompt("131072 tokens", 0, 131072, seconds_since(start));
    const std::array<int, 1> slot = {0};
    print_step("then 1 row", 1, 1, 131072, step_seconds(slot, 1, kGreedy, 30));
  }

  void depth() {
    std::printf("\nover caches of random rows\n");
    const std::array<int, 1> slot = {0};
    for (const int64_t tokens : {int64_t{8192}, int64_t{131072}, int64_t{524288}, int64_t{1046528}}) {
      std::vector<double> times;
      for (int i = 0; i < 4; ++i) {
        reset(0);
        fill_synthetic_history(model_->backend(), 0, tokens, 11);
        positions_[0] = tokens;
        const auto start = Clock::now();
        call(slot, std::min<int>(kChunk, static_cast<int>(kContext - tokens)), SegmentKind::kPrompt);
        pick(kGreedy);
        if (i > 0) times.push_back(seconds_since(start));
      }
      print_prompt((std::to_string(kChunk) + " rows at " + std::to_string(tokens)).c_str(), tokens, kChunk,
                   median(std::move(times)));
      reset(0);
      fill_synthetic_history(model_->backend(), 0, tokens, 11);
      positions_[0] = tokens;
      print_step(("1 row at " + std::to_string(tokens)).c_str(), 1, 1, tokens, step_seconds(slot, 1, kGreedy, 40));
    }
  }

  static inline const SamplingParams kGreedy{.temperature = 0.0F};
  static inline const SamplingParams kSampled{.temperature = 1.0F, .top_p = 0.95F, .top_k = 40, .seed = 3};

  const Options options_;
  const Ceilings ceilings_;
  const Geometry geometry_;
  std::unique_ptr<Glm53Model> model_;
  std::vector<int32_t> ids_;
  std::vector<int32_t> pages_;
  std::array<int64_t, kSlots> positions_{};
  int logit_rows_ = 0;
};

std::unique_ptr<Glm53Model> Bench::make_model() {
  CudaBackendOptions backend_options;
  backend_options.dense = dense_formats(dense_format(options_.dense));
  auto backend = make_cuda_backend(geometry_, backend_options);
  DummyOptions dummy;
  dummy.experts_k = options_.experts_k;
  const CheckpointInventory inventory(geometry_, dummy);
  ModelWeights weights = load_weights(inventory, geometry_, {}, *backend, {});
  const CachePlan plan{.sequences = kSlots, .pages = kContext / kPageTokens, .max_rows = kChunk, .max_logit_rows = 64};
  return std::make_unique<Glm53Model>(geometry_, std::move(backend), std::make_unique<LocalCommunicator>(),
                                      std::move(weights), plan);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--config") {
      options.config = argv[i + 1];
    } else if (name == "--experts-k") {
      options.experts_k = std::atoi(argv[i + 1]);
    } else if (name == "--dense") {
      options.dense = argv[i + 1];
    } else if (name == "--parts") {
      options.parts = argv[i + 1];
    } else {
      throw std::invalid_argument("unknown option " + name);
    }
  }
  return options;
}

}  // namespace
}  // namespace glm53::bench

int main(int argc, char** argv) {
  try {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    const auto options = glm53::bench::parse(argc, argv);
    glm53::bench::Bench(options, glm53::bench::print_ceilings()).run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_model: %s\n", error.what());
    return 1;
  }
}
