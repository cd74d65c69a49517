#include "engine/generation.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace glm53::engine {

std::optional<GenerationEvent> Generation::next(std::chrono::milliseconds timeout) {
  // The standard adds the timeout to the clock's now: a caller's milliseconds::max() would overflow.
  const auto patience = std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24));
  std::unique_lock lock(mutex_);
  if (!ready_.wait_for(lock, patience, [this] { return !deltas_.empty() || result_; })) return std::nullopt;
  GenerationEvent event;
  event.tokens = std::exchange(tokens_, {});
  event.logprobs = std::exchange(logprobs_, {});
  event.prompt_logprobs = std::exchange(prompt_logprobs_, {});
  if (!deltas_.empty()) {
    event.deltas = std::exchange(deltas_, {});
  } else {
    event.result = std::exchange(result_, std::nullopt);
  }
  return event;
}

void Generation::publish(std::span<const int32_t> tokens, std::vector<text::ReplyDelta> deltas,
                         std::vector<TokenLogprobs> logprobs) {
  {
    const std::lock_guard lock(mutex_);
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    std::move(logprobs.begin(), logprobs.end(), std::back_inserter(logprobs_));
    text::append_joined(std::move(deltas), deltas_);
    if (deltas_.empty()) return;
  }
  notify();
}

void Generation::set_prompt_logprobs(std::vector<TokenLogprobs> logprobs) {
  const std::lock_guard lock(mutex_);
  prompt_logprobs_ = std::move(logprobs);
}

void Generation::finish(GenerationResult result) {
  {
    const std::lock_guard lock(mutex_);
    result_ = std::move(result);
  }
  notify();
}

void Generation::set_signal(std::shared_ptr<ReadySignal> signal) {
  const std::lock_guard lock(mutex_);
  signal_ = std::move(signal);
}

size_t Generation::held_tokens() const {
  const std::lock_guard lock(mutex_);
  return deltas_.empty() ? tokens_.size() : 0;
}

void Generation::notify() {
  ready_.notify_one();
  std::shared_ptr<ReadySignal> signal;
  {
    const std::lock_guard lock(mutex_);
    signal = signal_;
  }
  if (signal) signal->set();
}

}  // namespace glm53::engine
