// From a checked chat request, of whatever protocol, to what the engine takes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "server/api_context.h"
#include "server/chat_request.h"

namespace glm53::server {

/// The rendered prompt's ids. `check` is told how many there are at least before they are worked out, so that a prompt
/// which cannot fit costs neither time nor memory. Throws ApiError naming the message at fault, and what `check`
/// throws.
std::vector<int32_t> chat_prompt_ids(
    const text::ChatPromptInput& input, const ApiContext& api,
    const std::function<void(int64_t least)>& check = [](int64_t) {});

/// The request to the engine, with the end ids of a turn, the reasoning split, tools and grammar, for whose making the
/// body of `http` is paused. Throws as make_generation and reply_grammar.
engine::GenerationRequest chat_generation(const ChatRequest& request, std::vector<int32_t> prompt,
                                          const std::string& id, const HttpRequest& http, const ApiContext& api);

}  // namespace glm53::server
