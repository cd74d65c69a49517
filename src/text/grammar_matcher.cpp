#include "text/grammar_matcher.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "glm53/core/contains.h"
#include "glm53/core/error.h"
#include "glm53/core/token_mask.h"

namespace glm53::text {
namespace {

constexpr size_t kKeptMasks = 1024;    // 19 KB each for 154,880 ids
constexpr size_t kKeptParts = 1024;    // likewise
constexpr int32_t kLargeSubtree = 64;  // nodes; smaller ones are read sooner than told from their characters
constexpr size_t kHistory = 2 * (static_cast<size_t>(GrammarMatcher::kMaxRollback) + 1);

/// Allows the tokens that `run` tells to be allowed. Written so that compilers make vector code of the inner loop, for
/// 0.03 ms in place of 0.15: this is most of what a mask at a new place costs.
void allow_run(const TokenTrie& trie, const CharRuns::Run& run, std::vector<uint32_t>& mask) {
  const CharKindSet* kinds = trie.token_kinds().data();
  const uint8_t* chars = trie.token_chars().data();
  const auto others = static_cast<CharKindSet>(~run.kinds);
  const auto most = static_cast<uint8_t>(run.chars);
  for (uint32_t& word : mask) {
    std::array<uint8_t, 32> allowed;
    for (size_t i = 0; i < allowed.size(); ++i) {
      allowed[i] = static_cast<uint8_t>(static_cast<uint8_t>((kinds[i] & others) == 0) & (chars[i] <= most));
    }
    for (size_t i = 0; i < allowed.size(); i += 8) {
      uint64_t eight = 0;
      for (size_t j = 0; j < 8; ++j) eight |= uint64_t{allowed[i + j]} << (8 * j);
      // Byte j of `eight`, 0 or 1, becomes bit j of the product's last byte.
      word |= static_cast<uint32_t>(eight * 0x0102040810204080ULL >> 56) << i;
    }
    kinds += allowed.size();
    chars += allowed.size();
  }
}

}  // namespace

GrammarTables::GrammarTables(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
                             int64_t work)
    : grammar_(std::move(grammar)),
      trie_(std::move(trie)),
      work_(work),
      path_(static_cast<size_t>(trie_->max_depth()) + 1) {}

const std::shared_ptr<GrammarAutomaton>& GrammarTables::automaton() {
  if (automaton_ == nullptr || automaton_->bytes() > GrammarAutomaton::kSoftBytes) {
    masks_.clear();
    mask_index_.clear();
    parts_.clear();
    runs_.clear();
    automaton_ = std::make_shared<GrammarAutomaton>(grammar_);
    held_bytes_.store(bytes(), std::memory_order_relaxed);
  }
  automaton_->begin_work(work_);
  return automaton_;
}

size_t GrammarTables::bytes() const {
  size_t bytes = (automaton_ != nullptr ? automaton_->bytes() : 0) + runs_.bytes();
  const size_t mask_bytes = trie_->mask_words() * sizeof(uint32_t);
  bytes += masks_.size() * (mask_bytes + sizeof(Kept) + 2 * kHashEntryBytes);
  for (const auto& [state, part] : parts_) {
    bytes += mask_bytes + sizeof(PartMask) + kHashEntryBytes + part.returning.capacity() * sizeof(int32_t);
  }
  return bytes;
}

void GrammarTables::walk(int32_t state, int32_t top, Mask& mask, std::vector<int32_t>* returning) {
  const std::vector<TokenTrie::Node>& nodes = trie_->nodes();
  const std::vector<int32_t>& tokens = trie_->token_order();
  // Tokens of these kinds alone are told from their length.
  CharKindSet told = 0;
  if (top == 0) {
    const CharRuns::Run whole = run(state);
    told = whole.kinds;
    if (told != 0) allow_run(*trie_, whole, mask);
  }
  // Allowed tokens are neighbours mostly: their bits are set a stretch at a time.
  int32_t stretch = 0;
  int32_t stretch_end = 0;
  const auto set_stretch = [&] {
    for (int32_t t = stretch; t < stretch_end; ++t) allow_id(mask, tokens[static_cast<size_t>(t)]);
  };
  path_[nodes[static_cast<size_t>(top)].depth] = state;
  const int32_t end = nodes[static_cast<size_t>(top)].skip;
  for (int32_t at = top + 1; at < end;) {
    const TokenTrie::Node& node = nodes[static_cast<size_t>(at)];
    if ((node.kinds & ~told) == 0) {
      at = node.skip;
      continue;
    }
    const int32_t next = automaton_->next(path_[node.depth - 1U], node.byte);
    if (next == GrammarAutomaton::kDead) {
      at = node.skip;
      continue;
    }
    path_[node.depth] = next;
    if (returning != nullptr && automaton_->returns(next) && node.skip > at + 1) returning->push_back(at);
    ++at;
    if (node.skip - at >= kLargeSubtree && (node.kinds_below & kIrregular) == 0) {
      const CharRuns::Run below = run(next);
      if ((node.kinds_below & ~below.kinds) == 0 && node.chars_below <= below.chars) at = node.skip;
    }
    if (node.first_token != stretch_end) {
      set_stretch();
      stretch = node.first_token;
    }
    stretch_end = nodes[static_cast<size_t>(at)].first_token;
  }
  set_stretch();
}

const GrammarTables::PartMask& GrammarTables::part_mask(std::span<const GrammarAutomaton::Config> group) {
  const int32_t state = automaton_->part_state(group, trie_->max_depth() < Grammar::kShapeReach);
  if (const auto found = parts_.find(state); found != parts_.end()) return found->second;
  PartMask part;
  part.allowed.resize(trie_->mask_words());
  walk(state, 0, part.allowed, &part.returning);
  if (parts_.size() >= kKeptParts) parts_.clear();
  return parts_.emplace(state, std::move(part)).first->second;
}

const GrammarTables::Mask& GrammarTables::mask(int32_t state) {
  if (const auto found = mask_index_.find(state); found != mask_index_.end()) {
    masks_.splice(masks_.begin(), masks_, found->second);
    return found->second->mask;
  }
  struct Noted {
    ~Noted() { tables.held_bytes_.store(tables.bytes(), std::memory_order_relaxed); }
    GrammarTables& tables;
  };
  const Noted noted{*this};
  Mask mask(trie_->mask_words());
  const auto all = automaton_->configs(state);
  std::vector<GrammarAutomaton::Config> configs(all.begin(), all.end());  // the span does not outlive new states
  const auto base = [this](const GrammarAutomaton::Config& c) { return automaton_->base(c.stack); };
  std::ranges::stable_sort(configs, {}, base);
  for (size_t begin = 0, end = 0; begin < configs.size(); begin = end) {
    const int32_t stack = base(configs[begin]);
    while (end < configs.size() && base(configs[end]) == stack) ++end;
    if (automaton_->depth(stack) > GrammarAutomaton::kSharedDepth) {
      mask.assign(trie_->mask_words(), 0);
      walk(state, 0, mask, nullptr);
      break;
    }
    const PartMask& part = part_mask(std::span(configs).subspan(begin, end - begin));
    for (size_t w = 0; w < mask.size(); ++w) mask[w] |= part.allowed[w];
    const int32_t after = automaton_->after(stack);
    if (after == GrammarAutomaton::kDead) continue;
    for (const int32_t top : part.returning) walk(after, top, mask, nullptr);
  }
  for (size_t i = 0; i < grammar_->token_ids().size(); ++i) {
    if (automaton_->next(state, 256 + static_cast<int>(i)) != GrammarAutomaton::kDead) {
      allow_id(mask, grammar_->token_ids()[i]);
    }
  }
  if (automaton_->accepts(state)) {
    for (const int32_t id : trie_->end_ids()) allow_id(mask, id);
  }
  if (masks_.size() >= kKeptMasks) {
    mask_index_.erase(masks_.back().state);
    masks_.pop_back();
  }
  masks_.push_front({state, std::move(mask)});
  mask_index_.emplace(state, masks_.begin());
  return masks_.front().mask;
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<GrammarTables> tables, std::optional<int32_t> starts_after)
    : tables_(std::move(tables)), automaton_(tables_->automaton()), starts_after_(starts_after) {
  history_.push_back(starts_after_ ? kWaiting : automaton_->start_state());
}

// States are numbers of one automaton: when the tables have begun a new one, the reply's states move there.
void GrammarMatcher::renew_automaton() {
  const std::shared_ptr<GrammarAutomaton>& present = tables_->automaton();
  if (present == automaton_) return;
  std::vector<int32_t> states;
  for (const int32_t state : history_) {
    if (state >= 0) states.push_back(state);
  }
  const std::vector<int32_t> imported = present->import(*automaton_, states);
  size_t next = 0;
  for (int32_t& state : history_) {
    if (state >= 0) state = imported[next++];
  }
  automaton_ = present;
}

std::span<const uint32_t> GrammarMatcher::next_mask() {
  if (!active()) return {};
  renew_automaton();
  if (work_ > kCostlySteps * tables_->work_) throw Error("grammar: more work than a reply may cost");
  const int64_t before = automaton_->work();
  const std::vector<uint32_t>& mask = tables_->mask(ended() ? GrammarAutomaton::kDead : history_.back());
  work_ += automaton_->work() - before;
  return mask;
}

int32_t GrammarMatcher::follow(int32_t id) {
  int32_t state = history_.back();
  const std::vector<int32_t>& named = automaton_->grammar().token_ids();
  if (const auto at = std::ranges::find(named, id); at != named.end()) {
    return automaton_->next(state, 256 + static_cast<int>(at - named.begin()));
  }
  const std::string_view bytes = tables_->trie().bytes(id);
  if (bytes.empty()) return GrammarAutomaton::kDead;
  for (const char byte : bytes) state = automaton_->next(state, static_cast<uint8_t>(byte));
  return state;
}

bool GrammarMatcher::allows(int32_t id) {
  if (!active()) return true;
  if (ended()) return false;
  if (contains(tables_->trie().end_ids(), id)) return can_end();
  renew_automaton();
  return follow(id) != GrammarAutomaton::kDead;
}

bool GrammarMatcher::accept(int32_t id) {
  int32_t next = kWaiting;
  if (active()) {
    if (!allows(id)) return false;
    next = contains(tables_->trie().end_ids(), id) ? kEnded : follow(id);
  } else if (id == *starts_after_) {
    renew_automaton();
    next = automaton_->start_state();
  }
  if (history_.size() >= kHistory) {
    history_.erase(history_.begin(), history_.end() - kMaxRollback);
  }
  history_.push_back(next);
  return true;
}

void GrammarMatcher::rollback(int tokens) {
  if (tokens < 0 || tokens > kMaxRollback || static_cast<size_t>(tokens) >= history_.size()) {
    throw std::out_of_range("GrammarMatcher::rollback");
  }
  history_.resize(history_.size() - static_cast<size_t>(tokens));
}

bool GrammarMatcher::can_end() const { return history_.back() >= 0 && automaton_->accepts(history_.back()); }
bool GrammarMatcher::must_end() const { return can_end() && !automaton_->continues(history_.back()); }

}  // namespace glm53::text
