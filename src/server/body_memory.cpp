#include "server/body_memory.h"

#include <algorithm>
#include <chrono>

#include "server/http_types.h"

namespace glm53::server {
namespace {

constexpr std::chrono::milliseconds kLook{50};  // how soon a closed connection is noticed

}  // namespace

bool BodyMemory::Part::grow_to(uint64_t body) {
  const uint64_t counted = body - std::min(body, kUncounted);
  const uint64_t more = counted - held_;
  if (all_.held_.fetch_add(more) + more > all_.limit_) {
    all_.held_ -= more;
    return false;
  }
  held_ = counted;
  return true;
}

void BodyMemory::Part::begin_work(uint64_t body, const std::function<bool()>& client_gone) {
  if (body <= kSmall) return;
  const bool large = body > kLarge;
  std::unique_lock lock(all_.mutex_);
  while (large ? all_.large_at_work_ : all_.at_work_ + body > kAtWork) {
    all_.freed_.wait_for(lock, kLook);
    if (client_gone()) throw ClientGone();
  }
  at_work_ = body;
  if (large) {
    all_.large_at_work_ = true;
  } else {
    all_.at_work_ += body;
  }
}

void BodyMemory::Part::release() {
  all_.held_ -= held_;
  held_ = 0;
  if (at_work_ == 0) return;
  {
    const std::lock_guard lock(all_.mutex_);
    if (at_work_ > kLarge) {
      all_.large_at_work_ = false;
    } else {
      all_.at_work_ -= at_work_;
    }
  }
  at_work_ = 0;
  all_.freed_.notify_all();
}

}  // namespace glm53::server
