// Requests and replies as the API sees them; no HTTP library shows through. Plain values, except that a reply may carry
// a function that writes its body piece by piece.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace glm53::server {

struct ApiError;

/// Header that names a request in replies and logs.
inline constexpr const char* kRequestId = "X-Request-Id";

struct HttpHeader {
  std::string name;
  std::string value;
};

/// How often what waits on a client's behalf asks client_gone.
inline constexpr std::chrono::milliseconds kClientLook{50};

struct HttpRequest {
  std::string method;  ///< as sent; a reply to HEAD is one to GET, whose body the connection leaves out
  std::string path;    ///< percent-decoded, without query
  std::vector<HttpHeader> headers;
  std::string body;  ///< complete and decoded; empty in HttpHandler::check
  /// True once the client has closed its side. Cheap; meant to be polled while a reply is computed.
  std::function<bool()> client_gone;
  /// To be called by a handler that goes on without `body` and what was made of it, but for `kept` bytes that the reply
  /// needs: empties it and lets those of others be worked on.
  std::function<void(uint64_t kept)> body_done = [](uint64_t) {};
  /// To be called before a wait for anything but the client's turn while `body`, or what was made of it, is still
  /// needed: may let those of others be worked on meanwhile.
  std::function<void()> body_paused = [] {};

  /// Value of the first header of that name (any case); empty when absent.
  std::string_view header(std::string_view name) const;
};

/// Thrown by a handler that found nobody waiting for its reply: the connection is closed without one.
struct ClientGone {};

/// Where a streamed body goes. Used by the connection's own thread only.
class BodyWriter {
 public:
  /// Sends `bytes` now. False: the client is gone or took nothing for server.write_timeout_s; nothing more can be sent.
  virtual bool write(std::string_view bytes) = 0;
  virtual bool client_gone() = 0;

 protected:
  ~BodyWriter() = default;
};

/// Tokens of a request's prompts and of its replies.
struct TokenCounts {
  int64_t prompt = 0;
  int64_t completion = 0;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<HttpHeader> headers;
  std::string body;
  /// When set, `body` is not used: status and headers go out, then this runs. An exception ends the connection, which
  /// the client sees as a cut body.
  std::function<void(BodyWriter&)> stream;
  /// Asked once the body is sent; empty where no tokens were made.
  std::function<TokenCounts()> tokens;
};

/// Status in the log of a request whose client left before a reply began.
inline constexpr int kClientClosedRequest = 499;

/// A request after its reply, for the log. No text in it but decoded_path has control characters.
struct ServedRequest {
  std::string client;        ///< numeric address
  std::string method;        ///< empty: the request line could not be read
  std::string path;          ///< as sent, without the query; empty as `method`
  std::string decoded_path;  ///< as HttpRequest::path
  std::string request_id;    ///< X-Request-Id of the reply; empty when there was none
  int status = 0;
  uint64_t bytes = 0;  ///< sent, head included
  std::chrono::duration<double> time{0};
  std::optional<TokenCounts> tokens;
  bool complete = true;  ///< the whole reply was sent
};

/// What the server does with requests. Called from many connection threads at once, `refuse` and `served` also from the
/// thread that accepts connections, for those beyond the limit.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  /// Before the body is read: a reply here refuses the request and its body is read without being kept.
  virtual std::optional<HttpResponse> check(const HttpRequest& request) = 0;
  /// Any exception but ClientGone becomes a 500.
  virtual HttpResponse handle(const HttpRequest& request) = 0;
  /// The reply to what the connection refuses by itself: too large, too late, malformed, or a failed handler. `request`
  /// has what could be read: neither path nor headers, where the header block is not one.
  virtual HttpResponse refuse(const HttpRequest& request, const ApiError& error) = 0;
  /// After the reply. Refused connections and requests count too.
  virtual void served(const ServedRequest& request) = 0;
};

}  // namespace glm53::server
