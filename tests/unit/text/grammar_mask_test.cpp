// Masks are put together from parts, from runs of characters and from the trie; here each is compared with feeding the
// bytes of every token, over a vocabulary large enough that every shortcut is taken.
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "glm53/core/error.h"
#include "grammar_test_util.h"

namespace glm53::test {
namespace {

using namespace glm53::text;

struct LargeVocabulary {
  LargeVocabulary() {
    std::set<std::string> known;
    const auto add = [&](const std::string& token) {
      if (known.insert(token).second) tokens.push_back(token);
    };
    for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
    for (const size_t n : {2, 3, 8, 31, 32, 33, 64, 128}) add(std::string(n, ' '));
    const std::vector<std::string> characters = {"a",
                                                 "b",
                                                 "f",
                                                 "g",
                                                 "z",
                                                 "A",
                                                 "F",
                                                 "G",
                                                 "Z",
                                                 "0",
                                                 "9",
                                                 "_",
                                                 "-",
                                                 " ",
                                                 ".",
                                                 "\"",
                                                 "\\",
                                                 "\n",
                                                 "\t",
                                                 "\x7F",
                                                 ",",
                                                 ":",
                                                 "{",
                                                 "}",
                                                 "[",
                                                 "]",
                                                 "<",
                                                 "u",
                                                 "n",
                                                 "\r",
                                                 "\xC2\x80",
                                                 "\xC3\xA9",
                                                 "\xE2\x80\xA8",
                                                 "\xE2\x80\xA7",
                                                 "\xE4\xB8\xAD",
                                                 "\xED\x9F\xBF",
                                                 "\xEF\xBF\xBF",
                                                 "\xF0\x9F\x98\x80",
                                                 "\xF4\x8F\xBF\xBF"};
    std::mt19937 rng(1);
    const auto any = [&] { return characters[rng() % characters.size()]; };
    for (const std::string& a : characters) {
      for (const std::string& b : characters) {
        add(a + b);
        add(a + b.substr(0, b.size() - 1));  // cut inside a character
        add(a.substr(a.size() - 1) + b);     // begun inside one
      }
    }
    for (int i = 0; i < 1500; ++i) add(any() + any() + any());
    for (int i = 0; i < 3000; ++i) {  // words, so that some trie nodes have large subtrees of few kinds
      std::string word;
      for (size_t n = 2 + rng() % 5; n > 0; --n) word += characters[rng() % 5];
      add((i % 3 == 0 ? " " : i % 3 == 1 ? "\xE4\xB8\xAD" : "") + word + (i % 50 == 0 ? any() : ""));
    }
    vocab = static_cast<int32_t>(tokens.size());
    for (int32_t* id :
         {&tags.call_open, &tags.call_close, &tags.key_open, &tags.key_close, &tags.value_open, &tags.value_close}) {
      *id = vocab++;
    }
    const std::vector<int32_t> ends = {vocab++};
    vocab += 40;
    const std::vector<std::string_view> views(tokens.begin(), tokens.end());
    trie = std::make_shared<TokenTrie>(views, vocab, ends);
  }
  std::vector<std::string> tokens;
  ToolTags tags;
  int32_t vocab = 0;
  std::shared_ptr<const TokenTrie> trie;
};

const LargeVocabulary& large_vocabulary() {
  static const LargeVocabulary vocabulary;
  return vocabulary;
}

/// Each mask on some random walks is what allows() says of every token, and accept() of some.
void expect_exact_masks(const std::shared_ptr<const Grammar>& grammar, const std::string& name) {
  const LargeVocabulary& v = large_vocabulary();
  const auto tables = std::make_shared<GrammarTables>(grammar, v.trie);
  std::mt19937 rng(2);
  for (int walk = 0; walk < 4; ++walk) {
    GrammarMatcher matcher(tables);
    for (int step = 0; step < 25 && !matcher.ended(); ++step) {
      const std::vector<int32_t> allowed = allowed_ids(matcher);
      ASSERT_FALSE(allowed.empty()) << name;
      std::vector<int32_t> fed;
      for (int32_t id = 0; id < v.vocab; ++id) {
        const bool follows = matcher.allows(id);
        if (follows) fed.push_back(id);
        if (rng() % 32 != 0) continue;
        ASSERT_EQ(GrammarMatcher(matcher).accept(id), follows) << name << " token " << id;
      }
      ASSERT_EQ(allowed, fed) << name << " step " << step;
      // Single bytes at times: large tokens leave short texts.
      int32_t id = allowed[rng() % allowed.size()];
      if (walk % 2 == 1) id = allowed[rng() % std::min<size_t>(allowed.size(), 60)];
      ASSERT_TRUE(matcher.accept(id));
    }
  }
}

TEST(GrammarMask, SchemasAgreeWithFeedingEachToken) {
  for (const char* schema : {
           "{}",
           R"({"type":"string"})",
           R"({"type":"string","maxLength":1})",
           R"({"type":"string","maxLength":9})",
           R"({"type":"string","minLength":4,"maxLength":40})",
           R"({"type":"string","minLength":290,"maxLength":800})",
           R"({"type":"string","minLength":3})",
           R"({"type":"array","items":{"type":"string","minLength":2,"maxLength":6},"minItems":2})",
           R"({"anyOf":[{"type":"string","maxLength":5},{"type":"string","minLength":3,"maxLength":8}]})",
           R"({"properties":{"ab":{"type":"string","maxLength":30},"b":{}},"additionalProperties":true})",
           R"({"properties":{"a\"\\":{"type":"integer","minimum":-20,"maximum":99}},"required":["a\"\\"]})",
           R"({"type":"string","pattern":"^[a-z]{2,9}$"})",
           R"({"type":"string","pattern":"^[A-Z_][A-Za-z0-9_]{0,12}$"})",
           R"({"type":"string","pattern":"[ab]{3}","maxLength":12})",
           R"({"type":"string","pattern":"^[^<>\"]*$"})",
           R"({"type":"string","pattern":"^.{2,7}$"})",
           R"({"type":"number"})",
       }) {
    expect_exact_masks(compile_json_schema(schema), schema);
  }
}

