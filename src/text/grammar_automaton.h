// A Grammar run over bytes. States are sets of (node, stack), made when first met and then found again by their
// content: a text that returns to the same place returns to the same state number, and what was computed for it holds.
//
// Stacks share their tails and are merged: all callers that call one rule at one place in the text at one depth become
// one stack. The number of stacks is therefore bounded by (rules × depth) a position even for ambiguous grammars.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/grammar.h"

namespace glm53::text {

/// Of an entry of a hash table beside its value: node, bucket, allocator's own.
inline constexpr size_t kHashEntryBytes = 48;

/// Not safe for use by several threads at once.
class GrammarAutomaton {
 public:
  struct Config {
    int32_t node = 0;
    int32_t stack = 0;
    bool operator==(const Config&) const = default;
  };
  static constexpr int32_t kDead = 0;  ///< the state without texts
  /// Stacks of the whole text, and of a part of it that does not know its callers (grammar_matcher.h).
  static constexpr int32_t kRootStack = 0;
  static constexpr int32_t kUnknownStack = 1;

  explicit GrammarAutomaton(std::shared_ptr<const Grammar> grammar);

  const Grammar& grammar() const { return *grammar_; }
  int32_t start_state() const { return start_state_; }

  int32_t next(int32_t state, int symbol) {
    const int32_t known = table_[row(state) + grammar_->symbol_class()[static_cast<size_t>(symbol)]];
    return known >= 0 ? known : step(state, grammar_->symbol_class()[static_cast<size_t>(symbol)]);
  }
  /// The text may end here.
  bool accepts(int32_t state) const { return states_[static_cast<size_t>(state)].accepts; }
  /// Some byte or token may follow.
  bool continues(int32_t state) const { return states_[static_cast<size_t>(state)].count > 0; }
  /// The part that began with kUnknownStack may end here.
  bool returns(int32_t state) const { return states_[static_cast<size_t>(state)].returns; }

  /// Ordered by stack, then node. The span is valid until the next call that makes a state.
  std::span<const Config> configs(int32_t state) const;
  /// The stack of the caller that `stack` is an inner part of (Grammar::Rule::inner); itself for other stacks.
  int32_t base(int32_t stack) const { return stacks_[static_cast<size_t>(stack)].base; }
  /// The state of these pairs, whose stacks have one base, with kUnknownStack in its place; the root, which nobody
  /// called, stays itself. `shapes`: with a node of the same shape for each.
  int32_t part_state(std::span<const Config> configs, bool shapes);
  /// The state in which the callers of `stack` go on, once what they called has ended; kDead for kUnknownStack.
  int32_t after(int32_t stack);
  int depth(int32_t stack) const { return stacks_[static_cast<size_t>(stack)].depth; }

  /// States of another automaton over the same grammar, at the cost of one look at its memory.
  std::vector<int32_t> import(const GrammarAutomaton& from, std::span<const int32_t> states);
  size_t bytes() const;
  static constexpr size_t kSoftBytes = size_t{64} << 20;   ///< time to start afresh
  static constexpr size_t kHardBytes = size_t{256} << 20;  ///< of one mask
  static constexpr size_t kMaxConfigs = 20'000;
  static constexpr size_t kMaxSeen = 1'000'000;  ///< those that read nothing included
  /// What the members may cost until the next call, in (node, stack) pairs read: about a second. Beyond it, as where a
  /// state or memory grows too large, they throw Error; the object stays usable.
  static constexpr int64_t kWork = 20'000'000;
  void begin_work(int64_t work = kWork) { work_end_ = work_ + work; }
  int64_t work() const { return work_; }  ///< so far

  /// Where an unknown stack is taken to be, for the limit on depth: as deep as the texts may get for whose parts
  /// results are shared.
  static constexpr int kSharedDepth = GrammarLimits::kDepth - 2 * GrammarLimits::kHeight;

 private:
  struct Return {
    int32_t node = 0;
    int32_t stack = 0;
    bool operator==(const Return&) const = default;
    auto operator<=>(const Return&) const = default;
  };
  struct Stack {
    int32_t first = 0;  ///< in returns_
    int32_t count = 0;
    int32_t depth = 0;
    int32_t after = -1;  ///< state; −1: not known yet
    int32_t base = 0;
    bool inner = false;
  };
  struct State {
    int32_t first = 0;  ///< in configs_
    int32_t count = 0;
    bool accepts = false;
    bool returns = false;
  };
  struct PendingCall {
    int32_t rule = 0;
    int32_t depth = 0;  ///< of the stack that the call makes
    Return back;
  };
  /// A set of pairs that empties in constant time.
  class SeenSet {
   public:
    void clear();
    bool insert(Config config);
    size_t size() const { return used_; }
    size_t bytes() const { return slots_.size() * sizeof(slots_[0]); }

   private:
    void grow();
    std::vector<std::pair<uint64_t, uint32_t>> slots_ = std::vector<std::pair<uint64_t, uint32_t>>(256);
    uint32_t epoch_ = 1;
    size_t used_ = 0;
  };

  size_t row(int32_t state) const { return static_cast<size_t>(state) * static_cast<size_t>(grammar_->class_count()); }
  int32_t step(int32_t state, int symbol_class);
  void begin();
  void spend(int64_t work);
  void add(int32_t node, int32_t stack);
  void reach(bool fresh);
  void close();
  int32_t intern_state();
  int32_t intern_stack(std::span<const Return> returns, int depth, bool inner);
  int32_t lift(int32_t stack, bool shapes);  ///< part_state() of a stack

  std::shared_ptr<const Grammar> grammar_;
  std::vector<Stack> stacks_;
  std::vector<Return> returns_;
  std::vector<State> states_;
  std::vector<Config> configs_;
  std::vector<int32_t> table_;  ///< [states, classes]: next state, −1 not known yet
  std::unordered_multimap<uint64_t, int32_t> stack_index_;
  std::unordered_multimap<uint64_t, int32_t> state_index_;
  int32_t start_state_ = kDead;
  int64_t work_ = 0;
  int64_t work_end_ = kWork;

  // The state in the making.
  SeenSet seen_;
  std::vector<Config> todo_;
  std::vector<Config> made_;
  std::vector<PendingCall> pending_;
  bool accepts_ = false;
  bool ends_part_ = false;
};

}  // namespace glm53::text
