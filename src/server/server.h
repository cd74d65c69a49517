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
  /// `tokenizer` outlives the server. `version` is what GET /version shows.
  Server(const text::Tokenizer& tokenizer, const Settings& settings, GenerationDefaults defaults, std::string version);
  ~Server();

  /// Listens on server.host and server.port (0: any free port) and returns. /health and requests for replies are
  /// answered 503 until serve(). Throws Error.
  void start();
  /// Where requests go from now on; outlives the server. Once.
  void serve(engine::Engine& engine);
  void serve(Generator& generator);
  int port() const;
  /// Answers 503 to new requests, waits up to `drain` for running ones, cancels the rest, which ends with an error of
  /// its own, and closes.
  void stop(std::chrono::milliseconds drain);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace glm53::server