TEST(GrammarMask, PatternsAgreeWithFeedingEachToken) {
  for (const char* pattern : {".*", "[^]*", ".{1,9}", "[a-g]{2,5}z?", "\\w+( \\w+){0,3}", "[^<>]{3,30}<", "(a|b|f)*z",
                              "[\\u0080-\\u{10FFFF}]{2,4}", "[\\d_]{4}", "([a-z]{1,3} ){2}", "[0-9a-f]{8}-[0-9a-f]{4}",
                              "[^\\u2028]{1,5}", "\\s*[A-Z]?[a-f]+\\.", "(.|\\n)*b{3}", "[^b]{2}.*"}) {
    expect_exact_masks(compile_regex(pattern), pattern);
  }
}

TEST(GrammarMask, ToolCallsAgreeWithFeedingEachToken) {
  const PromptJson parameters = PromptJson::parse(
      R"({"properties":{"a":{"type":"string"},"b":{"enum":["ab","a b"]},"c":{"type":["integer","null"]}}})");
  const OfferedTools functions = {{"ab", parameters}, {"abz", {}}};
  const PromptJson content = PromptJson::parse(R"({"type":"string","maxLength":4})");
  ToolGrammarOptions options;
  options.content = &content;
  expect_exact_masks(compile_tool_calls(functions, large_vocabulary().tags, options), "tools");
  expect_exact_masks(compile_tool_calls(functions, large_vocabulary().tags), "tools alone");
}

TEST(GrammarMask, ChoicesAgreeWithFeedingEachToken) {
  std::vector<std::string> choices;
  for (const char* a : {"ab", "abz", "a", "\xE4\xB8\xAD", "z z", "0"}) {
    for (const char* b : {"", "ab", "bab", " zz", "\xF0\x9F\x98\x80"}) choices.push_back(std::string(a) + b);
  }
  expect_exact_masks(compile_choice(choices), "choices");
}

