#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "glm53/core/utf8.h"
#include "text/tokenizer.h"

namespace glm53::text {
namespace {

bool is_whole_utf8(const std::string& text) { return to_valid_utf8(text) == text; }

TEST(IncrementalDecoder, EverySplitGivesTheSameText) {
  const std::string text = "aé你\U0001F600z\u07FF\uFFFF\U0010FFFF";
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      IncrementalDecoder decoder;
      std::string out;
      for (const std::string& part : {text.substr(0, first), text.substr(first, second - first), text.substr(second)}) {
        const std::string delta = decoder.push(part);
        EXPECT_TRUE(is_whole_utf8(delta));
        out += delta;
      }
      EXPECT_EQ(out, text);
      EXPECT_EQ(decoder.finish(true), "");
    }
  }
}

TEST(IncrementalDecoder, EmitsACharacterWithItsLastByte) {
  IncrementalDecoder decoder;
  EXPECT_EQ(decoder.push("x\xF0"), "x");
  EXPECT_EQ(decoder.push("\x9F"), "");
  EXPECT_EQ(decoder.push("\x98"), "");
  EXPECT_EQ(decoder.push("\x80y"), "\U0001F600y");
}

TEST(IncrementalDecoder, ImpossibleBytesAreReplacedAtOnce) {
  IncrementalDecoder decoder;
  EXPECT_EQ(decoder.push("\xFF"), "\uFFFD");
  EXPECT_EQ(decoder.push("\x80"), "\uFFFD");
  EXPECT_EQ(decoder.push("\xC0"), "\uFFFD") << "no character begins with C0";
  EXPECT_EQ(decoder.push("\xE4\xBD"), "");
  EXPECT_EQ(decoder.push("a"),
            "\uFFFD"
            "a");
  EXPECT_EQ(decoder.push("\xF0\x9F"), "");
  EXPECT_EQ(decoder.push("\xF0"), "\uFFFD") << "the new lead byte is kept";
  EXPECT_EQ(decoder.push("\x9F\x98\x80"), "\U0001F600");
  EXPECT_EQ(decoder.push("\xED"), "");
  EXPECT_EQ(decoder.push("\xA0"), "\uFFFD\uFFFD") << "a surrogate: neither byte can be part of a character";
  EXPECT_EQ(decoder.push("\xE0"), "");
  EXPECT_EQ(decoder.push("\x9F"), "\uFFFD\uFFFD") << "an overlong form";
  EXPECT_EQ(decoder.push("\xF4"), "");
  EXPECT_EQ(decoder.push("\x90"), "\uFFFD\uFFFD") << "beyond U+10FFFF";
}

TEST(IncrementalDecoder, CutOffTailIsDroppedOrFlushed) {
  for (const std::string tail : {"\xC3", "\xE4\xBD", "\xF0\x9F\x98"}) {
    IncrementalDecoder decoder;
    EXPECT_EQ(decoder.push("a" + tail), "a");
    EXPECT_EQ(decoder.finish(false), "");
    EXPECT_EQ(decoder.push("b"), "b") << "nothing is left behind";
    EXPECT_EQ(decoder.push(tail), "");
    EXPECT_EQ(decoder.finish(true), "\uFFFD");
    EXPECT_EQ(decoder.finish(true), "");
  }
}

TEST(IncrementalDecoder, RandomBytesInAnyChunksGiveTheWholeText) {
  std::mt19937 random(3);
  const std::string pool = "a \x80\x9F\xA0\xBF\xC2\xC3\xE0\xE4\xED\xEF\xF0\xF4\xF5\xFF\x90\x8F";
  for (int round = 0; round < 4000; ++round) {
    std::string bytes(random() % 24, '\0');
    for (char& byte : bytes) {
      byte = round % 2 == 0 ? pool[random() % pool.size()] : static_cast<char>(random() % 256);
    }
    IncrementalDecoder decoder;
    std::string out;
    for (size_t at = 0; at < bytes.size();) {
      const size_t length = 1 + random() % 4;
      const std::string delta = decoder.push(std::string_view(bytes).substr(at, length));
      ASSERT_TRUE(is_whole_utf8(delta));
      out += delta;
      at += length;
    }
    out += decoder.finish(true);
    ASSERT_EQ(out, to_valid_utf8(bytes));
  }
}

// The table of the Unicode standard (§3.9, "U+FFFD Substitution of Maximal Subparts").
TEST(Utf8, MaximalSubparts) {
  EXPECT_EQ(to_valid_utf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\uFFFD\uFFFD\uFFFD"
            "b\uFFFD"
            "c\uFFFD\uFFFD"
            "d");
  EXPECT_EQ(to_valid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD"
            "A");
}

TEST(Utf8, CodePointsRoundTrip) {
  for (const char32_t code_point :
       {0x0u, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xD7FFu, 0xE000u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    std::string text;
    append_code_point(code_point, text);
    EXPECT_TRUE(is_whole_utf8(text));
    std::string_view rest = text;
    EXPECT_EQ(take_code_point(rest), code_point);
    EXPECT_TRUE(rest.empty());
  }
}

}  // namespace
}  // namespace glm53::text
