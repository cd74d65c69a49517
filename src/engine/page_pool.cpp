#include "engine/page_pool.h"

#include <limits>
#include <string>
#include <utility>

namespace glm53::engine {

PagePool::PagePool(int64_t pages) : size_(pages) {
  if (pages < 0 || pages > std::numeric_limits<int32_t>::max()) {
    throw std::invalid_argument("a page pool of " + std::to_string(pages) + " pages");
  }
  free_.reserve(static_cast<std::size_t>(pages));  // give_back() then never allocates
  for (int64_t page = pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

int32_t PagePool::take() {
  const int32_t page = free_.back();
  free_.pop_back();
  return page;
}

PageList::PageList(PageList&& other) noexcept : pool_(other.pool_), ids_(std::exchange(other.ids_, {})) {}

PageList& PageList::operator=(PageList&& other) noexcept {
  if (this != &other) {
    clear();
    pool_ = other.pool_;
    ids_ = std::exchange(other.ids_, {});
  }
  return *this;
}

void PageList::reserve_tokens(int64_t tokens) {
  const int64_t missing = pages_for(tokens) - size();
  if (missing <= 0) return;
  if (missing > pool_->free()) {
    throw PagesExhausted("cache pages exhausted: " + std::to_string(missing) + " needed, " +
                         std::to_string(pool_->free()) + " of " + std::to_string(pool_->size()) + " free");
  }
  ids_.reserve(ids_.size() + static_cast<std::size_t>(missing));
  for (int64_t i = 0; i < missing; ++i) ids_.push_back(pool_->take());
}

void PageList::clear() noexcept {
  // Last page first, so that the pool's stack hands them out again in order.
  for (auto page = ids_.rbegin(); page != ids_.rend(); ++page) pool_->give_back(*page);
  ids_.clear();
}

}  // namespace glm53::engine
