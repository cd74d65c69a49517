#include "text/reply_parser.h"

#include <array>
#include <random>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "glm53/core/utf8.h"
#include "text/load_tokenizer.h"

namespace glm53::text {
namespace {

using testing::ElementsAre;
using testing::Pair;

constexpr auto kReasoning = ReplyChannel::kReasoning;
constexpr auto kContent = ReplyChannel::kContent;
constexpr char kReplacement[] = "\xEF\xBF\xBD";

const Tokenizer& tokenizer() {
  static const Tokenizer tiny = test::load_tokenizer(GLM53_TEST_DATA "/models/glm53-tiny/tokenizer.json");
  return tiny;
}

int32_t marker(std::string_view text) { return tokenizer().require_added(text); }

// The token of each single byte.
const std::array<int32_t, 256>& byte_ids() {
  static const auto ids = [] {
    std::array<int32_t, 256> table{};
    for (int32_t id = tokenizer().id_count() - 1; id >= 0; --id) {
      if (!tokenizer().is_added(id) && tokenizer().token_bytes(id).size() == 1) {
        table[static_cast<unsigned char>(tokenizer().token_bytes(id)[0])] = id;
      }
    }
    return table;
  }();
  return ids;
}

// One token a byte, so that characters and stop strings span tokens; {think} stands for the marker <think>.
std::vector<int32_t> ids_of(std::string_view text) {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    if (text[0] == '{') {
      const size_t end = text.find('}');
      std::string name = "<";
      name += text.substr(1, end - 1);
      name += '>';
      ids.push_back(marker(name));
      text.remove_prefix(end + 1);
    } else {
      ids.push_back(byte_ids()[static_cast<unsigned char>(text[0])]);
      text.remove_prefix(1);
    }
  }
  return ids;
}

using Text = std::vector<std::pair<ReplyChannel, std::string>>;

void add(Text& text, ReplyChannel channel, const std::string& piece) {
  if (piece.empty()) {
    return;
  }
  if (text.empty() || text.back().first != channel) {
    text.emplace_back(channel, "");
  }
  text.back().second += piece;
}

struct Reply {
  Text text;
  std::optional<std::string> stop;
  int64_t reasoning_tokens = 0;
  bool operator==(const Reply&) const = default;
};

void PrintTo(const Reply& reply, std::ostream* out) {
  *out << testing::PrintToString(reply.text) << " stop " << testing::PrintToString(reply.stop) << " reasoning tokens "
       << reply.reasoning_tokens;
}

// Feeds `ids` with a fresh delta list after every `chunk` tokens (0: never), as a streaming server does.
Reply parse(const std::vector<int32_t>& ids, const ReplyOptions& options, size_t chunk = 1) {
  ReplyParser parser(tokenizer(), options);
  Reply reply;
  std::vector<ReplyDelta> out;
  const auto take = [&] {
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_FALSE(out[i].text.empty());
      EXPECT_EQ(to_valid_utf8(out[i].text), out[i].text) << "part of a character";
      EXPECT_TRUE(i == 0 || out[i].channel != out[i - 1].channel) << "adjacent text of one channel not merged";
      add(reply.text, out[i].channel, out[i].text);
    }
    out.clear();
  };
  size_t fed = 0;
  for (const int32_t id : ids) {
    if (parser.push(id, out)) {
      break;
    }
    if (chunk > 0 && ++fed % chunk == 0) {
      take();
    }
  }
  parser.finish(ReplyEnd::kComplete, out);
  take();
  reply.stop = parser.matched_stop();
  reply.reasoning_tokens = parser.reasoning_tokens();
  return reply;
}

ReplyOptions from(ReplyChannel start, std::vector<std::string> stop = {}) {
  ReplyOptions options;
  options.start = start;
  options.stop = std::move(stop);
  return options;
}

