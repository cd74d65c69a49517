#include "server/server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include <spdlog/spdlog.h>

#include "glm53/core/ascii.h"
#include "glm53/core/contains.h"
#include "glm53/core/printable.h"
#include "server/access_log.h"
#include "server/api_error.h"
#include "server/chat_completions.h"
#include "server/chat_page.h"
#include "server/completions.h"
#include "server/grammar_cache.h"
#include "server/http_server.h"
#include "server/messages.h"
#include "server/metrics.h"
#include "server/random_id.h"
#include "server/reply_json.h"
#include "server/request_counts.h"
#include "server/request_fields.h"
#include "server/request_gate.h"
#include "server/responses.h"
#include "server/tokenize.h"

namespace glm53::server {
namespace {

using nlohmann::ordered_json;

class EngineGenerator final : public Generator {
 public:
  explicit EngineGenerator(engine::Engine& engine) : engine_(engine) {}
  std::vector<std::shared_ptr<engine::Generation>> submit(std::vector<engine::GenerationRequest> requests) override {
    return engine_.submit(std::move(requests));
  }
  void stop() override { engine_.stop(); }
  engine::EngineStatus status() const override { return engine_.status(); }
  engine::EngineMetrics metrics() const override { return engine_.metrics(); }
  int64_t context() const override { return engine_.limits().context; }

 private:
  engine::Engine& engine_;
};

/// Stands for the generator that is still to come.
class LateGenerator final : public Generator {
 public:
  /// `context` of the generator.
  explicit LateGenerator(int64_t context) : context_(context) {}
  /// From now on all goes to `generator`, which outlives this one.
  void come(Generator& generator) { generator_.store(&generator); }

  std::vector<std::shared_ptr<engine::Generation>> submit(std::vector<engine::GenerationRequest> requests) override {
    if (Generator* generator = generator_) return generator->submit(std::move(requests));
    throw unavailable("the model is being loaded");
  }
  void stop() override {
    if (Generator* generator = generator_) generator->stop();
  }
  engine::EngineStatus status() const override {
    const Generator* generator = generator_;
    return generator != nullptr ? generator->status() : engine::EngineStatus();
  }
  engine::EngineMetrics metrics() const override {
    const Generator* generator = generator_;
    return generator != nullptr ? generator->metrics() : engine::EngineMetrics(context_);
  }
  int64_t context() const override {
    const Generator* generator = generator_;
    return generator != nullptr ? generator->context() : context_;
  }

 private:
  const int64_t context_;
  std::atomic<Generator*> generator_{nullptr};
};

/// A trailing slash makes no other route.
std::string route_path(const std::string& path) {
  const size_t last = path.find_last_not_of('/');
  return last == std::string::npos ? "/" : path.substr(0, last + 1);
}

// ---- small routes

HttpResponse json_reply(const ordered_json& body) {
  HttpResponse response;
  response.body = dump(body);
  return response;
}

HttpResponse health(const HttpRequest&, const ApiContext& api) {
  const engine::EngineStatus status = api.generator.status();
  const char* word = status.failed ? "failed" : status.ready ? "ok" : "unavailable";
  HttpResponse response = json_reply({{"status", word},
                                      {"model", api.rules.settings.model.served_name.front()},
                                      {"uptime_s", std::time(nullptr) - api.started},
                                      {"running", status.running},
                                      {"waiting", status.waiting}});
  if (status.ready && !status.failed) return response;
  response.status = 503;
  response.headers.push_back({"Retry-After", std::to_string(kRetryAfterSeconds)});
  return response;
}

/// Requests that run or wait.
HttpResponse load(const HttpRequest&, const ApiContext& api) {
  const engine::EngineStatus status = api.generator.status();
  return json_reply({{"server_load", status.running + status.waiting}});
}

HttpResponse version(const HttpRequest&, const ApiContext& api) { return json_reply({{"version", api.version}}); }

ordered_json model_entry(const std::string& name, const ApiContext& api) {
  const ModelSettings& model = api.rules.settings.model;
  const std::string path = model.path.substr(0, model.path.find_last_not_of('/') + 1);
  return {{"id", name},
          {"object", "model"},
          {"created", api.started},
          {"owned_by", "glm53-serve"},
          {"root", path.substr(path.rfind('/') + 1)},
          {"parent", nullptr},
          {"max_model_len", api.generator.context()},
          {"context_length", api.generator.context()},
          {"permission", ordered_json::array()}};
}

HttpResponse models(const HttpRequest&, const ApiContext& api) {
  ordered_json data = ordered_json::array();
  for (const std::string& name : api.rules.settings.model.served_name) data.push_back(model_entry(name, api));
  return json_reply({{"object", "list"}, {"data", std::move(data)}});
}

constexpr std::string_view kModelPrefix = "/v1/models/";

HttpResponse one_model(const HttpRequest& request, const ApiContext& api) {
  const std::string id = route_path(request.path).substr(kModelPrefix.size());
  const std::vector<std::string>& served = api.rules.settings.model.served_name;
  if (!contains(served, id)) throw no_such_model(id);
  return json_reply(model_entry(id, api));
}

// ---- routing

struct Route {
  std::string_view method;
  std::string_view path;  ///< one that ends in '/' takes every path below it, except "/" itself
  HttpResponse (*handler)(const HttpRequest&, const ApiContext&);
  bool polled = false;  ///< by load balancers and dashboards: its lines would bury those of the other requests

