#include "text/prompt_json.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace glm53::text {
namespace {

std::string round(std::string_view text) { return PromptJson::parse(text).dump(); }

std::string parse_failure(std::string_view text, int max_depth = 128) {
  try {
    PromptJson::parse(text, max_depth);
  } catch (const PromptJson::ParseError& error) {
    return error.what();
  }
  return "parsed";
}

std::string nested(int levels) {
  return std::string(static_cast<size_t>(levels), '[') + std::string(static_cast<size_t>(levels), ']');
}

TEST(PromptJson, HoldsAtMostSoManyValues) {
  std::string text = "[";
  for (size_t i = 0; i < PromptJson::kMaxValues - 2; ++i) text += "0,";
  EXPECT_EQ(parse_failure(text + "0]"), "parsed");  // the list is one too
  EXPECT_EQ(parse_failure(text + "0,0]"), "more than 4194304 JSON values");
  text = "{";
  for (size_t i = 0; i < PromptJson::kMaxValues; ++i) text += R"("":0,)";
  EXPECT_EQ(parse_failure(text + R"("":0})"), "more than 4194304 JSON values");
}

// Right column: Python's json.dumps(json.loads(left)).
TEST(PromptJson, FloatsPrintAsPythonRepr) {
  constexpr std::pair<const char*, const char*> kCases[] = {
      {"1.0", "1.0"},
      {"-0.0", "-0.0"},
      {"1e20", "1e+20"},
      {"1e-7", "1e-07"},
      {"1.50", "1.5"},
      {"1E5", "100000.0"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e+16"},
      {"123456789012345678.0", "1.2345678901234568e+17"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"5e-324", "5e-324"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"1e-400", "0.0"},
      {"-1e-400", "-0.0"},
      {"1e-6000", "0.0"},
      {"0.1", "0.1"},
      {"100.0", "100.0"},
      {"1e22", "1e+22"},
      {"1e23", "1e+23"},
      {"9007199254740993.0", "9007199254740992.0"},
      {"9999999999999998.0", "9999999999999998.0"},
      {"12345.678e-2", "123.45678"},
      {"0e0", "0.0"},
      {"1.5E+3", "1500.0"},
      {"2.5e-5", "2.5e-05"},
      {"-3.25", "-3.25"},
      {"1234567890123456.7", "1234567890123456.8"},
      {"0.30000000000000004", "0.30000000000000004"},
  };
  for (const auto& [literal, expected] : kCases) {
    EXPECT_EQ(round(literal), expected) << literal;
  }
}

TEST(PromptJson, IntegersKeepEveryDigit) {
  for (const char* literal :
       {"0", "-1", "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616",
        "-9223372036854775808", "-9223372036854775809", "123456789012345678901234567890"}) {
    EXPECT_EQ(round(literal), literal);
    EXPECT_EQ(PromptJson::parse(literal).number_literal(), literal);
  }
  EXPECT_EQ(round("-0"), "0");
  const std::string longest = "-1" + std::string(4299, '0');
  EXPECT_EQ(round(longest), longest);
  EXPECT_THAT(parse_failure(longest + "0"), testing::HasSubstr("4300 digits"));
  EXPECT_NE(parse_failure(std::string(6000, '7')), "parsed");
}

TEST(PromptJson, LiteralsStayAsWritten) {
  EXPECT_EQ(PromptJson::parse("1.50").number_literal(), "1.50");
  EXPECT_EQ(PromptJson::parse("1E5").number_literal(), "1E5");
}

TEST(PromptJson, StringsEscapeOnlyWhatPythonEscapes) {
  EXPECT_EQ(round(R"("a\/b<&>é\u00e9\ud83d\ude00")"), "\"a/b<&>éé😀\"");
  EXPECT_EQ(round(R"("\"\\\n\r\t\b\f")"), R"("\"\\\n\r\t\b\f")");
  EXPECT_EQ(round(R"("\u0000\u001f\u001B")"), R"("\u0000\u001f\u001b")");
  EXPECT_EQ(round("\"\\u007f\\u2028\""), "\"\x7f\xE2\x80\xA8\"");
}

TEST(PromptJson, SeparatorsAndOrder) {
  EXPECT_EQ(round("{\"b\":1 ,\"a\":[ ],\n\"c\":{},\"d\":[1,true , null,false,\"x\"]}"),
            R"({"b": 1, "a": [], "c": {}, "d": [1, true, null, false, "x"]})");
}

TEST(PromptJson, RepeatedKeyKeepsFirstPlaceAndLastValue) {
  EXPECT_EQ(round(R"({"a":1,"b":2,"a":3,"c":4,"b":5,"a":6})"), R"({"a": 6, "b": 5, "c": 4})");
  std::string many = "{";
  for (int i = 0; i < 20000; ++i) {
    many += "\"k" + std::to_string(i % 3) + "\":" + std::to_string(i) + ",";
  }
  many.back() = '}';
  EXPECT_EQ(round(many), R"({"k0": 19998, "k1": 19999, "k2": 19997})");
}

TEST(PromptJson, DepthIsBounded) {
  EXPECT_EQ(round(nested(128)), nested(128));
  EXPECT_EQ(parse_failure(nested(129)), "more than 128 levels of nesting");
  EXPECT_EQ(parse_failure(nested(3), 2), "more than 2 levels of nesting");
  EXPECT_EQ(parse_failure("{\"a\":{}}", 1), "more than 1 levels of nesting");
  EXPECT_NE(parse_failure(std::string(1000000, '[')), "parsed");
}

TEST(PromptJson, RefusesWhatIsNotJson) {
  for (const std::string& text : {std::string(),
                                  std::string(" "),
                                  std::string("{"),
                                  std::string("[1,]"),
                                  std::string("{\"a\":1,}"),
                                  std::string("{} {}"),
                                  std::string("{}\0x", 4),
                                  std::string("{}\0", 3),
                                  std::string("\"\0\"", 3),
                                  std::string("NaN"),
                                  std::string("Infinity"),
                                  std::string("-Infinity"),
                                  std::string("01"),
                                  std::string("1."),
                                  std::string(".5"),
                                  std::string("+1"),
                                  std::string("1e999"),
                                  std::string("-1e999"),
                                  std::string("1.0e5000"),
                                  std::string("'a'"),
                                  std::string("\"\x01\""),
                                  std::string("\"\xff\""),
                                  std::string("\"\xc0\x80\""),
                                  std::string("\"\xed\xa0\x80\""),
                                  std::string("\"\\ud800\""),
                                  std::string("\"\\udc00\""),
                                  std::string("\"\\ud800\\u0041\""),
                                  std::string("// c\n1"),
                                  std::string("\xe4")}) {
    EXPECT_NE(parse_failure(text), "parsed") << testing::PrintToString(text);
  }
}

TEST(PromptJson, FailureNamesThePlaceAndQuotesNothing) {
  EXPECT_EQ(parse_failure("{\"a\": 1,\n  \"b\": x}"), "invalid JSON at line 2 column 8");
  EXPECT_EQ(parse_failure("[\xff]"), "invalid JSON at line 1 column 2");
  EXPECT_EQ(parse_failure(std::string("{}\n\0", 4)), "invalid JSON at line 2 column 1");
}

TEST(PromptJson, FindTreatsNullAsAbsent) {
  const PromptJson json = PromptJson::parse(R"({"a":null,"b":false})");
  EXPECT_EQ(json.find("a"), nullptr);
  ASSERT_NE(json.find_even_null("a"), nullptr);
  EXPECT_TRUE(json.find_even_null("a")->is_null());
  ASSERT_NE(json.find("b"), nullptr);
  EXPECT_FALSE(json.find("b")->as_bool());
  EXPECT_EQ(json.find("c"), nullptr);
  EXPECT_EQ(PromptJson::parse("[]").find("a"), nullptr);
}

TEST(PromptJson, TruthIsPythons) {
  for (const char* text : {"null", "false", "0", "-0", "0.0", "-0.0", "0e9", "1e-400", "\"\"", "[]", "{}"}) {
    EXPECT_FALSE(PromptJson::parse(text).truthy()) << text;
  }
  for (const char* text : {"true", "1", "-1", "0.1", "\"0\"", "[0]", "{\"a\":0}"}) {
    EXPECT_TRUE(PromptJson::parse(text).truthy()) << text;
  }
  EXPECT_TRUE(PromptJson::parse("1" + std::string(400, '0')).truthy());
}

}  // namespace
}  // namespace glm53::text
