#include "server/api_error.h"

#include <nlohmann/json.hpp>

#include "server/reply_json.h"

namespace glm53::server {
namespace {

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

/// By the status that messages_status() gives.
const char* messages_error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
    case 529:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

/// Clients of the Messages API know a full queue as 529.
int messages_status(const ApiError& error) { return error.code == "queue_full" ? 529 : error.status; }

}  // namespace

ApiError unavailable(const std::string& message) {
  ApiError error(503, message, {}, "unavailable");
  error.retry_after_s = kRetryAfterSeconds;
  return error;
}

ApiError busy(const std::string& message, const std::string& code) {
  ApiError error(429, message, {}, code);
  error.retry_after_s = kRetryAfterSeconds;
  return error;
}

ApiError bad_field(std::string field, const std::string& message) { return {400, message, std::move(field)}; }

std::string error_json(const ApiError& error) {
  nlohmann::ordered_json body;
  body["message"] = error.what();
  body["type"] = error_type(error.status);
  body["param"] = error.param.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(error.param);
  body["code"] = error.code.empty() ? nlohmann::ordered_json(error.status) : nlohmann::ordered_json(error.code);
  return dump({{"error", std::move(body)}});
}

std::string messages_error_json(const ApiError& error) {
  nlohmann::ordered_json body;
  body["type"] = messages_error_type(messages_status(error));
  body["message"] = error.what();
  if (error.code == kNoThreads)
    body["details"] = {{"error_code", kNoThreads}, {"unsupported", nlohmann::ordered_json::array({error.param})}};
  return dump({{"type", "error"}, {"error", std::move(body)}});
}

HttpResponse error_response(const ApiError& error, std::string_view path) {
  static constexpr std::string_view kMessages = "/v1/messages";
  const bool messages = path.substr(0, kMessages.size()) == kMessages;
  HttpResponse response;
  response.status = messages ? messages_status(error) : error.status;
  response.body = messages ? messages_error_json(error) : error_json(error);
  if (error.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  if (error.retry_after_s > 0) response.headers.push_back({"Retry-After", std::to_string(error.retry_after_s)});
  return response;
}

}  // namespace glm53::server
