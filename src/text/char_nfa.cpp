#include "text/char_nfa.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "glm53/core/error.h"
#include "glm53/core/utf8.h"

namespace glm53::text {
namespace {

std::string utf8(char32_t c) {
  std::string bytes;
  append_code_point(c, bytes);
  return bytes;
}

/// Raw UTF-8 of low..high, which lie on one side of the surrogates. Split where the length changes, and further until
/// each byte of the first and the last character gives a range of its own.
void emit_utf8(GrammarBuilder& builder, int32_t from, char32_t low, char32_t high, int32_t to) {
  for (const char32_t last : {U'\x7F', U'\x7FF', U'\xFFFF'}) {
    if (low <= last && last < high) {
      emit_utf8(builder, from, low, last, to);
      low = last + 1;
    }
  }
  for (int bits = 6; bits <= 18 && high > 0x7F; bits += 6) {
    const char32_t mask = (char32_t{1} << bits) - 1;
    if ((low & ~mask) == (high & ~mask)) continue;
    if ((low & mask) != 0) {
      emit_utf8(builder, from, low, low | mask, to);
      low = (low | mask) + 1;
      return emit_utf8(builder, from, low, high, to);
    }
    if ((high & mask) != mask) {
      emit_utf8(builder, from, low, (high & ~mask) - 1, to);
      return emit_utf8(builder, from, high & ~mask, high, to);
    }
  }
  const std::string first = utf8(low);
  const std::string last = utf8(high);
  for (size_t i = 0; i < first.size(); ++i) {
    const int32_t next = i + 1 == first.size() ? to : builder.add_node();
    builder.bytes(from, static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i]), next);
    from = next;
  }
}

void emit_scalars(GrammarBuilder& builder, int32_t from, char32_t low, char32_t high, int32_t to) {
  if (low < 0xD800) emit_utf8(builder, from, low, std::min<char32_t>(high, 0xD7FF), to);
  if (high > 0xDFFF) emit_utf8(builder, from, std::max<char32_t>(low, 0xE000), high, to);
}

/// Four hexadecimal digits, each between those of `first` and `last` (lower case), in either case.
void emit_hex(GrammarBuilder& builder, int32_t from, std::string_view first, std::string_view last, int32_t to) {
  const auto range = [&](int32_t at, char low, char high, int32_t next) {
    if (low <= high) builder.bytes(at, static_cast<uint8_t>(low), static_cast<uint8_t>(high), next);
  };
  for (size_t i = 0; i < first.size(); ++i) {
    const int32_t next = i + 1 == first.size() ? to : builder.add_node();
    range(from, first[i], std::min(last[i], '9'), next);
    for (const int shift : {0, 'a' - 'A'}) {
      range(from, static_cast<char>(std::max(first[i], 'a') - shift), static_cast<char>(last[i] - shift), next);
    }
    from = next;
  }
}

/// The escape that JSON demands for a character below U+0020, a quote or a backslash.
std::string json_escape(char32_t c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      break;
  }
  constexpr std::string_view kHex = "0123456789abcdef";
  return std::string("\\u00") + kHex[c >> 4] + kHex[c & 15];
}

}  // namespace

void emit_json_character(GrammarBuilder& builder, int32_t from, int32_t to) {
  builder.bytes(from, 0x20, 0x21, to);
  builder.bytes(from, 0x23, 0x5B, to);
  builder.bytes(from, 0x5D, 0x7F, to);
  // The rest is a call: long counted strings would be large otherwise.
  const int32_t rest = builder.shared_rule("json character", [&](int32_t start, int32_t end) {
    emit_scalars(builder, start, 0x80, kLastCodePoint, end);
    const int32_t escape = builder.add_node();
    builder.bytes(start, '\\', '\\', escape);
    for (const char c : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'}) {
      builder.bytes(escape, static_cast<uint8_t>(c), static_cast<uint8_t>(c), end);
    }
    // \uXXXX; a high surrogate only before a low one, U+0000 as any other.
    const int32_t hex = builder.add_node();
    builder.bytes(escape, 'u', 'u', hex);
    emit_hex(builder, hex, "0000", "cfff", end);
    emit_hex(builder, hex, "d000", "d7ff", end);
    emit_hex(builder, hex, "e000", "ffff", end);
    const int32_t high = builder.add_node();
    const int32_t low = builder.add_node();
    emit_hex(builder, hex, "d800", "dbff", high);
    builder.literal(high, "\\u", low);
    emit_hex(builder, low, "dc00", "dfff", end);
  });
  builder.set_inner(rest);
  builder.call(from, rest, to);
}