TEST(StartChannel, LastMarkerOfThePromptDecides) {
  const auto of = [](std::string_view prompt) { return start_channel(tokenizer().encode(prompt), tokenizer()); };
  EXPECT_EQ(of("[gMASK]<sop><|user|>q<|assistant|><think>"), kReasoning);
  EXPECT_EQ(of("[gMASK]<sop><|user|>q<|assistant|><think>begun already"), kReasoning);
  EXPECT_EQ(of("[gMASK]<sop><|user|>q<|assistant|><think></think>"), kContent);
  EXPECT_EQ(of("<|assistant|><think>r</think>The answer is "), kContent);
  EXPECT_EQ(of("<|assistant|><think>r</think>a<|user|>q"), kContent);
  for (const char* role : {"<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"}) {
    EXPECT_EQ(of("<think>" + std::string(role) + "x"), kContent) << role;
  }
  EXPECT_EQ(of("plain"), kContent);
  EXPECT_EQ(of(""), kContent);
}

TEST(ReplyParser, SplitsAtTheMarker) {
  const Reply reply = parse(ids_of("a b{/think}c d"), from(kReasoning));
  EXPECT_THAT(reply.text, ElementsAre(Pair(kReasoning, "a b"), Pair(kContent, "c d")));
  EXPECT_EQ(reply.reasoning_tokens, 3);
  EXPECT_EQ(reply.stop, std::nullopt);
}

TEST(ReplyParser, WhitespaceAroundTheMarkerIsKept) {
  EXPECT_THAT(parse(ids_of(" a\n{/think}\n\nb "), from(kReasoning)).text,
              ElementsAre(Pair(kReasoning, " a\n"), Pair(kContent, "\n\nb ")));
}

TEST(ReplyParser, UnclosedReasoningStaysReasoning) {
  const Reply reply = parse(ids_of("never ends"), from(kReasoning));
  EXPECT_THAT(reply.text, ElementsAre(Pair(kReasoning, "never ends")));
  EXPECT_EQ(reply.reasoning_tokens, 10);
}

TEST(ReplyParser, RepeatedMarkersLeaveNoText) {
  EXPECT_THAT(parse(ids_of("{think}a{think}b{/think}c{/think}d"), from(kReasoning)).text,
              ElementsAre(Pair(kReasoning, "ab"), Pair(kContent, "cd")));
}

TEST(ReplyParser, ThinkInContent) {
  ReplyOptions options = from(kContent);
  Reply reply = parse(ids_of("a{think}bc{/think}d"), options);
  EXPECT_THAT(reply.text, ElementsAre(Pair(kContent, "a"), Pair(kReasoning, "bc"), Pair(kContent, "d")));
  EXPECT_EQ(reply.reasoning_tokens, 2);
  options.thinking = false;
  reply = parse(ids_of("a{think}bc{/think}d"), options);
  EXPECT_THAT(reply.text, ElementsAre(Pair(kContent, "a<think>bcd")));
  EXPECT_EQ(reply.reasoning_tokens, 0);
}

TEST(ReplyParser, ToolCallMarkersAreText) {
  EXPECT_THAT(parse(ids_of("x{tool_call}y{/think}{tool_call}f{arg_key}k{/arg_key}{arg_value}v{/arg_value}{/tool_call}"),
                    from(kReasoning))
                  .text,
              ElementsAre(Pair(kReasoning, "x<tool_call>y"),
                          Pair(kContent, "<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>")));
}

TEST(ReplyParser, SpecialTokens) {
  ReplyOptions options = from(kReasoning);
  const auto ids = ids_of("a{|user|}b{/think}c{sop}d{|begin_of_box|}");
  EXPECT_THAT(parse(ids, options).text, ElementsAre(Pair(kReasoning, "ab"), Pair(kContent, "cd<|begin_of_box|>")));
  EXPECT_EQ(parse(ids, options).reasoning_tokens, 3);
  options.skip_special_tokens = false;
  EXPECT_THAT(parse(ids, options).text,
              ElementsAre(Pair(kReasoning, "a<|user|>b"), Pair(kContent, "c<sop>d<|begin_of_box|>")));
}

