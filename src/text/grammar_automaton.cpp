#include "text/grammar_automaton.h"

#include <algorithm>

#include "glm53/core/error.h"

namespace glm53::text {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 29);
}

uint64_t pack(int32_t node, int32_t stack) {
  return static_cast<uint64_t>(static_cast<uint32_t>(stack)) << 32 | static_cast<uint32_t>(node);
}

}  // namespace

void GrammarAutomaton::SeenSet::clear() {
  ++epoch_;  // 2^32 states of one automaton are never made: kHardBytes
  used_ = 0;
}

bool GrammarAutomaton::SeenSet::insert(Config config) {
  if (2 * (used_ + 1) > slots_.size()) grow();
  const uint64_t key = pack(config.node, config.stack);
  size_t at = mix(0, key) % slots_.size();
  while (slots_[at].second == epoch_) {
    if (slots_[at].first == key) return false;
    at = (at + 1) % slots_.size();
  }
  slots_[at] = {key, epoch_};
  ++used_;
  return true;
}

void GrammarAutomaton::SeenSet::grow() {
  std::vector<std::pair<uint64_t, uint32_t>> old(slots_.size() * 2);
  old.swap(slots_);
  const uint32_t epoch = epoch_;
  used_ = 0;
  for (const auto& [key, stamp] : old) {
    if (stamp == epoch) insert({static_cast<int32_t>(key & 0xFFFFFFFF), static_cast<int32_t>(key >> 32)});
  }
}

GrammarAutomaton::GrammarAutomaton(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  stacks_.push_back({});
  stacks_.push_back({0, 0, kSharedDepth, kDead, kUnknownStack});
  close();
  intern_state();  // kDead
  stacks_[kRootStack].after = kDead;
  const Grammar::Rule& root = grammar_->rules()[static_cast<size_t>(grammar_->root())];
  begin();
  add(root.start, kRootStack);
  close();
  start_state_ = intern_state();
}

std::span<const GrammarAutomaton::Config> GrammarAutomaton::configs(int32_t state) const {
  const State& s = states_[static_cast<size_t>(state)];
  return {configs_.data() + s.first, static_cast<size_t>(s.count)};
}

int32_t GrammarAutomaton::step(int32_t state, int symbol_class) {
  const int symbol = grammar_->class_symbol()[static_cast<size_t>(symbol_class)];
  const State& s = states_[static_cast<size_t>(state)];
  // The symbols around this one that no edge of the state tells apart lead to the same state.
  int low = symbol < 256 ? 0 : symbol;
  int high = symbol < 256 ? 255 : symbol;
  begin();
  for (int32_t c = s.first; c < s.first + s.count; ++c) {
    const Config config = configs_[static_cast<size_t>(c)];
    const auto node = static_cast<size_t>(config.node);
    const int32_t end = grammar_->nodes()[node + 1].bytes;
    for (int32_t e = grammar_->nodes()[node].bytes; e < end; ++e) {
      const Grammar::ByteEdge& edge = grammar_->byte_edges()[static_cast<size_t>(e)];
      if (edge.high < symbol) {
        low = std::max(low, edge.high + 1);
      } else if (edge.low > symbol) {
        high = std::min(high, edge.low - 1);
      } else {
        low = std::max<int>(low, edge.low);
        high = std::min<int>(high, edge.high);
        add(edge.to, config.stack);
      }
    }
  }
  spend(s.count);
  close();
  const int32_t next = intern_state();
  const std::vector<uint16_t>& classes = grammar_->symbol_class();
  std::fill(table_.begin() + static_cast<std::ptrdiff_t>(row(state) + classes[static_cast<size_t>(low)]),
            table_.begin() + static_cast<std::ptrdiff_t>(row(state) + classes[static_cast<size_t>(high)] + 1), next);
  return next;
}

void GrammarAutomaton::begin() {
  seen_.clear();
  todo_.clear();  // an Error may have left some
}

void GrammarAutomaton::spend(int64_t work) {
  work_ += work;
  if (work_ > work_end_) throw Error("grammar: too ambiguous to follow");
}

// A node from which the end cannot be reached within the depth allowed is never entered, so that no text gets stuck.
void GrammarAutomaton::add(int32_t node, int32_t stack) {
  const int height = grammar_->nodes()[static_cast<size_t>(node)].height;
  if (height == Grammar::kDeadHeight || depth(stack) + height > GrammarLimits::kDepth) return;
  if (!seen_.insert({node, stack})) return;
  if (seen_.size() > kMaxSeen) throw Error("grammar: too ambiguous to follow");
  todo_.push_back({node, stack});
}