// Tables are shared by requests: what one of them could not finish must not be taken for finished by the next.
TEST(GrammarMask, MasksAfterAnErrorAreThoseOfFreshTables) {
  const LargeVocabulary& v = large_vocabulary();
  const OfferedTools functions = {{"ab", PromptJson::parse(R"({"properties":{"a":{"type":"string"},
      "c":{"type":"array","items":{"type":"string","maxLength":9}}}})")}};
  for (const auto& [name, grammar] : std::vector<std::pair<std::string, std::shared_ptr<const Grammar>>>{
           {"counted", compile_json_schema(R"({"type":"string","maxLength":20})")},
           {"least", compile_regex(".{2,9}b")},
           {"words", compile_regex("([a-z]{1,3} ){2,4}")},
           {"object", compile_json_schema(R"({"additionalProperties":{"type":"string","minLength":2}})")},
           {"tools", compile_tool_calls(functions, v.tags)},
       }) {
    int errors = 0;
    for (int work = 20; work < 100; work += 3) {
      const auto interrupted = std::make_shared<GrammarTables>(grammar, v.trie, work);
      const auto fresh = std::make_shared<GrammarTables>(grammar, v.trie);
      const auto sooner_or_later = [&](const auto& step) {
        for (int attempt = 0; attempt < 10'000; ++attempt) {
          try {
            return step();
          } catch (const Error&) {
            ++errors;
          }
        }
        throw std::runtime_error("no end");
      };
      std::mt19937 rng(static_cast<unsigned>(work));
      GrammarMatcher matcher(interrupted);
      GrammarMatcher other(fresh);
      for (int step = 0; step < 12 && !matcher.ended(); ++step) {
        const std::vector<int32_t> allowed = sooner_or_later([&] { return allowed_ids(matcher); });
        ASSERT_EQ(allowed, allowed_ids(other)) << name << ", work " << work << ", step " << step;
        const int32_t id = allowed[rng() % allowed.size()];
        ASSERT_TRUE(sooner_or_later([&] { return matcher.accept(id); }));
        ASSERT_TRUE(other.accept(id));
      }
    }
    EXPECT_GT(errors, 20) << name;
  }
}

TEST(CharKinds, FirstCharacter) {
  const auto kind = [](std::string_view text) { return first_char(text).kind; };
  const auto set = [](CharKind k) { return static_cast<CharKindSet>(1U << static_cast<unsigned>(k)); };
  EXPECT_EQ(kind("7a"), set(CharKind::kDigit));
  EXPECT_EQ(kind("\""), set(CharKind::kQuote));
  EXPECT_EQ(kind("\n"), set(CharKind::kLineEnd));
  EXPECT_EQ(kind("\xE2\x80\xA9"), set(CharKind::kLineEnd));
  EXPECT_EQ(kind("\xE2\x80\xAA"), set(CharKind::kBeyondAscii));
  EXPECT_EQ(first_char("\xF0\x9F\x98\x80x").bytes, 4U);
  EXPECT_EQ(kind("\xF0\x9F"), set(CharKind::kBeyondAscii));
  EXPECT_EQ(first_char("\xF0\x9F").bytes, 2U);
  // Could become either kind, or nothing.
  for (const char* text : {"\xE2", "\xE2\x80", "\x80", "\xC1\x80", "\xED\xA0\x80", "\xF5", "\xC3z", "\xE0\x9F\xBF"}) {
    EXPECT_EQ(kind(text), kIrregular) << text;
  }
}

// Every character has one kind, and the table's bytes are those of its UTF-8.
TEST(CharKinds, CoverAllCharacters) {
  size_t sequences = 0;
  for (const CharBytes& chars : char_bytes()) {
    size_t count = 1;
    for (size_t i = 0; i < chars.length; ++i) count *= static_cast<size_t>(chars.high[i] - chars.low[i] + 1);
    sequences += count;
  }
  EXPECT_EQ(sequences, 0x110000U - 0x800U);
}

}  // namespace
}  // namespace glm53::test
