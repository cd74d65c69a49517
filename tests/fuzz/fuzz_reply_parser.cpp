// Token streams of a model over a small byte-level vocabulary: the parser never prints part of a character, its text
// does not depend on how the stream is cut, the arguments of every call are a JSON object, whether they come whole or
// in pieces, and the output is bounded by the input. Input: one byte of options, stop strings (a length byte, then the
// bytes) up to a zero length, then one byte a token.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "glm53/core/utf8.h"
#include "text/reply_parser.h"

using namespace glm53;
using namespace glm53::text;

namespace {

constexpr const char* kAdded[] = {"<|endoftext|>",   "<|system|>", "<|user|>",    "<|assistant|>",
                                  "<|observation|>", "<think>",    "</think>",    "<tool_call>",
                                  "</tool_call>",    "[gMASK]",    "<|image|>",   "<sop>",
                                  "<arg_key>",       "</arg_key>", "<arg_value>", "</arg_value>"};
constexpr size_t kSpecials = 5;  // of kAdded, from the front

// 256 single bytes and the markers; ids of printable ASCII are the characters themselves.
std::string tokenizer_json() {
  nlohmann::json vocab = nlohmann::json::object();
  int next = 256;  // the byte alphabet: printable bytes stand for themselves, the others for U+0100 onwards
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    std::string piece;
    append_code_point(static_cast<char32_t>(printable ? byte : next), piece);
    next += printable ? 0 : 1;
    vocab[piece] = byte;
  }
  nlohmann::json added = nlohmann::json::array();
  for (size_t i = 0; i < std::size(kAdded); ++i) {
    added.push_back({{"id", 256 + i},
                     {"content", kAdded[i]},
                     {"special", i < kSpecials},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"single_word", false},
                     {"normalized", false}});
  }
  const nlohmann::json split = {
      {"type", "Split"}, {"pattern", {{"Regex", "\\s+|\\S+"}}}, {"behavior", "Isolated"}, {"invert", false}};
  const nlohmann::json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const nlohmann::json json = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}}},
      {"post_processor", nullptr},
      {"decoder", byte_level},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}, {"ignore_merges", true}}}};
  return json.dump();
}

constexpr const char* kParameters = R"({"properties": {"s": {"type": "string"}, "i": {"type": ["integer", "null"]},
  "n": {"type": "number"}, "o": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}}, "l": {"items": {"$ref": "#"}}},
  "$defs": {"b": {"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/b"}]}}})";

void require(bool holds) {
  if (!holds) std::abort();
}

/// The deltas of a reply, merged.
using Text = std::vector<ReplyDelta>;

bool equal(const Text& a, const Text& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const ReplyDelta& x, const ReplyDelta& y) {
    return x.channel == y.channel && x.text == y.text && x.call == y.call && x.tool_name == y.tool_name;
  });
}

Text parse(const Tokenizer& tokenizer, const ReplyOptions& options, ReplyEnd end, const std::vector<int32_t>& ids,
           size_t chunk) {
  ReplyParser parser(tokenizer, options);
  Text text;
  std::vector<ReplyDelta> out;
  const auto take = [&] {
    for (ReplyDelta& delta : std::exchange(out, {})) {
      require(!delta.text.empty() || !delta.tool_name.empty());
      require(to_valid_utf8(delta.text) == delta.text);
      if (text.empty() || !text.back().continued_by(delta)) {
        text.push_back(std::move(delta));
      } else {
        require(delta.tool_name.empty());
        text.back().text += delta.text;
      }
    }
  };
  for (size_t i = 0; i < ids.size() && !parser.push(ids[i], out); ++i) {
    if (i % chunk == 0) take();
  }
  parser.finish(end, out);
  take();
  require(parser.reasoning_tokens() >= 0 && parser.reasoning_tokens() <= std::ssize(ids));
  int calls = 0;
  size_t bytes = 0;
  for (const ReplyDelta& delta : text) {
    bytes += delta.text.size() + delta.tool_name.size();
    if (delta.channel != ReplyChannel::kCall) continue;
    require(delta.call == calls++ && !delta.tool_name.empty());
    require(PromptJson::parse(delta.text).is_object());
  }
  require(bytes <= 400 * ids.size());  // a number of five characters may have 300 digits
  // Raw text is one stretch: a stop string is cut off, and nothing before it was one.
  if (!options.split_reasoning && !options.include_stop && !options.flush_partial_utf8 && !text.empty()) {
    for (const std::string& stop : options.stop) require(text[0].text.find(stop) == std::string::npos);
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizer = Tokenizer::from_json(tokenizer_json(), "inline");
  if (size == 0) {
    return 0;
  }
  const uint8_t bits = data[0];
  ReplyOptions options;
  options.split_reasoning = (bits & 1) == 0;
  options.start = (bits & 2) != 0 ? ReplyChannel::kReasoning : ReplyChannel::kContent;
  options.thinking = (bits & 4) == 0;
  options.skip_special_tokens = (bits & 8) == 0;
  options.include_stop = (bits & 16) != 0;
  options.stop_in_reasoning = (bits & 32) != 0;
  options.flush_partial_utf8 = (bits & 64) != 0;
  std::vector<std::string> stops;
  size_t at = 1;
  while (at < size && data[at] != 0) {
    const size_t length = std::min<size_t>(data[at], size - at - 1);
    const std::string stop = to_valid_utf8(std::string_view(reinterpret_cast<const char*>(data) + at + 1, length));
    if (!stop.empty()) {
      stops.push_back(stop);
    }
    at += 1 + length;
  }
  options.stop = std::move(stops);
  // Control bytes stand for the markers, so that a byte is enough for each token.
  std::vector<int32_t> ids;
  for (++at; at < size; ++at) {
    const bool marker = data[at] < 0x20 && data[at] != '\n';
    ids.push_back(marker ? 256 + data[at] : data[at]);
  }
  if ((bits & 128) != 0) {
    static const auto tools = std::make_shared<const OfferedTools>(
        OfferedTools{{"f", PromptJson::parse(kParameters)}, {"G", {}}, {"g", {}}, {"do_it", {}}});
    options.tools = tools;
    options.parallel_calls = ids.size() % 2 == 0;
    options.unknown_tools = ids.size() % 3 != 0;
    options.spelled_tags = ids.size() % 5 < 2;
  }
  for (const ReplyEnd end : {ReplyEnd::kComplete, ReplyEnd::kCut}) {
    for (const bool incremental : {false, true}) {
      options.incremental_calls = incremental;
      const Text once = parse(tokenizer, options, end, ids, ids.size() + 1);
      for (const size_t chunk : {1, 3}) require(equal(parse(tokenizer, options, end, ids, chunk), once));
    }
  }
  start_channel(ids, tokenizer);
  return 0;
}
