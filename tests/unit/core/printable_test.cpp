#include "glm53/core/printable.h"

#include <gtest/gtest.h>

#include "glm53/core/utf8.h"

namespace glm53 {
namespace {

TEST(Utf8, TellsTextFromBytes) {
  for (const char* text : {"", "plain", "aä€😀", "\x7f"}) EXPECT_TRUE(is_utf8(text)) << text;
  for (const char* bad : {"\x80", "\xc3", "\xc0\xaf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80",
                          "\xf4\x90\x80\x80", "\xe2\x82", "\xe2\x28\xa1"}) {
    EXPECT_FALSE(is_utf8(bad));
    EXPECT_FALSE(is_utf8(std::string("ä") + bad + "ä"));
    EXPECT_TRUE(is_utf8(to_valid_utf8(bad)));
  }
}

TEST(Printable, OneLineOfUtf8) {
  EXPECT_EQ(printable("a\nb\x7f"), "a\\x0ab\\x7f");
  EXPECT_EQ(printable("ä\xff"), "\\xc3\\xa4\\xff");
  EXPECT_EQ(in_quotes("ä"), "\"ä\"");
}

TEST(Printable, CutsBetweenCharacters) {
  EXPECT_EQ(printable(std::string(200, 'a')), std::string(200, 'a'));
  EXPECT_EQ(printable(std::string(201, 'a')), std::string(200, 'a') + "…");
  EXPECT_EQ(in_quotes(std::string(79, 'a') + "ää"), "\"" + std::string(79, 'a') + "…\"");
  EXPECT_EQ(printable(std::string(1000, 'a'), std::string::npos), std::string(1000, 'a'));
  EXPECT_EQ(printable(std::string(300, '\x80'), 4), "\\x80…");  // no text at all
}

TEST(JsonString, IsValidWhateverTheText) {
  EXPECT_EQ(json_string("a\"b\\c\nd\x01\x7f"), R"("a\"b\\c\u000ad\u0001\u007f")");
  EXPECT_EQ(json_string("ä€😀"), "\"ä€😀\"");
  EXPECT_EQ(json_string("\xff"
                        "a\xe2\x82"),
            "\"\uFFFDa\uFFFD\"");
}

}  // namespace
}  // namespace glm53
