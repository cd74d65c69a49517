// The body of POST /v1/messages and /v1/messages/count_tokens (spec 40 §9) as the chat request it stands for. Needs
// neither model nor tokenizer.
#pragma once

#include <string_view>

#include "server/chat_request.h"

namespace glm53::server {

enum class MessagesPurpose : uint8_t { kReply, kCount };  ///< max_tokens is required, or not

/// `include_reasoning` says whether thinking is shown: only where the request enables it. A final assistant message is
/// continued. Throws ApiError naming the field.
ChatRequest parse_messages_request(std::string_view body, const RequestRules& rules, MessagesPurpose purpose);

}  // namespace glm53::server
