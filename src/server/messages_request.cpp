#include "server/messages_request.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "glm53/core/printable.h"
#include "server/api_error.h"
#include "server/chat_json.h"
#include "server/json_get.h"

namespace glm53::server {
namespace {

using text::PromptJson;

constexpr size_t kLongestWord = 64;  // of a client in a message

constexpr UnsupportedField kUnsupported[] = {{"mcp_servers", Neutral::kEmpty}};

// ---- content blocks

const std::string& block_type(const PromptJson& block, const std::string& path) {
  require_object(block, path);
  return require_string(block, "type", path + '.');
}

[[noreturn]] void refuse_block(const std::string& type, const std::string& path) {
  if (type == "image") throw bad_field(path, "image input is not supported by this version: " + path);
  throw bad_field(path + ".type", "unknown content block type " + in_quotes(type, kLongestWord) + " in " + path);
}

/// A list, or a string as the list of one text block.
PromptJson::Array blocks_of(const PromptJson& content, const std::string& path) {
  if (content.is_string()) return {text_part(content.as_string())};
  if (!content.is_array()) throw bad_field(path, path + " must be a string or a list of content blocks");
  return content.items();
}

std::string document_text(const PromptJson& document, const std::string& path) {
  const PromptJson* source = opt_object(document, "source", path + '.');
  if (source == nullptr) throw bad_field(path + ".source", path + ".source is required");
  const std::string source_path = path + ".source";
  const std::string& type = require_string(*source, "type", source_path + '.');
  if (type == "text") return require_string(*source, "data", source_path + '.');
  if (type != "content") {
    throw bad_field(source_path, "documents other than text are not supported by this version: " + source_path);
  }
  const PromptJson* content = source->find("content");
  const std::string content_path = source_path + ".content";
  if (content == nullptr) throw bad_field(content_path, content_path + " is required");
  std::string text;
  const PromptJson::Array blocks = blocks_of(*content, content_path);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string block_path = indexed(content_path, i);
    if (const std::string& kind = block_type(blocks[i], block_path); kind != "text") refuse_block(kind, block_path);
    text += require_string(blocks[i], "text", block_path + '.');
  }
  return text;
}

/// Text of a block that is nothing but text.
std::string plain_text(const PromptJson& block, const std::string& path) {
  const std::string& type = block_type(block, path);
  if (type == "text") return require_string(block, "text", path + '.');
  if (type == "document") return document_text(block, path);
  refuse_block(type, path);
}

// ---- messages

PromptJson tool_result(const PromptJson& block, const std::string& path) {
  const std::string& id = require_string(block, "tool_use_id", path + '.');
  opt_bool(block, "is_error", path + '.');  // the prompt has no place for it; the text says what went wrong
  PromptJson::Array parts;
  if (const PromptJson* content = block.find("content")) {
    const PromptJson::Array items = blocks_of(*content, path + ".content");
    // References to deferred tools are rendered as their definitions, which a list of anything else cannot hold.
    const bool references = !items.empty() && block_type(items[0], path + ".content[0]") == "tool_reference";
    for (size_t i = 0; i < items.size(); ++i) {
      const std::string item_path = indexed(path + ".content", i);
      if (references && block_type(items[i], item_path) == "tool_reference") {
        parts.push_back(
            PromptJson::object({{"type", text_of("tool_reference")},
                                {"name", text_of(require_string(items[i], "tool_name", item_path + '.'))}}));
      } else if (references) {
        throw bad_field(item_path, "tool references cannot be mixed with other blocks: " + item_path);
      } else {
        parts.push_back(text_part(plain_text(items[i], item_path)));
      }
    }
  }
  return chat_tool_result(id, PromptJson::array(std::move(parts)));
}

/// Tool results answer the turn before, so they come first; what else was said follows as a message of its own.
void add_user(const PromptJson& content, const std::string& path, std::vector<PromptJson>& out) {
  PromptJson::Array parts;
  bool results = false;
  const PromptJson::Array blocks = blocks_of(content, path);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string block_path = indexed(path, i);
    if (block_type(blocks[i], block_path) == "tool_result") {
      out.push_back(tool_result(blocks[i], block_path));
      results = true;
    } else {
      parts.push_back(text_part(plain_text(blocks[i], block_path)));
    }
  }
  if (!parts.empty() || !results) out.push_back(chat_message("user", PromptJson::array(std::move(parts))));
}

PromptJson tool_call(const PromptJson& block, const std::string& path) {
  const PromptJson* input = opt_object(block, "input", path + '.');
  return chat_tool_call(require_string(block, "id", path + '.'), require_string(block, "name", path + '.'),
                        input != nullptr ? *input : PromptJson::object({}));
}

/// What a provider's own tools left in the history means nothing to this model.
bool is_server_block(const std::string& type) {
  static constexpr std::string_view kResult = "_tool_result";
  return type == "redacted_thinking" || type == "server_tool_use" ||
         (type.size() > kResult.size() && type.compare(type.size() - kResult.size(), kResult.size(), kResult) == 0);
}

