#include "checkpoint/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "glm53/core/error.h"

namespace glm53 {
namespace {

using testing::ElementsAre;

GenerationConfig parse(const std::string& json) {
  GenerationConfig fallback;
  fallback.eos_ids = {7, 8};
  return generation_config_from_json(json, "generation_config.json", 4096, fallback);
}

TEST(GenerationConfig, ReadsTheTinyCheckpoint) {
  const GenerationConfig config = load_generation_config(GLM53_TEST_DATA "/models/glm53-tiny", 4096, {1});
  EXPECT_THAT(config.eos_ids, ElementsAre(4060, 4067, 4069));
  EXPECT_FLOAT_EQ(config.temperature, 1.0F);
  EXPECT_FLOAT_EQ(config.top_p, 0.95F);
}

TEST(GenerationConfig, WithoutAFileTheConfigDecides) {
  const GenerationConfig config = load_generation_config("/no/such/directory", 4096, {1, 2});
  EXPECT_THAT(config.eos_ids, ElementsAre(1, 2));
  EXPECT_FLOAT_EQ(config.temperature, 1.0F);
  EXPECT_FLOAT_EQ(config.top_p, 1.0F);
}

TEST(GenerationConfig, AbsentAndNullKeysFallBack) {
  for (const char* json : {"{}", R"({"eos_token_id": null, "temperature": null, "top_p": null, "top_k": 50})"}) {
    const GenerationConfig config = parse(json);
    EXPECT_THAT(config.eos_ids, ElementsAre(7, 8));
    EXPECT_FLOAT_EQ(config.temperature, 1.0F);
    EXPECT_FLOAT_EQ(config.top_p, 1.0F);
  }
}

TEST(GenerationConfig, OneIdOrAList) {
  EXPECT_THAT(parse(R"({"eos_token_id": 0})").eos_ids, ElementsAre(0));
  EXPECT_THAT(parse(R"({"eos_token_id": [5, 4095, 5]})").eos_ids, ElementsAre(5, 4095));
  EXPECT_FLOAT_EQ(parse(R"({"temperature": 0})").temperature, 0.0F);
}

TEST(GenerationConfig, ReadsEverySamplingDefault) {
  const GenerationConfig config = parse(R"({"top_k": 40, "min_p": 0.25, "repetition_penalty": 1.5, "max_length": 9})");
  EXPECT_EQ(config.top_k, 40);
  EXPECT_FLOAT_EQ(config.min_p, 0.25F);
  EXPECT_FLOAT_EQ(config.repetition, 1.5F);
  EXPECT_EQ(parse(R"({"top_k": -1})").top_k, 0);
}

TEST(GenerationConfig, AnOverrideKeepsTheRestAndIgnoresNothing) {
  const auto override = [](const char* json) {
    return override_generation_config(json, "override", 4096, parse(R"({"temperature": 0.5, "top_p": 0.9})"));
  };
  const GenerationConfig config = override(R"({"temperature": 0.7, "top_k": 20})");
  EXPECT_FLOAT_EQ(config.temperature, 0.7F);
  EXPECT_FLOAT_EQ(config.top_p, 0.9F);
  EXPECT_EQ(config.top_k, 20);
  EXPECT_THAT(config.eos_ids, ElementsAre(7, 8));
  for (const char* json : {R"({"temperatur": 0.7})", R"({"max_new_tokens": 5})", "0.7", "{", R"({"top_p": 2})"}) {
    try {
      override(json);
      ADD_FAILURE() << json;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), testing::StartsWith("override: ")) << json;
    }
  }
}

TEST(GenerationConfig, RefusesWithOneLine) {
  for (const char* json : {"",
                           "[]",
                           "3",
                           "{",
                           "{\"eos_token_id\": \"\xff\"}",
                           R"({"eos_token_id": 4096})",
                           R"({"eos_token_id": -1})",
                           R"({"eos_token_id": 1.5})",
                           R"({"eos_token_id": true})",
                           R"({"eos_token_id": "4060"})",
                           R"({"eos_token_id": []})",
                           R"({"eos_token_id": [[1]]})",
                           R"({"eos_token_id": [null]})",
                           R"({"eos_token_id": 18446744073709551615})",
                           R"({"eos_token_id": 18446744073709551616})",
                           R"({"temperature": -0.1})",
                           R"({"temperature": 2.5})",
                           R"({"temperature": "1"})",
                           R"({"temperature": 1e999})",
                           R"({"temperature": true})",
                           R"({"top_p": 0})",
                           R"({"top_p": 1.01})",
                           R"({"top_p": []})",
                           R"({"top_p": 0.5, "top_p": 0.6})",
                           R"({"top_k": -2})",
                           R"({"top_k": 1.5})",
                           R"({"min_p": 1.5})",
                           R"({"repetition_penalty": 0})",
                           R"({"repetition_penalty": -1})"}) {
    SCOPED_TRACE(json);
    try {
      parse(json);
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), testing::StartsWith("generation_config.json: "));
      EXPECT_THAT(e.what(), testing::Not(testing::HasSubstr("\n")));
    }
  }
}

}  // namespace
}  // namespace glm53
