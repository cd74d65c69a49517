// same_replies PORT: sends requests with every sampling field, and with grammars, to a running server of the tiny
// checkpoint and to one of its own on the CPU in fp32. What masks and bans promise must hold in every reply; tokens and
// logprobs must agree as far as the margins allow.
//
// Margins: at each step the own server draws again from logits moved by up to ±0.1 at random, with the same noise. A
// step whose token changes then is unstable, and what follows it is not compared. Where a stable step differs all the
// same, its logprobs decide: if they are close, the step was drawn wrongly. If not, the model's numbers have moved (a
// row took another expert: tests/data/golden/README.md), and the reply counts as drifted, as one does whose logprobs
// move by more than kDrift; few may.
//
// Prints a line a request; exit code 0 when all is well. Run from the repository's root.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "checkpoint/generation_config.h"
#include "engine/engine.h"
#include "server/raw_client.h"
#include "server/server.h"
#include "text/grammar_automaton.h"
#include "text/load_tokenizer.h"
#include "tiny_model.h"

namespace glm53::test {
namespace {

using nlohmann::json;

constexpr float kBand = 0.1F;   // of a logit
constexpr double kDrift = 0.9;  // of a logprob; another expert moved them by 0.82
constexpr int kMoves = 12;      // draws from moved logits
constexpr int kMaxTokens = 60;  // of a reply
constexpr int64_t kContext = 1024;

/// The model on the CPU; knows which draws of the present reply were stable.
class WatchedRunner final : public engine::ModelRunner {
 public:
  WatchedRunner(TinyModel& model, std::vector<bool>& stable) : model_(model), stable_(stable) {}

  Capacity capacity() const override {
    return {.vocab = static_cast<int>(model_.geometry().vocab),
            .sequences = 1,
            .pages = engine::pages_for(kContext),
            .rows = static_cast<int>(kContext),
            .logit_rows = 16};
  }
  void reset_sequence(int slot) override {
    model_.backend().reset_sequence(slot);
    stable_.clear();
  }
  void forward(const Batch& batch) override { model_.model().forward(batch); }
  void commit(int slot, int kept_rows) override { model_.backend().commit(slot, kept_rows); }

  void sample(std::span<const SampleRow> rows, std::span<SampledToken> out) override {
    Backend& backend = model_.backend();
    const Tensor logits = model_.model().logits();
    backend.sample(logits, rows, out);
    const int row = rows[0].logits_row;
    std::vector<float> exact(static_cast<size_t>(model_.geometry().vocab));
    backend.read_rows(logits, row, 1, exact);
    std::uniform_real_distribution<float> move(-kBand, kBand);
    bool same = true;
    for (int i = 0; i < kMoves && same; ++i) {
      std::vector<float> moved = exact;
      for (float& value : moved) value += move(random_);
      backend.write_rows(logits, row, 1, moved);
      SampledToken again;
      backend.sample(logits, rows.first(1), {&again, 1});
      same = again.id == out[0].id;
    }
    backend.write_rows(logits, row, 1, exact);
    stable_.push_back(same);
  }

