#include "text/json_scan.h"

#include <optional>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "data_file.h"
#include "text/prompt_json.h"

namespace glm53::text {
namespace {

using Status = JsonObjectScan::Status;

/// What the scan says of a text, and how many bytes it took to say so; all of them where it stays open.
std::pair<Status, size_t> scanned(const std::string& text) {
  JsonObjectScan scan;
  for (size_t i = 0; i < text.size(); ++i) {
    if (const Status status = scan.push(text[i]); status != Status::kOpen) return {status, i + 1};
  }
  return {Status::kOpen, text.size()};
}

bool is_object(const std::string& text) {
  try {
    return PromptJson::parse(text).is_object();
  } catch (const PromptJson::ParseError&) {
    return false;
  }
}

TEST(JsonObjectScan, EndsWithTheObject) {
  for (const std::string text :
       {R"({})", R"({ })", "{\n\t\"a\" :\r 1}", R"({"a":[],"b":{},"c":[[1,-2.5E+3],{"d":null}],"e":true,"f":false})",
        R"({"}]\"{\\":"\\\"}"})", R"({"é😀":"\u00e9"})"}) {
    ASSERT_TRUE(is_object(text)) << text;
    EXPECT_EQ(scanned(text + "}"), std::pair(Status::kComplete, text.size())) << text;
    for (size_t end = 1; end < text.size(); ++end) EXPECT_EQ(scanned(text.substr(0, end)).first, Status::kOpen) << text;
  }
}

TEST(JsonObjectScan, EndsWhereNoObjectCanCome) {
  for (const std::string text :
       {"{a", "{]", "{,", "{\"a\"}", "{\"a\":}", "{\"a\":1 2", "{\"a\":1,}", "{\"a\":1]", "{\"a\":[}", "{\"a\":[1,]",
        "{\"a\":[1 \"", "{\"\n", "{\"a\":x", "{\"a\":\"\x1f", "{{", "{\"a\":tru\""}) {
    EXPECT_EQ(scanned(text + " rest"), std::pair(Status::kNotJson, text.size())) << text;
  }
}

// Whatever the parser takes for an object is followed to its last byte: texts of JSON's own pieces, and mutated ones.
TEST(JsonObjectScan, MissesNoObject) {
  static const std::string kPieces[] = {"{", "}",  "[",   "]",    ",",     ":",   "\"a\"", "\"", "\\",
                                        " ", "\n", "-1.", "true", "false", "0e1", "null",  "x",  "{\"b\":1}"};
  std::mt19937 random(3);
  size_t objects = 0;
  const auto check = [&](const std::string& text) {
    if (!is_object(text)) return;
    ++objects;
    const size_t end = text.find_last_of('}') + 1;
    ASSERT_EQ(scanned(text), std::pair(Status::kComplete, end)) << text;
  };
  for (int round = 0; round < 300'000; ++round) {
    std::string text = "{";
    for (size_t n = random() % 8; n > 0; --n) text += kPieces[random() % std::size(kPieces)];
    check(text + (random() % 2 == 0 ? "}" : "\"a\":1}"));
  }
  EXPECT_GT(objects, 1000u);
  const PromptJson conversations = PromptJson::parse(test::read_file(GLM53_TEST_DATA "/golden/chat_template.json"));
  for (const PromptJson& conversation : conversations.items()) {
    const std::string whole = conversation.dump();
    check(whole);
    for (int round = 0; round < 20; ++round) {
      std::string text = whole;
      text[1 + random() % (text.size() - 1)] = kPieces[random() % std::size(kPieces)][0];
      check(text);
    }
  }
}

}  // namespace
}  // namespace glm53::text
