// What loading refuses: every file of tests/data/malformed/tokenizer_json, with the part that its one line must name.
#include <filesystem>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "glm53/core/error.h"
#include "text/load_tokenizer.h"
#include "tokenizer_test_util.h"

namespace glm53::text {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kFolder = GLM53_TEST_DATA "/malformed/tokenizer_json/";

const std::map<std::string, std::string> kRefused = {
    {"added_token_id_float", "added_tokens[1].id is not an integer"},
    {"added_token_id_negative", "added_tokens[1].id is not an integer"},
    {"added_token_id_taken", "two tokens have the id 258"},
    {"added_token_id_too_large", "added_tokens[1].id is not an integer from 0 to 2^24 - 1"},
    {"added_token_id_twice", "two tokens have the id 300"},
    {"added_token_lstrip", "added_tokens[1].lstrip is true, which is not implemented"},
    {"added_token_normalized", "added_tokens[1].normalized is true"},
    {"added_token_not_object", "added_tokens[1] is not an object"},
    {"added_token_other_id_in_vocab", "added_tokens: \"<think>\" has id 301, in model.vocab 302"},
    {"added_token_rstrip", "added_tokens[1].rstrip is true"},
    {"added_token_single_word", "added_tokens[1].single_word is true"},
    {"added_token_text_empty", "added_tokens[1].content is not a string with text"},
    {"added_token_text_twice", "added_tokens: \"<|user|>\" appears twice"},
    {"added_token_without_special", "added_tokens[1].special is not true or false"},
    {"added_tokens_missing", "added_tokens is not a list"},
    {"byte_fallback", "model.byte_fallback is true, which is not implemented"},
    {"byte_level_prefix_space", "pre_tokenizer.pretokenizers[1].add_prefix_space is true"},
    {"byte_level_regex_by_default", "pre_tokenizer.pretokenizers[1].use_regex is not true or false"},
    {"byte_level_type", "pre_tokenizer.pretokenizers[1] is {"},
    {"bytes_after_the_end", "not valid JSON at byte"},
    {"continuing_subword_prefix", "model.continuing_subword_prefix is \"##\""},
    {"cut_off", "not valid JSON at byte"},
    {"decoder_null", "decoder is null"},
    {"decoder_type", "decoder is {"},
    {"dropout", "model.dropout is 0.1"},
    {"empty", "not valid JSON at byte"},
    {"end_of_word_suffix", "model.end_of_word_suffix is \"</w>\""},
    {"fuse_unk", "model.fuse_unk is true"},
    {"ignore_merges_not_bool", "model.ignore_merges is not true or false"},
    {"invalid_utf8", "not valid JSON at byte"},
    {"key_twice", "key \"normalizer\" appears twice"},
    {"merge_empty_part", "model.merges[1] is not a pair of two tokens"},
    {"merge_makes_added_token", "model.merges[3] makes the added token \"<think>\""},
    {"merge_number", "model.merges[1] is not a pair"},
    {"merge_number_part", "model.merges[1] is not a pair"},
    {"merge_one_part", "model.merges[1] is not a pair"},
    {"merge_part_unknown", "model.merges[1]: \"lo\" is not in model.vocab"},
    {"merge_result_unknown", "model.merges[1]: \"lo\" is not in model.vocab"},
    {"merge_string_two_spaces", "model.merges[1] is not a pair"},
    {"merge_string_without_space", "model.merges[1] is not a pair"},
    {"merge_three_parts", "model.merges[1] is not a pair"},
    {"merge_twice", "model.merges[1] joins the same two tokens as model.merges[0]"},
    {"merges_missing", "model.merges is not a list"},
    {"merges_object", "model.merges is not a list"},
    {"model_missing", "model is not an object"},
    {"model_twice", "key \"model\" appears twice"},
    {"model_type", "model.type is \"WordPiece\", which is not implemented"},
    {"model_unigram", "model.type is \"Unigram\""},
    {"nested_too_deep", "JSON nested deeper than 16 levels"},
    {"normalizer", "normalizer is {\"type\":\"NFC\"}"},
    {"normalizer_sequence", "normalizer is {"},
    {"padding", "padding is {"},
    {"pattern_empty_match", "pre_tokenizer.pretokenizers[0].pattern: the pattern can match an empty text"},
    {"pattern_script", "pre_tokenizer.pretokenizers[0].pattern: the pattern uses \\p{Han}"},
    {"pattern_syntax", "pre_tokenizer.pretokenizers[0].pattern: the pattern does not compile: missing closing"},
    {"pattern_word_class", "pre_tokenizer.pretokenizers[0].pattern: the pattern uses \\w"},
    {"post_processor_bos", "post_processor is {"},
    {"post_processor_type", "post_processor is {"},
    {"pre_tokenizer_null", "pre_tokenizer is null"},
    {"pre_tokenizer_one_step", "pre_tokenizer.pretokenizers is not a list of Split and ByteLevel"},
    {"pre_tokenizer_type", "pre_tokenizer is {"},
    {"split_behavior", "pre_tokenizer.pretokenizers[0].behavior is \"Removed\""},
    {"split_invert", "pre_tokenizer.pretokenizers[0].invert is true"},
    {"split_literal", "pre_tokenizer.pretokenizers[0].pattern is {\"String\":\" \"}"},
    {"split_type", "pre_tokenizer.pretokenizers[0] is {"},
    {"top_level_list", "the top level is not an object"},
    {"truncation", "truncation is {"},
    {"unk_token", "model.unk_token is \"<unk>\""},
    {"vocab_byte_missing", "model.vocab: no token for byte 32 (\"Ġ\")"},
    {"vocab_id_float", "model.vocab: the id of \"hell\" is not a non-negative integer"},
    {"vocab_id_huge", "model.vocab: the id of \"hell\" is not a non-negative integer"},
    {"vocab_id_negative", "model.vocab: the id of \"hell\" is not a non-negative integer"},
    {"vocab_id_object", "model.vocab: the id of \"hell\" is not a non-negative integer"},
    {"vocab_id_string", "model.vocab: the id of \"hell\" is not a non-negative integer"},
    {"vocab_id_too_large", "model.vocab: the id of \"hell\" is over 2^24 - 1"},
    {"vocab_id_twice", "two tokens have the id 257"},
    {"vocab_key_twice", "model.vocab: \"hell\" appears twice"},
    {"vocab_list", "model.vocab is not an object"},
    {"vocab_missing", "model.vocab is not an object"},
};

TEST(TokenizerLoad, RefusesEveryMalformedFileInOneLine) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    ++files;
    EXPECT_TRUE(kRefused.contains(entry.path().stem().string())) << entry.path() << " is not in the table";
  }
  EXPECT_EQ(files, kRefused.size());
  for (const auto& [name, message] : kRefused) {
    const std::string path = kFolder + name + ".json";
    try {
      test::load_tokenizer(path);
      ADD_FAILURE() << "accepted " << path;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(path + ": " + message));
      EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
      EXPECT_LT(std::string(error.what()).size(), path.size() + 250);
    }
  }
}

