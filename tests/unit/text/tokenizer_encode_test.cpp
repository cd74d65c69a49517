// Encoding and decoding with small hand-made files: what the tiny checkpoint's file cannot show.
#include <algorithm>
#include <array>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "tokenizer_test_util.h"

namespace glm53::text {
namespace {

using Ids = std::vector<int32_t>;
using Kind = TextSegment::Kind;

Ids bytes_of(const std::string& text) {
  Ids ids;
  for (const char byte : text) ids.push_back(static_cast<uint8_t>(byte));
  return ids;
}

// "hell" is in the vocabulary but no merges lead to it from h-e-l-l: "he" wins over "el", then nothing joins.
SmallTokenizer unreachable_word() {
  SmallTokenizer file;
  file.merge("h", "e", 256);
  file.merge("e", "l", 257);
  file.vocab["hell"] = 258;
  return file;
}

TEST(TokenizerEncode, IgnoreMergesTakesAPieceThatIsATokenWhole) {
  SmallTokenizer file = unreachable_word();
  EXPECT_EQ(file.load().encode("hell"), (Ids{256, 'l', 'l'}));
  file.ignore_merges = true;
  EXPECT_EQ(file.load().encode("hell"), Ids{258});
  EXPECT_EQ(file.load().encode("hello"), (Ids{256, 'l', 'l', 'o'})) << "only whole pieces";
  EXPECT_EQ(file.load().encode(" hell"), (Ids{' ', 256, 'l', 'l'})) << "the blank belongs to the piece";
}

TEST(TokenizerEncode, RanksComeFromTheOrderOfMergesNotFromIds) {
  SmallTokenizer file;
  file.merge("b", "c", 300);
  file.merge("a", "b", 256);
  EXPECT_EQ(file.load().encode("abc"), (Ids{'a', 300}));
  SmallTokenizer swapped;
  swapped.merge("a", "b", 256);
  swapped.merge("b", "c", 300);
  EXPECT_EQ(swapped.load().encode("abc"), (Ids{256, 'c'}));
}

TEST(TokenizerEncode, MergesAsStringsMeanTheSame) {
  SmallTokenizer file = unreachable_word();
  file.merges_as_strings = true;
  EXPECT_EQ(file.load().encode("hell"), (Ids{256, 'l', 'l'}));
}

TEST(TokenizerEncode, ByteTokensMayHaveAnyIds) {
  SmallTokenizer file;
  for (int byte = 0; byte < 256; ++byte) file.vocab[byte_letter(byte)] = 1000 - byte;
  const Tokenizer tokenizer = file.load();
  EXPECT_EQ(tokenizer.encode("a b"), (Ids{1000 - 'a', 1000 - ' ', 1000 - 'b'}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("naïve 你"), false), "naïve 你");
  EXPECT_EQ(tokenizer.id_count(), 1001);
}

TEST(TokenizerEncode, IdsWithoutATokenDecodeToNothing) {
  SmallTokenizer file;
  file.added_tokens.push_back({"<end>", 270, false});
  const Tokenizer tokenizer = file.load();
  const Ids ids = {'a', -1, 256, 269, 270, 271, 1 << 30, 'b'};
  EXPECT_EQ(tokenizer.decode(ids, true), "a<end>b");
  for (const int32_t id : {-1, 256, 269, 271, 1 << 30}) {
    EXPECT_FALSE(tokenizer.has_token(id));
    EXPECT_FALSE(tokenizer.is_added(id));
    EXPECT_EQ(tokenizer.token_bytes(id), "");
    EXPECT_EQ(tokenizer.token_piece(id), "");
  }
  EXPECT_EQ(tokenizer.id_count(), 271);
}

// A character that stands for no byte makes a token that text never reaches; it decodes to itself.
TEST(TokenizerEncode, PieceOutsideTheByteAlphabetIsItsOwnText) {
  SmallTokenizer file;
  file.vocab["你"] = 256;
  file.ignore_merges = true;
  const Tokenizer tokenizer = file.load();
  EXPECT_EQ(tokenizer.token_bytes(256), "你");
  EXPECT_EQ(tokenizer.token_piece(256), "你");
  EXPECT_EQ(tokenizer.encode("你"), bytes_of("你"));
}

// Pairs joined one at a time by scanning the whole piece: the definition, quadratic.
Ids merge_by_definition(Ids ids, const std::vector<std::array<int32_t, 3>>& merges) {
  for (;;) {
    size_t best_rank = merges.size();
    size_t best_at = 0;
    for (size_t at = 0; at + 1 < ids.size(); ++at) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank][0] == ids[at] && merges[rank][1] == ids[at + 1]) {
          best_rank = rank;
          best_at = at;
        }
      }
    }
    if (best_rank == merges.size()) return ids;
    ids[best_at] = merges[best_rank][2];
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

