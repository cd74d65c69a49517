#include "text/token_trie.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "glm53/core/contains.h"

namespace glm53::text {

TokenTrie::TokenTrie(const Tokenizer& tokenizer, int32_t vocab, std::span<const int32_t> end_ids)
    : vocab_(vocab), end_ids_(end_ids.begin(), end_ids.end()) {
  std::vector<std::string_view> bytes(static_cast<size_t>(vocab));
  if (tokenizer.has_vocabulary()) {
    for (int32_t id = 0; id < std::min(vocab, tokenizer.id_count()); ++id) {
      if (tokenizer.has_token(id) && !tokenizer.is_added(id))
        bytes[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
    }
  }
  build(bytes);
}

TokenTrie::TokenTrie(std::span<const std::string_view> bytes, int32_t vocab, std::span<const int32_t> end_ids)
    : vocab_(vocab), end_ids_(end_ids.begin(), end_ids.end()) {
  build(bytes);
}

std::string_view TokenTrie::bytes(int32_t id) const {
  if (id < 0 || id >= vocab_) return {};
  const auto at = static_cast<size_t>(id);
  return {text_.data() + text_at_[at], static_cast<size_t>(text_at_[at + 1] - text_at_[at])};
}

void TokenTrie::build(std::span<const std::string_view> bytes) {
  if (bytes.size() > static_cast<size_t>(vocab_)) throw std::invalid_argument("TokenTrie: more tokens than logits");
  text_at_.reserve(static_cast<size_t>(vocab_) + 1);
  for (int32_t id = 0; id < vocab_; ++id) {
    text_at_.push_back(static_cast<int32_t>(text_.size()));
    if (static_cast<size_t>(id) >= bytes.size()) continue;
    std::string_view token = bytes[static_cast<size_t>(id)];
    if (token.empty() || contains(end_ids_, id)) continue;
    if (token.size() > std::numeric_limits<uint16_t>::max()) continue;  // beyond what a depth holds: never allowed
    text_.insert(text_.end(), token.begin(), token.end());
    order_.push_back(id);
  }
  text_at_.push_back(static_cast<int32_t>(text_.size()));
  token_kinds_.resize(32 * mask_words(), kIrregular);
  token_chars_.resize(32 * mask_words());
  std::ranges::sort(order_, [this](int32_t a, int32_t b) {
    const int compared = this->bytes(a).compare(this->bytes(b));
    return compared != 0 ? compared < 0 : a < b;
  });

  std::vector<int32_t> path;  // nodes from the root to the token before
  nodes_.push_back({});
  path.push_back(0);
  std::string_view previous;
  const auto close_to = [&](size_t depth) {
    for (; path.size() > depth + 1; path.pop_back()) {
      nodes_[static_cast<size_t>(path.back())].skip = static_cast<int32_t>(nodes_.size());
    }
  };
  for (size_t i = 0; i < order_.size(); ++i) {
    const std::string_view token = this->bytes(order_[i]);
    const size_t common = static_cast<size_t>(std::ranges::mismatch(previous, token).in2 - token.begin());
    close_to(common);
    for (size_t depth = common; depth < token.size(); ++depth) {
      path.push_back(static_cast<int32_t>(nodes_.size()));
      Node node;
      node.first_token = static_cast<int32_t>(i);
      node.depth = static_cast<uint16_t>(depth + 1);
      node.byte = static_cast<uint8_t>(token[depth]);
      nodes_.push_back(node);
    }
    summarize(order_[i], path);
    max_depth_ = std::max(max_depth_, static_cast<int>(token.size()));
    previous = token;
  }
  close_to(0);
  nodes_[0].skip = static_cast<int32_t>(nodes_.size());
  Node end;
  end.skip = static_cast<int32_t>(nodes_.size()) + 1;
  end.first_token = static_cast<int32_t>(order_.size());
  nodes_.push_back(end);
}

/// Adds the characters of token `id` to it and to the nodes on its `path` from the root.
void TokenTrie::summarize(int32_t id, std::span<const int32_t> path) {
  const std::string_view token = bytes(id);
  CharKindSet kinds = 0;
  std::vector<CharKindSet> kind_at(token.size(), kIrregular);  // where a character begins
  int chars = 0;
  for (size_t at = 0; at < token.size(); ++chars) {
    const FirstChar next = first_char(token.substr(at));
    kinds |= kind_at[at] = next.kind;
    at += next.bytes;
  }
  if (chars > kMaxChars) kinds |= kIrregular;
  const bool regular = (kinds & kIrregular) == 0;
  token_kinds_[static_cast<size_t>(id)] = kinds;
  token_chars_[static_cast<size_t>(id)] = regular ? static_cast<uint8_t>(chars) : uint8_t{0};
  CharKindSet below = regular ? CharKindSet{0} : kIrregular;
  uint8_t chars_below = 0;
  for (size_t depth = token.size() + 1; depth-- > 0;) {
    const bool boundary = regular && (depth == token.size() || kind_at[depth] != kIrregular);
    if (boundary && depth < token.size()) {
      below |= kind_at[depth];
      ++chars_below;
    }
    Node& node = nodes_[static_cast<size_t>(path[depth])];
    node.kinds |= kinds;
    node.kinds_below |= boundary ? below : kIrregular;
    node.chars_below = std::max(node.chars_below, chars_below);
  }
}

}  // namespace glm53::text
