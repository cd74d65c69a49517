// A list that never changes, so that copies of what holds it share its memory.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace glm53 {

/// Stands in for a const std::vector<T>; copies may be used on several threads at once.
template <typename T>
class SharedList {
 public:
  using value_type = T;
  using const_iterator = typename std::vector<T>::const_iterator;
  using iterator = const_iterator;

  SharedList() = default;
  SharedList(std::vector<T> items) : items_(std::make_shared<const std::vector<T>>(std::move(items))) {}
  SharedList(std::initializer_list<T> items) : SharedList(std::vector<T>(items)) {}

  /// Valid while any copy of this list lives.
  const std::vector<T>& get() const {
    static const std::vector<T> kEmpty;
    return items_ ? *items_ : kEmpty;
  }
  operator const std::vector<T>&() const { return get(); }

  std::size_t size() const { return get().size(); }
  bool empty() const { return get().empty(); }
  const T* data() const { return get().data(); }
  const_iterator begin() const { return get().begin(); }
  const_iterator end() const { return get().end(); }
  const T& front() const { return get().front(); }
  const T& operator[](std::size_t index) const { return get()[index]; }

  friend bool operator==(const SharedList& a, const SharedList& b) { return a.get() == b.get(); }

 private:
  std::shared_ptr<const std::vector<T>> items_;  ///< null: empty
};

}  // namespace glm53
