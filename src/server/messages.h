// POST /v1/messages and /v1/messages/count_tokens (spec 40 §9): the Messages API over the same engine. Errors have that
// API's shape (api_error.h).
#pragma once

#include "server/api_context.h"
#include "server/http_types.h"

namespace glm53::server {

/// As chat_completions. Throws ApiError, ClientGone.
HttpResponse messages(const HttpRequest& http, const ApiContext& api);

/// The prompt's number of tokens; does not ask the engine. Throws ApiError.
HttpResponse count_message_tokens(const HttpRequest& http, const ApiContext& api);

}  // namespace glm53::server