// Follows edges that read nothing from the nodes of todo_. `fresh`: their stack was made for this very place, so that
// the end of its rule says nothing: the caller has gone past a nullable rule already.
void GrammarAutomaton::reach(bool fresh) {
  while (!todo_.empty()) {
    const Config config = todo_.back();
    todo_.pop_back();
    spend(1);
    const Grammar::Node& node = grammar_->nodes()[static_cast<size_t>(config.node)];
    const Grammar::Node& next = grammar_->nodes()[static_cast<size_t>(config.node) + 1];
    if (node.bytes < next.bytes) {
      if (made_.size() >= kMaxConfigs) throw Error("grammar: too ambiguous to follow");
      made_.push_back(config);
    }
    for (int32_t e = node.epsilons; e < next.epsilons; ++e) {
      add(grammar_->epsilons()[static_cast<size_t>(e)], config.stack);
    }
    for (int32_t e = node.calls; e < next.calls; ++e) {
      const Grammar::CallEdge& call = grammar_->calls()[static_cast<size_t>(e)];
      const Grammar::Rule& rule = grammar_->rules()[static_cast<size_t>(call.rule)];
      if (rule.nullable) add(call.to, config.stack);
      const int at = depth(config.stack);
      const int callee = grammar_->nodes()[static_cast<size_t>(rule.start)].height;
      const int back = grammar_->nodes()[static_cast<size_t>(call.to)].height;
      if (callee == Grammar::kDeadHeight || back == Grammar::kDeadHeight) continue;
      if (at + 1 + callee > GrammarLimits::kDepth || at + back > GrammarLimits::kDepth) continue;
      if (pending_.size() >= kMaxConfigs) throw Error("grammar: too ambiguous to follow");
      pending_.push_back({call.rule, at + 1, {call.to, config.stack}});
    }
    if (!node.final || fresh) continue;
    accepts_ |= config.stack == kRootStack;
    ends_part_ |= config.stack == kUnknownStack;
    const Stack stack = stacks_[static_cast<size_t>(config.stack)];
    for (int32_t r = stack.first; r < stack.first + stack.count; ++r) {
      const Return back = returns_[static_cast<size_t>(r)];
      add(back.node, back.stack);
    }
  }
}

// Calls are made in order of rank, callers before callees, so that all callers of a rule are known when its stack is
// made. Everything that returns from older stacks happens in the first reach().
void GrammarAutomaton::close() {
  const auto later = [this](const PendingCall& a, const PendingCall& b) {
    const int32_t rank_a = grammar_->rules()[static_cast<size_t>(a.rule)].rank;
    const int32_t rank_b = grammar_->rules()[static_cast<size_t>(b.rule)].rank;
    return rank_a != rank_b ? rank_a > rank_b : a.depth != b.depth ? a.depth > b.depth : a.back > b.back;
  };
  accepts_ = ends_part_ = false;
  made_.clear();
  pending_.clear();
  reach(false);
  std::ranges::make_heap(pending_, later);
  std::vector<Return> callers;
  while (!pending_.empty()) {
    const PendingCall first = pending_.front();
    callers.clear();
    while (!pending_.empty() && pending_.front().rule == first.rule && pending_.front().depth == first.depth) {
      if (callers.empty() || callers.back() != pending_.front().back) callers.push_back(pending_.front().back);
      std::ranges::pop_heap(pending_, later);
      pending_.pop_back();
    }
    const Grammar::Rule& rule = grammar_->rules()[static_cast<size_t>(first.rule)];
    const int32_t stack = intern_stack(callers, first.depth, rule.inner);
    add(rule.start, stack);
    const size_t before = pending_.size();
    reach(true);
    for (size_t i = before; i < pending_.size(); ++i) {
      std::push_heap(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(i) + 1, later);
    }
  }
}

int32_t GrammarAutomaton::intern_state() {
  std::ranges::sort(made_, {}, [](const Config& c) { return pack(c.node, c.stack); });
  uint64_t hash = (accepts_ ? 1U : 0U) + (ends_part_ ? 2U : 0U);
  for (const Config& c : made_) hash = mix(hash, pack(c.node, c.stack));
  const auto [begin, end] = state_index_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const State& s = states_[static_cast<size_t>(it->second)];
    if (s.accepts == accepts_ && s.returns == ends_part_ && std::ranges::equal(configs(it->second), made_)) {
      return it->second;
    }
  }
  if (bytes() > kHardBytes) throw Error("grammar: too large to follow");
  const auto id = static_cast<int32_t>(states_.size());
  // The state itself last, so that none is without its row when memory runs out.
  table_.resize(row(id));
  table_.resize(row(id + 1), made_.empty() ? kDead : -1);
  const auto first = static_cast<int32_t>(configs_.size());
  configs_.insert(configs_.end(), made_.begin(), made_.end());
  states_.push_back({first, static_cast<int32_t>(made_.size()), accepts_, ends_part_});
  state_index_.emplace(hash, id);
  return id;
}