TEST(ReplyParser, RawTextWithoutSplit) {
  ReplyOptions options = from(kReasoning, {"d"});
  options.split_reasoning = false;
  const Reply reply = parse(ids_of("{think}a{/think}b{|user|}cd"), options);
  EXPECT_THAT(reply.text, ElementsAre(Pair(kContent, "<think>a</think>bc")));
  EXPECT_EQ(reply.stop, "d");
  EXPECT_EQ(reply.reasoning_tokens, 0);
}

TEST(ReplyParser, IdsWithoutATokenAreSilent) {
  auto ids = ids_of("ab");
  ids.insert(ids.begin() + 1, {tokenizer().id_count(), -1, INT32_MAX});
  EXPECT_THAT(parse(ids, from(kContent)).text, ElementsAre(Pair(kContent, "ab")));
}

TEST(ReplyParser, CharactersComeWhole) {
  EXPECT_THAT(parse(ids_of("é😀{/think}中"), from(kReasoning)).text,
              ElementsAre(Pair(kReasoning, "é😀"), Pair(kContent, "中")));
}

TEST(ReplyParser, CutCharacterAtTheEndAndAtTheMarker) {
  const std::string cut = std::string("a\xF0\x9F\x98") + "{/think}" + "b\xE4\xB8";
  ReplyOptions options = from(kReasoning, {"zz"});
  EXPECT_THAT(parse(ids_of(cut), options).text, ElementsAre(Pair(kReasoning, "a"), Pair(kContent, "b")));
  options.flush_partial_utf8 = true;
  EXPECT_THAT(parse(ids_of(cut), options).text, ElementsAre(Pair(kReasoning, std::string("a") + kReplacement),
                                                            Pair(kContent, std::string("b") + kReplacement)));
  // The first bytes of a character in reasoning and the last in content do not make one.
  EXPECT_THAT(parse(ids_of("\xC3{/think}\xA9"), from(kReasoning)).text, ElementsAre(Pair(kContent, kReplacement)));
}

TEST(ReplyParser, PromptEndingInsideACharacterDoesNotLeak) {
  // The parser never sees the prompt: what continues a prompt's character is an invalid byte of the reply.
  EXPECT_THAT(parse(ids_of("\x98\x80 ok"), from(kContent)).text,
              ElementsAre(Pair(kContent, std::string(kReplacement) + kReplacement + " ok")));
}

TEST(ReplyParser, StopCutsBeforeOrAfterTheMatch) {
  ReplyOptions options = from(kContent, {"STOP"});
  Reply reply = parse(ids_of("abSTOPcd"), options);
  EXPECT_THAT(reply.text, ElementsAre(Pair(kContent, "ab")));
  EXPECT_EQ(reply.stop, "STOP");
  options.include_stop = true;
  EXPECT_THAT(parse(ids_of("abSTOPcd"), options).text, ElementsAre(Pair(kContent, "abSTOP")));
  EXPECT_THAT(parse(ids_of("STOP"), from(kContent, {"STOP"})).text, ElementsAre());
}

TEST(ReplyParser, StopInsideATokenCutsTheToken) {
  const auto ids = tokenizer().encode("Count from 1 to 20");
  ASSERT_EQ(tokenizer().token_bytes(ids[0]), "Count") << "the test needs a token longer than the stop";
  EXPECT_THAT(parse(ids, from(kContent, {"un"})).text, ElementsAre(Pair(kContent, "Co")));
}

TEST(ReplyParser, EarliestEndThenEarliestStart) {
  EXPECT_EQ(parse(ids_of("xabcd"), from(kContent, {"abcd", "bc"})).stop, "bc");
  const Reply reply = parse(ids_of("xabcd"), from(kContent, {"c", "abc", "bc"}));
  EXPECT_EQ(reply.stop, "abc");
  EXPECT_THAT(reply.text, ElementsAre(Pair(kContent, "x")));
}

