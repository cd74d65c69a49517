#include "engine/generation.h"

#include <algorithm>
#include <utility>

namespace glm53::engine {

std::optional<GenerationEvent> Generation::next(std::chrono::milliseconds timeout) {
  // The standard adds the timeout to the clock's now: a caller's milliseconds::max() would overflow.
  const auto patience = std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24));
  std::unique_lock lock(mutex_);
  if (!ready_.wait_for(lock, patience, [this] { return !deltas_.empty() || result_; })) return std::nullopt;
  GenerationEvent event;
  event.tokens = std::exchange(tokens_, {});
  if (!deltas_.empty()) {
    event.deltas = std::exchange(deltas_, {});
  } else {
    event.result = std::exchange(result_, std::nullopt);
  }
  return event;
}

void Generation::publish(std::span<const int32_t> tokens, std::vector<text::ReplyDelta> deltas) {
  {
    const std::lock_guard lock(mutex_);
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    for (text::ReplyDelta& delta : deltas) {
      if (!deltas_.empty() && deltas_.back().channel == delta.channel) {
        deltas_.back().text += delta.text;
      } else {
        deltas_.push_back(std::move(delta));
      }
    }
    if (deltas_.empty()) return;
  }
  ready_.notify_one();
}

void Generation::finish(GenerationResult result) {
  {
    const std::lock_guard lock(mutex_);
    result_ = std::move(result);
  }
  ready_.notify_one();
}

}  // namespace glm53::engine
