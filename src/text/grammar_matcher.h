// A reply that follows a Grammar, token by token: what may come next, taking tokens, taking them back.
//
// Use: one TokenTrie a server, one GrammarTables a grammar (kept with the grammar in a cache, so that what was computed
// for one request serves the next), one GrammarMatcher a reply. For each position the caller puts next_mask() into
// SampleRow::mask, samples, and calls accept(); a verify window does so along its drafts, ends at the first draft that
// accept() refuses, and rolls back what was not kept.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/char_runs.h"
#include "text/grammar.h"
#include "text/grammar_automaton.h"
#include "text/token_trie.h"

namespace glm53::text {

/// What masks of one grammar over one vocabulary have in common. Used by one thread at a time, the matchers of it
/// included. Bounded: usually 5 to 30 MB; states make way beyond 64 MB, masks beyond 1,024 of each kind.
///
/// Cost for 154,880 ids (tests/bench/bench_grammar.cpp; the table is in README.md): a mask seen before is found in a
/// microsecond, one at a new place made of known parts takes some ten. A part met for the first time takes 0.05 to 0.5
/// ms: tokens made of characters that may follow in any order are told from tables (char_runs.h), the rest of the trie
/// is read; reading all of it takes 8 to 16 ms. So 99 of 100 masks take less than 0.3 ms after a first reply.
/// Replacing a full automaton takes some ms, once in tens of thousands of steps.
class GrammarTables {
 public:
  /// `work`: what one step of a reply may cost (GrammarAutomaton::kWork).
  GrammarTables(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
                int64_t work = GrammarAutomaton::kWork);

  const TokenTrie& trie() const { return *trie_; }
  /// Memory held at present, the grammar's own left out.
  size_t bytes() const;
  /// bytes() as of the last mask that was made, or failed to be. For any thread.
  size_t held_bytes() const { return held_bytes_.load(std::memory_order_relaxed); }

 private:
  friend class GrammarMatcher;
  /// Of a set of nodes whatever their callers are.
  struct PartMask {
    std::vector<uint32_t> allowed;   ///< tokens that stay within the part, or end with it
    std::vector<int32_t> returning;  ///< trie nodes where the part ends and longer tokens go on with the callers
  };
  using Mask = std::vector<uint32_t>;

  /// The automaton to use for one step of a reply, which its work is bounded for: a fresh one where the last has grown
  /// too large. That one lasts until the replies on it have moved.
  const std::shared_ptr<GrammarAutomaton>& automaton();
  /// Tokens from `state`; valid until the next call.
  const Mask& mask(int32_t state);
  const PartMask& part_mask(std::span<const GrammarAutomaton::Config> group);
  /// Adds the tokens below trie node `top` that can follow in `state`; trie nodes where a part returns go to
  /// `returning`.
  void walk(int32_t state, int32_t top, Mask& mask, std::vector<int32_t>* returning);
  CharRuns::Run run(int32_t state) { return runs_.of(*automaton_, state, TokenTrie::kMaxChars); }

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const TokenTrie> trie_;
  const int64_t work_;
  std::shared_ptr<GrammarAutomaton> automaton_;
  CharRuns runs_;                                ///< of automaton_
  std::unordered_map<int32_t, PartMask> parts_;  ///< by state of nodes above an unknown stack
  struct Kept {
    int32_t state;
    Mask mask;
  };
  std::list<Kept> masks_;  ///< of automaton_; last used first
  std::unordered_map<int32_t, std::list<Kept>::iterator> mask_index_;
  std::vector<int32_t> path_;
  std::atomic<size_t> held_bytes_{0};
};

/// A value: copying one clones the reply's position. Belongs to the thread of its GrammarTables.
class GrammarMatcher {
 public:
  /// Tokens that rollback() can take back at most.
  static constexpr int kMaxRollback = 256;
  /// The masks of a reply may cost together what so many steps may: about ten seconds, in which others wait.
  static constexpr int64_t kCostlySteps = 10;

  /// `starts_after`: the reply begins inside reasoning, and the grammar holds from the first token after this id, that
  /// of </think> (spec 40 §12.3); everything before is free. nullopt: it holds from the first token.
  GrammarMatcher(std::shared_ptr<GrammarTables> tables, std::optional<int32_t> starts_after = std::nullopt);

  /// False before `starts_after`: next_mask() is empty then, which allows every id.
  bool active() const { return history_.back() != kWaiting; }
  /// [trie.mask_words()], as SampleRow::mask: the tokens whose bytes can follow, tags that the grammar names, and all
  /// end ids where it may end. Some bit is set until ended(), provided that every byte of UTF-8 is a token, as in a
  /// byte-level vocabulary. Valid until the next call of any matcher of these tables. Throws Error when the grammar
  /// is too ambiguous to follow within bounds of time and memory: the request fails.
  std::span<const uint32_t> next_mask();
  /// As bit `id` of next_mask(), without computing it. Throws as next_mask().
  bool allows(int32_t id);
  /// Takes a token; false, and nothing changed, if it is not allowed. Throws as next_mask().
  bool accept(int32_t id);
  /// Takes the last `tokens` accepted tokens back; std::out_of_range beyond kMaxRollback or the beginning.
  void rollback(int tokens);

  /// The reply is complete if it ends here.
  bool can_end() const;
  /// Nothing but an end id may follow: the reply can finish without another forward pass.
  bool must_end() const;
  /// An end id was accepted (not one before `starts_after`: the caller ends those replies).
  bool ended() const { return history_.back() == kEnded; }

 private:
  static constexpr int32_t kWaiting = -1;
  static constexpr int32_t kEnded = -2;
  /// The state after `id`, GrammarAutomaton::kDead if it is not allowed.
  int32_t follow(int32_t id);
  void renew_automaton();

  std::shared_ptr<GrammarTables> tables_;
  std::shared_ptr<GrammarAutomaton> automaton_;  ///< of the states in history_
  std::optional<int32_t> starts_after_;
  int64_t work_ = 0;              ///< of its masks so far
  std::vector<int32_t> history_;  ///< state after each token, the one before the first included; the last ones alone
};

}  // namespace glm53::text
