// Server-sent events over a streamed reply (spec 40 §5, 80 §2.2).
#pragma once

#include <chrono>
#include <functional>
#include <string_view>

#include "server/http_types.h"

namespace glm53::server {

/// Writes one event at a time; every member throws ClientGone when the client cannot be reached.
class SseWriter {
 public:
  using Clock = std::chrono::steady_clock;

  explicit SseWriter(BodyWriter& body) : body_(body) {}

  void event(std::string_view json);                         ///< data: JSON
  void event(std::string_view name, std::string_view json);  ///< the same with a name before it
  void comment(std::string_view text);                       ///< ": text": ignored by clients, seen by proxies
  void done();                                               ///< data: [DONE]
  bool client_gone() { return body_.client_gone(); }
  /// Since something was sent, or the stream began.
  Clock::duration silence() const { return Clock::now() - last_sent_; }

 private:
  void send(std::string_view text);
  BodyWriter& body_;
  Clock::time_point last_sent_ = Clock::now();
};

/// A 200 whose body `produce` writes. An ApiError from it becomes an error event followed by [DONE].
HttpResponse sse_response(std::function<void(SseWriter&)> produce);

}  // namespace glm53::server
