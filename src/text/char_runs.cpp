#include "text/char_runs.h"

#include <algorithm>

#include "glm53/core/error.h"

namespace glm53::text {
namespace {

constexpr int32_t kMixed = -1;    // characters of the kind lead to several states
constexpr int32_t kNothing = -2;  // no character yet

void merge(int32_t& all, int32_t next) { all = all == kNothing || all == next ? next : kMixed; }

/// The state after any character of `chars` whose first `read` bytes led to `state`.
int32_t after(GrammarAutomaton& automaton, int32_t state, const CharBytes& chars, size_t read) {
  const std::vector<uint16_t>& classes = automaton.grammar().symbol_class();
  int32_t all = kNothing;
  for (int byte = chars.low[read]; byte <= chars.high[read]; ++byte) {
    if (byte > chars.low[read] && classes[static_cast<size_t>(byte)] == classes[static_cast<size_t>(byte) - 1])
      continue;
    int32_t next = automaton.next(state, byte);
    if (next != GrammarAutomaton::kDead && read + 1 < chars.length) {
      next = after(automaton, next, chars, read + 1);
      if (next == GrammarAutomaton::kDead) return kMixed;  // its beginning alone, at a token's end, is not refused
    }
    merge(all, next);
    if (all == kMixed) break;
  }
  return all;
}

}  // namespace

void CharRuns::clear() {
  steps_.clear();
  runs_.clear();
}

size_t CharRuns::bytes() const {
  return steps_.size() * (sizeof(Steps) + kHashEntryBytes) + runs_.size() * (sizeof(Run) + kHashEntryBytes);
}

const CharRuns::Steps& CharRuns::steps(GrammarAutomaton& automaton, int32_t state) {
  if (const auto found = steps_.find(state); found != steps_.end()) return found->second;
  Steps steps;
  steps.fill(kNothing);
  for (const CharBytes& chars : char_bytes()) {
    int32_t& all = steps[static_cast<size_t>(chars.kind)];
    if (all != kMixed) merge(all, after(automaton, state, chars, 0));
  }
  return steps_.emplace(state, steps).first->second;  // complete: an Error above leaves nothing behind
}

CharRuns::Run CharRuns::of(GrammarAutomaton& automaton, int32_t state, int longest) {
  if (const auto found = runs_.find(state); found != runs_.end()) return found->second;
  return runs_.emplace(state, find(automaton, state, longest)).first->second;
}

CharRuns::Run CharRuns::find(GrammarAutomaton& automaton, int32_t state, int longest) {
  // Of the states that a character may lead to, the one that most kinds do.
  const Steps& first = steps(automaton, state);
  const auto lead_to = [](const Steps& steps, int32_t to) { return std::ranges::count(steps, to); };
  int32_t to = kMixed;
  for (const int32_t next : first) {
    const bool counts = next != kMixed && next != GrammarAutomaton::kDead;
    if (counts && (to == kMixed || lead_to(first, next) > lead_to(first, to))) to = next;
  }
  if (to == kMixed) return {};
  Run run;
  for (size_t kind = 0; kind < first.size(); ++kind) {
    if (first[kind] == to) run.kinds |= static_cast<CharKindSet>(1U << kind);
  }
  for (run.chars = 1; run.chars < longest; ++run.chars) {
    if (automaton.returns(to)) return {};
    const Steps& next = steps(automaton, to);
    int32_t all = kNothing;
    for (size_t kind = 0; kind < next.size(); ++kind) {
      if ((run.kinds >> kind & 1) != 0) merge(all, next[kind]);
    }
    if (all == kMixed) return {};
    if (all == GrammarAutomaton::kDead) return run;
    if (all == to) {
      run.chars = longest;
      return run;
    }
    to = all;
  }
  return automaton.returns(to) ? Run{} : run;
}

}  // namespace glm53::text
