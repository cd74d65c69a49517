// The byte strings of a vocabulary as one trie, so that a grammar refuses all tokens with a common beginning at once.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "glm53/core/token_mask.h"
#include "text/char_kinds.h"
#include "text/tokenizer.h"

namespace glm53::text {

/// Immutable; any number of threads may share it. 16 bytes a node, three to four nodes a token.
class TokenTrie {
 public:
  /// Longer tokens (runs of blanks or dashes, mostly) count as irregular: how many characters of a kind may follow is
  /// worked out no further.
  static constexpr int kMaxChars = 32;

  /// The tokens that may stand inside a grammar: all that are not added tokens and have bytes. `vocab` is the width of
  /// the logits, at least tokenizer.id_count(): padding ids are never allowed.
  TokenTrie(const Tokenizer& tokenizer, int32_t vocab, std::span<const int32_t> end_ids);
  /// bytes[id]; empty: never allowed.
  TokenTrie(std::span<const std::string_view> bytes, int32_t vocab, std::span<const int32_t> end_ids);

  int32_t vocab() const { return vocab_; }
  size_t mask_words() const { return glm53::mask_words(vocab_); }
  /// Ids that end a reply; allowed exactly where the grammar may end.
  const std::vector<int32_t>& end_ids() const { return end_ids_; }
  /// Empty for ids that may not stand inside a grammar.
  std::string_view bytes(int32_t id) const;

  struct Node {
    int32_t skip = 0;         ///< the first node that is not below this one
    int32_t first_token = 0;  ///< in token_order(); this node's own end where those of the next node begin
    uint16_t depth = 0;       ///< bytes from the root
    uint8_t byte = 0;
    /// Of the tokens below, as far as they go on from here: the most characters, and all kinds; kIrregular among them
    /// if this node is inside a character. A character that a token cuts short counts as one.
    uint8_t chars_below = 0;
    CharKindSet kinds_below = 0;
    CharKindSet kinds = 0;  ///< of the whole of this node's token and those below
  };
  /// In order of the byte strings, parents before children; node 0 is the root, and one extra at the end.
  const std::vector<Node>& nodes() const { return nodes_; }
  /// Token ids in order of their bytes.
  const std::vector<int32_t>& token_order() const { return order_; }
  int max_depth() const { return max_depth_; }
  /// [32 × mask_words()] The kinds of each token's characters and their number; kIrregular for ids that may not stand
  /// in a grammar.
  const std::vector<CharKindSet>& token_kinds() const { return token_kinds_; }
  const std::vector<uint8_t>& token_chars() const { return token_chars_; }

 private:
  void build(std::span<const std::string_view> bytes);
  void summarize(int32_t id, std::span<const int32_t> path);

  int32_t vocab_;
  std::vector<int32_t> end_ids_;
  std::vector<char> text_;
  std::vector<int32_t> text_at_;  ///< [vocab + 1]
  std::vector<int32_t> order_;
  std::vector<Node> nodes_;
  std::vector<CharKindSet> token_kinds_;
  std::vector<uint8_t> token_chars_;
  int max_depth_ = 0;
};

}  // namespace glm53::text
