// GET /metrics (spec 40 §13): the engine's counts as Prometheus text 0.0.4, under the names that dashboards made for
// vLLM know.
#pragma once

#include "server/api_context.h"
#include "server/http_types.h"

namespace glm53::server {

HttpResponse metrics(const HttpRequest& http, const ApiContext& api);

}  // namespace glm53::server
