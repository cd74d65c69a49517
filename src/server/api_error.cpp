#include "server/api_error.h"

#include <nlohmann/json.hpp>

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

}  // namespace

ApiError bad_field(std::string field, const std::string& message) { return {400, message, std::move(field)}; }

std::string error_json(const ApiError& error) {
  nlohmann::ordered_json body;
  body["message"] = error.what();
  body["type"] = error_type(error.status);
  body["param"] = error.param.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(error.param);
  body["code"] = error.code.empty() ? nlohmann::ordered_json(error.status) : nlohmann::ordered_json(error.code);
  const nlohmann::ordered_json whole = {{"error", std::move(body)}};
  // Messages may quote request text, so they are printed as UTF-8 whatever they hold.
  return whole.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = error_json(error);
  if (error.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  if (error.retry_after_s > 0) response.headers.push_back({"Retry-After", std::to_string(error.retry_after_s)});
  return response;
}

}  // namespace glm53::server