void add_assistant(const PromptJson& content, const std::string& path, std::vector<PromptJson>& out) {
  std::string text, thinking;
  bool has_thinking = false;
  PromptJson::Array calls;
  const PromptJson::Array blocks = blocks_of(content, path);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string block_path = indexed(path, i);
    const std::string& type = block_type(blocks[i], block_path);
    if (type == "thinking") {
      thinking += require_string(blocks[i], "thinking", block_path + '.');
      has_thinking = true;
    } else if (type == "tool_use") {
      calls.push_back(tool_call(blocks[i], block_path));
    } else if (!is_server_block(type)) {
      text += plain_text(blocks[i], block_path);
    }
  }
  PromptJson::Object turn = {{"role", text_of("assistant")}, {"content", text_of(std::move(text))}};
  if (has_thinking) turn.emplace_back("reasoning_content", text_of(std::move(thinking)));
  if (!calls.empty()) turn.emplace_back("tool_calls", PromptJson::array(std::move(calls)));
  out.push_back(PromptJson::object(std::move(turn)));
}

/// A first block that names a client's billing changes with every request: it is no part of the prompt.
void add_system(const PromptJson& body, std::vector<PromptJson>& out) {
  static constexpr std::string_view kBilling = "x-anthropic-billing-header";
  const PromptJson* system = body.find("system");
  if (system == nullptr) return;
  std::string text;
  const PromptJson::Array blocks = blocks_of(*system, "system");
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string path = indexed("system", i);
    if (const std::string& type = block_type(blocks[i], path); type != "text") refuse_block(type, path);
    const std::string& part = require_string(blocks[i], "text", path + '.');
    if (i > 0 || part.compare(0, kBilling.size(), kBilling) != 0) text += part;
  }
  if (!text.empty()) out.push_back(chat_message("system", text_of(std::move(text))));
}

void read_messages(const PromptJson& body, text::ChatPromptInput& prompt) {
  add_system(body, prompt.messages);
  const PromptJson::Array* messages = opt_array(body, "messages");
  if (messages == nullptr) throw bad_field("messages", "messages is required");
  if (messages->empty()) throw bad_field("messages", "messages must not be empty");
  for (size_t i = 0; i < messages->size(); ++i) {
    const PromptJson& item = (*messages)[i];
    const std::string path = indexed("messages", i);
    require_object(item, path);
    const std::string& role = require_string(item, "role", path + '.');
    const PromptJson* content = item.find("content");
    if (content == nullptr) throw bad_field(path + ".content", path + ".content is required");
    if (role == "user") {
      add_user(*content, path + ".content", prompt.messages);
    } else if (role == "assistant") {
      add_assistant(*content, path + ".content", prompt.messages);
    } else {
      throw bad_field(path + ".role", path + ".role must be user or assistant");
    }
  }
}

/// Where the conversation ends with the assistant's text, the reply goes on from there.
bool continues(const PromptJson& last) {
  return last.find("role")->as_string() == "assistant" && last.find("tool_calls") == nullptr &&
         !last.find("content")->as_string().empty();
}

// ---- tools

/// Tools with a type of their own run at the provider; the model is not told of them.
void read_tools(const PromptJson& body, bool lenient, ChatRequest& request) {
  const PromptJson::Array* tools = opt_tools(body, lenient);
  if (tools == nullptr) return;
  for (size_t i = 0; i < tools->size(); ++i) {
    const PromptJson& tool = (*tools)[i];
    const std::string path = indexed("tools", i);
    require_object(tool, path);
    const std::string* type = opt_string(tool, "type", path + '.');
    if (type != nullptr && *type != "custom") continue;
    const std::string& name = require_string(tool, "name", path + '.');
    check_tool_name(name, path + ".name");
    PromptJson::Object function = {{"name", text_of(name)}};
    if (const std::string* description = opt_string(tool, "description", path + '.')) {
      function.emplace_back("description", text_of(*description));
    }
    const PromptJson* schema = opt_object(tool, "input_schema", path + '.');
    if (schema == nullptr) throw bad_field(path + ".input_schema", path + ".input_schema is required");
    function.emplace_back("parameters", *schema);
    if (const auto deferred = opt_bool(tool, "defer_loading", path + '.')) {
      function.emplace_back("defer_loading", PromptJson::boolean(*deferred));
    }
    request.prompt.tools.push_back(
        PromptJson::object({{"type", text_of("function")}, {"function", PromptJson::object(std::move(function))}}));
    request.parameters_fields[name] = path + ".input_schema";
  }
}

