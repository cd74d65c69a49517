// Schemas and patterns from anywhere: compiling ends soon in a grammar or an Error, and a walk over a byte vocabulary
// never gets stuck; what it writes under a schema is JSON. Input: one byte (bit 0: pattern, else schema; bit 1:
// compact), then the text.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "glm53/core/error.h"
#include "glm53/core/utf8.h"
#include "text/grammar.h"
#include "text/grammar_matcher.h"
#include "text/prompt_json.h"

using namespace glm53;
using namespace glm53::text;

namespace {

constexpr int32_t kEnd = 256;

std::shared_ptr<const TokenTrie> byte_trie() {
  static std::array<char, 256> bytes;
  std::vector<std::string_view> tokens;
  for (size_t i = 0; i < 256; ++i) {
    bytes[i] = static_cast<char>(i);
    tokens.emplace_back(&bytes[i], 1);
  }
  const std::array<int32_t, 1> ends = {kEnd};
  return std::make_shared<const TokenTrie>(tokens, kEnd + 1, ends);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::shared_ptr<const TokenTrie> trie = byte_trie();
  if (size == 0 || size > 4096) return 0;
  const bool is_pattern = (data[0] & 1) != 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::string written;
  bool complete = false;
  try {
    JsonGrammarOptions options;
    options.any_whitespace = (data[0] & 2) == 0;
    const auto tables =
        std::make_shared<GrammarTables>(is_pattern ? compile_regex(text) : compile_json_schema(text, options), trie);
    GrammarMatcher matcher(tables);
    std::minstd_rand rng(data[size - 1]);
    for (int step = 0; step < 300 && !complete; ++step) {
      const auto mask = matcher.next_mask();
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id <= kEnd; ++id) {
        if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
      }
      if (allowed.empty()) std::abort();
      complete = matcher.can_end();
      if (complete != (allowed.back() == kEnd)) std::abort();
      const int32_t id = allowed[rng() % allowed.size()];
      if (complete || id == kEnd) break;
      if (!matcher.accept(id)) std::abort();
      written += static_cast<char>(id);
    }
  } catch (const Error&) {
    return 0;
  }
  if (!complete) return 0;
  if (!is_utf8(written)) std::abort();
  if (is_pattern) return 0;
  try {
    PromptJson::parse(written, 300);
  } catch (const PromptJson::ParseError&) {
    std::abort();
  }
  return 0;
}
