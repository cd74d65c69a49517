#include "server/grammar_cache.h"

#include <utility>

#include "server/api_error.h"

namespace glm53::server {
namespace {

size_t bytes_of(const text::Grammar& grammar) {
  return grammar.nodes().size() * sizeof(text::Grammar::Node) +
         grammar.byte_edges().size() * sizeof(text::Grammar::ByteEdge) + grammar.epsilons().size() * sizeof(int32_t) +
         grammar.calls().size() * sizeof(text::Grammar::CallEdge);
}

ApiError busy() {
  ApiError error(429, "too many grammars are being compiled", {}, "busy");
  error.retry_after_s = 5;
  return error;
}

}  // namespace

std::shared_ptr<text::GrammarTables> GrammarCache::get(const std::string& key, const Compile& compile) {
  std::promise<Tables> promise;
  {
    std::unique_lock lock(mutex_);
    if (const auto found = index_.find(key); found != index_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return found->second->tables;
    }
    if (const auto found = pending_.find(key); found != pending_.end()) {
      const std::shared_future<Tables> other = found->second;
      lock.unlock();
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
    keep(key, tables, bytes);
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
      if (!owner.compiled_.wait_for(lock, owner.limits_.patience, free)) throw busy();
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
  bytes = bytes_of(*grammar);
  return std::make_shared<text::GrammarTables>(grammar, trie_);
}

/// With mutex_ held. The oldest make way, the new one too if it is too large by itself.
void GrammarCache::keep(const std::string& key, Tables tables, size_t bytes) {
  entries_.push_front({nullptr, std::move(tables), bytes + key.size()});
  const auto place = index_.emplace(key, entries_.begin()).first;
  entries_.front().key = &place->first;
  while (!entries_.empty() && (entries_.size() > limits_.entries || held() > limits_.bytes)) {
    index_.erase(index_.find(*entries_.back().key));
    entries_.pop_back();
  }
}

/// With mutex_ held. What the engine keeps with a grammar grows while it is used.
size_t GrammarCache::held() const {
  size_t bytes = 0;
  for (const Entry& entry : entries_) bytes += entry.own_bytes + entry.tables->held_bytes();
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
