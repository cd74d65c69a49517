#include "server/json_get.h"

#include <cfloat>
#include <limits>

#include <gtest/gtest.h>

#include "server/api_error.h"

namespace glm53::server {
namespace {

using text::PromptJson;

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

PromptJson field(const std::string& value) { return PromptJson::parse("{\"f\": " + value + "}"); }

template <typename Call>
std::string refused_param(Call call) {
  try {
    call();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    return error.param;
  }
  return "accepted";
}

TEST(JsonGet, NullIsAbsent) {
  const PromptJson object = field("null");
  EXPECT_FALSE(opt_int(object, "f", 0, 9));
  EXPECT_FALSE(opt_number(object, "f", 0, 9));
  EXPECT_FALSE(opt_bool(object, "f"));
  EXPECT_EQ(opt_string(object, "f"), nullptr);
  EXPECT_EQ(opt_array(object, "f"), nullptr);
  EXPECT_EQ(opt_object(object, "f"), nullptr);
  EXPECT_FALSE(opt_int(object, "g", 0, 9));
}

TEST(JsonGet, IntegersAreNeverWrappedOrTruncated) {
  EXPECT_EQ(opt_int(field("3000000000"), "f", 0, kMax), 3000000000);
  EXPECT_EQ(opt_int(field("-9223372036854775808"), "f", kMin, kMax), kMin);
  EXPECT_EQ(opt_int(field("-9223372036854775808.000"), "f", kMin, kMax), kMin);
  EXPECT_EQ(opt_int(field("100.0"), "f", 0, 100), 100);
  for (const char* value : {"1.9", "1.0e0", "1.00001", "1e2", "true", "\"1\"", "[1]", "9223372036854775808",
                            "-9223372036854775809", "18446744073709551616", "123456789012345678901234567890"}) {
    EXPECT_EQ(refused_param([&] { opt_int(field(value), "f", kMin, kMax); }), "f") << value;
  }
  EXPECT_EQ(refused_param([&] { opt_int(field("10"), "f", 0, 9, "outer."); }), "outer.f");
}

TEST(JsonGet, NumbersAreFiniteAndInRange) {
  EXPECT_EQ(opt_number(field("1"), "f", 0, 2), 1.0);
  EXPECT_EQ(opt_number(field("0.5"), "f", 0, 2), 0.5);
  const std::string zeros(400, '0');
  for (const std::string& tiny :
       {std::string("1e-999"), "0." + zeros + "1", "-0." + zeros + "1", "0." + zeros + "1e5", "1" + zeros + "e-999"}) {
    EXPECT_EQ(opt_number(field(tiny), "f", 0, 2), 0.0) << tiny;
  }
  // Long integers pass the parser; other literals beyond a double's range do not.
  EXPECT_EQ(refused_param([&] { opt_number(field("1" + zeros), "f", 0, DBL_MAX); }), "f");
  for (const char* value : {"2.1", "-0.1", "true", "\"0.5\"", "{}"}) {
    EXPECT_EQ(refused_param([&] { opt_number(field(value), "f", 0, 2); }), "f") << value;
  }
}

TEST(JsonGet, OtherTypes) {
  EXPECT_EQ(opt_bool(field("true"), "f"), true);
  EXPECT_EQ(*opt_string(field("\"x\""), "f"), "x");
  EXPECT_EQ(refused_param([&] { opt_bool(field("1"), "f"); }), "f");
  EXPECT_EQ(refused_param([&] { opt_bool(field("\"true\""), "f"); }), "f");
  EXPECT_EQ(refused_param([&] { opt_string(field("1"), "f"); }), "f");
  EXPECT_EQ(refused_param([&] { opt_array(field("{}"), "f"); }), "f");
  EXPECT_EQ(refused_param([&] { opt_object(field("[]"), "f"); }), "f");
}

TEST(JsonGet, BodiesThatAreNoObject) {
  const std::string deep = std::string(200, '[') + std::string(200, ']');
  for (const std::string& body :
       {std::string(), std::string("[]"), std::string("null"), std::string("{"), std::string("{\"a\": NaN}"),
        std::string("{\"a\": 1e999}"), std::string("{\"a\": \"\xff\"}"), std::string("{\"a\": \"\\ud83d\"}"),
        "{\"a\": " + deep + "}", std::string("{} {}")}) {
    EXPECT_EQ(refused_param([&] { parse_body(body); }), "") << body.substr(0, 40);
  }
}

TEST(ApiErrorJson, Shape) {
  EXPECT_EQ(error_json(bad_field("n", "no")),
            R"({"error":{"message":"no","type":"invalid_request_error","param":"n","code":400}})");
  EXPECT_EQ(error_json(ApiError(429, "full", {}, "queue_full")),
            R"({"error":{"message":"full","type":"rate_limit_error","param":null,"code":"queue_full"}})");
  // Text of a request may appear in a message, whatever its bytes.
  EXPECT_NE(error_json(ApiError(400, "bad \xff byte")).find("\xEF\xBF\xBD"), std::string::npos);
}

TEST(ParseBody, WhatIsTooMuchIsNotCalledInvalid) {
  const auto message = [](const std::string& body) {
    try {
      parse_body(body);
    } catch (const ApiError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message("{\"a\":" + std::string(200, '[')), "the request body has more than 128 levels of nesting");
  EXPECT_EQ(message("{\"a\":1e999}"), "the request body has a number beyond the range of a double");
  EXPECT_EQ(message("{\"a\":1,}"), "the request body is not valid JSON: invalid JSON at line 1 column 8");
}

}  // namespace
}  // namespace glm53::server
