// The PCRE2 splitter against the matcher of spec 40 §1.3, written here from its words alone, and against the reference
// splits of that section.
#include <algorithm>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "glm53/core/error.h"
#include "glm53/core/utf8.h"
#include "text/pretokenizer.h"
#include "tokenizer_test_util.h"

namespace glm53::text {
namespace {

using Pieces = std::vector<std::string_view>;
using testing::ElementsAre;
using testing::HasSubstr;

const PreTokenizer& family() {
  static const PreTokenizer splitter{kFamilyPattern};
  return splitter;
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// Code points at the edges of the classes, with their class by hand.
const std::vector<char32_t> kLetters = {'a',    's',    't',    'm',     'd',     'r',     'e',    'v',    'l',
                                        'S',    'T',    'V',    'Z',     0xAA,    0xB5,    0xE9,   0x130,  0x131,
                                        0x17F,  0x1C5,  0x2B0,  0x5D0,   0xE01,   0x1F88,  0x212A, 0x3005, 0x4F60,
                                        0xAC00, 0xFF21, 0xFB00, 0x10400, 0x1D400, 0x20000, 0x2135, 0x2071};
const std::vector<char32_t> kNumbers = {'0',    '1',    '9',    0xB2,   0xBD,    0x663,   0x2167,
                                        0x2460, 0x3007, 0x3280, 0xFF11, 0x1D7CE, 0x1F100, 0x2189};
const std::vector<char32_t> kSpaces = {0x09,   0x0A,   0x0B,   0x0C,   0x0D,   0x20,   0x85, 0xA0, 0x1680, 0x2000,
                                       0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, '\r', '\n', ' ',    ' '};
// Marks, symbols, controls and format characters that some engines take for letters or blanks.
const std::vector<char32_t> kOthers = {'\'',   '.',      '!',    '-',    '_',    '=',    '<',    '|',    '>',
                                       '/',    0x00,     0x01,   0x1C,   0x1F,   0x7F,   0x180E, 0x200B, 0x200D,
                                       0x2060, 0xFEFF,   0x301,  0x345,  0x903,  0x20DD, 0x2019, 0x24B6, 0x1F600,
                                       0xE000, 0x10FFFF, 0xFFFD, 0x3001, 0xFF0C, 0x378,  0xD7,   0x2116};

enum class Class { kLetter, kNumber, kSpace, kOther };

Class class_of(char32_t c) {
  if (is_white_space(c)) return Class::kSpace;
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return Class::kLetter;
  if (std::find(kLetters.begin(), kLetters.end(), c) != kLetters.end()) return Class::kLetter;
  if (std::find(kNumbers.begin(), kNumbers.end(), c) != kNumbers.end()) return Class::kNumber;
  return Class::kOther;
}

bool is_line_end(char32_t c) { return c == '\r' || c == '\n'; }

char32_t folded(char32_t c) {
  if (c == 0x17F) return 's';
  return c >= 'A' && c <= 'Z' ? c + 32 : c;
}

// Length of the piece at position i of c.
size_t match_at(const std::vector<char32_t>& c, size_t i) {
  const size_t n = c.size();
  const auto run = [&](size_t from, auto&& holds) {
    size_t end = from;
    while (end < n && holds(c[end])) ++end;
    return end;
  };
  const auto is_letter = [](char32_t x) { return class_of(x) == Class::kLetter; };
  const auto is_number = [](char32_t x) { return class_of(x) == Class::kNumber; };
  const auto is_other = [](char32_t x) { return class_of(x) == Class::kOther; };

  if (c[i] == '\'' && i + 1 < n) {
    const char32_t first = folded(c[i + 1]);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if (i + 2 < n) {
      const char32_t second = folded(c[i + 2]);
      if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
        return 3;
    }
  }
  if (!is_line_end(c[i]) && !is_letter(c[i]) && !is_number(c[i])) {
    const size_t end = run(i + 1, is_letter);
    if (end > i + 1) return end - i;
  }
  if (is_letter(c[i])) return run(i, is_letter) - i;
  if (is_number(c[i])) return std::min<size_t>(3, run(i, is_number) - i);
  for (const size_t start : {c[i] == ' ' ? i + 1 : i, i}) {
    const size_t end = run(start, is_other);
    if (end > start) return run(end, is_line_end) - i;
  }
  const size_t end = run(i, is_white_space);
  for (size_t last = end; last > i; --last) {
    if (is_line_end(c[last - 1])) return last - i;
  }
  if (end == n || end - i == 1) return end - i;
  return end - i - 1;
}

std::vector<std::string> reference_split(const std::vector<char32_t>& c) {
  std::vector<std::string> pieces;
  for (size_t i = 0; i < c.size();) {
    const size_t length = match_at(c, i);
    pieces.push_back(
        utf8_of({c.begin() + static_cast<std::ptrdiff_t>(i), c.begin() + static_cast<std::ptrdiff_t>(i + length)}));
    i += length;
  }
  return pieces;
}

TEST(PreTokenizer, AgreesWithTheReferenceMatcherOnRandomText) {
  std::mt19937 random(20240);
  const std::vector<const std::vector<char32_t>*> groups = {&kLetters, &kNumbers, &kSpaces, &kOthers};
  const std::vector<char32_t> contraction = {'\'', 's', 'T', 'r', 'E', 'v', 'l', 'L', 'D', 'm', 0x17F, ' ', 'x', '\n'};
  for (int round = 0; round < 6000; ++round) {
    std::vector<char32_t> text;
    const size_t length = random() % 24;
    while (text.size() < length) {
      const std::vector<char32_t>& group = round % 3 == 0 ? contraction : *groups[random() % groups.size()];
      text.push_back(group[random() % group.size()]);
    }
    const std::string utf8 = utf8_of(text);
    const Pieces pieces = family().split(utf8);
    ASSERT_EQ(std::vector<std::string>(pieces.begin(), pieces.end()), reference_split(text)) << "round " << round;
  }
}

TEST(PreTokenizer, ReferenceSplits) {
  const std::map<std::string, std::vector<std::string>> splits = {
      {"", {}},
      {"don't  can't", {"don", "'t", " ", " can", "'t"}},
      {"1234567", {"123", "456", "7"}},
      {"line1\r\nline2\n\n\nx", {"line", "1", "\r\n", "line", "2", "\n\n\n", "x"}},
      {"   \n   leading", {"   \n", "  ", " leading"}},
      {"tab\there\t\tthere", {"tab", "\there", "\t", "\tthere"}},
      {"x=1;\n\n  y", {"x", "=", "1", ";\n\n", " ", " y"}},
      {"--a", {"--", "a"}},
      {"\u00A0word", {"\u00A0word"}},
      {"cafe\u0301 re\u0301sume\u0301", {"cafe", "\u0301", " re", "\u0301sume", "\u0301"}},
      {"a\u200Bb", {"a", "\u200Bb"}},
      {"你好，世", {"你好", "，世"}},
      {"\n \n x", {"\n \n", " x"}},
      {"we’ve", {"we", "’ve"}},
      {"'\u017Fx", {"'\u017F", "x"}},
      {"WE'VE", {"WE", "'VE"}},
      // U+0085 is a blank and not a line end; U+180E is neither, whatever PCRE2's own \s says.
      {"a\u0085\u0085b", {"a", "\u0085", "\u0085b"}},
      {"1\u0085\u00852", {"1", "\u0085", "\u0085", "2"}},
      {"1 \u180E\u180E2", {"1", " \u180E\u180E", "2"}},
      {"²½Ⅷ٣", {"²½Ⅷ", "٣"}},
  };
  for (const auto& [text, pieces] : splits) {
    const Pieces got = family().split(text);
    EXPECT_EQ(std::vector<std::string>(got.begin(), got.end()), pieces) << text;
  }
}

TEST(PreTokenizer, KeepsTheTextBetweenMatches) {
  EXPECT_THAT(PreTokenizer("b+").split("abbcab"), ElementsAre("a", "bb", "ca", "b"));
  EXPECT_THAT(PreTokenizer("b+").split("xyz"), ElementsAre("xyz"));
  EXPECT_THAT(PreTokenizer("(a)(b)(c)").split("xabcx"), ElementsAre("x", "abc", "x"));
}

// One code point at a time, over all of them: the blanks of every form of the class are White_Space.
TEST(PreTokenizer, BlankClassIsWhiteSpaceEverywhere) {
  std::string text;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c < 0xD800 || c > 0xDFFF) append_code_point(c, text);
  }
  const auto check = [&](const std::string& blank_class, const std::string& other_class) {
    const Pieces pieces = PreTokenizer(blank_class + "|x" + other_class).split(text);
    size_t blanks = 0;
    for (const std::string_view piece : pieces) {
      std::string_view rest = piece;
      const bool single = is_white_space(take_code_point(rest)) && rest.empty();
      blanks += single ? 1 : 0;
      while (!rest.empty()) ASSERT_FALSE(is_white_space(take_code_point(rest))) << blank_class;
    }
    EXPECT_EQ(blanks, 25u) << blank_class;
    // After x, what is not blank belongs to the match and a blank does not.
    const PreTokenizer after_x("x" + other_class + "|x");
    for (const char32_t c : kSpaces) EXPECT_EQ(after_x.split(utf8_of({'x', c})).size(), 2u) << other_class;
    for (const char32_t c : kOthers) EXPECT_EQ(after_x.split(utf8_of({'x', c})).size(), 1u) << other_class;
  };
  check(R"(\s)", R"(\S)");
  check(R"([\s])", R"([\S])");
  check(R"([^\S])", R"([^\s])");
}

TEST(PreTokenizer, RefusesWhatTheEnginesReadDifferently) {
  const std::map<std::string, std::string> refused = {
      {R"(\w+)", R"(uses \w)"},
      {R"([\w]+)", R"(uses \w)"},
      {R"(\bx)", R"(uses \b)"},
      {R"(\h+)", R"(uses \h)"},
      {R"(\v+)", R"(uses \v)"},
      {R"(\R)", R"(uses \R)"},
      {R"((a)\1)", R"(uses \1)"},
      {R"(\Kx)", R"(uses \K)"},
      {R"(\p{Han}+)", R"(uses \p{Han})"},
      {R"([\p{Hiragana}a])", R"(uses \p{Hiragana})"},
      {R"(\pL)", R"(uses \p without {name})"},
      {R"(\p{^Greek})", R"(uses \p{^Greek})"},
      {R"(^a)", "uses ^"},
      {R"(a$)", "uses $"},
      {R"(a.)", "uses ."},
      {R"((?m:a))", "the group (?m:"},
      {R"((?<n>a))", "the group (?<n"},
      {R"((*UCP)a)", "the group (*UC"},
      {R"([a[b]])", "a nested bracket"},
      {R"([[:alpha:]])", "a nested bracket"},
      {R"([a&&b])", "an intersection"},
      {R"([])", "an empty bracket"},
      {R"([abc)", "not closed"},
      {R"([\s-z])", "a range that ends in a class"},
      {R"([+-\s])", "a range that ends in a class"},
      {R"(a{,3})", "a brace without"},
      {R"(a{)", "a brace without"},
      {R"(a{1,2}+)", "possessive brace"},
      {R"(a{1,2}?)", "lazy or possessive"},
      {"a\\", "a backslash"},
      {R"(\xg0)", R"(a malformed \x)"},
      {R"(\x{})", R"(a malformed \x)"},
      {R"((a)", "does not compile"},
      {R"(a*)", "can match an empty text"},
      {R"((?=a))", "can match an empty text"},
      {std::string(5000, 'a'), "longer than 4096 bytes"},
  };
  for (const auto& [pattern, message] : refused) {
    try {
      PreTokenizer splitter(pattern);
      ADD_FAILURE() << "accepted " << pattern;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(message)) << pattern;
    }
  }
}

