// POST /v1/chat/completions (spec 40 §6): prompt, submission, and the reply in both of its shapes.
#pragma once

#include "server/api_context.h"
#include "server/http_types.h"

namespace glm53::server {

/// Everything that can be refused is refused before this returns, so a streamed reply starts only for an admitted
/// request. Throws ApiError, ClientGone.
HttpResponse chat_completions(const HttpRequest& http, const ApiContext& api);

}  // namespace glm53::server
