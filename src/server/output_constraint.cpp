#include "server/output_constraint.h"

#include <utility>

#include "server/api_error.h"
#include "server/json_get.h"

namespace glm53::server {
namespace {

using text::PromptJson;
using Kind = OutputConstraint::Kind;

/// Claims the one place; returns the constraint to fill in.
OutputConstraint& set(OutputConstraint& constraint, Kind kind, const std::string& field) {
  if (constraint) {
    throw bad_field(field,
                    "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').");
  }
  constraint.kind = kind;
  constraint.field = field;
  return constraint;
}

[[noreturn]] void refuse(const std::string& field) {
  throw bad_field(field, field + " is not supported by this version");
}

/// An object, a boolean, or either as JSON text.
void set_schema(OutputConstraint& constraint, const PromptJson& schema, const std::string& field) {
  PromptJson value = schema;
  if (schema.is_string()) {
    try {
      value = PromptJson::parse(schema.as_string());
    } catch (const PromptJson::ParseError& error) {
      throw bad_field(field, field + ": " + error.what());
    }
  }
  if (!value.is_object() && !value.is_bool()) throw bad_field(field, field + " must be a JSON schema");
  set(constraint, Kind::kSchema, field).schema = std::move(value);
}

void set_choices(OutputConstraint& constraint, const PromptJson::Array& choices, const std::string& field) {
  if (choices.empty()) throw bad_field(field, field + " must not be empty");
  std::vector<std::string> texts;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (!choices[i].is_string() || choices[i].as_string().empty()) {
      throw bad_field(indexed(field, i), indexed(field, i) + " must be a string that is not empty");
    }
    texts.push_back(choices[i].as_string());
  }
  set(constraint, Kind::kChoice, field).choices = std::move(texts);
}

void read_response_format(const PromptJson& body, OutputConstraint& constraint) {
  const PromptJson* format = opt_object(body, "response_format");
  if (format == nullptr) return;
  const std::string& type = require_string(*format, "type", "response_format.");
  if (type == "text") return;
  if (type == "json_object") {
    set(constraint, Kind::kObject, "response_format");
  } else if (type == "json_schema") {
    const PromptJson* holder = opt_object(*format, "json_schema", "response_format.");
    if (holder == nullptr) {
      throw bad_field("response_format",
                      "When response_format type is 'json_schema', the 'json_schema' field must be provided.");
    }
    const std::string field = "response_format.json_schema.schema";
    const PromptJson* schema = holder->find("schema");
    if (schema == nullptr) throw bad_field(field, field + " is required");
    set_schema(constraint, *schema, field);
  } else if (type == "regex") {
    const std::string& pattern = require_string(*format, "pattern", "response_format.");
    set(constraint, Kind::kRegex, "response_format.pattern").pattern = pattern;
  } else {
    throw bad_field("response_format.type", "response_format.type must be text, json_object, json_schema or regex");
  }
}

void read_structured_outputs(const PromptJson& body, OutputConstraint& constraint) {
  const PromptJson* outputs = opt_object(body, "structured_outputs");
  if (outputs == nullptr) return;
  const std::string path = "structured_outputs.";
  for (const char* key : {"grammar", "structural_tag", "whitespace_pattern"}) {
    if (outputs->find(key) != nullptr) refuse(path + key);
  }
  if (const PromptJson* schema = outputs->find("json")) set_schema(constraint, *schema, path + "json");
  if (const std::string* pattern = opt_string(*outputs, "regex", path)) {
    set(constraint, Kind::kRegex, path + "regex").pattern = *pattern;
  }
  if (const PromptJson::Array* choices = opt_array(*outputs, "choice", path)) {
    set_choices(constraint, *choices, path + "choice");
  }
  if (opt_bool(*outputs, "json_object", path).value_or(false)) set(constraint, Kind::kObject, path + "json_object");
  constraint.json.any_whitespace = !opt_bool(*outputs, "disable_any_whitespace", path).value_or(false);
  constraint.json.no_additional_properties = opt_bool(*outputs, "disable_additional_properties", path).value_or(false);
}

void read_guided(const PromptJson& body, OutputConstraint& constraint) {
  for (const char* key : {"guided_grammar", "guided_whitespace_pattern"}) {
    if (body.find(key) != nullptr) refuse(key);
  }
  if (const PromptJson* schema = body.find("guided_json")) set_schema(constraint, *schema, "guided_json");
  if (const std::string* pattern = opt_string(body, "guided_regex")) {
    set(constraint, Kind::kRegex, "guided_regex").pattern = *pattern;
  }
  if (const PromptJson::Array* choices = opt_array(body, "guided_choice")) {
    set_choices(constraint, *choices, "guided_choice");
  }
}

}  // namespace

OutputConstraint read_output_constraint(const PromptJson& body) {
  OutputConstraint constraint;
  read_response_format(body, constraint);
  read_structured_outputs(body, constraint);
  read_guided(body, constraint);
  return constraint;
}

void read_flat_format(const PromptJson& format, const std::string& field, OutputConstraint& constraint) {
  require_object(format, field);
  const std::string& type = require_string(format, "type", field + '.');
  if (type == "json_object") {
    set(constraint, Kind::kObject, field);
  } else if (type == "json_schema") {
    const PromptJson* schema = format.find("schema");
    if (schema == nullptr) throw bad_field(field + ".schema", field + ".schema is required");
    set_schema(constraint, *schema, field + ".schema");
  } else if (type != "text") {
    throw bad_field(field + ".type", field + ".type must be text, json_object or json_schema");
  }
}

}  // namespace glm53::server