 private:
  TinyModel& model_;
  std::vector<bool>& stable_;  ///< read between replies
  std::mt19937 random_{1};
};

struct Step {
  std::vector<int> token;  ///< its bytes
  double logprob = 0;
  std::map<std::vector<int>, double> top;
};

struct Reply {
  std::string content;
  bool complete = false;  ///< it ended by itself
  json message;
  std::vector<Step> steps;
};

Reply ask(int port, const json& request) {
  server::RawClient client(port);
  client.send(server::post("/v1/chat/completions", request.dump(), "Content-Type: application/json\r\n"));
  const server::RawReply raw = client.reply();
  if (raw.status != 200) {
    throw Error("port " + std::to_string(port) + " answers " + std::to_string(raw.status) + ": " + raw.body);
  }
  const json choice = json::parse(raw.body).at("choices").at(0);
  Reply reply;
  reply.message = choice.at("message");
  if (reply.message.at("content").is_string()) reply.content = reply.message["content"];
  reply.complete = choice.at("finish_reason") != "length";
  for (const json& entry : choice.at("logprobs").at("content")) {
    Step step{entry.at("bytes"), entry.at("logprob"), {}};
    for (const json& top : entry.at("top_logprobs")) step.top[top.at("bytes")] = top.at("logprob");
    reply.steps.push_back(std::move(step));
  }
  return reply;
}

/// Largest difference between the logprobs that both steps know of.
double distance(const Step& a, const Step& b) {
  double largest = a.token == b.token ? std::abs(a.logprob - b.logprob) : 0;
  for (const auto& [token, logprob] : a.top) {
    const auto other = b.top.find(token);
    if (other != b.top.end()) largest = std::max(largest, std::abs(logprob - other->second));
  }
  return largest;
}

// ---- requests

using Check = std::function<bool(const Reply&)>;  ///< what must hold, whatever was drawn
struct Case {
  std::string name;
  json fields;
  Check holds = [](const Reply&) { return true; };
};

/// The content is a text of the grammar, or the beginning of one where the reply was cut.
Check follows(std::shared_ptr<const text::Grammar> grammar) {
  return [grammar](const Reply& reply) {
    text::GrammarAutomaton automaton(grammar);
    int32_t state = automaton.start_state();
    for (const char byte : reply.content) state = automaton.next(state, static_cast<uint8_t>(byte));
    return reply.complete ? automaton.accepts(state) : state != text::GrammarAutomaton::kDead;
  };
}

Check without(std::string word) {
  return [word](const Reply& reply) { return reply.content.find(word) == std::string::npos; };
}

Check calls_one_of(std::set<std::string> names) {
  return [names](const Reply& reply) {
    if (!reply.complete) return true;
    const json& calls = reply.message.value("tool_calls", json::array());
    return !calls.empty() && std::all_of(calls.begin(), calls.end(), [&](const json& call) {
      return names.count(call.at("function").at("name")) == 1 &&
             json::parse(call.at("function").at("arguments").get<std::string>()).is_object();
    });
  };
}

json user(const char* text) { return json::array({{{"role", "user"}, {"content", text}}}); }

std::vector<Case> cases() {
  const json schema = json::parse(R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},
      "age":{"type":"integer","minimum":0,"maximum":150},"kind":{"enum":["a","b"]}},"required":["name","age"]})");
  const json tools = json::parse(R"([{"type":"function","function":{"name":"get_weather","parameters":{"type":"object",
      "properties":{"city":{"enum":["London","Paris"]}},"required":["city"]}}},
      {"type":"function","function":{"name":"get_time"}}])");
  const std::vector<std::pair<std::string, json>> draws = {
      {"greedy", {{"temperature", 0}}},
      {"temperature 1", {{"temperature", 1.0}, {"top_p", 1}, {"seed", 1}}},
      {"temperature 1.5", {{"temperature", 1.5}, {"top_p", 1}, {"seed", 2}}},
  };
  std::vector<Case> all;
  for (const auto& [draw, params] : draws) {
    const auto add = [&, name = draw, sampling = params](const std::string& what, json fields, Check holds = nullptr) {
      fields.update(sampling);
      if (name == "greedy") fields["messages"] = user("Count from 2 to 41, one number per line.");
      all.push_back({what + ", " + name, std::move(fields)});
      if (holds) all.back().holds = std::move(holds);
    };
    add("plain", {{"max_tokens", kMaxTokens}});
    add("penalties", {{"presence_penalty", 1.0}, {"frequency_penalty", 0.7}, {"repetition_penalty", 1.2}});
    add("negative penalties", {{"presence_penalty", -0.5}, {"frequency_penalty", -0.2}, {"repetition_penalty", 0.9}});
    add("biases", {{"logit_bias", {{"260", 6}, {"64", -100}, {"300", 4.5}}}});
    add("bad words", {{"bad_words", {"the", "goat", "a"}}}, without("goat"));
    add("allowed ids", {{"allowed_token_ids", {64, 65, 66, 67, 68, 260}}, {"ignore_eos", true}},
        [](const Reply& reply) { return reply.content.find_first_not_of("abcde ") == std::string::npos; });
    add("min_tokens", {{"min_tokens", 30}}, [](const Reply& reply) { return reply.steps.size() >= 30; });
    add("regex", {{"guided_regex", "[A-Z][a-z]{3,9}( [a-z]{1,9}){2,12}[.!]"}},
        follows(text::compile_regex("[A-Z][a-z]{3,9}( [a-z]{1,9}){2,12}[.!]")));
    add("choice", {{"guided_choice", {"a goat", "a ghost", "nobody at all"}}},
        follows(text::compile_choice(std::vector<std::string>{"a goat", "a ghost", "nobody at all"})));
    add("schema", {{"guided_json", schema}}, follows(text::compile_json_schema(schema.dump())));
    add("json_object", {{"response_format", {{"type", "json_object"}}}}, follows(text::compile_json_object()));
    add("schema with penalties and a bad word",
        {{"guided_json", schema}, {"frequency_penalty", 1.0}, {"bad_words", {"0"}}},
        follows(text::compile_json_schema(schema.dump())));
    add("a call is required", {{"tools", tools}, {"tool_choice", "required"}, {"parallel_tool_calls", false}},
        calls_one_of({"get_weather", "get_time"}));
    add("a named call",
        {{"tools", tools}, {"tool_choice", {{"type", "function"}, {"function", {{"name", "get_time"}}}}}},
        calls_one_of({"get_time"}));
    add("a reasoning budget", {{"chat_template_kwargs", {{"enable_thinking", true}}}, {"thinking_token_budget", 4}},
        [](const Reply& reply) { return reply.steps.size() <= 4 || !reply.content.empty(); });
  }
  for (const json& filter : {json{{"top_k", 5}}, json{{"top_p", 0.8}}, json{{"min_p", 0.1}},
                             json{{"top_k", 20}, {"top_p", 0.9}, {"min_p", 0.02}, {"frequency_penalty", 0.5}}}) {
    for (const int64_t seed : {-7, 123456789}) {
      json fields = filter;
      fields.update({{"temperature", 1.0}, {"seed", seed}});
      all.push_back({filter.dump() + ", seed " + std::to_string(seed), std::move(fields)});
    }
  }
  for (Case& one : all) {
    const json common = {{"messages", user("Tell me a story about a goat.")},
                         {"max_tokens", kMaxTokens},
                         {"logprobs", true},
                         {"top_logprobs", 5},
                         {"chat_template_kwargs", {{"enable_thinking", false}}}};
    json request = common;
    request.update(one.fields);
    one.fields = std::move(request);
  }
  return all;
}

