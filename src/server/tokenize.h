// POST /tokenize and /detokenize (spec 40 §7): the prompt of a request as token ids, and back. Neither asks the engine.
#pragma once

#include "server/api_context.h"
#include "server/http_types.h"

namespace glm53::server {

/// `prompt`: text, in which markers become their ids; or `messages`, checked and rendered as for a chat completion.
/// Throws ApiError.
HttpResponse tokenize(const HttpRequest& http, const ApiContext& api);

/// Skips no token. Throws ApiError.
HttpResponse detokenize(const HttpRequest& http, const ApiContext& api);

}  // namespace glm53::server