TEST(ReplyParser, HoldsBackOnlyWhatMayBecomeAStop) {
  ReplyParser parser(tokenizer(), from(kContent, {"</s>", "aab"}));
  const auto shown_after = [&](char byte) {
    std::vector<ReplyDelta> out;
    EXPECT_FALSE(parser.push(byte_ids()[static_cast<unsigned char>(byte)], out));
    return out.empty() ? std::string() : out[0].text;
  };
  EXPECT_EQ(shown_after('x'), "x");
  EXPECT_EQ(shown_after('<'), "");
  EXPECT_EQ(shown_after('/'), "");
  EXPECT_EQ(shown_after('<'), "</");
  EXPECT_EQ(shown_after('a'), "<");
  EXPECT_EQ(shown_after('a'), "");
  EXPECT_EQ(shown_after('a'), "a");
  EXPECT_EQ(shown_after('c'), "aac");
}

TEST(ReplyParser, HeldTextIsReleasedAtTheEndAndAtTheMarker) {
  EXPECT_THAT(parse(ids_of("abST"), from(kContent, {"STOP"})).text, ElementsAre(Pair(kContent, "abST")));
  ReplyOptions options = from(kReasoning, {"STOP"});
  options.stop_in_reasoning = true;
  // A match does not cross the border.
  const Reply reply = parse(ids_of("aST{/think}OPb"), options);
  EXPECT_THAT(reply.text, ElementsAre(Pair(kReasoning, "aST"), Pair(kContent, "OPb")));
  EXPECT_EQ(reply.stop, std::nullopt);
}

TEST(ReplyParser, StopScope) {
  ReplyOptions options = from(kReasoning, {"Q:"});
  Reply reply = parse(ids_of("aQ:b{/think}cQ:d"), options);
  EXPECT_THAT(reply.text, ElementsAre(Pair(kReasoning, "aQ:b"), Pair(kContent, "c")));
  options.stop_in_reasoning = true;
  reply = parse(ids_of("aQ:b{/think}cQ:d"), options);
  EXPECT_THAT(reply.text, ElementsAre(Pair(kReasoning, "a")));
  EXPECT_EQ(reply.reasoning_tokens, 3);
}

TEST(ReplyParser, ThinkMarkersNeverLeakWhateverStopSays) {
  for (const bool everywhere : {false, true}) {
    for (const bool include : {false, true}) {
      for (const char* stop : {"</think>", "<think>", "</thi", "k>b", "think"}) {
        ReplyOptions options = from(kReasoning, {stop});
        options.stop_in_reasoning = everywhere;
        options.include_stop = include;
        for (const auto& [channel, text] : parse(ids_of("{think}a{/think}b{/think}c{think}d{/think}e"), options).text) {
          EXPECT_EQ(text.find("think"), std::string::npos) << stop << " in " << text;
        }
      }
    }
  }
}

TEST(ReplyParser, StopEqualToAMarkerMatchesItsId) {
  // In reasoning </think> is out of scope; in content it ends the reply.
  ReplyOptions options = from(kReasoning, {"</think>"});
  Reply reply = parse(ids_of("a{/think}b{/think}c"), options);
  EXPECT_THAT(reply.text, ElementsAre(Pair(kReasoning, "a"), Pair(kContent, "b")));
  EXPECT_EQ(reply.stop, "</think>");
  options.stop_in_reasoning = true;
  EXPECT_THAT(parse(ids_of("a{/think}b"), options).text, ElementsAre(Pair(kReasoning, "a")));

  options = from(kContent, {"<|user|>", "ab!"});
  reply = parse(ids_of("xab{|user|}c"), options);
  EXPECT_THAT(reply.text, ElementsAre(Pair(kContent, "xab")));
  EXPECT_EQ(reply.stop, "<|user|>");
  options.include_stop = true;
  EXPECT_THAT(parse(ids_of("xab{|user|}c"), options).text, ElementsAre(Pair(kContent, "xab<|user|>")));
  options.skip_special_tokens = false;
  EXPECT_THAT(parse(ids_of("xab{|user|}c"), options).text, ElementsAre(Pair(kContent, "xab<|user|>")));
  options.include_stop = false;
  EXPECT_THAT(parse(ids_of("xab{|user|}c"), options).text, ElementsAre(Pair(kContent, "xab")));
  // The same text spelled in ordinary tokens.
  EXPECT_THAT(parse(ids_of("x<|user|>c"), options).text, ElementsAre(Pair(kContent, "x")));
}

