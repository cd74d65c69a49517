// Byte-pair merging of one piece (spec 40 §1.4): the adjacent pair with the lowest rank first, the leftmost of equals,
// until no pair has a rank. O(n log n) in the length of the piece, which may be megabytes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace glm53::text {

/// Its rank is its index in the list of merges.
struct BpeMerge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t result = 0;
};

/// Immutable; any number of threads may encode, each with its own Scratch.
class BpeMerger {
 public:
  /// `byte_ids` [256]: the token of each single byte. Ids are not negative. Throws Error when two merges join the same
  /// pair.
  BpeMerger(const std::array<int32_t, 256>& byte_ids, const std::vector<BpeMerge>& merges);

  /// Work space that outlives a piece, so that most pieces allocate nothing.
  struct Scratch {
    struct Symbol {
      int32_t id;    ///< -1 once merged into the symbol before
      int32_t prev;  ///< index, -1 at the start
      int32_t next;  ///< index, -1 at the end
    };
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;  ///< rank << 32 | index of the left symbol; smallest first; may be out of date
  };

  /// Appends the tokens of `piece` to `ids`. Throws std::length_error for a piece of 2 GiB or more.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  struct Entry {
    uint64_t pair = kEmpty;
    uint32_t rank = 0;
    int32_t result = 0;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  static uint64_t pair_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t first_slot(uint64_t pair) const { return (pair * 0x9E3779B97F4A7C15u) >> shift_; }
  const Entry* find(uint64_t pair) const;
  const Entry* merge_at(const Scratch& scratch, int32_t left) const;
  void offer(Scratch& scratch, int32_t left) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Entry> table_;  ///< open addressing, linear probing, at most half full
  int shift_;
};

}  // namespace glm53::text
