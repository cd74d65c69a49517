// Which characters may follow a state of a grammar in any order: a string's, but for quotes and backslashes, as many as
// its maxLength leaves. Tokens made of them alone are admitted, or refused as too long, without reading their bytes.
// Found by asking the automaton where each character leads, so that it holds for any grammar that behaves so, whatever
// it was compiled from.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

#include "text/char_kinds.h"
#include "text/grammar_automaton.h"

namespace glm53::text {

/// Of one automaton, whose states it numbers; for the thread of that automaton.
class CharRuns {
 public:
  /// 1 to `chars` characters of these kinds may follow, and not more unless `chars` is `longest`. No kinds: nothing is
  /// known. Where the part that began with kUnknownStack may end within, nothing is: what may follow depends on the
  /// caller.
  struct Run {
    CharKindSet kinds = 0;
    int chars = 0;
  };
  /// Throws Error as GrammarAutomaton::next.
  Run of(GrammarAutomaton& automaton, int32_t state, int longest);
  void clear();
  size_t bytes() const;

 private:
  using Steps = std::array<int32_t, kCharKinds>;  ///< state after a character of each kind, kMixed
  const Steps& steps(GrammarAutomaton& automaton, int32_t state);
  Run find(GrammarAutomaton& automaton, int32_t state, int longest);

  std::unordered_map<int32_t, Steps> steps_;
  std::unordered_map<int32_t, Run> runs_;
};

}  // namespace glm53::text