int32_t GrammarAutomaton::intern_stack(std::span<const Return> returns, int depth, bool inner) {
  uint64_t hash = inner ? 1U : 0U;
  for (const Return& r : returns) hash = mix(hash, pack(r.node, r.stack));
  const auto [begin, end] = stack_index_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const Stack& s = stacks_[static_cast<size_t>(it->second)];
    if (s.inner == inner &&
        std::ranges::equal(std::span(returns_).subspan(static_cast<size_t>(s.first), static_cast<size_t>(s.count)),
                           returns)) {
      return it->second;
    }
  }
  const auto id = static_cast<int32_t>(stacks_.size());
  const int32_t below = base(returns[0].stack);
  const bool one = std::ranges::all_of(returns, [&](const Return& r) { return base(r.stack) == below; });
  const auto first = static_cast<int32_t>(returns_.size());
  returns_.insert(returns_.end(), returns.begin(), returns.end());
  stacks_.push_back({first, static_cast<int32_t>(returns.size()), depth, -1, inner && one ? below : id, inner});
  stack_index_.emplace(hash, id);
  return id;
}

int32_t GrammarAutomaton::lift(int32_t stack, bool shapes) {
  const Stack s = stacks_[static_cast<size_t>(stack)];
  const int32_t ground = s.base == kRootStack ? kRootStack : kUnknownStack;
  if (s.base == stack) return ground;
  std::vector<Return> returns;
  for (int32_t r = s.first; r < s.first + s.count; ++r) {
    const Return back = returns_[static_cast<size_t>(r)];
    const int32_t shape = grammar_->nodes()[static_cast<size_t>(back.node)].shape;
    returns.push_back({shapes ? shape : back.node, lift(back.stack, shapes)});
  }
  std::ranges::sort(returns);
  returns.erase(std::unique(returns.begin(), returns.end()), returns.end());
  return intern_stack(returns, depth(ground) + s.depth - depth(s.base), true);
}

int32_t GrammarAutomaton::part_state(std::span<const Config> configs, bool shapes) {
  accepts_ = ends_part_ = false;
  made_.clear();
  for (const Config& c : configs) {
    const int32_t shape = grammar_->nodes()[static_cast<size_t>(c.node)].shape;
    made_.push_back({shapes ? shape : c.node, lift(c.stack, shapes)});
  }
  std::ranges::sort(made_, {}, [](const Config& c) { return pack(c.node, c.stack); });
  made_.erase(std::unique(made_.begin(), made_.end()), made_.end());
  return intern_state();
}

int32_t GrammarAutomaton::after(int32_t stack) {
  const Stack s = stacks_[static_cast<size_t>(stack)];
  if (s.after >= 0) return s.after;
  begin();
  for (int32_t r = s.first; r < s.first + s.count; ++r) {
    const Return back = returns_[static_cast<size_t>(r)];
    add(back.node, back.stack);
  }
  close();
  const int32_t state = intern_state();
  stacks_[static_cast<size_t>(stack)].after = state;
  return state;
}

// Stacks are older than those above them, so that ascending order meets every tail first.
std::vector<int32_t> GrammarAutomaton::import(const GrammarAutomaton& from, std::span<const int32_t> states) {
  std::vector<char> wanted(from.stacks_.size());
  for (const int32_t state : states) {
    const std::span<const Config> all = from.configs(state);
    spend(static_cast<int64_t>(1 + all.size()));
    for (const Config& c : all) wanted[static_cast<size_t>(c.stack)] = 1;
  }
  for (size_t i = wanted.size(); i-- > 2;) {
    const Stack& s = from.stacks_[i];
    for (int32_t r = s.first; wanted[i] && r < s.first + s.count; ++r) {
      wanted[static_cast<size_t>(from.returns_[static_cast<size_t>(r)].stack)] = 1;
    }
  }
  std::vector<int32_t> mine(from.stacks_.size());
  mine[kUnknownStack] = kUnknownStack;
  for (size_t i = 2; i < wanted.size(); ++i) {
    if (!wanted[i]) continue;
    const Stack& s = from.stacks_[i];
    spend(1 + s.count);
    std::vector<Return> returns;
    for (int32_t r = s.first; r < s.first + s.count; ++r) {
      const Return& back = from.returns_[static_cast<size_t>(r)];
      returns.push_back({back.node, mine[static_cast<size_t>(back.stack)]});
    }
    std::ranges::sort(returns);
    mine[i] = intern_stack(returns, s.depth, s.inner);
  }
  std::vector<int32_t> imported;
  for (const int32_t state : states) {
    accepts_ = from.accepts(state);
    ends_part_ = from.returns(state);
    made_.clear();
    for (const Config& c : from.configs(state)) made_.push_back({c.node, mine[static_cast<size_t>(c.stack)]});
    imported.push_back(intern_state());
  }
  return imported;
}

size_t GrammarAutomaton::bytes() const {
  return table_.size() * sizeof(int32_t) + configs_.size() * sizeof(Config) +
         states_.size() * (sizeof(State) + kHashEntryBytes) + returns_.size() * sizeof(Return) +
         stacks_.size() * (sizeof(Stack) + kHashEntryBytes) + seen_.bytes();
}

}  // namespace glm53::text