void emit_characters(GrammarBuilder& builder, int32_t from, char32_t low, char32_t high, CharEncoding encoding,
                     int32_t to) {
  if (encoding == CharEncoding::kRaw && low == 0 && high == kLastCodePoint) {
    builder.bytes(from, 0, 0x7F, to);
    const int32_t rest = builder.shared_rule(
        "long character", [&](int32_t start, int32_t end) { emit_scalars(builder, start, 0x80, kLastCodePoint, end); });
    builder.set_inner(rest);
    return builder.call(from, rest, to);
  }
  if (encoding == CharEncoding::kRaw) return emit_scalars(builder, from, low, high, to);
  if (low == 0 && high == kLastCodePoint) return emit_json_character(builder, from, to);
  for (char32_t c = low; c <= high && c < 0x20; ++c) builder.literal(from, json_escape(c), to);
  for (const char32_t c : {U'"', U'\\'}) {
    if (low <= c && c <= high) builder.literal(from, json_escape(c), to);
  }
  constexpr std::array<std::pair<char32_t, char32_t>, 3> kPlain = {
      {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, kLastCodePoint}}};
  for (const auto& [first, last] : kPlain) {
    if (std::max(low, first) <= std::min(high, last)) {
      emit_scalars(builder, from, std::max(low, first), std::min(high, last), to);
    }
  }
}

int32_t CharNfa::add_node() {
  budget_->spend(kNodeWork);
  if (nodes_.size() >= kMaxNodes) throw UnsupportedSchema("pattern: too large");
  nodes_.emplace_back();
  return static_cast<int32_t>(nodes_.size()) - 1;
}

void CharNfa::edge(int32_t from, char32_t low, char32_t high, int32_t to) {
  budget_->spend(kEdgeWork);
  if (++edges_ > kMaxEdges) throw UnsupportedSchema("pattern: too large");
  nodes_[static_cast<size_t>(from)].edges.push_back({low, high, to});
}

void CharNfa::epsilon(int32_t from, int32_t to) {
  budget_->spend(kEdgeWork);
  if (++edges_ > kMaxEdges) throw UnsupportedSchema("pattern: too large");
  nodes_[static_cast<size_t>(from)].epsilons.push_back(to);
}

CharNfa CharNfa::any(int64_t low, int64_t high, CompileBudget& budget) {
  CharNfa nfa(budget);
  int32_t at = nfa.start;
  const int64_t copies = high < 0 ? low : high;
  for (int64_t i = 0; i <= copies; ++i) {
    if (i >= low) nfa.epsilon(at, nfa.end);
    if (i == copies) break;
    const int32_t next = nfa.add_node();
    nfa.edge(at, 0, kLastCodePoint, next);
    at = next;
  }
  if (high < 0) nfa.edge(at, 0, kLastCodePoint, at);
  return nfa;
}

CharNfa CharNfa::none_of(const std::vector<std::string_view>& texts, CompileBudget& budget) {
  struct TrieNode {
    std::map<char32_t, int32_t> children;
    bool refused = false;
  };
  CharNfa nfa(budget);
  std::unordered_map<int32_t, TrieNode> trie;
  for (std::string_view text : texts) {
    budget.spend(20 * text.size());
    int32_t at = nfa.start;
    while (!text.empty()) {
      const char32_t c = take_code_point(text);
      const auto found = trie[at].children.find(c);
      const int32_t next = found != trie[at].children.end() ? found->second : nfa.add_node();
      trie[at].children[c] = next;
      at = next;
    }
    trie[at].refused = true;
  }
  const int32_t other = nfa.add_node();
  nfa.edge(other, 0, kLastCodePoint, other);
  nfa.epsilon(other, nfa.end);
  trie.try_emplace(nfa.start);
  for (const auto& [at, node] : trie) {
    if (!node.refused) nfa.epsilon(at, nfa.end);
    char32_t next = 0;
    for (const auto& [c, child] : node.children) {
      if (c > next) nfa.edge(at, next, c - 1, other);
      nfa.edge(at, c, c, child);
      next = c + 1;
    }
    if (next <= kLastCodePoint) nfa.edge(at, next, kLastCodePoint, other);
  }
  return nfa;
}

