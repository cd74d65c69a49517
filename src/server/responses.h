// POST /v1/responses (spec 40 §8): the Responses API over the same engine. Nothing is stored.
#pragma once

#include "server/api_context.h"
#include "server/http_types.h"

namespace glm53::server {

/// As chat_completions. Throws ApiError, ClientGone.
HttpResponse responses(const HttpRequest& http, const ApiContext& api);

}  // namespace glm53::server
