// How many requests were answered, by route, method and status. Every member may be called from any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace glm53::server {

class RequestCounts {
 public:
  struct Key {
    std::string route;   ///< of the table of routes, so that clients cannot make up series; "none"
    std::string method;  ///< empty: unknown
    int status = 0;
    auto operator<=>(const Key&) const = default;
  };

  void add(Key key) {
    const std::lock_guard lock(mutex_);
    ++counts_[std::move(key)];
  }
  std::map<Key, uint64_t> read() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<Key, uint64_t> counts_;
};

}  // namespace glm53::server
