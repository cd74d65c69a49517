#include "server/grammar_cache.h"

#include <iterator>
#include <utility>

#include "server/api_error.h"

namespace glm53::server {
namespace {

ApiError too_many() { return busy("too many grammars are being compiled", "busy"); }

}  // namespace

std::shared_ptr<text::GrammarTables> GrammarCache::get(const std::string& key, const Compile& compile) {
  std::promise<Tables> promise;
  std::list<Entry> dropped;  // freed once the lock is given back: tables may be large
  {
    std::unique_lock lock(mutex_);
    if (const auto found = index_.find(key); found != index_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      const Tables tables = found->second->tables;
      dropped = trim();
      return tables;
    }
    if (const auto found = pending_.find(key); found != pending_.end()) {
      const std::shared_future<Tables> other = found->second;
      ++waiting_;
      lock.unlock();
      const std::future_status status = other.wait_for(limits_.patience);
      --waiting_;
      if (status != std::future_status::ready) throw too_many();
      return other.get();
    }
    pending_.emplace(key, promise.get_future().share());
  }
  Tables tables;
  size_t bytes = 0;
  try {
    tables = make(compile, bytes);
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      pending_.erase(key);
    }
    promise.set_exception(std::current_exception());
    throw;
  }
  {
    const std::lock_guard lock(mutex_);
    pending_.erase(key);
    std::list<Entry> made = {{nullptr, tables, bytes + key.size()}};
    made.front().key = &index_.emplace(key, made.begin()).first->first;
    entries_.splice(entries_.begin(), made);
    dropped = trim();
  }
  promise.set_value(tables);
  return tables;
}

/// Compiles once there is a place.
GrammarCache::Tables GrammarCache::make(const Compile& compile, size_t& bytes) {
  struct Place {
    explicit Place(GrammarCache& cache) : owner(cache) {
      std::unique_lock lock(owner.mutex_);
      const auto free = [this] { return owner.compiling_ < owner.limits_.compiling; };
      if (!owner.compiled_.wait_for(lock, owner.limits_.patience, free)) throw too_many();
      ++owner.compiling_;
    }
    ~Place() {
      {
        const std::lock_guard lock(owner.mutex_);
        --owner.compiling_;
      }
      owner.compiled_.notify_one();
    }
    GrammarCache& owner;
  };
  const Place place(*this);
  const std::shared_ptr<const text::Grammar> grammar = compile();
  if (grammar == nullptr) return nullptr;
  bytes = grammar->bytes();
  return std::make_shared<text::GrammarTables>(grammar, trie_);
}

/// With mutex_ held: takes out those used longest ago, and the last one too if it is too large by itself.
std::list<GrammarCache::Entry> GrammarCache::trim() {
  std::list<Entry> dropped;
  while (!entries_.empty() && (entries_.size() > limits_.entries || held() > limits_.bytes)) {
    index_.erase(index_.find(*entries_.back().key));
    dropped.splice(dropped.begin(), entries_, std::prev(entries_.end()));
  }
  return dropped;
}

/// With mutex_ held.
size_t GrammarCache::held() const {
  size_t bytes = 0;
  for (const Entry& entry : entries_) {
    bytes += entry.own_bytes + (entry.tables != nullptr ? entry.tables->held_bytes() : 0);
  }
  return bytes;
}

size_t GrammarCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

size_t GrammarCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return held();
}

}  // namespace glm53::server
