// A small byte-level vocabulary and what tests of grammars do with it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar.h"
#include "text/grammar_matcher.h"
#include "text/token_trie.h"

namespace glm53::test {

/// Ids 0-255: single bytes; then tokens that cross borders of JSON, halves of characters and a duplicate; then tags;
/// then two end ids; then padding.
struct GrammarVocabulary {
  GrammarVocabulary();
  std::vector<std::string> tokens;
  text::ToolTags tags;
  std::vector<int32_t> tag_ids;
  std::vector<int32_t> end_ids;
  int32_t vocab = 0;
  std::shared_ptr<const text::TokenTrie> trie;
};
const GrammarVocabulary& grammar_vocabulary();

std::shared_ptr<text::GrammarTables> grammar_tables(std::shared_ptr<const text::Grammar> grammar);
/// `text`, byte by byte, is a whole text of the grammar.
bool accepts(const std::shared_ptr<text::GrammarTables>& tables, std::string_view text);
bool accepts(const std::shared_ptr<const text::Grammar>& grammar, std::string_view text);
/// As next_mask().
bool mask_bit(std::span<const uint32_t> mask, int32_t id);
/// Ids of next_mask(), ascending.
std::vector<int32_t> allowed_ids(text::GrammarMatcher& matcher);

}  // namespace glm53::test
