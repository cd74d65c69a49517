// POST /v1/chat/completions (spec 40 §6): prompt, submission, and the reply in both of its shapes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api_context.h"
#include "server/chat_request.h"
#include "server/http_types.h"

namespace glm53::server {

/// Everything that can be refused is refused before this returns, so a streamed reply starts only for an admitted
/// request. Throws ApiError, ClientGone.
HttpResponse chat_completions(const HttpRequest& http, const ApiContext& api);

/// A chat's request to the engine, with the end ids of a turn and the reasoning split. Throws as make_generation.
engine::GenerationRequest chat_generation(const ChatRequest& request, std::vector<int32_t> prompt,
                                          const std::string& id, const ApiContext& api);

/// The rendered prompt's ids. Throws ApiError naming the message at fault.
std::vector<int32_t> chat_prompt_ids(const text::ChatPromptInput& input, const ApiContext& api);

}  // namespace glm53::server
