// Schemas, patterns, choices and functions from anywhere: compiling ends soon in a grammar or an Error, and a walk over
// a byte vocabulary never gets stuck; what it writes under a schema is JSON, and what it calls is read back as that
// call. Input: one byte, then the text.
//   bits 2-3   0: a JSON schema, with bit 0 a pattern; 1: choices, a line each; 2: functions, a JSON list of their
//              parameters
//   bit 1      of schemas: compact; of functions: text beside the calls
//   bit 4      of functions: strict
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "glm53/core/error.h"
#include "glm53/core/utf8.h"
#include "text/grammar.h"
#include "text/grammar_matcher.h"
#include "text/prompt_json.h"
#include "text/tool_call_parser.h"

using namespace glm53;
using namespace glm53::text;

namespace {

constexpr int32_t kEnd = 256;
constexpr ToolTags kTags = {257, 258, 259, 260, 261, 262};
constexpr int32_t kVocab = 263;

void require(bool condition) {
  if (!condition) std::abort();
}

std::shared_ptr<const TokenTrie> byte_trie() {
  static std::array<char, 256> bytes;
  std::vector<std::string_view> tokens;
  for (size_t i = 0; i < 256; ++i) {
    bytes[i] = static_cast<char>(i);
    tokens.emplace_back(&bytes[i], 1);
  }
  const std::array<int32_t, 1> ends = {kEnd};
  return std::make_shared<const TokenTrie>(tokens, kVocab, ends);
}

/// Ids of a walk and whether it came to an end.
struct Walk {
  std::vector<int32_t> ids;
  bool complete = false;
};

/// A walk over allowed ids, some of them taken back and taken again: 300 steps, those that the grammar forces not
/// counted.
Walk walk(std::shared_ptr<const Grammar> grammar, uint32_t seed) {
  static const std::shared_ptr<const TokenTrie> trie = byte_trie();
  GrammarMatcher matcher(std::make_shared<GrammarTables>(std::move(grammar), trie));
  std::minstd_rand rng(seed);
  Walk walk;
  for (int step = 0; step < 300 && walk.ids.size() < 4096;) {
    const auto mask = matcher.next_mask();
    std::vector<int32_t> allowed;
    int32_t refused = -1;
    for (int32_t id = 0; id < kVocab; ++id) {
      const bool set = (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
      if (set) {
        allowed.push_back(id);
      } else {
        refused = id;
      }
    }
    require(!allowed.empty());
    step += allowed.size() > 1 ? 1 : 0;
    const bool may_end = matcher.allows(kEnd);
    require(may_end == matcher.can_end());
    if (refused >= 0) require(!matcher.accept(refused));
    const int32_t id = allowed[rng() % allowed.size()];
    walk.complete = may_end && (id == kEnd || rng() % 4 == 0);
    if (walk.complete) break;
    if (id == kEnd) continue;
    require(matcher.accept(id));
    if (rng() % 8 == 0) {
      matcher.rollback(1);
      require(matcher.accept(id));
    }
    walk.ids.push_back(id);
  }
  return walk;
}

std::string text_of(const Walk& walk) {
  std::string text;
  for (const int32_t id : walk.ids) text += static_cast<char>(id);
  return text;
}

PromptJson parsed(const std::string& json) {
  try {
    return PromptJson::parse(json, 300);
  } catch (const PromptJson::ParseError&) {
    std::abort();
  }
}

void run_schema(std::string_view text, bool compact, uint32_t seed) {
  JsonGrammarOptions options;
  options.any_whitespace = !compact;
  const Walk done = walk(compile_json_schema(text, options), seed);
  if (done.complete) parsed(text_of(done));
}

void run_choices(std::string_view text, uint32_t seed) {
  std::vector<std::string> choices;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    choices.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  const Walk done = walk(compile_choice(choices), seed);
  if (done.complete) require(std::find(choices.begin(), choices.end(), text_of(done)) != choices.end());
}

/// A call as the walk writes it: its name and the names of its arguments, each once.
struct Written {
  std::string name;
  std::vector<std::string> keys;
  std::string key;  ///< being written
  ToolTag last = ToolTag::kNone;

  void take(char byte) {
    if (last == ToolTag::kNone && byte != '\n') name += byte;  // a line end may follow the name
    if (last == ToolTag::kKeyOpen) key += byte;
  }
  void take_tag(ToolTag tag) {
    last = tag;
    if (tag != ToolTag::kKeyClose) return;
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    key.clear();
  }
};

std::vector<std::string> keys_of(const std::string& arguments) {
  std::vector<std::string> keys;
  const PromptJson object = parsed(arguments);
  for (const auto& [key, value] : object.members()) keys.push_back(key);
  return keys;
}

void run_functions(std::string_view text, bool strict, bool free_text, uint32_t seed) {
  OfferedTools functions;
  try {
    const PromptJson list = PromptJson::parse(text);
    if (!list.is_array()) return;
    for (const PromptJson& parameters : list.items()) {
      functions.push_back({"f" + std::to_string(functions.size()), parameters, strict});
    }
  } catch (const PromptJson::ParseError&) {
    return;
  }
  ToolGrammarOptions options;
  options.free_text = free_text;
  options.arguments_once = !free_text;
  const Walk done = walk(compile_tool_calls(functions, kTags, options), seed);
  const ToolNames names(functions);
  ArgumentTypers typers;
  std::optional<ToolCallParser> call;
  Written written;
  for (const int32_t id : done.ids) {
    const ToolTag tag = kTags.of(id);
    if (tag == ToolTag::kCallOpen) {
      require(!call);
      call.emplace(names, typers, ToolCallParser::Options{});
      written = {};
    } else if (tag == ToolTag::kCallClose) {
      require(call && call->push_tag(tag, "") == ToolCallParser::Status::kCall);
      require(call->name() == written.name && keys_of(call->take_arguments()) == written.keys);
      call.reset();
    } else if (tag != ToolTag::kNone) {
      require(call && call->push_tag(tag, "") == ToolCallParser::Status::kOpen);
      written.take_tag(tag);
    } else if (call) {
      const char byte = static_cast<char>(id);
      require(call->push({&byte, 1}) == ToolCallParser::Status::kOpen);
      written.take(byte);
    }
  }
  require(!done.complete || !call);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > 4096) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const uint32_t seed = data[size - 1];
  const int kind = data[0] >> 2 & 3;
  const bool second = (data[0] & 2) != 0;
  try {
    if (kind == 1) {
      run_choices(text, seed);
    } else if (kind == 2) {
      run_functions(text, (data[0] & 16) != 0, second, seed);
    } else if ((data[0] & 1) != 0) {
      const Walk done = walk(compile_regex(text), seed);
      require(!done.complete || is_utf8(text_of(done)));
    } else {
      run_schema(text, second, seed);
    }
  } catch (const Error&) {
    return 0;
  }
  return 0;
}
