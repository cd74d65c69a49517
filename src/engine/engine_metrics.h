// What the engine counts about its work (spec 40 §13): plain numbers, to which the server gives their Prometheus names.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/generation.h"

namespace glm53::engine {

/// Counts of observed values by upper bound.
struct Histogram {
  std::vector<double> bounds;    ///< ascending; a value belongs to the first bound that is not below it
  std::vector<uint64_t> counts;  ///< one a bound, and one for what is beyond the last
  double sum = 0;

  explicit Histogram(std::vector<double> upper_bounds) : bounds(std::move(upper_bounds)), counts(bounds.size() + 1) {}
  void add(double value);
};

/// When things happened to a request.
struct RequestTimes {
  using Clock = std::chrono::steady_clock;
  Clock::time_point queued{};
  Clock::time_point started{};                   ///< left the queue
  std::optional<Clock::time_point> first_token;  ///< nothing while there is none
  Clock::time_point last_token{};
};

/// Copied out as a whole. Times are in seconds.
struct EngineMetrics {
  /// `context` ends the bounds of the token histograms.
  explicit EngineMetrics(int64_t context);

  uint64_t prompt_tokens = 0;          ///< of requests that gave a token
  uint64_t generation_tokens = 0;      ///< delivered
  uint64_t refused = 0;                ///< client requests that found the queue full
  std::array<uint64_t, 4> finished{};  ///< by FinishReason

  Histogram iteration_tokens;  ///< rows of one forward call
  Histogram time_to_first_token, inter_token, time_per_output_token;
  Histogram e2e, queue, inference, prefill, decode;
  Histogram request_prompt_tokens, request_generation_tokens, request_max_tokens, request_computed_tokens;
  Histogram request_choices;

  /// Taken into the queue: choices of one client request, those of one prompt side by side.
  void admitted(std::span<const GenerationRequest> requests);
  /// A token was delivered now; updates `times`.
  void delivered(int64_t prompt, RequestTimes& times);
  /// A request that left the queue has ended.
  void ended(const GenerationRequest& request, const GenerationResult& result, const RequestTimes& times);
  /// One that never did.
  void ended_waiting(FinishReason reason) { ++finished[static_cast<std::size_t>(reason)]; }
};

}  // namespace glm53::engine
