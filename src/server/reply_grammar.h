// From what a request asks of its reply to the grammar that holds the engine to it (spec 40 §4.5, §12).
#pragma once

#include <memory>

#include "server/api_context.h"
#include "server/chat_request.h"
#include "server/output_constraint.h"
#include "text/reply_parser.h"

namespace glm53::server {

/// Null without a constraint. Throws ApiError naming the constraint's field.
std::shared_ptr<text::GrammarTables> content_grammar(const OutputConstraint& constraint, const ApiContext& api);

/// Of a chat: a constraint alone; calls alone (tool_choice required or named); content or calls (a constraint beside
/// tools); free text with calls where a function is strict or api.tool_grammar is on. Null where nothing is asked, and
/// where free text with calls would make too large a grammar. `tools`: those offered to the reply, null for none.
/// Throws ApiError naming the field: of a function, where its parameters are at fault.
std::shared_ptr<text::GrammarTables> reply_grammar(const ChatRequest& request, const text::OfferedTools* tools,
                                                   const ApiContext& api);

}  // namespace glm53::server