TEST(TokenizerEncode, MergesAsDefinedOnRandomVocabularies) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    SmallTokenizer file;
    std::vector<std::string> pieces = {"a", "b", "c"};
    std::map<std::string, int32_t> ids = {{"a", 'a'}, {"b", 'b'}, {"c", 'c'}};
    std::vector<std::array<int32_t, 3>> merges;
    std::vector<std::pair<std::string, std::string>> pairs;
    for (int i = 0; i < 25; ++i) {
      const std::string left = pieces[random() % pieces.size()];
      const std::string right = pieces[random() % pieces.size()];
      if (std::find(pairs.begin(), pairs.end(), std::pair(left, right)) != pairs.end()) continue;
      if (ids.emplace(left + right, 400 - i).second) pieces.push_back(left + right);
      pairs.emplace_back(left, right);
    }
    std::shuffle(pairs.begin(), pairs.end(), random);  // a merge may come before those that make its parts
    for (const auto& [left, right] : pairs) {
      file.merge(left, right, ids[left + right]);
      merges.push_back({ids[left], ids[right], ids[left + right]});
    }
    const Tokenizer tokenizer = file.load();
    for (int i = 0; i < 20; ++i) {
      std::string text(random() % 40, 'a');
      for (char& letter : text) letter = static_cast<char>('a' + random() % 3);
      ASSERT_EQ(tokenizer.encode(text), merge_by_definition(bytes_of(text), merges)) << text;
    }
  }
}

// Quadratic merging would need hours here.
TEST(TokenizerEncode, PieceOfMegabytes) {
  SmallTokenizer file;
  for (const std::string letter : {"a", "Ġ"}) {
    std::string piece = letter;
    for (int i = 0; i < 4; ++i, piece += piece) {
      file.merge(piece, piece, 256 + static_cast<int32_t>(file.merges.size()));
    }
  }
  const Tokenizer tokenizer = file.load();
  const std::map<char, int32_t> longest = {{'a', 259}, {' ', 263}};
  for (const auto& [letter, id] : longest) {
    const std::string text(1 << 20, letter);
    const Ids ids = tokenizer.encode(text);
    EXPECT_EQ(ids, Ids((1 << 20) / 16, id)) << letter;
    EXPECT_EQ(tokenizer.decode(ids, false), text);
  }
}

