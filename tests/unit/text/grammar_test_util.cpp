#include "grammar_test_util.h"

namespace glm53::test {

using namespace glm53::text;

GrammarVocabulary::GrammarVocabulary() {
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* token :
       {"{\"",      "\"}", "\",",  "\", \"", "\":",  "\": ",  "\":\"", "\": \"", "[[",       "]]",       "}}",
        "]}",       "},",  "}]",   "[{",     "{}",   "[]",    "true",  "false",  "null",     "12",       "345",
        "0.",       "e+",  "-1",   ", ",     ": ",   "\n  ",  "    ",  "ab",     "abc",      "name",     "age\"",
        "\\u",      "\\n", "\\\"", "00",     "d83d", "\\ud8", "\xC3",  "\xA9",   "\xF0\x9F", "\x98\x80", "\xE4\xB8",
        "\xC3\xA9", "a\"", "1,",   "1}",     "\"\"", "get",   "_time", "x\n",    "12",       "[1, [2",   "\"a\": 1}"}) {
    tokens.emplace_back(token);
  }
  vocab = static_cast<int32_t>(tokens.size());
  int32_t* const named[] = {&tags.call_open, &tags.call_close, &tags.key_open,
                            &tags.key_close, &tags.value_open, &tags.value_close};
  for (int32_t* id : named) {
    *id = vocab++;
    tag_ids.push_back(*id);
  }
  end_ids = {vocab, vocab + 1};
  vocab += 2 + 40;
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  trie = std::make_shared<TokenTrie>(views, vocab, end_ids);
}

const GrammarVocabulary& grammar_vocabulary() {
  static const GrammarVocabulary vocabulary;
  return vocabulary;
}

std::shared_ptr<GrammarTables> grammar_tables(std::shared_ptr<const Grammar> grammar) {
  return std::make_shared<GrammarTables>(std::move(grammar), grammar_vocabulary().trie);
}

bool accepts(const std::shared_ptr<GrammarTables>& tables, std::string_view text) {
  GrammarMatcher matcher(tables);
  for (const char c : text) {
    if (!matcher.accept(static_cast<uint8_t>(c))) return false;
  }
  return matcher.can_end();
}

bool accepts(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  return accepts(grammar_tables(grammar), text);
}

bool mask_bit(std::span<const uint32_t> mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 32] >> (static_cast<uint32_t>(id) % 32) & 1) != 0;
}

std::vector<int32_t> allowed_ids(GrammarMatcher& matcher) {
  std::vector<int32_t> ids;
  const auto mask = matcher.next_mask();
  for (size_t id = 0; id < mask.size() * 32; ++id) {
    if (mask_bit(mask, static_cast<int32_t>(id))) ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

}  // namespace glm53::test
