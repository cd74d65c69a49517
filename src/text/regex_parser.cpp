// Patterns: parsed to a tree first, whose size is known before a repetition is written out.
#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <string>

#include "glm53/core/error.h"
#include "glm53/core/utf8.h"
#include "text/char_nfa.h"

namespace glm53::text {
namespace {

using Ranges = std::vector<std::pair<char32_t, char32_t>>;

struct Tree {
  enum class Kind : uint8_t { kSet, kSequence, kChoice, kRepeat };
  Kind kind = Kind::kSequence;
  Ranges set;
  std::vector<Tree> parts;  ///< one for kRepeat
  int low = 0;
  int high = 0;  ///< −1: no bound

  explicit Tree(Kind k = Kind::kSequence) : kind(k) {}
  explicit Tree(Ranges ranges) : kind(Kind::kSet), set(std::move(ranges)) {}
};

Ranges normalized(Ranges ranges) {
  std::ranges::sort(ranges);
  Ranges merged;
  for (const auto& [low, high] : ranges) {
    if (!merged.empty() && low <= merged.back().second + 1) {
      merged.back().second = std::max(merged.back().second, high);
    } else {
      merged.emplace_back(low, high);
    }
  }
  return merged;
}

Ranges complement(const Ranges& ranges) {
  Ranges rest;
  char32_t next = 0;
  for (const auto& [low, high] : normalized(ranges)) {
    if (low > next) rest.emplace_back(next, low - 1);
    next = high + 1;
  }
  if (next <= kLastCodePoint) rest.emplace_back(next, kLastCodePoint);
  return rest;
}

class Parser {
 public:
  explicit Parser(std::string_view pattern) {
    if (pattern.size() > GrammarLimits::kRegexBytes) throw UnsupportedSchema("pattern: longer than 65536 bytes");
    if (!is_utf8(pattern)) throw Error("pattern: not valid UTF-8");
    while (!pattern.empty()) text_.push_back(take_code_point(pattern));
  }

  struct Alternative {
    bool anchored_start = false;
    bool anchored_end = false;
    Tree tree;
  };
  std::vector<Alternative> parse() {
    std::vector<Alternative> alternatives;
    do {
      Alternative alternative;
      while (take('^')) alternative.anchored_start = true;
      alternative.tree = sequence(0);
      while (take('$')) alternative.anchored_end = true;
      alternatives.push_back(std::move(alternative));
    } while (take('|'));
    if (at_ < text_.size()) fail(text_[at_] == ')' ? "unmatched )" : "text after $");
    return alternatives;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw UnsupportedSchema("pattern: " + what + " (at character " + std::to_string(at_) + ")");
  }
  bool more() const { return at_ < text_.size(); }
  bool take(char32_t c) {
    if (!more() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  char32_t next() {
    if (!more()) fail("incomplete");
    return text_[at_++];
  }

  Tree choice(int depth) {
    Tree tree(Tree::Kind::kChoice);
    do {
      tree.parts.push_back(sequence(depth));
    } while (take('|'));
    return tree;
  }

  Tree sequence(int depth) {
    Tree tree;
    while (more() && text_[at_] != '|' && text_[at_] != ')') {
      if (text_[at_] == '$' && depth == 0) break;
      tree.parts.push_back(repeated(atom(depth)));
    }
    return tree;
  }

  Tree repeated(Tree tree) {
    int count = 0;
    while (more()) {
      int low = 0;
      int high = -1;
      const size_t before = at_;
      if (take('*')) {
      } else if (take('+')) {
        low = 1;
      } else if (take('?')) {
        high = 1;
      } else if (!take('{')) {
        break;
      } else if (!bounds(low, high)) {
        at_ = before;  // a brace that is no quantifier is a character
        break;
      }
      if (++count > 1) fail("repeated quantifier");
      take('?');
      if (more() && text_[at_] == '+') fail("possessive quantifier is not supported");
      Tree repeat(Tree::Kind::kRepeat);
      repeat.low = low;
      repeat.high = high;
      repeat.parts.push_back(std::move(tree));
      tree = std::move(repeat);
    }
    return tree;
  }

  std::optional<int> number() {
    std::string digits;
    while (more() && text_[at_] >= '0' && text_[at_] <= '9') digits += static_cast<char>(text_[at_++]);
    if (digits.empty()) return std::nullopt;
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || value > GrammarLimits::kRepeat) fail("repetition beyond 10000");
    return value;
  }

  bool bounds(int& low, int& high) {
    const std::optional<int> first = number();
    if (!first) return false;
    low = high = *first;
    if (take(',')) high = number().value_or(-1);
    if (!take('}')) return false;
    if (high >= 0 && high < low) fail("repetition bounds out of order");
    return true;
  }

  Tree atom(int depth) {
    const char32_t c = next();
    switch (c) {
      case '(':
        return group(depth);
      case '[':
        return Tree(bracket());
      case '.':
        return Tree(complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
      case '\\':
        return Tree(escape(false));
      case '^':
      case '$':
        fail("^ and $ are supported at the ends of a top-level alternative only");
      case '*':
      case '+':
      case '?':
        fail("nothing to repeat");
      default:
        return Tree(Ranges{{c, c}});
    }
  }

  Tree group(int depth) {
    if (depth >= GrammarLimits::kSchemaDepth) fail("groups nested more than 64 deep");
    if (take('?')) {
      if (take('<')) {
        if (more() && (text_[at_] == '=' || text_[at_] == '!')) fail("look-behind is not supported");
        while (next() != '>') {
        }
      } else if (!take(':')) {
        fail(more() && (text_[at_] == '=' || text_[at_] == '!') ? "look-ahead is not supported"
                                                                : "group option is not supported");
      }
    }
    Tree tree = choice(depth + 1);
    if (!take(')')) fail("unmatched (");
    return tree;
  }

  char32_t hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) value = value * 16 + hex_digit(next());
    return value;
  }
  char32_t hex_digit(char32_t c) const {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    fail("invalid hexadecimal digit");
  }