TEST(PreTokenizer, TakesWhatBothEnginesReadAlike) {
  EXPECT_THAT(PreTokenizer(R"([^\r\n\p{L}\p{N}]?+\p{L}++)").split("a b"), ElementsAre("a", " b"));
  EXPECT_THAT(PreTokenizer(R"([\p{Lu}\p{Lt}]+[\p{Ll}\p{M}]*)").split("AbCd"), ElementsAre("Ab", "Cd"));
  EXPECT_THAT(PreTokenizer(R"([a\-\]\x41\x{42}-]+)").split("a-]AB"), ElementsAre("a-]AB"));
  EXPECT_THAT(PreTokenizer(R"([-\s]+)").split("a- b"), ElementsAre("a", "- ", "b"));
  EXPECT_THAT(PreTokenizer(R"((?>a+)|(?<=a)b|(?<!a)c|\d{2,}|\D{2})").split("aab12"), ElementsAre("aa", "b", "12"));
}

// Giving up is an error; "no match" would cut the text in the wrong places without a word.
TEST(PreTokenizer, PatternThatNeverEndsIsAnError) {
  const PreTokenizer splitter(R"((?:(?:a|a)+)+b)");
  EXPECT_THROW(splitter.split(std::string(64, 'a') + "cb"), std::runtime_error);
}

TEST(PreTokenizer, LongRunsAreOnePiece) {
  for (const char letter : {'a', '=', ' ', '\n'}) {
    const std::string text(4 << 20, letter);
    EXPECT_EQ(family().split(text).size(), 1u) << letter;
  }
  EXPECT_EQ(family().split(std::string(4 << 20, ' ') + "x").size(), 2u);
  EXPECT_EQ(family().split("\n" + std::string(4 << 20, ' ') + "x").size(), 3u);
}

}  // namespace
}  // namespace glm53::text
