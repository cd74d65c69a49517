// Regular languages over Unicode characters: what regexes, formats, lengths and forbidden keys compile to before they
// become bytes.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "text/compile_budget.h"
#include "text/grammar_builder.h"

namespace glm53::text {

inline constexpr char32_t kLastCodePoint = 0x10FFFF;

/// How a character becomes bytes.
enum class CharEncoding : uint8_t {
  kRaw,  ///< UTF-8
  /// UTF-8, escaped where JSON strings must be; an edge for all characters takes every escape of JSON.
  kJson,
};

/// Nondeterministic automaton with one start and one end; edges of a surrogate range are dropped when encoding. Members
/// throw Error when it grows beyond kMaxNodes or kMaxEdges, and GrammarTooLarge when the budget that it is made from is
/// spent.
class CharNfa {
 public:
  struct Edge {
    char32_t low = 0;
    char32_t high = 0;
    int32_t to = 0;
  };
  struct Node {
    std::vector<Edge> edges;
    std::vector<int32_t> epsilons;
  };
  static constexpr size_t kMaxNodes = 200'000;
  static constexpr size_t kMaxEdges = 600'000;

  int32_t start = 0;
  int32_t end = 1;

  /// `budget` outlives the automaton and those made from it.
  explicit CharNfa(CompileBudget& budget) : budget_(&budget), nodes_(2) {}
  const std::vector<Node>& nodes() const { return nodes_; }
  int32_t add_node();
  void edge(int32_t from, char32_t low, char32_t high, int32_t to);
  void epsilon(int32_t from, int32_t to);

  /// Characters from `low` to `high`, -1: no bound, each any character.
  static CharNfa any(int64_t low, int64_t high, CompileBudget& budget);
  /// Any text but these.
  static CharNfa none_of(const std::vector<std::string_view>& texts, CompileBudget& budget);
  /// What both accept.
  static CharNfa both(const CharNfa& a, const CharNfa& b);
  /// `text` is valid UTF-8.
  bool matches(std::string_view text) const;

  void emit(GrammarBuilder& builder, int32_t from, CharEncoding encoding, int32_t to) const;

 private:
  static constexpr uint64_t kNodeWork = 20;
  static constexpr uint64_t kEdgeWork = 5;

  CompileBudget* budget_;
  std::vector<Node> nodes_;
  size_t edges_ = 0;
};

/// The bytes of the characters low..high.
void emit_characters(GrammarBuilder& builder, int32_t from, char32_t low, char32_t high, CharEncoding encoding,
                     int32_t to);
/// One character of a JSON string, in any spelling.
void emit_json_character(GrammarBuilder& builder, int32_t from, int32_t to);

/// The texts that contain (`anywhere`) or are a match of an ECMAScript pattern; see compile_regex. Throws Error.
CharNfa parse_regex(std::string_view pattern, bool anywhere, CompileBudget& budget);

}  // namespace glm53::text
