// The HTTP API of the process: routes, authentication and the headers every reply carries. The life of a request:
// HttpServer reads its head -> Api::check (authentication, route) -> HttpServer reads its body -> route handler parses
// and submits to the engine -> RunningReply hands events back -> reply or SSE stream.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "server/api_context.h"

namespace glm53::engine {
class Engine;
}

namespace glm53::server {

class Server {
 public:
  /// `engine` and `tokenizer` outlive the server. `version` is what GET /version shows.
  Server(engine::Engine& engine, const text::Tokenizer& tokenizer, const Settings& settings,
         GenerationDefaults defaults, std::string version);
  /// The same with another generator, which outlives the server.
  Server(Generator& generator, const text::Tokenizer& tokenizer, const Settings& settings, GenerationDefaults defaults,
         std::string version);
  ~Server();

  /// Listens on server.host and server.port (0: any free port) and returns. Throws Error.
  void start();
  int port() const;
  /// Answers 503 to new requests, waits up to `drain` for running ones, cancels the rest, which ends with an error of
  /// its own, and closes.
  void stop(std::chrono::milliseconds drain);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace glm53::server
