// Refusals of the API: one exception type that carries everything the error JSON of spec 40 §5.1 shows.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "server/http_types.h"

namespace glm53::server {

struct ApiError : std::runtime_error {
  ApiError(int http_status, const std::string& message, std::string field = {}, std::string short_code = {})
      : std::runtime_error(message), status(http_status), param(std::move(field)), code(std::move(short_code)) {}

  int status;
  std::string param;      ///< request path at fault ("messages[1].content[0]"); empty: null
  std::string code;       ///< empty: the status as a number
  int retry_after_s = 0;  ///< > 0: Retry-After
};

/// Seconds after which to ask again, where the server cannot know.
inline constexpr int kRetryAfterSeconds = 5;

/// 503 for a request that another time would be served, with Retry-After.
ApiError unavailable(const std::string& message);

/// 429 for a request that finds too many others before it, with Retry-After.
ApiError busy(const std::string& message, const std::string& code);

/// 400 that names a field.
ApiError bad_field(std::string field, const std::string& message);

/// {"error":{"message","type","param","code"}}; `type` follows from the status.
std::string error_json(const ApiError& error);

/// Code of a request for a conversation that the server keeps (`thread` of the Messages API). Its SDK's tool loop asks
/// for one first; told so by error.details, it sends whole conversations instead.
inline constexpr const char* kNoThreads = "thread_unsupported_request";

/// The error object of the Messages API (spec 40 §9): {"type":"error","error":{"type","message"}}.
std::string messages_error_json(const ApiError& error);

/// An error as a reply, in the shape of the protocol that `path` belongs to.
HttpResponse error_response(const ApiError& error, std::string_view path);

}  // namespace glm53::server
