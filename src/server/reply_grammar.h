// From what a request asks of its reply to the grammar that holds the engine to it (spec 40 §4.5, §12).
#pragma once

#include <memory>
#include <string>

#include "server/api_context.h"
#include "server/chat_request.h"
#include "server/output_constraint.h"
#include "text/reply_parser.h"

namespace glm53::server {

struct ReplyGrammar {
  std::shared_ptr<text::GrammarTables> tables;  ///< null: none
  std::string field;                            ///< that is at fault where it cannot be made or followed
};

/// None without a constraint. Throws ApiError naming the constraint's field.
ReplyGrammar content_grammar(const OutputConstraint& constraint, const ApiContext& api);

/// Of a chat: a constraint alone; calls alone (tool_choice required or named); content or calls (a constraint beside
/// tools); free text with calls where a function is strict or api.tool_grammar is on. None where nothing is asked, and
/// where free text with calls would make too large a grammar. `tools`: those offered to the reply, null for none.
/// Throws ApiError naming the field: of a function, where its parameters are at fault.
ReplyGrammar reply_grammar(const ChatRequest& request, const text::OfferedTools* tools, const ApiContext& api);

}  // namespace glm53::server