TEST(TokenizerLoad, TakesTheFormsThatChangeNothing) {
  SmallTokenizer file;
  file.normalizer = R"({"type":"Sequence","normalizers":[]})";
  for (const char* post_processor :
       {"null", R"({"type":"ByteLevel","trim_offsets":false})",
        R"({"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}}]})"}) {
    file.post_processor = post_processor;
    EXPECT_EQ(file.load().encode("hi"), (std::vector<int32_t>{'h', 'i'}));
  }
}

// Some files list their added tokens in model.vocab as well.
TEST(TokenizerLoad, AddedTokenMayStandInTheVocabulary) {
  SmallTokenizer file;
  file.vocab["<s>"] = 256;
  file.added_tokens.push_back({"<s>", 256, true});
  file.ignore_merges = true;
  const Tokenizer tokenizer = file.load();
  EXPECT_TRUE(tokenizer.is_special(256));
  EXPECT_EQ(tokenizer.encode("<s>"), std::vector<int32_t>{256});
  EXPECT_EQ(tokenizer.token_piece(256), "<s>");
  EXPECT_EQ(tokenizer.id_count(), 257);
}

// Its text, typed where markers are not recognised, is no control token even where it is one piece.
TEST(TokenizerLoad, AddedTokenInTheVocabularyIsNoWholePiece) {
  SmallTokenizer file;
  file.vocab["/nothink"] = 256;
  file.added_tokens.push_back({"/nothink", 256, false});
  file.ignore_merges = true;
  const std::vector<TextSegment> plain = {{TextSegment::Kind::kPlain, "/nothink"}};
  EXPECT_EQ(file.load().encode(plain).size(), 8u);
}

TEST(TokenizerLoad, MergesMayComeBeforeTheVocabulary) {
  SmallTokenizer file;
  file.merge("a", "b", 300);
  file.vocab_last = true;
  EXPECT_EQ(file.load().encode("ab"), std::vector<int32_t>{300});
}

TEST(TokenizerLoad, WithoutVocabularyIdsHaveNoText) {
  const Tokenizer none = Tokenizer::without_vocabulary(100);
  EXPECT_FALSE(none.has_vocabulary());
  EXPECT_EQ(none.id_count(), 100);
  EXPECT_TRUE(none.has_token(99));
  EXPECT_FALSE(none.has_token(100));
  EXPECT_FALSE(none.has_token(-1));
  EXPECT_EQ(none.token_bytes(5), "");
  EXPECT_EQ(none.decode(std::vector<int32_t>{1, 2}, false), "");
  EXPECT_FALSE(none.is_special(5) || none.is_added(5) || none.added_id("<think>"));
  EXPECT_THROW(none.encode("text"), std::runtime_error);
  EXPECT_THROW(none.require_added("<think>"), Error);
}

}  // namespace
}  // namespace glm53::text
