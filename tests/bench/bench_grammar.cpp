// Cost of a step under a grammar (mask and accept) for a vocabulary of the real model's size: 154,880 ids of realistic
// byte strings. For each grammar: compile time, then medians and 99th percentiles of the first reply (nothing known
// yet) and of later ones. Prints one line each.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "text/grammar.h"
#include "text/grammar_matcher.h"

namespace {

using namespace glm53::text;
using Clock = std::chrono::steady_clock;

constexpr int32_t kVocab = 154'880;
constexpr int32_t kTokens = 154'820;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// Words of a few letters with and without a blank before, capitals, digits, runs of blanks, punctuation that JSON and
/// code are full of, and pieces of multi-byte characters, about as often as in a multilingual byte-level vocabulary.
std::vector<std::string> make_vocabulary() {
  std::mt19937 rng(1);
  const auto below = [&](size_t n) { return rng() % n; };
  const auto word = [&] {
    static const std::vector<std::string> kSyllables = {"an", "er", "in", "on", "re", "st", "th",  "at",  "en",   "es",
                                                        "or", "ti", "co", "de", "le", "s",  "pro", "ing", "able", "x"};
    std::string text;
    for (size_t i = 0, n = 1 + below(4); i < n; ++i) text += kSyllables[below(kSyllables.size())];
    return text;
  };
  const auto character = [&] {
    std::string text;
    const size_t kind = below(4);
    if (kind == 0) return std::string{static_cast<char>(0xC3 + below(20)), static_cast<char>(0x80 + below(64))};
    text = {static_cast<char>(0xE4 + below(6)), static_cast<char>(0x80 + below(64)),
            static_cast<char>(0x80 + below(64))};
    return text;
  };
  std::vector<std::string> tokens;
  std::unordered_set<std::string> known;
  const auto add = [&](const std::string& token) {
    if (tokens.size() < kTokens && known.insert(token).second) tokens.push_back(token);
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (size_t n = 2; n <= 128; ++n) add(std::string(n, ' '));
  for (size_t n = 1; n <= 40; ++n) add("\n" + std::string(n, ' '));
  static const std::string kPunctuation = "\"{}[]:,.'()<>/\\=-+*_;!?#$%&|`~@^";
  while (tokens.size() < kTokens) {
    std::string token;
    const size_t kind = below(100);
    if (kind < 30) token = " " + word();
    if (kind >= 30 && kind < 50) token = word();
    if (kind >= 50 && kind < 57)
      token = (below(2) == 0 ? " " : "") + std::string(1, static_cast<char>('A' + below(26))) + word();
    if (kind >= 57 && kind < 62) token = std::to_string(below(1000));
    if (kind >= 62 && kind < 66) {
      for (size_t i = 0, n = 1 + below(4); i < n; ++i) token += kPunctuation[below(i == 0 ? kPunctuation.size() : 8)];
    }
    if (kind >= 66 && kind < 68) token = word() + kPunctuation[below(kPunctuation.size())];
    if (kind >= 68 && kind < 70) token = kPunctuation[below(kPunctuation.size())] + word();
    if (kind >= 70) {
      for (size_t i = 0, n = 1 + below(4); i < n; ++i) token += character();
    }
    add(token);
  }
  std::shuffle(tokens.begin() + 256, tokens.end(), rng);
  return tokens;
}

struct Costs {
  std::vector<double> mask;
  std::vector<double> accept;
};

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[std::min(values.size() - 1, static_cast<size_t>(q * static_cast<double>(values.size())))];
}

/// One reply: an allowed token at random each step, long texts brought to an end.
void run_reply(const std::shared_ptr<GrammarTables>& tables, std::mt19937& rng, Costs& costs) {
  GrammarMatcher matcher(tables);
  for (int step = 0; step < 400 && !matcher.must_end(); ++step) {
    const auto start = Clock::now();
    const auto mask = matcher.next_mask();
    costs.mask.push_back(microseconds_since(start));
    std::vector<int32_t> closing;
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < kTokens; ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) continue;
      allowed.push_back(id);
      if (id < 128 && std::string_view("\"]}:0").find(static_cast<char>(id)) != std::string_view::npos)
        closing.push_back(id);
    }
    for (const int32_t id : tables->trie().end_ids()) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    }
    if (allowed.empty()) break;  // tags: the walk ends here
    const bool close = !closing.empty() && rng() % 4 == 0;
    const int32_t id = close ? closing[rng() % closing.size()] : allowed[rng() % allowed.size()];
    const auto accepting = Clock::now();
    if (!matcher.accept(id)) std::printf("refused an allowed token %d\n", id);
    costs.accept.push_back(microseconds_since(accepting));
    if (matcher.ended()) break;
  }
}

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

}  // namespace