/// auto, any, tool or none, and disable_parallel_tool_use beside it.
void read_choice(const PromptJson& body, ChatRequest& request) {
  using Mode = ToolChoice::Mode;
  const std::vector<PromptJson>& tools = request.prompt.tools;
  request.tool_choice.mode = tools.empty() ? Mode::kNone : Mode::kAuto;
  const PromptJson* choice = opt_object(body, "tool_choice");
  if (choice == nullptr) return;
  static constexpr std::array<std::pair<std::string_view, Mode>, 4> kTypes = {
      {{"auto", Mode::kAuto}, {"any", Mode::kRequired}, {"tool", Mode::kNamed}, {"none", Mode::kNone}}};
  const std::string& type = require_string(*choice, "type", "tool_choice.");
  const auto found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& candidate) { return candidate.first == type; });
  if (found == kTypes.end()) throw bad_field("tool_choice.type", "tool_choice.type must be auto, any, tool or none");
  if (tools.empty()) {
    // Auto is fine where all tools were the provider's own, which are left out.
    const PromptJson::Array* given = opt_array(body, "tools");
    const bool left_out = given != nullptr && !given->empty();
    if (found->second != Mode::kNone && !(found->second == Mode::kAuto && left_out)) {
      throw bad_field("tool_choice", "tool_choice needs tools");
    }
    return;
  }
  request.tool_choice.mode = found->second;
  if (found->second == Mode::kNamed) {
    request.tool_choice = named_choice(require_string(*choice, "name", "tool_choice."), tools, "tool_choice.name");
  }
  request.parallel_tool_calls = !opt_bool(*choice, "disable_parallel_tool_use", "tool_choice.").value_or(false);
}

// ---- the rest

/// Whether thinking is shown, and its budget.
void read_thinking(const PromptJson& body, const RequestRules& rules, PromptJson::Object& variables,
                   ChatRequest& request) {
  request.include_reasoning = false;
  const PromptJson* thinking = opt_object(body, "thinking");
  if (thinking == nullptr) {
    if (rules.settings.api.anthropic_default_thinking == "off") {
      variables.emplace_back("thinking", PromptJson::boolean(false));
    }
    return;
  }
  const std::string& type = require_string(*thinking, "type", "thinking.");
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    throw bad_field("thinking.type", "thinking.type must be enabled, disabled or adaptive");
  }
  request.reasoning_budget = opt_int(*thinking, "budget_tokens", 1, std::numeric_limits<int64_t>::max(), "thinking.");
  variables.emplace_back("thinking", PromptJson::object({{"type", text_of(type)}}));
  request.include_reasoning = type != "disabled";
}

/// `output_format` is what `output_config.format` was called first.
void read_output_config(const PromptJson& body, PromptJson::Object& variables, OutputConstraint& constraint) {
  if (const PromptJson* format = opt_object(body, "output_format")) {
    read_flat_format(*format, "output_format", constraint);
  }
  const PromptJson* config = opt_object(body, "output_config");
  if (config == nullptr) return;
  if (const PromptJson* format = opt_object(*config, "format", "output_config.")) {
    read_flat_format(*format, "output_config.format", constraint);
  }
  const std::string* effort = opt_string(*config, "effort", "output_config.");
  if (effort == nullptr) return;
  // This API has no none, no minimal.
  require_one_of(*effort, std::span(kEfforts).subspan<2>(), "output_config.effort");
  // As a template variable it is no switch: `thinking` alone says whether to think.
  variables.emplace_back("chat_template_kwargs", PromptJson::object({{"reasoning_effort", text_of(*effort)}}));
}

std::vector<std::string> read_stop_sequences(const PromptJson& body) {
  std::vector<std::string> stops;
  const PromptJson::Array* items = opt_array(body, "stop_sequences");
  if (items == nullptr) return stops;
  for (size_t i = 0; i < items->size(); ++i) {
    const std::string path = indexed("stop_sequences", i);
    if (!(*items)[i].is_string() || (*items)[i].as_string().empty()) {
      throw bad_field(path, path + " must be a string that is not empty");
    }
    stops.push_back((*items)[i].as_string());
  }
  check_stops(stops, "stop_sequences");
  return stops;
}

}  // namespace

ChatRequest parse_messages_request(std::string_view body, const RequestRules& rules, MessagesPurpose purpose) {
  const PromptJson json = parse_body(body);
  ChatRequest request;
  request.common = read_common_fields(json, rules);
  if (request.common.choices != 1) throw bad_field("n", "n must be 1: a message has one reply");
  if (purpose == MessagesPurpose::kReply && json.find("max_tokens") == nullptr) {
    throw bad_field("max_tokens", "max_tokens is required");
  }
  refuse_unsupported(json, kUnsupported);
  if (json.find("thinking_token_budget") != nullptr) {
    throw bad_field("thinking_token_budget", "thinking_token_budget is called thinking.budget_tokens in this API");
  }
  // Answering a turn that leaves the earlier ones to the server would be answering another question.
  if (const PromptJson* thread = json.find("thread"); thread != nullptr && !thread->is_null()) {
    throw ApiError(400, "thread is not supported: conversations are not kept between requests", "thread", kNoThreads);
  }
  request.common.stop = read_stop_sequences(json);
  read_messages(json, request.prompt);
  read_tools(json, rules.settings.api.lenient_empty_tools, request);
  read_choice(json, request);

  PromptJson::Object variables;
  read_thinking(json, rules, variables, request);
  read_output_config(json, variables, request.common.constraint);
  if (continues(request.prompt.messages.back())) {
    variables.emplace_back("add_generation_prompt", PromptJson::boolean(false));
    variables.emplace_back("continue_final_message", PromptJson::boolean(true));
  }
  read_template(PromptJson::object(std::move(variables)), rules, request.prompt);
  return request;
}

}  // namespace glm53::server
