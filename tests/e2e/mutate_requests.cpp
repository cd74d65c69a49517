// Sends mutated requests to a server on 127.0.0.1 over keep-alive connections: no crash, no hang, no 5xx for bad input.
// Mutant i is the same in every run.
//   mutate_requests PORT COUNT VALID_JSONL FOLDER...
//   mutate_requests show NUMBER VALID_JSONL FOLDER...   prints one request
// VALID_JSONL holds a {"path", "body"} a line; the files of the folders are bodies for any route.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "server/raw_client.h"

namespace {

using glm53::server::RawClient;
using glm53::server::RawReply;
using Json = nlohmann::ordered_json;

constexpr int kConnections = 4;
constexpr std::chrono::seconds kPatience{120};  // beyond it an answer counts as never coming

struct Body {
  std::string path;
  Json json;         ///< null where `text` is not JSON
  std::string text;  ///< of a corpus file
};

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Corpus {
  std::vector<Body> valid;
  std::vector<Body> files;
  std::vector<std::string> paths;
  std::vector<std::string> keys;

  void add_keys(const Json& json) {
    for (const auto& [key, value] : json.items()) {
      if (json.is_object()) keys.push_back(key);
      if (value.is_structured()) add_keys(value);
    }
  }

  Corpus(const char* valid_file, const std::vector<const char*>& folders) {
    std::ifstream lines(valid_file);
    for (std::string line; std::getline(lines, line);) {
      const Json entry = Json::parse(line);
      valid.push_back({entry.at("path"), entry.at("body"), {}});
      paths.push_back(entry.at("path"));
      add_keys(entry.at("body"));
    }
    std::vector<std::filesystem::path> found;
    for (const char* folder : folders) {
      for (const auto& entry : std::filesystem::directory_iterator(folder)) found.push_back(entry.path());
    }
    std::sort(found.begin(), found.end());
    for (const auto& path : found) {
      const std::string text = read_file(path);
      Json json = Json::parse(text, nullptr, false);
      if (json.is_discarded()) json = nullptr;
      files.push_back({{}, std::move(json), text});
    }
    for (std::vector<std::string>* list : {&paths, &keys}) {
      std::sort(list->begin(), list->end());
      list->erase(std::unique(list->begin(), list->end()), list->end());
    }
    if (valid.empty() || files.empty()) throw std::runtime_error("no bodies to mutate");
  }
};

class Mutator {
 public:
  struct Mutant {
    std::string path;
    std::string body;
    std::string bytes;       ///< the whole request
    bool keeps_open = true;  ///< its head is right, so that the connection outlives it
  };

  Mutator(const Corpus& corpus, uint64_t number) : corpus_(corpus), random_(number * 0x9E3779B97F4A7C15 + 1) {}

  Mutant make() {
    const Body& base = chance(80) ? pick(corpus_.valid) : pick(corpus_.files);
    Mutant mutant;
    mutant.path = base.path.empty() || chance(15) ? pick(corpus_.paths) : base.path;
    if (base.json.is_structured() && chance(90)) {
      Json json = base.json;
      for (uint64_t n = below(4); n > 0; --n) mutate(json);
      shorten(json);
      mutant.body = spell(json);
    } else {
      mutant.body = base.text.empty() ? spell(base.json) : base.text;
    }
    if (chance(25)) {
      for (uint64_t n = 1 + below(3); n > 0; --n) mutate_text(mutant.body);
    }
    frame(mutant);
    return mutant;
  }

 private:
  uint64_t below(uint64_t n) { return n == 0 ? 0 : random_() % n; }
  bool chance(uint64_t percent) { return below(100) < percent; }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[below(from.size())];
  }

  static void collect(Json& json, std::vector<Json*>& nodes) {
    nodes.push_back(&json);
    if (!json.is_structured()) return;
    for (auto& item : json.items()) collect(item.value(), nodes);
  }
  Json& node(Json& root) {
    std::vector<Json*> nodes;
    collect(root, nodes);
    return *nodes[below(nodes.size())];
  }

