// Compiled grammars of past requests (spec 40 §12.2), so that what was worked out for one serves the next.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "text/grammar_matcher.h"

namespace glm53::server {

/// Thread-safe. What it hands out belongs to the engine thread (GrammarTables), but for holding and dropping it.
class GrammarCache {
 public:
  struct Limits {
    size_t entries = 64;
    size_t bytes = size_t{256} << 20;   ///< of keys, grammars and what the engine keeps with them, which grows: see get
    int compiling = 2;                  ///< grammars in the making at a time: each may take seconds and 100 MB
    std::chrono::seconds patience{10};  ///< for a place to compile in, or for another thread that compiles the same
  };
  using Compile = std::function<std::shared_ptr<const text::Grammar>()>;  ///< null: there is to be none

  /// `trie` is null where the model has no tokenizer: there are no grammars then.
  explicit GrammarCache(std::shared_ptr<const text::TokenTrie> trie) : GrammarCache(std::move(trie), Limits{}) {}
  GrammarCache(std::shared_ptr<const text::TokenTrie> trie, Limits limits) : trie_(std::move(trie)), limits_(limits) {}

  bool available() const { return trie_ != nullptr; }
  /// The grammar of `key`, null if it has none, which is kept too. `key` says all that `compile` depends on. Compiles
  /// on the caller's thread unless it is known or another thread is at it, whose outcome is then this one's. Throws
  /// what `compile` throws, and ApiError 429 when others compile for longer than `patience`. Afterwards the limits
  /// hold, for which those used longest ago make way.
  std::shared_ptr<text::GrammarTables> get(const std::string& key, const Compile& compile);

  size_t size() const;
  size_t bytes() const;
  /// Threads that wait for the outcome of another that compiles the same.
  int waiting() const { return waiting_; }

 private:
  using Tables = std::shared_ptr<text::GrammarTables>;
  struct Entry {
    const std::string* key;  ///< of index_
    Tables tables;
    size_t own_bytes;  ///< of key and grammar
  };

  Tables make(const Compile& compile, size_t& bytes);
  std::list<Entry> trim();
  size_t held() const;

  const std::shared_ptr<const text::TokenTrie> trie_;
  const Limits limits_;
  std::atomic<int> waiting_{0};
  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable compiled_;
  int compiling_ = 0;
  std::list<Entry> entries_;  ///< last used first
  std::unordered_map<std::string, std::list<Entry>::iterator> index_;
  std::unordered_map<std::string, std::shared_future<Tables>> pending_;
};

}  // namespace glm53::server
