// Puts a Grammar together. Every piece is drawn from one node to another, so that pieces join without copies.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/grammar.h"

namespace glm53::text {

/// Members throw Error when a limit of GrammarLimits is exceeded.
class GrammarBuilder {
 public:
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
  void lay_out(Grammar& grammar) const;
  void find_nullable(Grammar& grammar) const;
  void find_heights(Grammar& grammar) const;
  void find_ranks(Grammar& grammar) const;
  void find_classes(Grammar& grammar) const;

  std::vector<Ends> rules_;
  std::vector<int32_t> shapes_;
  std::vector<Bytes> bytes_;
  std::vector<Epsilon> epsilons_;
  std::vector<Call> calls_;
  std::vector<int32_t> token_ids_;
  std::unordered_map<std::string, int32_t> shared_;
  size_t edges_ = 0;
};

}  // namespace glm53::text
