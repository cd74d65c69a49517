// HTTP/1.1 over cpp-httplib, with that library's faults closed (00-decisions §2, spec 80 §2.1).
//
// What this adapter does itself: listening (no SO_REUSEPORT; accept errors never end the server), one thread a
// connection up to a limit and 503 beyond it, reading and checking the header block under one deadline, reading bodies
// (length or chunked) under limits, of each and of all together, letting few large ones be worked on at a time,
// 100-continue, hang-up detection, write time-outs, keep-alive, lingering close, drain. What the library does: request
// targets, routing hook, reply heads, chunked output.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "server/http_types.h"

namespace glm53::server {

struct HttpLimits {
  size_t header_bytes = 16 * 1024;
  uint64_t body_bytes = uint64_t{96} << 20;
  uint64_t all_bodies_bytes = uint64_t{256} << 20;  ///< held by all connections together (BodyMemory)
  std::chrono::milliseconds turn_patience{30'000};  ///< of a complete body, to be worked on (BodyMemory)
  int max_connections = 512;
  std::chrono::milliseconds header_timeout{10'000};  ///< whole header block, from its first byte
  std::chrono::milliseconds body_timeout{60'000};    ///< silence while a body arrives
  std::chrono::milliseconds write_timeout{120'000};  ///< silence while the client takes bytes
  std::chrono::milliseconds idle_timeout{75'000};    ///< connection without a request
};

class HttpServer {
 public:
  /// `handler` outlives the server.
  HttpServer(HttpLimits limits, HttpHandler& handler);
  ~HttpServer();  ///< stop(0)

  /// Binds, listens and returns; connections are served by threads of the server. `port` 0 takes a free one. Throws
  /// Error naming address, port and reason, also when another process listens there.
  void start(const std::string& host, int port);
  int port() const;  ///< the bound one

  /// From now on requests are answered 503, on new connections too. Waits up to `patience` for the running ones; what
  /// is left then is told to end by `cancel`, once, and has kCancelGrace to send its error. Then the port closes and
  /// the rest is cut (its handlers see client_gone), without `cancel` at once. Idempotent; returns when no thread is
  /// left.
  void stop(std::chrono::milliseconds patience, const std::function<void()>& cancel = {});
  /// Enough for an engine's step and an error event; a client that takes no bytes holds the end up no longer.
  static constexpr std::chrono::milliseconds kCancelGrace{5'000};

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace glm53::server
