// What a request says about the text of its reply: response_format, structured_outputs, guided_* and the formats of the
// other protocols (spec 40 §12.1), read into one form. Needs neither model nor tokenizer.
#pragma once

#include <string>
#include <vector>

#include "text/grammar.h"
#include "text/prompt_json.h"

namespace glm53::server {

struct OutputConstraint {
  enum class Kind : uint8_t {
    kNone,
    kObject,  ///< any JSON object
    kSchema,
    kRegex,
    kChoice
  };
  Kind kind = Kind::kNone;
  text::PromptJson schema;           ///< kSchema: an object or a boolean
  std::string pattern;               ///< kRegex
  std::vector<std::string> choices;  ///< kChoice
  text::JsonGrammarOptions json;
  std::string field;  ///< that gave it

  explicit operator bool() const { return kind != Kind::kNone; }
};

/// response_format, structured_outputs and guided_* of a body. Throws ApiError naming the field: more than one
/// constraint, malformed, or a kind that this version does not have. What the constraint itself means is found out when
/// it is compiled.
OutputConstraint read_output_constraint(const text::PromptJson& body);

/// A format with its schema beside its type, {"type": "json_schema", "schema": …}, text or json_object: text.format of
/// Responses, output_format of Messages. Adds to `constraint`. Throws as read_output_constraint.
void read_flat_format(const text::PromptJson& format, const std::string& field, OutputConstraint& constraint);

}  // namespace glm53::server