// ---- comparison

struct Totals {
  int failed = 0, drifted = 0;
  size_t tokens = 0, compared = 0;
};

void compare(const Case& one, const Reply& own, const Reply& other, const std::vector<bool>& stable, Totals& totals) {
  std::string problem;
  if (!one.holds(own)) problem = "the own reply breaks what was asked";
  if (!one.holds(other)) problem = "the reply breaks what was asked";
  size_t at = 0;
  bool drifted = false;
  const size_t steps = std::min(own.steps.size(), stable.size());
  double furthest = 0;
  for (; at < steps && stable[at]; ++at) {
    const bool same = at < other.steps.size() && own.steps[at].token == other.steps[at].token;
    const double apart = at < other.steps.size() ? distance(own.steps[at], other.steps[at]) : 0;
    furthest = std::max(furthest, apart);
    if (same && apart <= kDrift) continue;
    drifted = apart > kBand;
    if (!drifted) problem = "step " + std::to_string(at) + " differs, and its logprobs by " + std::to_string(apart);
    break;
  }
  if (problem.empty() && at == steps && steps == own.steps.size() && other.steps.size() != steps) {
    problem = "the replies end differently";
  }
  totals.tokens += own.steps.size();
  totals.compared += at;
  totals.drifted += drifted ? 1 : 0;
  totals.failed += problem.empty() ? 0 : 1;
  std::printf("%s %s: %zu tokens, %zu agree, logprobs within %.3f%s\n", problem.empty() ? "ok" : "not ok",
              one.name.c_str(), own.steps.size(), at, furthest, drifted ? ", drifted" : "");
  if (problem.empty()) return;
  std::printf("    %s\n    own:   %s\n    other: %s\n", problem.c_str(), own.message.dump().c_str(),
              other.message.dump().c_str());
}

int run(int port) {
  TinyModel model(0, 1, kContext, static_cast<int>(kContext));
  const text::Tokenizer tokenizer = load_tokenizer(data_path("models/glm53-tiny/tokenizer.json"));
  const GenerationConfig config =
      load_generation_config(data_path("models/glm53-tiny"), model.geometry().vocab, model.geometry().eos_ids);
  std::vector<bool> stable;
  engine::Engine engine(std::make_unique<WatchedRunner>(model, stable), tokenizer,
                        {.context = kContext, .max_queued = 1, .prefill_rows = 512});
  Settings settings;
  settings.server.host = "127.0.0.1";
  settings.server.port = 0;
  server::GenerationDefaults defaults;
  defaults.temperature = config.temperature;
  defaults.top_p = config.top_p;
  defaults.eos_ids = config.eos_ids;
  defaults.vocab = model.geometry().vocab;
  server::Server server(tokenizer, settings, defaults, "test");
  server.serve(engine);
  server.start();

  Totals totals;
  const std::vector<Case> all = cases();
  for (const Case& one : all) {
    const Reply own = ask(server.port(), one.fields);
    compare(one, own, ask(port, one.fields), stable, totals);
  }
  std::printf("%zu requests, %d failed, %d drifted; %zu of %zu tokens compared\n", all.size(), totals.failed,
              totals.drifted, totals.compared, totals.tokens);
  const bool enough = totals.compared * 4 >= totals.tokens;
  const bool steady = static_cast<size_t>(totals.drifted) * 8 <= all.size();
  if (!enough) std::printf("too few tokens were stable\n");
  if (!steady) std::printf("too many replies drifted\n");
  return totals.failed == 0 && enough && steady ? 0 : 1;
}

}  // namespace
}  // namespace glm53::test

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: same_replies PORT\n");
    return 2;
  }
  try {
    return glm53::test::run(std::atoi(argv[1]));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "same_replies: %s\n", e.what());
    return 1;
  }
}