TEST(ReplyParser, TokensAfterTheStopAreIgnored) {
  ReplyParser parser(tokenizer(), from(kContent, {"b"}));
  std::vector<ReplyDelta> out;
  for (const int32_t id : ids_of("abc")) {
    parser.push(id, out);
  }
  EXPECT_TRUE(parser.push(ids_of("d")[0], out));
  parser.finish(ReplyEnd::kComplete, out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].text, "a");
}

TEST(ReplyParser, EmptyStopIsRefused) {
  EXPECT_THROW(ReplyParser(tokenizer(), from(kContent, {""})), std::invalid_argument);
}

// The reply by definition: after every token all text of the present stretch is decoded and searched anew.
Reply slow_parse(const std::vector<int32_t>& ids, const ReplyOptions& options) {
  Reply reply;
  ReplyChannel channel = options.split_reasoning ? options.start : kContent;
  std::string bytes;  // of the present stretch
  const auto settled = [&] {
    std::string text;
    append_utf8(bytes, text);
    return text;
  };
  const auto end_stretch = [&] {
    std::string text;
    const bool cut = append_utf8(bytes, text) > 0;
    add(reply.text, channel, text + (cut && options.flush_partial_utf8 ? kReplacement : ""));
    bytes.clear();
  };
  const auto in_scope = [&] { return channel == kContent || options.stop_in_reasoning; };
  for (const int32_t id : ids) {
    const std::string token(tokenizer().token_bytes(id));
    const bool close = options.split_reasoning && token == "</think>" && tokenizer().is_added(id);
    const bool open = options.split_reasoning && token == "<think>" && tokenizer().is_added(id) &&
                      (channel == kReasoning || options.thinking);
    const bool skipped = options.skip_special_tokens && tokenizer().is_special(id);
    reply.reasoning_tokens += channel == kReasoning && !close ? 1 : 0;
    if (close || open || skipped) {
      for (const std::string& stop : options.stop) {
        if (stop == token && in_scope()) {
          end_stretch();
          add(reply.text, channel, skipped && options.include_stop ? token : "");
          reply.stop = stop;
          return reply;
        }
      }
      const ReplyChannel next = close ? kContent : open ? kReasoning : channel;
      if (next != channel) {
        end_stretch();
        channel = next;
      }
      continue;
    }
    bytes += token;
    const std::string text = settled();
    for (size_t end = 1; end <= text.size() && in_scope(); ++end) {
      std::string best;
      for (const std::string& stop : options.stop) {
        if (stop.size() > best.size() && std::string_view(text).substr(0, end).ends_with(stop)) {
          best = stop;
        }
      }
      if (!best.empty()) {
        add(reply.text, channel, text.substr(0, options.include_stop ? end : end - best.size()));
        reply.stop = best;
        return reply;
      }
    }
  }
  end_stretch();
  return reply;
}