int main() {
  const std::vector<std::string> tokens = make_vocabulary();
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  const std::vector<int32_t> ends = {154'820, 154'827, 154'829};
  auto start = Clock::now();
  const auto trie = std::make_shared<const TokenTrie>(views, kVocab, ends);
  std::printf("%s\n%d ids, %.1f bytes a token, trie of %zu nodes built in %.0f ms\n", processor().c_str(), kVocab,
              static_cast<double>(bytes) / static_cast<double>(tokens.size()), trie->nodes().size(),
              microseconds_since(start) / 1e3);

  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 60; ++i) {
    wide += (i == 0 ? "\"field" : ",\"field") + std::to_string(i) + "\":{\"type\":\"" +
            (i % 2 == 0 ? "string" : "integer") + "\"}";
  }
  wide += R"(},"additionalProperties":true})";
  const std::string person = R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer",
    "minimum":0,"maximum":150},"mail":{"type":"string","format":"email"},"tags":{"type":"array","items":{"enum":["a",
    "b","long tag"]},"maxItems":5},"address":{"type":"object","properties":{"street":{"type":"string"},"city":{"type":
    "string"}},"required":["street","city"]}},"required":["name","age","mail","tags","address"]})";
  const std::string tree = R"({"$defs":{"n":{"type":"object","properties":{"label":{"type":"string"},"kids":{"type":
    "array","items":{"$ref":"#/$defs/n"}}},"required":["label","kids"]}},"$ref":"#/$defs/n"})";
  const std::string lengths = R"({"type":"array","items":{"type":"string","minLength":5,"maxLength":2000}})";
  const std::vector<std::pair<const char*, std::function<std::shared_ptr<const Grammar>()>>> cases = {
      {"json_object", [] { return compile_json_object(); }},
      {"person", [&] { return compile_json_schema(person); }},
      {"60 properties", [&] { return compile_json_schema(wide); }},
      {"recursive tree", [&] { return compile_json_schema(tree); }},
      {"maxLength 2000", [&] { return compile_json_schema(lengths); }},
      {"regex", [] { return compile_regex("(\\w+ ){3,20}\\d{4}-\\d{2}"); }},
  };
  std::printf("%-16s %11s   %22s   %22s   %22s\n", "", "compile us", "first mask med/p99 us", "later mask med/p99 us",
              "accept med/p99 us");
  for (const auto& [name, compile] : cases) {
    start = Clock::now();
    const std::shared_ptr<const Grammar> grammar = compile();
    const double compile_time = microseconds_since(start);
    const auto tables = std::make_shared<GrammarTables>(grammar, trie);
    std::mt19937 rng(1);
    Costs first;
    Costs later;
    run_reply(tables, rng, first);
    Costs warm_up;
    for (int i = 0; i < 20; ++i) run_reply(tables, rng, warm_up);
    for (int i = 0; i < 60; ++i) run_reply(tables, rng, later);
    std::printf("%-16s %11.0f   %10.1f %11.1f   %10.1f %11.1f   %10.2f %11.2f   %zu steps, %.1f MB\n", name,
                compile_time, quantile(first.mask, 0.5), quantile(first.mask, 0.99), quantile(later.mask, 0.5),
                quantile(later.mask, 0.99), quantile(later.accept, 0.5), quantile(later.accept, 0.99),
                later.mask.size(), static_cast<double>(tables->bytes()) / 1e6);
  }
  return 0;
}
