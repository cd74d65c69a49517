// Who holds which physical 64-token cache page. The pages themselves live in the backend. Owned by the engine thread,
// no locks.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "glm53/core/limits.h"

namespace glm53::engine {

/// No free page left. Nothing was allocated.
struct PagesExhausted : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class PagePool {
 public:
  /// Pages 0..pages-1, all free.
  explicit PagePool(int64_t pages);

  int64_t size() const { return size_; }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t used() const { return size() - free(); }

 private:
  friend class PageList;
  int32_t take();
  void give_back(int32_t page) noexcept { free_.push_back(page); }

  int64_t size_;
  std::vector<int32_t> free_;  ///< stack; the page given back last is used next, while its lines are still cached
};

/// The page table of one sequence: entry i holds positions [64·i, 64·i + 64). Gives its pages back when
/// destroyed; the pool outlives it.
class PageList {
 public:
  explicit PageList(PagePool& pool) : pool_(&pool) {}
  PageList(PageList&& other) noexcept;
  PageList& operator=(PageList&& other) noexcept;
  ~PageList() { clear(); }

  /// Appends fresh pages until positions 0..tokens-1 have one. Throws PagesExhausted and then leaves the list as it
  /// was.
  void reserve_tokens(int64_t tokens);
  void clear() noexcept;

  std::span<const int32_t> ids() const { return ids_; }
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }

 private:
  PagePool* pool_;
  std::vector<int32_t> ids_;
};

/// Pages that hold `tokens` positions.
constexpr int64_t pages_for(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

}  // namespace glm53::engine