TEST(TokenizerEncode, InvalidUtf8IsReplaced) {
  const Tokenizer tokenizer = SmallTokenizer().load();
  const std::map<std::string, std::string> repaired = {
      {"\xFF", "\uFFFD"},
      {"a\xC3", "a\uFFFD"},
      {"a\xC3z", "a\uFFFDz"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},  // a surrogate is invalid from its second byte on
      {"\xF0\x9F\x98", "\uFFFD"},
      {"\xF0\x9F\x98\xF0\x9F\x98\x80", "\uFFFD\U0001F600"},
      {"\xC0\xAF\xE0\x80\xBF\xF4\x91\x92\x93", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\x80\xBF", "\uFFFD\uFFFD"},
  };
  for (const auto& [text, valid] : repaired) {
    EXPECT_EQ(tokenizer.encode(text), bytes_of(valid)) << valid;
    EXPECT_EQ(tokenizer.decode(bytes_of(text), false), valid);
  }
}

SmallTokenizer with_markers() {
  SmallTokenizer file;
  int32_t id = 300;
  for (const char* text : {"<|user|>", "<think>", "<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>",
                           "<|begin_of_video|>", "<|end_of_video|>"}) {
    file.added_tokens.push_back({text, id++, false});
  }
  return file;
}

TEST(TokenizerEncode, AddedTokensLeftmostThenLongest) {
  SmallTokenizer file;
  file.added_tokens.push_back({"<a>", 300, false});
  file.added_tokens.push_back({"<a><b>", 301, false});
  file.added_tokens.push_back({"><b", 302, false});
  file.added_tokens.push_back({"你", 303, false});
  const Tokenizer tokenizer = file.load();
  EXPECT_EQ(tokenizer.encode("<a>"), Ids{300});
  EXPECT_EQ(tokenizer.encode("<a><b>"), Ids{301});
  EXPECT_EQ(tokenizer.encode("<a><b你"), (Ids{300, '<', 'b', 303}));
  EXPECT_EQ(tokenizer.encode("x><b>"), (Ids{'x', 302, '>'}));
  EXPECT_EQ(tokenizer.encode("<a><a><b>a<a"), (Ids{300, 301, 'a', '<', 'a'}));
}

TEST(TokenizerEncode, MediaMarkersInContentStayText) {
  const Tokenizer tokenizer = with_markers().load();
  const std::string media = "<|image|><|video|><|begin_of_image|><|end_of_image|><|begin_of_video|><|end_of_video|>";
  const std::vector<TextSegment> content = {{Kind::kContent, media}};
  EXPECT_EQ(tokenizer.encode(content), bytes_of(media));
  const std::vector<TextSegment> literal = {{Kind::kTemplate, media}};
  EXPECT_EQ(tokenizer.encode(literal), (Ids{302, 303, 304, 305, 306, 307}));
  const std::vector<TextSegment> mixed = {
      {Kind::kTemplate, "<|user|>"}, {Kind::kContent, "<|image|><think>"}, {Kind::kTemplate, "<|image|>"}};
  Ids expected = {300};
  const Ids text = bytes_of("<|image|>");
  expected.insert(expected.end(), text.begin(), text.end());
  expected.insert(expected.end(), {301, 302});
  EXPECT_EQ(tokenizer.encode(mixed), expected);
}

TEST(TokenizerEncode, PlainSegmentsHaveNoMarkers) {
  const Tokenizer tokenizer = with_markers().load();
  const std::vector<TextSegment> segments = {{Kind::kPlain, "<|user|>"}, {Kind::kTemplate, "<think>"}};
  Ids expected = bytes_of("<|user|>");
  expected.push_back(301);
  EXPECT_EQ(tokenizer.encode(segments), expected);
}

TEST(TokenizerEncode, TextIsOneStringAcrossSegmentBorders) {
  SmallTokenizer file = with_markers();
  file.merge("a", "x", 402);
  file.merge("Ġ", "M", 400);
  file.merge("ĠM", "ax", 401);

  const Tokenizer tokenizer = file.load();
  for (const Kind second : {Kind::kTemplate, Kind::kContent, Kind::kPlain}) {
    const std::vector<TextSegment> segments = {
        {Kind::kTemplate, "<|user|>Effort: "}, {Kind::kContent, ""}, {second, "M"}, {Kind::kContent, "ax"}};
    Ids expected = {300};
    const Ids text = bytes_of("Effort:");
    expected.insert(expected.end(), text.begin(), text.end());
    expected.push_back(401);
    EXPECT_EQ(tokenizer.encode(segments), expected);
  }
  const std::vector<TextSegment> split_by_marker = {{Kind::kTemplate, " <think>"}, {Kind::kContent, "Max"}};
  EXPECT_EQ(tokenizer.encode(split_by_marker), (Ids{' ', 301, 'M', 402}));
}

// As in a prompt rendered to one string; a plain segment never takes part in a marker.
TEST(TokenizerEncode, MarkersMaySpanSegmentsOfOneKindOnly) {
  const Tokenizer tokenizer = with_markers().load();
  const std::vector<TextSegment> same = {{Kind::kContent, "<thi"}, {Kind::kContent, "nk>"}};
  EXPECT_EQ(tokenizer.encode(same), Ids{301});
  const std::vector<TextSegment> plain = {{Kind::kPlain, "<thi"}, {Kind::kPlain, "nk>"}};
  EXPECT_EQ(tokenizer.encode(plain), bytes_of("<think>"));
  const std::vector<TextSegment> different = {{Kind::kPlain, "<thi"}, {Kind::kTemplate, "nk>"}};
  EXPECT_EQ(tokenizer.encode(different), bytes_of("<think>"));
  EXPECT_EQ(tokenizer.encode(std::span<const TextSegment>()), Ids{});
}

}  // namespace
}  // namespace glm53::text