  Ranges escape(bool in_class) {
    static const Ranges kDigit = {{'0', '9'}};
    static const Ranges kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const Ranges kSpace = {{'\t', '\r'}, {' ', ' '}};
    const char32_t c = next();
    const auto single = [](char32_t value) { return Ranges{{value, value}}; };
    switch (c) {
      case 'd':
        return kDigit;
      case 'D':
        return complement(kDigit);
      case 'w':
        return kWord;
      case 'W':
        return complement(kWord);
      case 's':
        return kSpace;
      case 'S':
        return complement(kSpace);
      case 'n':
        return single('\n');
      case 'r':
        return single('\r');
      case 't':
        return single('\t');
      case 'f':
        return single('\f');
      case 'v':
        return single('\v');
      case '0':
        return single(0);
      case 'x':
        return single(hex(2));
      case 'u':
        return single(unicode());
      case 'b':
        if (in_class) return single('\b');
        fail("\\b is not supported");
      default:
        break;
    }
    if ((c >= '1' && c <= '9') || c == 'k') fail("back reference is not supported");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      fail(std::string("\\") + static_cast<char>(c) + " is not supported");
    }
    return single(c);
  }

  char32_t unicode() {
    char32_t value = 0;
    if (take('{')) {
      for (char32_t c = next(); c != '}'; c = next()) {
        value = value * 16 + hex_digit(c);
        if (value > kLastCodePoint) fail("\\u beyond U+10FFFF");
      }
    } else {
      value = hex(4);
      if (value >= 0xD800 && value <= 0xDBFF && take('\\')) {
        if (!take('u')) fail("lone surrogate");
        const char32_t low = hex(4);
        if (low < 0xDC00 || low > 0xDFFF) fail("lone surrogate");
        value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
      }
    }
    if (value >= 0xD800 && value <= 0xDFFF) fail("lone surrogate");
    return value;
  }

  Ranges bracket() {
    const bool negated = take('^');
    Ranges set;
    while (!take(']')) {
      const auto item = [&]() -> Ranges {
        const char32_t c = next();
        return c == '\\' ? escape(true) : Ranges{{c, c}};
      };
      Ranges first = item();
      const bool range = at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']';
      if (range) {
        ++at_;
        const Ranges last = item();
        const auto is_single = [](const Ranges& r) { return r.size() == 1 && r[0].first == r[0].second; };
        if (!is_single(first) || !is_single(last)) fail("range between classes");
        if (last[0].first < first[0].first) fail("range out of order");
        first[0].second = last[0].first;
      }
      set.insert(set.end(), first.begin(), first.end());
    }
    return negated ? complement(set) : normalized(set);
  }

  std::u32string text_;
  size_t at_ = 0;
};

// Recursion is as deep as the groups: kSchemaDepth.
void draw(CharNfa& nfa, int32_t from, const Tree& tree, int32_t to) {
  switch (tree.kind) {
    case Tree::Kind::kSet:
      for (const auto& [low, high] : tree.set) nfa.edge(from, low, high, to);
      return;
    case Tree::Kind::kSequence:
      for (const Tree& part : tree.parts) {
        const int32_t next = nfa.add_node();
        draw(nfa, from, part, next);
        from = next;
      }
      return nfa.epsilon(from, to);
    case Tree::Kind::kChoice:
      for (const Tree& part : tree.parts) draw(nfa, from, part, to);
      return;
    case Tree::Kind::kRepeat:
      break;
  }
  // Each copy between nodes of its own: a loop inside must not be entered from outside.
  int32_t at = nfa.add_node();
  nfa.epsilon(from, at);
  const int copies = tree.high < 0 ? tree.low : tree.high;
  for (int i = 0; i < copies; ++i) {
    if (i >= tree.low) nfa.epsilon(at, to);
    const int32_t next = nfa.add_node();
    draw(nfa, at, tree.parts[0], next);
    at = next;
  }
  if (tree.high < 0) {
    const int32_t loop = nfa.add_node();
    nfa.epsilon(at, loop);
    draw(nfa, loop, tree.parts[0], loop);
    at = loop;
  }
  nfa.epsilon(at, to);
}

}  // namespace

CharNfa parse_regex(std::string_view pattern, bool anywhere, CompileBudget& budget) {
  budget.spend(50 * pattern.size());
  CharNfa nfa(budget);
  for (const Parser::Alternative& alternative : Parser(pattern).parse()) {
    const int32_t from = nfa.add_node();
    const int32_t to = nfa.add_node();
    nfa.epsilon(nfa.start, from);
    nfa.epsilon(to, nfa.end);
    if (anywhere && !alternative.anchored_start) nfa.edge(from, 0, kLastCodePoint, from);
    if (anywhere && !alternative.anchored_end) nfa.edge(to, 0, kLastCodePoint, to);
    const int32_t begin = nfa.add_node();
    nfa.epsilon(from, begin);
    draw(nfa, begin, alternative.tree, to);
  }
  return nfa;
}

}  // namespace glm53::text
