#include "engine/engine_metrics.h"

#include <algorithm>

namespace glm53::engine {
namespace {

using Clock = RequestTimes::Clock;

double seconds(Clock::duration span) { return std::chrono::duration<double>(span).count(); }

// Bounds as dashboards made for vLLM expect them.
const std::vector<double> kIterationBounds = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
const std::vector<double> kFirstTokenBounds = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                               1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const std::vector<double> kTokenGapBounds = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                             .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const std::vector<double> kRequestBounds = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                            30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};

/// 1, 2, 5, 10, … up to `most`.
std::vector<double> token_bounds(int64_t most) {
  std::vector<double> bounds;
  for (int64_t decade = 1; decade <= most; decade *= 10) {
    for (const int64_t step : {1, 2, 5}) {
      if (decade * step <= most) bounds.push_back(static_cast<double>(decade * step));
    }
  }
  return bounds;
}

}  // namespace

void Histogram::add(double value) {
  const auto bound = std::lower_bound(bounds.begin(), bounds.end(), value);
  ++counts[static_cast<std::size_t>(bound - bounds.begin())];
  sum += value;
}

EngineMetrics::EngineMetrics(int64_t context)
    : iteration_tokens(kIterationBounds),
      time_to_first_token(kFirstTokenBounds),
      inter_token(kTokenGapBounds),
      time_per_output_token(kTokenGapBounds),
      e2e(kRequestBounds),
      queue(kRequestBounds),
      inference(kRequestBounds),
      prefill(kRequestBounds),
      decode(kRequestBounds),
      request_prompt_tokens(token_bounds(context)),
      request_generation_tokens(token_bounds(context)),
      request_max_tokens(token_bounds(context)),
      request_computed_tokens(token_bounds(context)),
      request_choices({1, 2, 5, 10, 20}) {}

void EngineMetrics::admitted(std::span<const GenerationRequest> requests) {
  std::size_t first = 0;
  for (std::size_t i = 1; i <= requests.size(); ++i) {
    if (i < requests.size() && requests[i].sampling.choice != 0) continue;
    request_choices.add(static_cast<double>(i - first));
    first = i;
  }
}

void EngineMetrics::delivered(int64_t prompt, RequestTimes& times) {
  const auto now = Clock::now();
  ++generation_tokens;
  if (times.first_token) {
    inter_token.add(seconds(now - times.last_token));
  } else {
    prompt_tokens += static_cast<uint64_t>(prompt);
    time_to_first_token.add(seconds(now - times.queued));
    times.first_token = now;
  }
  times.last_token = now;
}

void EngineMetrics::ended(const GenerationRequest& request, const GenerationResult& result, const RequestTimes& times) {
  const auto now = Clock::now();
  ++finished[static_cast<std::size_t>(result.reason)];
  e2e.add(seconds(now - times.queued));
  queue.add(seconds(times.started - times.queued));
  inference.add(seconds(now - times.started));
  if (times.first_token) {
    const double after_first = seconds(times.last_token - *times.first_token);
    prefill.add(seconds(*times.first_token - times.started));
    decode.add(after_first);
    if (result.completion_tokens > 1) {
      time_per_output_token.add(after_first / static_cast<double>(result.completion_tokens - 1));
    }
  }
  request_prompt_tokens.add(static_cast<double>(result.prompt_tokens));
  request_generation_tokens.add(static_cast<double>(result.completion_tokens));
  request_max_tokens.add(static_cast<double>(request.max_tokens));
  request_computed_tokens.add(static_cast<double>(result.prompt_tokens - result.cached_tokens));
}

}  // namespace glm53::engine