TEST(ReplyParser, EqualsTheSlowDefinitionForAnyChunking) {
  std::mt19937 random(20240917);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const std::vector<int32_t> common = ids_of("aaabbc \xF0\x9F\x98\x80\xC3\xA9\xE4\xB8\xAD\xFF<>/|tk");
  const std::vector<int32_t> markers =
      ids_of("{think}{/think}{/think}{|user|}{sop}{tool_call}{|assistant|}{|begin_of_box|}");
  const std::vector<std::string> stops = {"a",  "ab",       "aab",         "ba",         "bc",       "aaab",
                                          "é",  "😀",        "中a",         kReplacement, "</think>", "<think>",
                                          "<t", "<|user|>", "<tool_call>", "<sop>",      "abcabc",   " "};
  int stopped = 0;
  int both_channels = 0;
  for (int round = 0; round < 20000; ++round) {
    ReplyOptions options;
    options.split_reasoning = below(8) > 0;
    options.start = below(2) ? kReasoning : kContent;
    options.thinking = below(3) > 0;
    options.skip_special_tokens = below(3) > 0;
    options.include_stop = below(3) == 0;
    options.stop_in_reasoning = below(2) == 0;
    options.flush_partial_utf8 = below(2) == 0;
    std::vector<std::string> chosen;
    for (size_t n = below(4); n > 0; --n) chosen.push_back(stops[below(stops.size())]);
    options.stop = std::move(chosen);
    std::vector<int32_t> ids(below(40));
    for (int32_t& id : ids) {
      const size_t kind = below(10);
      id = kind < 7   ? common[below(common.size())]
           : kind < 9 ? markers[below(markers.size())]
                      : static_cast<int32_t>(below(static_cast<size_t>(tokenizer().id_count()) + 4));
    }
    const Reply expected = slow_parse(ids, options);
    stopped += expected.stop ? 1 : 0;
    both_channels += expected.text.size() > 1 ? 1 : 0;
    for (const size_t chunk : {size_t{0}, size_t{1}, 2 + below(7)}) {
      ASSERT_EQ(parse(ids, options, chunk), expected)
          << "round " << round << " chunk " << chunk << " ids " << testing::PrintToString(ids) << " stop "
          << testing::PrintToString(options.stop);
    }
  }
  EXPECT_GT(stopped, 2000) << "the inputs hardly ever stop";
  EXPECT_GT(both_channels, 2000) << "the inputs hardly ever change channel";
}

TEST(StopMatcher, HeldIsTheLongestOpenPrefix) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> stops(1 + random() % 3);
    for (std::string& stop : stops) {
      stop.resize(1 + random() % 6);
      for (char& c : stop) {
        c = "ab"[random() % 2];
      }
    }
    StopMatcher matcher(stops);
    std::string text;
    for (int i = 0; i < 40; ++i) {
      text += "abc"[random() % 8 / 3];
      int found = -1;
      size_t held = 0;
      for (size_t s = 0; s < stops.size(); ++s) {
        if (text.ends_with(stops[s]) && (found < 0 || stops[s].size() > stops[static_cast<size_t>(found)].size())) {
          found = static_cast<int>(s);
        }
        for (size_t n = 1; n < stops[s].size(); ++n) {
          if (text.ends_with(stops[s].substr(0, n))) {
            held = std::max(held, n);
          }
        }
      }
      ASSERT_EQ(matcher.push(text.back()), found) << text << testing::PrintToString(stops);
      ASSERT_EQ(matcher.held(), held) << text << testing::PrintToString(stops);
    }
  }
}

// A stop string that the reply nearly repeats for ever: the held text is not searched again at every token.
TEST(StopMatcher, LongNearMatch) {
  const std::string stop = std::string(20000, 'a') + "b";
  ReplyParser parser(tokenizer(), from(kContent, {stop}));
  std::vector<ReplyDelta> out;
  for (int i = 0; i < 40000; ++i) {
    ASSERT_FALSE(parser.push(byte_ids()['a'], out));
  }
  EXPECT_TRUE(parser.push(byte_ids()['b'], out));
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].text, std::string(20000, 'a'));
}

}  // namespace
}  // namespace glm53::text
