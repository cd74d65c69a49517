// Cost of a step under a grammar (mask and accept) for a vocabulary of the real model's size: 154,880 ids of realistic
// byte strings, the model's own tokens if its tokenizer.json is given. Processor time of the
// thread, so that other work on the machine does not count; reading that clock takes some of it, 1.4 us on a
// virtual machine.
//
// Usage: bench_grammar [TOKENIZER.JSON]. A line a grammar: compiling it; the first reply, when nothing is known yet;
// then the steady state, which is all steps of 30 further replies after it. Each reply is a random walk over allowed
// tokens.
#include <algorithm>
#include <bit>
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

#include <time.h>

#include "glm53/core/read_file.h"
#include "text/grammar.h"
#include "text/grammar_matcher.h"

namespace {

using namespace glm53::text;

constexpr int32_t kVocab = 154'880;
constexpr int32_t kTokens = 154'820;

double microseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
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

/// One reply: an allowed token at random each step. `patience`: about as many steps go by before a token that closes
/// something is preferred.
void run_reply(const std::shared_ptr<GrammarTables>& tables, const ToolTags& tags, unsigned patience, std::mt19937& rng,
               Costs& costs) {
  GrammarMatcher matcher(tables);
  const TokenTrie& trie = tables->trie();
  const std::vector<int32_t> closing_tags = {tags.call_close, tags.key_close, tags.value_close};
  std::vector<int32_t> closing;
  std::vector<int32_t> allowed;
  for (int step = 0; step < 2000 && !matcher.must_end(); ++step) {
    double start = microseconds();
    const auto mask = matcher.next_mask();
    costs.mask.push_back(microseconds() - start);
    closing.clear();
    allowed.clear();
    for (size_t word = 0; word < mask.size(); ++word) {
      for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
        const auto id = static_cast<int32_t>(32 * word) + std::countr_zero(bits);
        allowed.push_back(id);
        const std::string_view bytes = trie.bytes(id);
        const bool bracket = bytes.size() == 1 && std::string_view("\"]}:0").find(bytes[0]) != std::string_view::npos;
        if (bracket || std::ranges::find(closing_tags, id) != closing_tags.end()) closing.push_back(id);
      }
    }
    const std::vector<int32_t>& from = !closing.empty() && rng() % patience == 0 ? closing : allowed;
    const int32_t id = from[rng() % from.size()];
    start = microseconds();
    if (!matcher.accept(id)) std::printf("refused an allowed token %d\n", id);
    costs.accept.push_back(microseconds() - start);
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

std::string properties(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += (i == 0 ? "\"field" : ",\"field") + std::to_string(i) + "\":{\"type\":\"" +
            (i % 2 == 0 ? "string" : "integer") + "\"}";
  }
  return "{\"type\":\"object\",\"properties\":{" + text + "}";
}

struct Case {
  std::string name;
  std::function<std::shared_ptr<const Grammar>()> compile;
  unsigned patience = 4;
};

Case schema_case(const std::string& name, const std::string& schema, unsigned patience = 4) {
  return {name, [schema] { return compile_json_schema(schema); }, patience};
}

std::vector<Case> cases(const ToolTags& tags) {
  const std::string object = R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer",
    "minimum":0,"maximum":150},"score":{"type":"number"},"unit":{"enum":["metre","mile","furlong"]},"ok":{"type":
    "boolean"},"mail":{"type":"string","format":"email"}},"required":["name","age","score","unit","ok","mail"]})";
  const std::string tree = R"({"$defs":{"n":{"type":"object","properties":{"label":{"type":"string"},"kids":{"type":
    "array","items":{"$ref":"#/$defs/n"}}},"required":["label","kids"]}},"$ref":"#/$defs/n"})";
  const auto list_of = [](const std::string& item) { return R"({"type":"array","minItems":6,"items":)" + item + "}"; };
  const auto text_of = [&](const std::string& keywords) { return list_of(R"({"type":"string",)" + keywords + "}"); };
  std::vector<Case> all = {
      {"json_object", [] { return compile_json_object(); }},
      schema_case("flat object", object),
      schema_case("arrays of objects", list_of(R"({"type":"object","properties":{"rows":{"type":"array","items":)" +
                                               object + R"(}},"required":["rows"]})")),
      schema_case("60 properties", properties(60) + "}"),
      schema_case("60, and others", properties(60) + R"(,"additionalProperties":true})"),
      schema_case("recursive tree", tree),
      schema_case("maxLength 20", text_of(R"("maxLength":20)"), 50),
      schema_case("maxLength 200", text_of(R"("maxLength":200)"), 50),
      schema_case("maxLength 2000", text_of(R"("maxLength":2000)"), 400),
      schema_case("minLength 100", text_of(R"("minLength":100,"maxLength":1000)"), 50),
      schema_case("identifier", text_of(R"("pattern":"^[A-Za-z_][A-Za-z0-9_]{0,63}$")"), 50),
      schema_case("pattern", text_of(R"("pattern":"[A-Z]{2}-[0-9]{4}")"), 50),
      schema_case("date-time, uuid", list_of(R"({"anyOf":[{"type":"string","format":"date-time"},{"type":"string",
        "format":"uuid"}]})")),
      schema_case("integer range", list_of(R"({"type":"integer","minimum":-273,"maximum":1000000})")),
      {"regex", [] { return compile_regex("(\\w+ ){3,20}\\d{4}-\\d{2}"); }},
      {"regex .{1,300}", [] { return compile_regex(".{1,300}"); }, 1000},
      {"choice of 1000",
       [] {
         std::vector<std::string> texts;
         for (int i = 0; i < 1000; ++i) texts.push_back("label " + std::to_string(i * i) + " of the list");
         return compile_choice(texts);
       }},
  };
  const auto tools = [tags](bool content) {
    OfferedTools functions;
    for (int i = 0; i < 32; ++i) {
      functions.push_back(
          {"function_" + std::to_string(i), PromptJson::parse(properties(3 + i % 5) + R"(,"required":["field0"]})")});
    }
    const PromptJson schema = PromptJson::parse(R"({"type":"object","properties":{"answer":{"type":"string"}}})");
    ToolGrammarOptions options;
    if (content) options.content = &schema;
    return compile_tool_calls(functions, tags, options);
  };
  all.push_back({"32 functions", [=] { return tools(false); }});
  all.push_back({"calls or content", [=] { return tools(true); }});
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  std::shared_ptr<const TokenTrie> trie;
  double start = 0;
  const std::vector<int32_t> ends = {154'820, 154'827, 154'829};
  if (argc > 1) {
    const Tokenizer tokenizer = Tokenizer::from_json(glm53::read_file(argv[1], 1 << 30), argv[1]);
    start = microseconds();
    trie = std::make_shared<const TokenTrie>(tokenizer, kVocab, ends);
  } else {
    const std::vector<std::string> tokens = make_vocabulary();
    const std::vector<std::string_view> views(tokens.begin(), tokens.end());
    start = microseconds();
    trie = std::make_shared<const TokenTrie>(views, kVocab, ends);
  }
  std::printf("%s\n%zu tokens of %d ids, trie of %zu nodes built in %.0f ms\n", processor().c_str(),
              trie->token_order().size(), kVocab, trie->nodes().size(), (microseconds() - start) / 1e3);
  const ToolTags tags = {154'840, 154'841, 154'842, 154'843, 154'844, 154'845};
  std::printf("%-18s %10s %25s   %25s   %16s\n", "", "compile", "first reply: mask", "steady state: mask", "accept");
  std::printf("%-18s %10s %7s %8s %8s   %7s %8s %8s   %7s %8s\n", "us", "", "p50", "p99", "max", "p50", "p99", "max",
              "p50", "p99");
  for (const Case& one : cases(tags)) {
    start = microseconds();
    const std::shared_ptr<const Grammar> grammar = one.compile();
    const double compile_time = microseconds() - start;
    const auto tables = std::make_shared<GrammarTables>(grammar, trie);
    std::mt19937 rng(1);
    Costs first;
    Costs steady;
    run_reply(tables, tags, one.patience, rng, first);
    for (int i = 0; i < 30; ++i) run_reply(tables, tags, one.patience, rng, steady);
    std::printf("%-18s %10.0f %7.1f %8.1f %8.1f   %7.1f %8.1f %8.1f   %7.1f %8.1f   %zu steps, %.1f MB\n",
                one.name.c_str(), compile_time, quantile(first.mask, 0.5), quantile(first.mask, 0.99),
                quantile(first.mask, 1), quantile(steady.mask, 0.5), quantile(steady.mask, 0.99),
                quantile(steady.mask, 1), quantile(steady.accept, 0.5), quantile(steady.accept, 0.99),
                steady.mask.size(), static_cast<double>(tables->bytes()) / 1e6);
    std::fflush(stdout);
  }
  return 0;
}
