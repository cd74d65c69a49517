// Puts a Grammar together. Every piece is drawn from one node to another, so that pieces join without copies.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/compile_budget.h"
#include "text/grammar.h"

namespace glm53::text {

/// Members throw GrammarTooLarge when a limit of GrammarLimits is exceeded or the budget is spent.
class GrammarBuilder {
 public:
  /// Of the whole compilation: what leads up to this grammar is paid from it too.
  CompileBudget& budget() { return budget_; }

  int32_t add_rule();
  int32_t start(int32_t rule) const { return rules_[static_cast<size_t>(rule)].start; }
  int32_t end(int32_t rule) const { return rules_[static_cast<size_t>(rule)].end; }
  int32_t add_node();
  int32_t node_count() const { return static_cast<int32_t>(shapes_.size()); }
  /// Grammar::Rule::inner.
  void set_inner(int32_t rule) { rules_[static_cast<size_t>(rule)].inner = true; }
  /// Grammar::Node::shape.
  void set_shape(int32_t node, int32_t shape) { shapes_[static_cast<size_t>(node)] = shape; }

  /// The rule known as `name`; `draw(start, end)` makes it at the first call.
  template <typename Draw>
  int32_t shared_rule(const char* name, Draw&& draw) {
    if (const auto found = shared_.find(name); found != shared_.end()) return found->second;
    const int32_t rule = add_rule();
    shared_.emplace(name, rule);  // before it is drawn: it may call itself
    draw(start(rule), end(rule));
    return rule;
  }

  void bytes(int32_t from, uint8_t low, uint8_t high, int32_t to);
  void token(int32_t from, int32_t id, int32_t to);
  void epsilon(int32_t from, int32_t to);
  void call(int32_t from, int32_t rule, int32_t to);
  /// The bytes of `text` one after the other.
  void literal(int32_t from, std::string_view text, int32_t to);

  /// One of `texts`, any order; "" is one too. What follows a common beginning is one state, however many texts share
  /// it. `edge(from, byte, to)` draws each byte.
  template <typename Edge>
  void literals(int32_t from, std::vector<std::string> texts, int32_t to, Edge&& edge);
  void literals(int32_t from, std::vector<std::string> texts, int32_t to) {
    literals(from, std::move(texts), to, [this](int32_t a, uint8_t byte, int32_t b) { bytes(a, byte, byte, b); });
  }

  /// Throws Error when no text satisfies `root`, or a rule calls itself before anything is read.
  std::shared_ptr<const Grammar> finish(int32_t root);

 private:
  struct Ends {
    int32_t start;
    int32_t end;
    bool inner = false;
  };
  struct Bytes {
    int32_t from;
    Grammar::ByteEdge edge;
  };
  struct Epsilon {
    int32_t from;
    int32_t to;
  };
  struct Call {
    int32_t from;
    Grammar::CallEdge edge;
  };
  void count_edge();
  void sort_texts(std::vector<std::string>& texts);
  void lay_out(Grammar& grammar) const;
  void find_nullable(Grammar& grammar) const;
  void find_heights(Grammar& grammar);
  void find_ranks(Grammar& grammar) const;
  void find_classes(Grammar& grammar) const;

  static constexpr uint64_t kNodeWork = 10;
  static constexpr uint64_t kEdgeWork = 10;

  CompileBudget budget_;
  std::vector<Ends> rules_;
  std::vector<int32_t> shapes_;
  std::vector<Bytes> bytes_;
  std::vector<Epsilon> epsilons_;
  std::vector<Call> calls_;
  std::vector<int32_t> token_ids_;
  std::unordered_map<std::string, int32_t> shared_;
  size_t edges_ = 0;
};

template <typename Edge>
void GrammarBuilder::literals(int32_t from, std::vector<std::string> texts, int32_t to, Edge&& edge) {
  sort_texts(texts);
  std::vector<int32_t> path = {from};  // nodes along the text before
  std::string_view before;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string_view text = texts[i];
    const size_t common = static_cast<size_t>(std::ranges::mismatch(before, text).in2 - text.begin());
    path.resize(common + 1);
    const bool goes_on = i + 1 < texts.size() && std::string_view(texts[i + 1]).starts_with(text);
    for (size_t at = common; at < text.size(); ++at) {
      const int32_t next = at + 1 == text.size() && !goes_on ? to : add_node();
      edge(path.back(), static_cast<uint8_t>(text[at]), next);
      path.push_back(next);
    }
    if (goes_on || text.empty()) epsilon(path.back(), to);
    before = text;
  }
}

}  // namespace glm53::text
