#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

#include "glm53/core/error.h"

namespace glm53::text {
BpeMerger::BpeMerger(const std::array<int32_t, 256>& byte_ids, const std::vector<BpeMerge>& merges)
    : byte_ids_(byte_ids), table_(std::bit_ceil(2 * merges.size() + 2)), shift_(64 - std::countr_zero(table_.size())) {
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
    size_t slot = first_slot(pair);
    while (table_[slot].pair != kEmpty) {
      if (table_[slot].pair == pair) {
        throw Error("model.merges[" + std::to_string(rank) + "] joins the same two tokens as model.merges[" +
                    std::to_string(table_[slot].rank) + "]");
      }
      slot = (slot + 1) & (table_.size() - 1);
    }
    table_[slot] = {pair, static_cast<uint32_t>(rank), merges[rank].result};
  }
}

const BpeMerger::Entry* BpeMerger::find(uint64_t pair) const {
  for (size_t slot = first_slot(pair);; slot = (slot + 1) & (table_.size() - 1)) {
    if (table_[slot].pair == pair) return &table_[slot];
    if (table_[slot].pair == kEmpty) return nullptr;
  }
}

// The merge that joins symbol `left` to the next; nullptr when there is none.
const BpeMerger::Entry* BpeMerger::merge_at(const Scratch& scratch, int32_t left) const {
  const Scratch::Symbol& symbol = scratch.symbols[static_cast<size_t>(left)];
  if (symbol.id < 0 || symbol.next < 0) return nullptr;
  return find(pair_of(symbol.id, scratch.symbols[static_cast<size_t>(symbol.next)].id));
}

void BpeMerger::offer(Scratch& scratch, int32_t left) const {
  if (const Entry* entry = merge_at(scratch, left)) {
    scratch.heap.push_back(uint64_t{entry->rank} << 32 | static_cast<uint32_t>(left));
    std::push_heap(scratch.heap.begin(), scratch.heap.end(), std::greater<>{});
  }
}

void BpeMerger::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (piece.size() > size_t{std::numeric_limits<int32_t>::max()}) throw std::length_error("text of 2 GiB or more");
  const auto count = static_cast<int32_t>(piece.size());
  auto& [symbols, heap] = scratch;
  symbols.clear();
  heap.clear();
  // A piece may be megabytes, and growth by doubling holds old and new memory at once. There are less than n merges,
  // each of which takes one offer out and makes two; room that is not used is never touched.
  symbols.reserve(piece.size());
  heap.reserve(2 * piece.size());
  for (int32_t i = 0; i < count; ++i) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(piece[static_cast<size_t>(i)])];
    symbols.push_back({id, i - 1, i + 1 < count ? i + 1 : -1});
  }
  for (int32_t i = 0; i + 1 < count; ++i) offer(scratch, i);

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>{});
    const uint64_t best = heap.back();
    heap.pop_back();
    const auto position = static_cast<int32_t>(best & 0xFFFFFFFFu);
    const Entry* entry = merge_at(scratch, position);
    // An earlier merge may have changed the pair. A rank belongs to one pair, so an equal rank means the same pair.
    if (entry == nullptr || entry->rank != best >> 32) continue;
    Scratch::Symbol& left = symbols[static_cast<size_t>(position)];
    Scratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    left.id = entry->result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].prev = position;
    if (left.prev >= 0) offer(scratch, left.prev);
    offer(scratch, position);
  }
  for (int32_t i = count > 0 ? 0 : -1; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    ids.push_back(symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace glm53::text
