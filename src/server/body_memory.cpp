#include "server/body_memory.h"

#include <utility>

#include "server/api_error.h"
#include "server/http_types.h"

namespace glm53::server {

bool BodyMemory::Part::grow_to(uint64_t body) {
  const uint64_t more = counted(body) - held_;
  if (more == 0) return true;
  // Not added and taken back where it is too much: meanwhile bodies that fit would be refused.
  uint64_t all = all_.held_;
  do {
    if (more > all_.limit_ - all) return false;
  } while (!all_.held_.compare_exchange_weak(all, all + more));
  held_ += more;
  return true;
}

void BodyMemory::Part::begin_work(uint64_t body, const std::function<bool()>& client_gone) {
  if (body <= kSmall) return;
  Lane& lane = all_.lane_of(body);
  const auto deadline = std::chrono::steady_clock::now() + all_.patience_;
  std::unique_lock lock(all_.mutex_);
  const auto place = lane.waiting.insert(lane.waiting.end(), this);
  const auto leave_queue = [&] {
    lane.waiting.erase(place);
    all_.freed_.notify_all();  // another one is next
  };
  while (lane.waiting.front() != this || !lane.takes(body)) {
    all_.freed_.wait_for(lock, kClientLook);
    const bool gone = client_gone();
    if (!gone && std::chrono::steady_clock::now() < deadline) continue;
    leave_queue();
    if (gone) throw ClientGone();
    throw unavailable("too many large requests are being worked on");
  }
  leave_queue();
  lane.at_work += at_work_ = body;
}

void BodyMemory::Part::pause_work() {
  const std::lock_guard lock(all_.mutex_);
  if (at_work_ == 0 || all_.paused_ + at_work_ > kPaused) return;
  all_.lane_of(at_work_).at_work -= at_work_;
  all_.paused_ += paused_ = std::exchange(at_work_, 0);
  all_.freed_.notify_all();
}

void BodyMemory::Part::release(uint64_t kept) {
  const uint64_t less = held_ - std::min(held_, counted(kept));
  all_.held_ -= less;
  held_ -= less;
  if (at_work_ + paused_ == 0) return;
  const std::lock_guard lock(all_.mutex_);
  all_.lane_of(at_work_).at_work -= at_work_;
  all_.paused_ -= paused_;
  at_work_ = paused_ = 0;
  all_.freed_.notify_all();
}

}  // namespace glm53::server
