// A generator that plays scripts instead of a model.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/api_context.h"

namespace glm53::server {

class FakeGenerator final : public Generator {
 public:
  using Script = std::function<void(engine::Generation&, const engine::GenerationRequest&)>;

  ~FakeGenerator() override {
    for (std::thread& thread : threads_) thread.join();
  }

  std::vector<std::shared_ptr<engine::Generation>> submit(std::vector<engine::GenerationRequest> requests) override {
    if (refuse) throw engine::SubmitError(*refuse, "refused");
    std::vector<std::shared_ptr<engine::Generation>> generations;
    const std::lock_guard lock(mutex_);
    for (engine::GenerationRequest& request : requests) {
      auto generation = std::make_shared<engine::Generation>();
      requests_.push_back(request);
      threads_.emplace_back([generation, script = script, request] { script(*generation, request); });
      generations_.push_back(generation);
      generations.push_back(std::move(generation));
    }
    return generations;
  }
  void stop() override {
    const std::lock_guard lock(mutex_);
    for (const auto& generation : generations_) generation->cancel();
  }
  engine::EngineStatus status() const override { return current; }
  engine::EngineMetrics metrics() const override { return counted; }
  int64_t context() const override { return 512; }

  engine::GenerationRequest last() {
    const std::lock_guard lock(mutex_);
    return requests_.at(requests_.size() - 1);
  }
  std::vector<engine::GenerationRequest> all() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  size_t count() {
    const std::lock_guard lock(mutex_);
    return requests_.size();
  }

  // Set before requests come.
  Script script;
  std::optional<engine::SubmitError::Kind> refuse;
  engine::EngineStatus current{true, false, 0, 0};
  engine::EngineMetrics counted{512};

 private:
  std::mutex mutex_;
  std::vector<engine::GenerationRequest> requests_;
  std::vector<std::shared_ptr<engine::Generation>> generations_;
  std::vector<std::thread> threads_;
};

inline void say(engine::Generation& generation, text::ReplyChannel channel, const std::string& text) {
  generation.publish({}, {{channel, text}});
}

inline engine::GenerationResult result_of(const engine::GenerationRequest& request, engine::FinishReason reason) {
  engine::GenerationResult result;
  result.reason = reason;
  result.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  result.completion_tokens = 7;
  result.reasoning_tokens = 3;
  result.cached_tokens = 2;
  return result;
}

/// Waits until the reply is cancelled, as an engine at work does; false after 20 s.
inline bool run_until_cancelled(engine::Generation& generation) {
  for (int i = 0; i < 4000 && !generation.cancelled(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return generation.cancelled();
}

}  // namespace glm53::server
