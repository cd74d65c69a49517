#include "text/grammar_builder.h"

#include <algorithm>
#include <utility>

#include "glm53/core/error.h"

namespace glm53::text {
namespace {

/// Edges grouped by the node that `key` names: `items` sorted stably, `first(node, index)` told where each group
/// begins.
template <typename T, typename Key, typename First>
std::vector<T> group(const std::vector<T>& items, size_t nodes, Key key, First first) {
  std::vector<int32_t> begin(nodes + 1);
  for (const T& item : items) ++begin[static_cast<size_t>(key(item)) + 1];
  for (size_t i = 0; i < nodes; ++i) begin[i + 1] += begin[i];
  for (size_t i = 0; i <= nodes; ++i) first(i, begin[i]);
  std::vector<T> sorted(items.size());
  for (const T& item : items) sorted[static_cast<size_t>(begin[static_cast<size_t>(key(item))]++)] = item;
  return sorted;
}

}  // namespace

int32_t GrammarBuilder::add_rule() {
  if (rules_.size() >= GrammarLimits::kRules) throw GrammarTooLarge("grammar: too large (more than 20000 rules)");
  const int32_t from = add_node();
  rules_.push_back({from, add_node()});
  return static_cast<int32_t>(rules_.size()) - 1;
}

int32_t GrammarBuilder::add_node() {
  budget_.spend(kNodeWork);
  if (shapes_.size() >= GrammarLimits::kNodes) throw GrammarTooLarge("grammar: too large (more than 400000 states)");
  shapes_.push_back(node_count());
  return node_count() - 1;
}

void GrammarBuilder::count_edge() {
  budget_.spend(kEdgeWork);
  if (++edges_ > GrammarLimits::kEdges) throw GrammarTooLarge("grammar: too large (more than 1200000 transitions)");
}

void GrammarBuilder::bytes(int32_t from, uint8_t low, uint8_t high, int32_t to) {
  count_edge();
  bytes_.push_back({from, {low, high, to}});
}

void GrammarBuilder::token(int32_t from, int32_t id, int32_t to) {
  count_edge();
  const auto at = std::ranges::find(token_ids_, id);
  const auto symbol = static_cast<uint16_t>(256 + (at - token_ids_.begin()));
  if (at == token_ids_.end()) token_ids_.push_back(id);
  bytes_.push_back({from, {symbol, symbol, to}});
}

void GrammarBuilder::epsilon(int32_t from, int32_t to) {
  count_edge();
  epsilons_.push_back({from, to});
}

void GrammarBuilder::call(int32_t from, int32_t rule, int32_t to) {
  count_edge();
  calls_.push_back({from, {rule, to}});
}

void GrammarBuilder::literal(int32_t from, std::string_view text, int32_t to) {
  if (text.empty()) return epsilon(from, to);
  for (size_t i = 0; i < text.size(); ++i) {
    const int32_t next = i + 1 == text.size() ? to : add_node();
    const auto byte = static_cast<uint8_t>(text[i]);
    bytes(from, byte, byte, next);
    from = next;
  }
}

void GrammarBuilder::sort_texts(std::vector<std::string>& texts) {
  for (const std::string& text : texts) budget_.spend(20 + text.size());
  std::ranges::sort(texts, [this](const std::string& a, const std::string& b) {
    budget_.spend(2 + std::min(a.size(), b.size()) / 16);
    return a < b;
  });
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
}

std::shared_ptr<const Grammar> GrammarBuilder::finish(int32_t root) {
  auto grammar = std::make_shared<Grammar>();
  grammar->root_ = root;
  grammar->token_ids_ = token_ids_;
  lay_out(*grammar);
  find_nullable(*grammar);
  find_heights(*grammar);
  find_ranks(*grammar);
  find_classes(*grammar);
  if (grammar->nodes_[static_cast<size_t>(start(root))].height == Grammar::kDeadHeight) {
    throw Error("grammar: no text satisfies it (or only one nested more than 64 deep)");
  }
  return grammar;
}

void GrammarBuilder::lay_out(Grammar& grammar) const {
  const size_t count = shapes_.size();
  grammar.nodes_.resize(count + 1);
  for (size_t i = 0; i < count; ++i) grammar.nodes_[i].shape = shapes_[i];
  for (const Ends& ends : rules_) {
    grammar.rules_.push_back({ends.start, 0, false, ends.inner});
    grammar.nodes_[static_cast<size_t>(ends.end)].final = true;
  }
  const auto from = [](const auto& edge) { return edge.from; };
  for (const Bytes& e : group(bytes_, count, from, [&](size_t i, int32_t at) { grammar.nodes_[i].bytes = at; })) {
    grammar.byte_edges_.push_back(e.edge);
  }
  for (const Epsilon& e :
       group(epsilons_, count, from, [&](size_t i, int32_t at) { grammar.nodes_[i].epsilons = at; })) {
    grammar.epsilons_.push_back(e.to);
  }
  for (const Call& e : group(calls_, count, from, [&](size_t i, int32_t at) { grammar.nodes_[i].calls = at; })) {
    grammar.calls_.push_back(e.edge);
  }
}

// Backwards from the ends over edges that read nothing. A call joins once its rule is known to be nullable.
void GrammarBuilder::find_nullable(Grammar& grammar) const {
  const size_t count = shapes_.size();
  std::vector<int32_t> into(count + 1);
  const std::vector<Epsilon> backwards = group(
      epsilons_, count, [](const Epsilon& e) { return e.to; }, [&](size_t i, int32_t at) { into[i] = at; });
  std::vector<int32_t> calls_into(count + 1);
  const std::vector<Call> calls_back = group(
      calls_, count, [](const Call& e) { return e.edge.to; }, [&](size_t i, int32_t at) { calls_into[i] = at; });
  std::vector<int32_t> calls_of(rules_.size() + 1);
  const std::vector<Call> by_rule = group(
      calls_, rules_.size(), [](const Call& e) { return e.edge.rule; },
      [&](size_t i, int32_t at) { calls_of[i] = at; });
  std::vector<int32_t> rule_starting(count, -1);
  std::vector<char> ends(count);  // a node from which its rule can end without reading
  std::vector<int32_t> todo;
  const auto mark = [&](int32_t node) {
    if (!std::exchange(ends[static_cast<size_t>(node)], 1)) todo.push_back(node);
  };
  for (size_t r = 0; r < rules_.size(); ++r) {
    rule_starting[static_cast<size_t>(rules_[r].start)] = static_cast<int32_t>(r);
    mark(rules_[r].end);
  }
  while (!todo.empty()) {
    const auto node = static_cast<size_t>(todo.back());
    todo.pop_back();
    for (int32_t e = into[node]; e < into[node + 1]; ++e) mark(backwards[static_cast<size_t>(e)].from);
    for (int32_t e = calls_into[node]; e < calls_into[node + 1]; ++e) {
      const Call& call = calls_back[static_cast<size_t>(e)];
      if (grammar.rules_[static_cast<size_t>(call.edge.rule)].nullable) mark(call.from);
    }
    if (rule_starting[node] < 0) continue;
    const auto rule = static_cast<size_t>(rule_starting[node]);
    grammar.rules_[rule].nullable = true;
    for (int32_t e = calls_of[rule]; e < calls_of[rule + 1]; ++e) {
      const Call& call = by_rule[static_cast<size_t>(e)];
      if (ends[static_cast<size_t>(call.edge.to)]) mark(call.from);
    }
  }
}

// height(node) = least h such that a way to the end nests at most h calls; found for h = 0, 1, 2, ... in turn, each
// time backwards from the nodes already found. A node that is never found leads nowhere, and the matcher never enters
// it.
void GrammarBuilder::find_heights(Grammar& grammar) {
  struct Back {
    int32_t from;
    int32_t to;
  };
  const size_t count = shapes_.size();
  std::vector<Back> edges;
  for (const Bytes& e : bytes_) edges.push_back({e.from, e.edge.to});
  for (const Epsilon& e : epsilons_) edges.push_back({e.from, e.to});
  for (const Call& e : calls_) {
    if (grammar.rules_[static_cast<size_t>(e.edge.rule)].nullable) edges.push_back({e.from, e.edge.to});
  }
  std::vector<int32_t> into(count + 1);
  edges = group(
      edges, count, [](const Back& e) { return e.to; }, [&](size_t i, int32_t at) { into[i] = at; });
  std::vector<int32_t> calls_into(count + 1);
  const std::vector<Call> calls_back = group(
      calls_, count, [](const Call& e) { return e.edge.to; }, [&](size_t i, int32_t at) { calls_into[i] = at; });
  for (Grammar::Node& node : grammar.nodes_) node.height = Grammar::kDeadHeight;
  const auto height = [&](int32_t node) -> uint8_t& { return grammar.nodes_[static_cast<size_t>(node)].height; };
  std::vector<int32_t> todo;
  bool found = true;  // nothing at one level: nothing at any further one
  for (int level = 0; found && level <= GrammarLimits::kHeight; ++level) {
    budget_.spend(kEdgeWork + calls_.size());
    found = false;
    const auto mark = [&](int32_t node) {
      if (height(node) != Grammar::kDeadHeight) return;
      found = true;
      height(node) = static_cast<uint8_t>(level);
      todo.push_back(node);
    };
    if (level == 0) {
      for (const Ends& ends : rules_) mark(ends.end);
    }
    for (const Call& call : calls_) {
      const uint8_t callee = height(start(call.edge.rule));
      if (callee < level && height(call.edge.to) != Grammar::kDeadHeight) mark(call.from);
    }
    while (!todo.empty()) {
      const auto node = static_cast<size_t>(todo.back());
      todo.pop_back();
      for (int32_t e = into[node]; e < into[node + 1]; ++e) mark(edges[static_cast<size_t>(e)].from);
      for (int32_t e = calls_into[node]; e < calls_into[node + 1]; ++e) {
        const Call& call = calls_back[static_cast<size_t>(e)];
        if (height(start(call.edge.rule)) < level) mark(call.from);
      }
    }
  }
}

void GrammarBuilder::find_ranks(Grammar& grammar) const {
  // Which rules each rule calls before it has read anything.
  std::vector<std::vector<int32_t>> first_calls(rules_.size());
  std::vector<int32_t> callers(rules_.size());
  std::vector<int32_t> seen(shapes_.size(), -1);
  std::vector<int32_t> todo;
  for (size_t r = 0; r < rules_.size(); ++r) {
    const auto visit = [&](int32_t node) {
      if (std::exchange(seen[static_cast<size_t>(node)], static_cast<int32_t>(r)) != static_cast<int32_t>(r)) {
        todo.push_back(node);
      }
    };
    visit(rules_[r].start);
    while (!todo.empty()) {
      const auto node = static_cast<size_t>(todo.back());
      todo.pop_back();
      const Grammar::Node& at = grammar.nodes_[node];
      const Grammar::Node& next = grammar.nodes_[node + 1];
      for (int32_t e = at.epsilons; e < next.epsilons; ++e) visit(grammar.epsilons_[static_cast<size_t>(e)]);
      for (int32_t e = at.calls; e < next.calls; ++e) {
        const Grammar::CallEdge& call = grammar.calls_[static_cast<size_t>(e)];
        first_calls[r].push_back(call.rule);
        if (grammar.rules_[static_cast<size_t>(call.rule)].nullable) visit(call.to);
      }
    }
    std::ranges::sort(first_calls[r]);
    first_calls[r].erase(std::unique(first_calls[r].begin(), first_calls[r].end()), first_calls[r].end());
    for (const int32_t callee : first_calls[r]) ++callers[static_cast<size_t>(callee)];
  }
  std::vector<int32_t> ready;
  for (size_t r = 0; r < rules_.size(); ++r) {
    if (callers[r] == 0) ready.push_back(static_cast<int32_t>(r));
  }
  int32_t rank = 0;
  while (!ready.empty()) {
    const auto rule = static_cast<size_t>(ready.back());
    ready.pop_back();
    grammar.rules_[rule].rank = rank++;
    for (const int32_t callee : first_calls[rule]) {
      if (--callers[static_cast<size_t>(callee)] == 0) ready.push_back(callee);
    }
  }
  if (static_cast<size_t>(rank) != rules_.size()) {
    throw Error("$ref: refers to itself with nothing in between");
  }
}

void GrammarBuilder::find_classes(Grammar& grammar) const {
  const size_t symbols = 256 + token_ids_.size();
  std::vector<char> begins(symbols + 1);
  begins[0] = 1;
  for (const Bytes& e : bytes_) begins[e.edge.low] = begins[e.edge.high + 1U] = 1;
  for (size_t s = 256; s < symbols; ++s) begins[s] = 1;
  for (size_t s = 0; s < symbols; ++s) {
    if (begins[s]) grammar.class_symbol_.push_back(static_cast<uint16_t>(s));
    grammar.symbol_class_.push_back(static_cast<uint16_t>(grammar.class_symbol_.size() - 1));
  }
}

}  // namespace glm53::text
