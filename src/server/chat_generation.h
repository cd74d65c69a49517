// From a checked chat request, of whatever protocol, to what the engine takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api_context.h"
#include "server/chat_request.h"

namespace glm53::server {

/// The rendered prompt's ids. Throws ApiError naming the message at fault.
std::vector<int32_t> chat_prompt_ids(const text::ChatPromptInput& input, const ApiContext& api);

/// The request to the engine, with the end ids of a turn, the reasoning split, tools and grammar. Throws as
/// make_generation and reply_grammar.
engine::GenerationRequest chat_generation(const ChatRequest& request, std::vector<int32_t> prompt,
                                          const std::string& id, const ApiContext& api);

}  // namespace glm53::server
