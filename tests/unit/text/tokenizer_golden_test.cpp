// The tiny checkpoint's tokenizer against tests/data/golden/tokenizer.json.
#include <nlohmann/json.hpp>
#include <thread>

#include <gtest/gtest.h>

#include "glm53/core/error.h"
#include "text/load_tokenizer.h"
#include "tokenizer_test_util.h"

namespace glm53::text {
namespace {

using Ids = std::vector<int32_t>;

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = test::load_tokenizer(GLM53_TEST_DATA "/models/glm53-tiny/tokenizer.json");
  return tokenizer;
}

TEST(TokenizerGolden, EncodesAndDecodesEveryText) {
  const nlohmann::json golden = nlohmann::json::parse(test::read_file(GLM53_TEST_DATA "/golden/tokenizer.json"));
  ASSERT_EQ(golden.size(), 174u);
  for (const nlohmann::json& entry : golden) {
    const auto text = entry["text"].get<std::string>();
    const Ids ids = tiny().encode(text);
    EXPECT_EQ(ids, entry["ids"].get<Ids>()) << text;
    EXPECT_EQ(tiny().decode(ids, false), text);
    std::string bytes;
    for (const int32_t id : ids) bytes += tiny().token_bytes(id);
    EXPECT_EQ(bytes, text);
  }
}

TEST(TokenizerGolden, ManyThreadsShareOneTokenizer) {
  const nlohmann::json golden = nlohmann::json::parse(test::read_file(GLM53_TEST_DATA "/golden/tokenizer.json"));
  std::vector<int> right(4, 0);
  {
    std::vector<std::jthread> threads;
    for (int& count : right) {
      threads.emplace_back([&golden, &count] {
        for (const nlohmann::json& entry : golden) {
          count += tiny().encode(entry["text"].get<std::string>()) == entry["ids"].get<Ids>() ? 1 : 0;
        }
      });
    }
  }
  EXPECT_EQ(right, std::vector<int>(4, 174));
}

TEST(TokenizerGolden, ByteTokensComeFirstInAlphabetOrder) {
  EXPECT_EQ(tiny().encode("!"), Ids{0});
  EXPECT_EQ(tiny().encode("\t"), Ids{197});
  EXPECT_EQ(tiny().encode("\n"), Ids{198});
  EXPECT_EQ(tiny().encode(" "), Ids{220});
  EXPECT_EQ(tiny().token_bytes(127), "\xC3");
  EXPECT_EQ(tiny().token_bytes(222), "\x80");
  EXPECT_EQ(tiny().token_bytes(255), "\xAD");
  EXPECT_EQ(tiny().token_piece(220), "Ġ");
  EXPECT_EQ(tiny().token_piece(198), "Ċ");
  EXPECT_EQ(tiny().token_piece(4061), "[MASK]");
}

TEST(TokenizerGolden, AddedTokensAreFoundEverywhereAndOnlyWhole) {
  EXPECT_EQ(tiny().encode("[gMASK]<sop><|user|><think></think>"), (Ids{4062, 4064, 4067, 4081, 4082}));
  const int32_t less = tiny().encode("<")[0];
  const int32_t more = tiny().encode(">")[0];
  EXPECT_EQ(tiny().encode("<<|user|>>"), (Ids{less, 4067, more}));
  for (const int32_t id : tiny().encode("<|user| <|User|> <tools> </tools>")) EXPECT_FALSE(tiny().is_added(id));
  // The look-ahead of the pattern sees the end of the text before a marker: the two blanks are one piece.
  Ids expected = tiny().encode("an  ");
  expected.push_back(4094);
  const Ids rest = tiny().encode(" inline");
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(tiny().encode("an  <|image|> inline"), expected);
}

TEST(TokenizerGolden, SkipSpecialDropsOnlySpecialTokens) {
  EXPECT_EQ(tiny().decode(tiny().encode("<|user|>hello<|assistant|>"), true), "hello");
  EXPECT_EQ(tiny().decode(tiny().encode("<|user|>hello<|assistant|>"), false), "<|user|>hello<|assistant|>");
  const std::string reasoning = "<think>reasoning here</think>the answer";
  EXPECT_EQ(tiny().decode(tiny().encode(reasoning), true), reasoning);
}

TEST(TokenizerGolden, NamesItsTokens) {
  EXPECT_EQ(tiny().id_count(), 4096);
  EXPECT_EQ(tiny().added_id("<think>"), 4081);
  EXPECT_EQ(tiny().added_id("think"), std::nullopt);
  EXPECT_EQ(tiny().require_added("<|endoftext|>"), 4060);
  EXPECT_TRUE(tiny().is_special(4077));
  EXPECT_FALSE(tiny().is_special(4078));
  EXPECT_TRUE(tiny().is_added(4078));
  EXPECT_FALSE(tiny().is_added(4059));
  try {
    tiny().require_added("<pause>");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), GLM53_TEST_DATA "/models/glm53-tiny/tokenizer.json: added_tokens has no \"<pause>\"");
  }
}

}  // namespace
}  // namespace glm53::text
