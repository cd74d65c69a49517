// POST /v1/completions (spec 40 §7): raw text or token ids in, raw text out; no template, no reasoning split.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/http_types.h"
#include "server/request_fields.h"

namespace glm53::server {

using CompletionPrompt = std::variant<std::string, std::vector<int32_t>>;  ///< not empty

struct CompletionRequest {
  CommonFields common;
  std::vector<CompletionPrompt> prompts;  ///< at least one; choice j of prompt i has index i · n + j
  bool echo = false;
};

/// Throws ApiError naming the field.
CompletionRequest parse_completion_request(std::string_view body, const RequestRules& rules);

/// As chat_completions.
HttpResponse completions(const HttpRequest& http, const ApiContext& api);

}  // namespace glm53::server
