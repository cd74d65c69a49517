#include "server/reply_grammar.h"

#include <algorithm>
#include <utility>

#include <spdlog/spdlog.h>

#include "glm53/core/error.h"
#include "server/api_error.h"
#include "server/grammar_cache.h"
#include "text/grammar_error.h"

namespace glm53::server {
namespace {

using text::PromptJson;
using Kind = OutputConstraint::Kind;

ReplyGrammar compiled(const std::string& key, const std::string& field, const ApiContext& api,
                      const GrammarCache::Compile& compile) {
  if (!api.grammars.available()) {
    throw bad_field(field, field + ": the model has no tokenizer, so that its replies have no text");
  }
  try {
    return {api.grammars.get(key, compile), field};
  } catch (const text::FunctionError&) {
    throw;
  } catch (const Error& error) {
    throw bad_field(field, field + ": " + error.what());
  }
}

/// Appends a text so that no two lists of texts give one key.
void add_text(std::string& key, const std::string& text) {
  key += std::to_string(text.size());
  key += ':';
  key += text;
}

std::string key_of(const OutputConstraint& constraint) {
  std::string key = {static_cast<char>('0' + static_cast<int>(constraint.kind)),
                     constraint.json.any_whitespace ? 'w' : '-', constraint.json.no_additional_properties ? 'p' : '-'};
  if (constraint.kind == Kind::kSchema) key += constraint.schema.dump();
  if (constraint.kind == Kind::kRegex) key += constraint.pattern;
  for (const std::string& choice : constraint.choices) add_text(key, choice);
  return key;
}

std::shared_ptr<const text::Grammar> compile_content(const OutputConstraint& constraint) {
  switch (constraint.kind) {
    case Kind::kObject:
      return text::compile_json_object(constraint.json);
    case Kind::kSchema:
      return text::compile_json_schema(constraint.schema, constraint.json);
    case Kind::kRegex:
      return text::compile_regex(constraint.pattern);
    case Kind::kChoice:
      return text::compile_choice(constraint.choices);
    case Kind::kNone:
      break;
  }
  throw std::logic_error("compile_content: no constraint");
}

constexpr int kLoggedParts = 10;  // of one request

/// Names may hold anything; within quotes they stay one line.
void log_unheeded(const text::OfferedTool& function, std::string_view argument, const std::string& why) {
  const auto quoted = [](std::string_view name) { return PromptJson::string(std::string(name)).dump(); };
  spdlog::info("tools: calls of {} are not held to all of its schema: {}{}", quoted(function.name),
               argument.empty() ? "" : "argument " + quoted(argument) + ": ", why);
}

/// Calls alone; with `content`, that or calls; with `free_text`, calls of strict functions as their schemas say and
/// everything else as it comes.
ReplyGrammar call_grammar(const ChatRequest& request, const text::OfferedTools& tools, const OutputConstraint* content,
                          bool free_text, const ApiContext& api) {
  const bool parallel = request.parallel_tool_calls && request.tool_choice.mode != ToolChoice::Mode::kNamed;
  std::string key = {'t', parallel ? 'p' : '-', free_text ? 'f' : '-'};
  add_text(key, content != nullptr ? key_of(*content) : "");
  for (const text::OfferedTool& tool : tools) {
    key += tool.strict ? '!' : '?';
    add_text(key, tool.name);
    add_text(key, tool.parameters.dump());
  }
  const auto compile = [&]() -> std::shared_ptr<const text::Grammar> {
    text::ToolGrammarOptions options;
    options.parallel = parallel;
    options.arguments_once = !free_text;
    options.free_text = free_text;
    int unheeded = 0;
    options.unheeded = [&](const text::OfferedTool& function, std::string_view argument, const std::string& why) {
      if (unheeded < kLoggedParts) log_unheeded(function, argument, why);
      if (++unheeded == kLoggedParts + 1) spdlog::info("tools: further parts of schemas that calls are not held to");
    };
    const PromptJson any_object = PromptJson::object({{"type", PromptJson::string("object")}});
    if (content != nullptr) {
      options.json = content->json;
      if (content->kind == Kind::kObject) options.content = &any_object;
      if (content->kind == Kind::kSchema) options.content = &content->schema;
      if (content->kind == Kind::kRegex) options.content_regex = content->pattern;
      if (content->kind == Kind::kChoice) options.content_choices = content->choices;
    }
    try {
      return text::compile_tool_calls(tools, text::ReplyMarkers::from(api.tokenizer).tags, options);
    } catch (const text::GrammarTooLarge& error) {
      // The model was free to call nothing at all, and it is shown the schemas in any case.
      if (!free_text) throw;
      spdlog::warn("tools: calls are not held to the schemas of their functions: {}", error.what());
      return nullptr;
    }
  };
  const auto parameters_of = [&](size_t tool) { return request.parameters_fields.at(tools[tool].name); };
  const std::string whole = content != nullptr ? content->field : tools.size() == 1 ? parameters_of(0) : "tools";
  try {
    return compiled(key, whole, api, compile);
  } catch (const text::FunctionError& error) {
    const std::string field = parameters_of(error.function());
    throw bad_field(field, field + ": " + error.what());
  }
}

}  // namespace

ReplyGrammar content_grammar(const OutputConstraint& constraint, const ApiContext& api) {
  if (!constraint) return {};
  return compiled(key_of(constraint), constraint.field, api, [&] { return compile_content(constraint); });
}

ReplyGrammar reply_grammar(const ChatRequest& request, const text::OfferedTools* tools, const ApiContext& api) {
  using Mode = ToolChoice::Mode;
  const OutputConstraint& constraint = request.common.constraint;
  const Mode mode = request.tool_choice.mode;
  if (mode == Mode::kNamed && constraint) {
    throw bad_field(constraint.field,
                    constraint.field + " cannot be combined with a tool_choice that names a function");
  }
  if (tools == nullptr || tools->empty()) return content_grammar(constraint, api);
  if (mode == Mode::kRequired || mode == Mode::kNamed) {
    return call_grammar(request, *tools, nullptr, /*free_text=*/false, api);
  }
  if (constraint) return call_grammar(request, *tools, &constraint, /*free_text=*/false, api);
  const bool constrained =
      api.rules.settings.api.tool_grammar ||
      std::any_of(tools->begin(), tools->end(), [](const text::OfferedTool& tool) { return tool.strict; });
  if (!constrained) return {};
  return call_grammar(request, *tools, nullptr, /*free_text=*/true, api);
}

}  // namespace glm53::server