CharNfa CharNfa::both(const CharNfa& a, const CharNfa& b) {
  CharNfa nfa(*a.budget_);
  std::unordered_map<uint64_t, int32_t> known;
  std::vector<std::pair<int32_t, int32_t>> todo;
  const auto node_of = [&](int32_t in_a, int32_t in_b) {
    a.budget_->spend(kNodeWork);
    const uint64_t key = static_cast<uint64_t>(in_a) << 32 | static_cast<uint32_t>(in_b);
    if (const auto found = known.find(key); found != known.end()) return found->second;
    const int32_t node = todo.empty() && known.empty() ? nfa.start : nfa.add_node();
    known.emplace(key, node);
    todo.emplace_back(in_a, in_b);
    return node;
  };
  node_of(a.start, b.start);
  while (!todo.empty()) {
    const auto [in_a, in_b] = todo.back();
    todo.pop_back();
    const int32_t from = node_of(in_a, in_b);
    if (in_a == a.end && in_b == b.end) nfa.epsilon(from, nfa.end);
    const Node& node_a = a.nodes_[static_cast<size_t>(in_a)];
    const Node& node_b = b.nodes_[static_cast<size_t>(in_b)];
    for (const int32_t to : node_a.epsilons) nfa.epsilon(from, node_of(to, in_b));
    for (const int32_t to : node_b.epsilons) nfa.epsilon(from, node_of(in_a, to));
    a.budget_->spend(node_a.edges.size() * node_b.edges.size());
    for (const Edge& x : node_a.edges) {
      for (const Edge& y : node_b.edges) {
        const char32_t low = std::max(x.low, y.low);
        const char32_t high = std::min(x.high, y.high);
        if (low <= high) nfa.edge(from, low, high, node_of(x.to, y.to));
      }
    }
  }
  return nfa;
}

bool CharNfa::matches(std::string_view text) const {
  budget_->spend(nodes_.size() / 8);
  std::vector<int32_t> seen(nodes_.size());  // the step, from 1, in which a node was entered last
  int32_t step = 1;
  std::vector<int32_t> now;
  const auto enter = [&](int32_t node, std::vector<int32_t>& set) {
    if (std::exchange(seen[static_cast<size_t>(node)], step) != step) set.push_back(node);
  };
  const auto close = [&](std::vector<int32_t>& set) {
    for (size_t i = 0; i < set.size(); ++i) {
      const Node& node = nodes_[static_cast<size_t>(set[i])];
      budget_->spend(1 + node.edges.size() + node.epsilons.size());
      for (const int32_t to : node.epsilons) enter(to, set);
    }
  };
  enter(start, now);
  close(now);
  while (!text.empty()) {
    const char32_t c = take_code_point(text);
    ++step;
    std::vector<int32_t> next;
    for (const int32_t node : now) {
      for (const Edge& e : nodes_[static_cast<size_t>(node)].edges) {
        if (e.low <= c && c <= e.high) enter(e.to, next);
      }
    }
    close(next);
    now.swap(next);
  }
  return seen[static_cast<size_t>(end)] == step;
}

void CharNfa::emit(GrammarBuilder& builder, int32_t from, CharEncoding encoding, int32_t to) const {
  std::vector<int32_t> mine(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) mine[i] = builder.add_node();
  builder.epsilon(from, mine[static_cast<size_t>(start)]);
  builder.epsilon(mine[static_cast<size_t>(end)], to);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    for (const int32_t next : nodes_[i].epsilons) builder.epsilon(mine[i], mine[static_cast<size_t>(next)]);
    for (const Edge& e : nodes_[i].edges) {
      emit_characters(builder, mine[i], e.low, e.high, encoding, mine[static_cast<size_t>(e.to)]);
    }
  }
}

}  // namespace glm53::text
