#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "glm53/core/error.h"
#include "grammar_test_util.h"

namespace glm53::test {
namespace {

using namespace glm53::text;

struct Case {
  const char* pattern;
  std::vector<std::string> accepted;
  std::vector<std::string> refused;
};

TEST(Regex, WholeTextsMatch) {
  const std::vector<Case> cases = {
      {"abc", {"abc"}, {"ab", "abcd", "xabc", ""}},
      {"^abc$", {"abc"}, {"ab"}},
      {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
      {"a*b+c?", {"b", "aab", "bbc"}, {"a", "bcc"}},
      {"a*?b+?", {"b", "aabb"}, {"a"}},
      {"(ab){2,3}", {"abab", "ababab"}, {"ab", "abababab", "aba"}},
      {"a{2}", {"aa"}, {"a", "aaa"}},
      {"a{2,}", {"aa", "aaaaa"}, {"a"}},
      {"a{0}b", {"b"}, {"ab"}},
      {"a{,2}", {"a{,2}"}, {"a"}},
      {"x{y", {"x{y"}, {"x"}},
      {"[a-cx]", {"a", "c", "x"}, {"d", "", "-"}},
      {"[^a-c]", {"d", "\xC3\xA9", "\n"}, {"a", "\xC3"}},
      {"[]a|b", {"b"}, {"a"}},
      {"[^]a", {"xa", "\na"}, {"a"}},
      {"[a-]", {"a", "-"}, {"b"}},
      {"[\\d.]+", {"1.2"}, {"a"}},
      {".", {"a", "\xE4\xB8\xAD"}, {"\n", "", "\xE2\x80\xA8"}},
      {"\\d\\D\\w\\W\\s\\S", {"1a_- x"}, {"11_- x"}},
      {"\\u00e9\\x41\\u{1F600}",
       {"\xC3\xA9"
        "A\xF0\x9F\x98\x80"},
       {"eA"}},
      {"\\uD83D\\uDE00", {"\xF0\x9F\x98\x80"}, {"x"}},
      {"\\.\\*\\/", {".*/"}, {"abc"}},
      {"(?:a|b)(?<n>c)", {"ac", "bc"}, {"c"}},
      {"(a*)*b", {"b", "aaab"}, {"a"}},
      {"((a?){3}b)+", {"b", "aaab", "bab"}, {"aaaab", ""}},
      {"[\\u0080-\\u{10FFFF}]",
       {"\xC2\x80", "\xF4\x8F\xBF\xBF", "\xED\x9F\xBF", "\xEE\x80\x80"},
       {"a", "\xED\xA0\x80"}},
      {"[\\u07F0-\\u0905]", {"\xDF\xB0", "\xE0\xA4\x85", "\xE0\xA0\x80"}, {"\xDF\xAF", "\xE0\xA4\x86"}},
  };
  for (const Case& c : cases) {
    const auto tables = grammar_tables(compile_regex(c.pattern));
    for (const std::string& text : c.accepted) EXPECT_TRUE(accepts(tables, text)) << c.pattern << " : " << text;
    for (const std::string& text : c.refused) EXPECT_FALSE(accepts(tables, text)) << c.pattern << " : " << text;
  }
}

TEST(Regex, WhatIsNotSupportedIsNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"(?=a)", "look-ahead"},
      {"(?!a)", "look-ahead"},
      {"(?<=a)", "look-behind"},
      {"(a)\\1", "back reference"},
      {"\\bа", "\\b"},
      {"\\p{L}", "\\p"},
      {"a++", "possessive"},
      {"a**", "repeated quantifier"},
      {"(a", "unmatched ("},
      {"a)", "unmatched )"},
      {"[a", "incomplete"},
      {"a\\", "incomplete"},
      {"*a", "nothing to repeat"},
      {"[b-a]", "out of order"},
      {"a{3,2}", "out of order"},
      {"(^a)", "top-level"},
      {"a{10001}", "10000"},
      {"\\uD83D", "surrogate"},
      {"(?i)a", "group option"},
      {"\xFF", "UTF-8"},
      {"a{99999999999}", "10000"},
      {"[a-\\d]", "range"},
      {"\\xg0", "hexadecimal"},
      {"[]", "no text satisfies"},
  };
  for (const auto& [pattern, message] : cases) {
    try {
      compile_regex(pattern);
      ADD_FAILURE() << pattern;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr(message)) << pattern;
    }
  }
}

TEST(Choice, OneOfTheTexts) {
  const std::vector<std::string> choices = {"yes", "no", "nope", "\xC3\xA9"};
  const auto tables = grammar_tables(compile_choice(choices));
  for (const std::string& text : choices) EXPECT_TRUE(accepts(tables, text));
  for (const char* text : {"", "ye", "yesno", "nop"}) EXPECT_FALSE(accepts(tables, text)) << text;
  EXPECT_THROW(compile_choice({}), Error);
  EXPECT_THROW(compile_choice(std::vector<std::string>{""}), Error);
  EXPECT_THROW(compile_choice(std::vector<std::string>{"\xFF"}), Error);
}

}  // namespace
}  // namespace glm53::test