  bool matches(std::string_view wanted) const {
    return path.size() > 1 && path.back() == '/' ? wanted.size() > path.size() && wanted.substr(0, path.size()) == path
                                                 : wanted == path;
  }
};

constexpr std::array<Route, 18> kRoutes = {{
    {"GET", "/", chat_page},
    {"GET", kPagePrefix, chat_page},
    {"GET", "/health", health, true},
    {"GET", "/ping", health, true},
    {"GET", "/load", load},
    {"GET", "/version", version},
    {"GET", "/metrics", metrics, true},
    {"GET", "/v1/models", models},
    {"GET", kModelPrefix, one_model},
    {"POST", "/v1/chat/completions", chat_completions},
    {"POST", "/v1/completions", completions},
    {"POST", "/v1/responses", responses},
    {"POST", "/v1/messages", messages},
    {"POST", "/v1/messages/count_tokens", count_message_tokens},
    {"POST", "/tokenize", tokenize},
    {"POST", "/detokenize", detokenize},
    {"POST", "/v1/tokenize", tokenize},
    {"POST", "/v1/detokenize", detokenize},
}};

// ---- authentication

/// Takes the same time wherever the texts differ; only the length of `given` shows.
bool equal_keys(std::string_view given, std::string_view key) {
  unsigned difference = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char wanted = key.empty() ? '\0' : key[i % key.size()];
    difference |= static_cast<unsigned char>(given[i] ^ wanted);
  }
  return difference == 0;
}

/// What is about a model's replies or text; the state of the server is open to probes and dashboards.
bool is_protected(std::string_view path) {
  return path.substr(0, 3) == "/v1" || path == "/tokenize" || path == "/detokenize";
}

bool authorized(const HttpRequest& request, const std::vector<std::string>& keys) {
  static constexpr std::string_view kBearer = "Bearer ";
  std::string_view given = request.header("x-api-key");
  const std::string_view header = request.header("Authorization");
  if (header.size() > kBearer.size() && same_text(header.substr(0, kBearer.size()), kBearer)) {
    given = header.substr(kBearer.size());
  }
  bool found = false;
  for (const std::string& key : keys) found |= equal_keys(given, key);
  return found && !given.empty();
}

// ---- headers of every reply

/// Replies carry the client's own request id, else that of the generation, else a fresh one. The log line joins them.
void add_request_id(const HttpRequest& request, HttpResponse& response) {
  const auto own = std::find_if(response.headers.begin(), response.headers.end(),
                                [](const HttpHeader& header) { return header.name == kRequestId; });
  const std::string generation = own == response.headers.end() ? random_id() : own->value;
  if (own != response.headers.end()) response.headers.erase(own);
  const std::string_view given = request.header(kRequestId);
  const bool usable = !given.empty() && given.size() <= 128 && is_visible_ascii(given);
  const std::string shown = usable ? std::string(given) : generation;
  spdlog::debug("{} {} {}: {}, request id {}", request.method, printable(request.path), response.status, generation,
                shown);
  response.headers.push_back({kRequestId, shown});
}

/// Which web pages may read the reply. A refusal of what could not be read knows no Origin: with several allowed, it
/// names none.
void add_cors(const HttpRequest& request, const std::vector<std::string>& allowed, HttpResponse& response) {
  if (allowed.empty()) return;
  auto origin = allowed.begin();  // `*`, or the only one: the same for every request
  if (allowed.size() > 1) {
    response.headers.push_back({"Vary", "Origin"});
    origin = std::find(allowed.begin(), allowed.end(), request.header("Origin"));
    if (origin == allowed.end()) return;
  }
  response.headers.push_back({"Access-Control-Allow-Origin", *origin});
  response.headers.push_back({"Access-Control-Expose-Headers", std::string(kRequestId) + ", Retry-After"});
}

HttpResponse preflight(const HttpRequest& request) {
  const std::string_view wanted = request.header("Access-Control-Request-Headers");
  HttpResponse response;
  response.content_type = "text/plain";
  response.headers = {
      {"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
      {"Access-Control-Allow-Headers", wanted.empty() ? "Authorization, Content-Type, X-API-Key" : std::string(wanted)},
      {"Access-Control-Max-Age", "86400"}};
  return response;
}

class Api final : public HttpHandler {
 public:
  Api(const ApiContext& context, RequestCounts& counts) : context_(context), counts_(counts) {}

  std::optional<HttpResponse> check(const HttpRequest& request) override {
    std::optional<HttpResponse> reply = reply_without_body(request);
    return reply ? std::optional(finished(request, std::move(*reply))) : std::nullopt;
  }

  HttpResponse handle(const HttpRequest& request) override {
    HttpResponse response;
    try {
      response = find_route(request.method, route_path(request.path))->handler(request, context_);
    } catch (const ApiError& error) {
      response = error_response(error, request.path);
    }
    return finished(request, std::move(response));
  }

  HttpResponse refuse(const HttpRequest& request, const ApiError& error) override {
    return finished(request, error_response(error, request.path));
  }

  void served(const ServedRequest& request) override {
    const Route* route = find_route(request.method, route_path(request.decoded_path));
    counts_.add({std::string(route == nullptr ? "none" : route->path), request.method, request.status});
    if (!context_.rules.settings.server.access_log) return;
    const bool polled = route != nullptr && route->polled;
    spdlog::log(polled ? spdlog::level::debug : spdlog::level::info, "{}", access_line(request));
  }

 private:
  HttpResponse finished(const HttpRequest& request, HttpResponse response) const {
    add_request_id(request, response);
    add_cors(request, context_.rules.settings.server.cors_origin, response);
    return response;
  }

  static const Route* find_route(std::string_view method, std::string_view path) {
    if (method == "HEAD") method = "GET";
    const auto route = std::find_if(kRoutes.begin(), kRoutes.end(), [&](const Route& candidate) {
      return candidate.method == method && candidate.matches(path);
    });
    return route == kRoutes.end() ? nullptr : &*route;
  }

  std::optional<HttpResponse> reply_without_body(const HttpRequest& request) const {
    if (request.method == "OPTIONS") return preflight(request);
    const std::string path = route_path(request.path);
    const auto& keys = context_.rules.settings.server.api_key;
    if (!keys.empty() && is_protected(path) && !authorized(request, keys)) {
      return error_response(ApiError(401, "missing or wrong API key", {}, "invalid_api_key"), path);
    }
    const bool exists = context_.rules.settings.api.chat_page || !is_page_path(path);
    if (exists && find_route(request.method, path) != nullptr) return std::nullopt;
    std::string allowed;
    for (const Route& route : kRoutes) {
      if (exists && route.matches(path)) allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
    }
    if (allowed.empty()) return error_response(ApiError(404, "there is no route " + printable(path)), path);
    HttpResponse response = error_response(
        ApiError(405, "method " + printable(request.method) + " is not allowed for " + printable(path)), path);
    response.headers.push_back({"Allow", (allowed == "GET" ? "GET, HEAD" : allowed) + ", OPTIONS"});
    return response;
  }

  const ApiContext& context_;
  RequestCounts& counts_;
};

HttpLimits http_limits(const ServerSettings& settings) {
  HttpLimits limits;
  limits.header_bytes = static_cast<size_t>(settings.header_kib) * 1024;
  limits.body_bytes = static_cast<uint64_t>(settings.max_body_mib) << 20;
  limits.all_bodies_bytes = static_cast<uint64_t>(settings.max_bodies_mib) << 20;
  limits.max_connections = settings.max_connections;
  limits.header_timeout = std::chrono::seconds(settings.header_timeout_s);
  limits.body_timeout = std::chrono::seconds(settings.body_timeout_s);
  limits.write_timeout = std::chrono::seconds(settings.write_timeout_s);
  limits.idle_timeout = std::chrono::seconds(settings.idle_timeout_s);
  return limits;
}

size_t longest_token(const text::Tokenizer& tokenizer) {
  size_t longest = 0;
  for (int32_t id = 0; id < tokenizer.id_count(); ++id) longest = std::max(longest, tokenizer.token_bytes(id).size());
  return longest;
}

/// Null for a model without text.
std::shared_ptr<const text::TokenTrie> make_trie(const text::Tokenizer& tokenizer, const GenerationDefaults& defaults) {
  if (!tokenizer.has_vocabulary()) return nullptr;
  const auto started = std::chrono::steady_clock::now();
  std::vector<int32_t> ends = defaults.eos_ids;
  std::erase_if(ends, [&](int32_t id) { return id < 0 || id >= defaults.vocab; });
  auto trie = std::make_shared<const text::TokenTrie>(tokenizer, defaults.vocab, ends);
  const auto spent = std::chrono::steady_clock::now() - started;
  spdlog::debug("token trie for grammars: {} nodes in {} ms", trie->nodes().size(),
                std::chrono::duration_cast<std::chrono::milliseconds>(spent).count());
  return trie;
}

}  // namespace

struct Server::Impl {
  Impl(const text::Tokenizer& tokenizer, const Settings& settings, GenerationDefaults defaults,
       std::string shown_version)
      : generator(settings.context),
        grammars(make_trie(tokenizer, defaults)),
        context{
            {settings, std::move(defaults)}, generator,         tokenizer, grammars, counts, longest_token(tokenizer),
            std::move(shown_version),        std::time(nullptr)},
        api(context, counts),
        http(http_limits(settings.server), api) {}

  std::unique_ptr<EngineGenerator> adapter;  ///< null where the caller brought a generator
  LateGenerator generator;
  GrammarCache grammars;
  RequestCounts counts;
  ApiContext context;
  Api api;
  HttpServer http;  ///< last: its threads end before what they use
};

Server::Server(const text::Tokenizer& tokenizer, const Settings& settings, GenerationDefaults defaults,
               std::string version)
    : impl_(std::make_unique<Impl>(tokenizer, settings, std::move(defaults), std::move(version))) {}

Server::~Server() = default;

void Server::start() {
  const ServerSettings& settings = impl_->context.rules.settings.server;
  impl_->http.start(settings.host, settings.port);
}

void Server::serve(engine::Engine& engine) {
  impl_->adapter = std::make_unique<EngineGenerator>(engine);
  serve(*impl_->adapter);
}

void Server::serve(Generator& generator) { impl_->generator.come(generator); }

int Server::port() const { return impl_->http.port(); }

void Server::stop(std::chrono::milliseconds drain) {
  impl_->http.stop(drain, [this] { impl_->context.generator.stop(); });
}

}  // namespace glm53::server