  /// "@@" marks text that stands without its quotes: numbers that no JSON library would write.
  Json value() {
    switch (below(22)) {
      case 0:
        return nullptr;
      case 1:
        return chance(50);
      case 2:
        return 0;
      case 3:
        return -1;
      case 4:
        return 1.5;
      case 5:
        return int64_t{1} << (20 + below(43));
      case 6:
        return std::numeric_limits<int64_t>::min();
      case 7:
        return "";
      case 8:
        return std::string(below(40), "ab\n<|>/\"\\{"[below(10)]);
      case 9:
        return Json::array();
      case 10:
        return Json::object();
      case 11:
        return Json::array({value_of_depth(), 1, "x"});
      case 12:
        return Json{{pick(corpus_.keys), value_of_depth()}, {"x", nullptr}};
      case 13:
        return "@@1e999";
      case 14:
        return "@@-1e-999";
      case 15:
        return "@@" + std::string(1 + below(400), '9');
      case 16:
        return "@@" + std::string(deep(), '[') + std::string(chance(80) ? 0 : 3, ']');
      case 17:
        return "<|user|><think></think><tool_call>x</tool_call><|image|>\xF0\x9F\x98\x80";
      case 18:
        return std::string(chance(5) ? below(300'000) : below(3'000), 'a' + static_cast<char>(below(26)));
      case 19:
        return Json(std::vector<int>(below(300), static_cast<int>(below(5000))));
      case 20:
        return pick(corpus_.keys);
      default: {
        Json other = pick(corpus_.valid).json;
        return node(other);
      }
    }
  }
  Json value_of_depth() { return ++depth_ > 3 ? Json(1) : value(); }
  size_t deep() { return chance(10) ? 1 + below(100'000) : 1 + below(300); }

  void mutate(Json& root) {
    Json& at = node(root);
    depth_ = 0;
    switch (below(9)) {
      case 0:
      case 1:
      case 2:
        at = value();
        break;
      case 3:  // something missing
        if (at.is_object() && !at.empty()) {
          auto item = at.begin();
          std::advance(item, static_cast<std::ptrdiff_t>(below(at.size())));
          at.erase(item);
        } else if (at.is_array() && !at.empty()) {
          at.erase(below(at.size()));
        }
        break;
      case 4:  // something twice, or many times
        if (at.is_array() && !at.empty()) {
          const Json copy = at[below(at.size())];
          for (uint64_t n = chance(5) ? below(2'000) : 1 + below(3); n > 0; --n) at.push_back(copy);
        }
        break;
      case 5: {  // two places swapped
        Json& other = node(root);
        const Json a = at;
        const Json b = other;
        other = a;
        if (&at != &root && root.is_structured()) node(root) = b;
        break;
      }
      case 6:  // a field of any route
        if (root.is_object()) root[pick(corpus_.keys)] = value();
        break;
      case 7: {  // a field of another body, with its own value
        const Json& other = pick(corpus_.valid).json;
        auto item = other.begin();
        std::advance(item, static_cast<std::ptrdiff_t>(below(other.size())));
        if (root.is_object()) root[item.key()] = *item;
        break;
      }
      default: {  // one level more
        const Json inside = at;
        at = chance(50) ? Json::array({inside}) : Json{{pick(corpus_.keys), inside}};
      }
    }
  }

  /// Long replies test nothing here.
  static void shorten(Json& json) {
    if (!json.is_object()) return;
    for (const char* key : {"max_tokens", "max_completion_tokens", "max_output_tokens"}) {
      if (json.contains(key) && json[key].is_number_integer() && json[key] > 4) json[key] = 2;
    }
  }

  static std::string spell(const Json& json) {
    std::string text = json.dump(-1, ' ', false, Json::error_handler_t::ignore);
    for (size_t at = 0; (at = text.find("\"@@", at)) != std::string::npos;) {
      const size_t end = text.find('"', at + 3);
      if (end == std::string::npos) break;
      text.erase(end, 1);
      text.erase(at, 3);
    }
    return text;
  }

  void mutate_text(std::string& text) {
    const size_t at = below(text.size() + 1);
    const size_t length = std::min<size_t>(below(30), text.size() - at);
    static constexpr std::array<std::string_view, 12> kInserted = {
        "\xFF", "\xC3", "\xED\xA0\x80", "\\ud83d", "\\u0000", "\"", "{", "]", ",", "\xEF\xBB\xBF", "1e", "//"};
    switch (below(6)) {
      case 0:
        text.resize(at);
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        text.insert(at, kInserted[below(kInserted.size())]);
        break;
      case 4:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      default:  // a key twice
        if (!text.empty() && text[0] == '{') text.insert(1, '"' + pick(corpus_.keys) + "\":" + spell(value()) + ',');
    }
  }

  void frame(Mutant& mutant) {
    std::string head = "POST " + mutant.path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
    if (chance(15)) {
      std::string chunks;
      for (size_t at = 0; at < mutant.body.size();) {
        const std::string piece = mutant.body.substr(at, 1 + below(200 + mutant.body.size() / 8));
        char size[20];
        std::snprintf(size, sizeof size, "%zx\r\n", piece.size());
        chunks += size + piece + "\r\n";
        at += piece.size();
      }
      head += "Transfer-Encoding: chunked\r\n\r\n";
      mutant.bytes = head + chunks + "0\r\n\r\n";
    } else {
      mutant.bytes = head + "Content-Length: " + std::to_string(mutant.body.size()) + "\r\n\r\n" + mutant.body;
    }
    if (chance(3)) {
      std::string begin = mutant.bytes.substr(0, head.size());
      for (uint64_t n = 1 + below(3); n > 0; --n) mutate_text(begin);
      mutant.bytes.replace(0, std::min(head.size(), mutant.bytes.size()), begin);
      mutant.keeps_open = false;
    }
  }

  const Corpus& corpus_;
  std::mt19937_64 random_;
  int depth_ = 0;
};

/// What is wrong with a reply to bad input or good; empty: nothing.
std::string fault(const RawReply& reply) {
  static constexpr int kAllowed[] = {200, 400, 404, 413, 429, 529};  // 529: the Messages API's 429
  if (std::find(std::begin(kAllowed), std::end(kAllowed), reply.status) == std::end(kAllowed)) {
    return "status " + std::to_string(reply.status);
  }
  if (!reply.complete) return "a cut reply";
  if (reply.header("content-type").rfind("text/event-stream", 0) == 0) {
    for (const char* word : {"\"type\":\"server_error\"", "\"type\":\"api_error\""}) {
      if (reply.body.find(word) != std::string::npos) return "an error of the server in a stream";
    }
    return {};
  }
  const Json body = Json::parse(reply.body, nullptr, false);
  if (body.is_discarded()) return "a reply that is not JSON";
  if (reply.status >= 400 && !(body.contains("error") && body["error"]["message"].is_string())) {
    return "an error without its message";
  }
  return {};
}

class Run {
 public:
  Run(int port, uint64_t count, const Corpus& corpus) : port_(port), count_(count), corpus_(corpus) {}

  bool run() {
    std::vector<std::thread> senders;
    for (int i = 0; i < kConnections; ++i) {
      senders.emplace_back([this] { send_all(); });
    }
    for (std::thread& sender : senders) sender.join();
    for (const auto& [status, n] : counts_) std::printf("%s: %llu\n", status.c_str(), n);
    return faults_ == 0;
  }

 private:
  void send_all() {
    std::unique_ptr<RawClient> client;
    for (uint64_t i = next_++; i < count_ && faults_ < 10; i = next_++) {
      const Mutator::Mutant mutant = Mutator(corpus_, i).make();
      try {
        if (!client || !mutant.keeps_open) client = std::make_unique<RawClient>(port_, kPatience);
        client->send(mutant.bytes);
        if (mutant.keeps_open) {
          judge(i, mutant, client->reply());
        } else {
          // Any answer or none, but an end: this client says that it sends no more.
          client->half_close();
          count("broken head");
          if (!client->drained()) report(i, mutant, "a connection that does not end");
          client.reset();
        }
      } catch (const std::exception& error) {
        report(i, mutant, error.what());
        client.reset();
      }
    }
  }

  void judge(uint64_t number, const Mutator::Mutant& mutant, const RawReply& reply) {
    count(std::to_string(reply.status));
    if (const std::string why = fault(reply); !why.empty())
      report(number, mutant, why + ": " + reply.body.substr(0, 300));
  }
  void count(const std::string& status) {
    const std::lock_guard lock(mutex_);
    ++counts_[status];
  }
  void report(uint64_t number, const Mutator::Mutant& mutant, const std::string& why) {
    const std::lock_guard lock(mutex_);
    ++faults_;
    std::printf("mutant %llu: %s\n    %s\n    %s\n", static_cast<unsigned long long>(number), why.c_str(),
                mutant.path.c_str(), mutant.body.substr(0, 600).c_str());
  }

  int port_;
  uint64_t count_;
  const Corpus& corpus_;
  std::atomic<uint64_t> next_{0};
  std::atomic<int> faults_{0};
  std::mutex mutex_;
  std::map<std::string, unsigned long long> counts_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: mutate_requests PORT|show COUNT|NUMBER VALID_JSONL FOLDER...\n");
    return 2;
  }
  const Corpus corpus(argv[3], {argv + 4, argv + argc});
  const uint64_t number = std::strtoull(argv[2], nullptr, 10);
  if (std::strcmp(argv[1], "show") == 0) {
    const std::string bytes = Mutator(corpus, number).make().bytes;
    std::fwrite(bytes.data(), 1, bytes.size(), stdout);
    return 0;
  }
  return Run(std::atoi(argv[1]), number, corpus).run() ? 0 : 1;
}
