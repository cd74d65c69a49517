#include "server/responses_request.h"

#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include <spdlog/spdlog.h>

#include "glm53/core/contains.h"
#include "glm53/core/printable.h"
#include "glm53/core/utf8.h"
#include "server/api_error.h"
#include "server/chat_json.h"
#include "server/json_get.h"

namespace glm53::server {
namespace {

using text::PromptJson;

constexpr size_t kLongestWord = 64;  // of a client in a message

constexpr UnsupportedField kUnsupported[] = {
    {"previous_response_id", Neutral::kNothing},
    {"conversation", Neutral::kNothing},
    {"prompt", Neutral::kNothing},
    {"background", Neutral::kFalse},
    {"top_logprobs", Neutral::kZero},
};

// ---- content

/// The text parts of a message or a tool's output; refusals have no place in a prompt.
PromptJson read_content(const PromptJson& content, const std::string& path) {
  static constexpr std::array<std::string_view, 3> kText = {"input_text", "output_text", "text"};
  static constexpr std::array<std::string_view, 3> kMedia = {"input_image", "input_file", "input_audio"};
  if (content.is_string()) return content;
  if (!content.is_array()) throw bad_field(path, path + " must be a string or a list of parts");
  PromptJson::Array parts;
  for (size_t i = 0; i < content.items().size(); ++i) {
    const PromptJson& part = content.items()[i];
    const std::string part_path = indexed(path, i);
    require_object(part, part_path);
    const std::string& type = require_string(part, "type", part_path + '.');
    if (contains(kText, type)) {
      parts.push_back(text_part(require_string(part, "text", part_path + '.')));
    } else if (contains(kMedia, type)) {
      throw bad_field(part_path, type + " is not supported by this version: " + part_path);
    } else if (type != "refusal") {
      throw bad_field(part_path + ".type",
                      "unknown content part type " + in_quotes(type, kLongestWord) + " in " + part_path);
    }
  }
  return PromptJson::array(std::move(parts));
}

/// The joined `text` of a list's members.
std::optional<std::string> joined_text(const PromptJson& item, const char* key, const std::string& path) {
  const PromptJson::Array* parts = opt_array(item, key, path + '.');
  if (parts == nullptr || parts->empty()) return std::nullopt;
  std::string text;
  for (size_t i = 0; i < parts->size(); ++i) {
    const std::string part_path = indexed(path + '.' + key, i);
    require_object((*parts)[i], part_path);
    text += require_string((*parts)[i], "text", part_path + '.');
  }
  return text;
}

// ---- input items

/// Collects messages. What the assistant said in several items, reasoning, then text, then calls, is one turn.
class History {
 public:
  void add(const char* role, PromptJson content) {
    end_turn();
    messages_.push_back(chat_message(role, std::move(content)));
  }
  void add_reasoning(const std::string& text) {
    if (content_ || !calls_.empty()) end_turn();
    reasoning_ = reasoning_.value_or("") + text;
  }
  void add_assistant(PromptJson content) {
    if (content_ || !calls_.empty()) end_turn();
    content_ = std::move(content);
  }
  void add_call(PromptJson call) { calls_.push_back(std::move(call)); }
  void add_output(const std::string& id, PromptJson content) {
    end_turn();
    messages_.push_back(chat_tool_result(id, std::move(content)));
  }
  std::vector<PromptJson> take() {
    end_turn();
    return std::move(messages_);
  }

 private:
  void end_turn() {
    if (!reasoning_ && !content_ && calls_.empty()) return;
    PromptJson::Object turn = {{"role", text_of("assistant")}};
    turn.emplace_back("content", content_.value_or(text_of("")));
    if (reasoning_) turn.emplace_back("reasoning_content", text_of(*reasoning_));
    if (!calls_.empty()) turn.emplace_back("tool_calls", PromptJson::array(std::move(calls_)));
    messages_.push_back(PromptJson::object(std::move(turn)));
    reasoning_.reset();
    content_.reset();
    calls_.clear();
  }

  std::vector<PromptJson> messages_;
  std::optional<std::string> reasoning_;
  std::optional<PromptJson> content_;
  PromptJson::Array calls_;
};

const PromptJson& require_member(const PromptJson& item, const char* key, const std::string& path) {
  const PromptJson* value = item.find(key);
  if (value == nullptr) throw bad_field(path + '.' + key, path + '.' + key + " is required");
  return *value;
}

void add_message(const PromptJson& item, const std::string& path, History& history) {
  const std::string& role = require_string(item, "role", path + '.');
  PromptJson content = read_content(require_member(item, "content", path), path + ".content");
  if (role == "assistant") {
    history.add_assistant(std::move(content));
  } else if (role == "user") {
    history.add("user", std::move(content));
  } else if (role == "system" || role == "developer") {
    history.add("system", std::move(content));
  } else {
    throw bad_field(path + ".role", path + ".role must be user, assistant, system or developer");
  }
}

/// A tool of a namespace is known to the model by both names.
std::string full_name(const PromptJson& item, const std::string& path) {
  const std::string* space = opt_string(item, "namespace", path + '.');
  const std::string& name = require_string(item, "name", path + '.');
  return full_tool_name(space != nullptr ? *space : "", name);
}

void add_call(const PromptJson& item, bool custom, const std::string& path, History& history) {
  const std::string& id = require_string(item, "call_id", path + '.');
  const std::string name = full_name(item, path);
  if (custom) {
    PromptJson arguments = PromptJson::object({{"input", text_of(require_string(item, "input", path + '.'))}});
    history.add_call(chat_tool_call(id, name, std::move(arguments)));
    return;
  }
  const PromptJson* arguments = item.find("arguments");
  if (arguments != nullptr && !arguments->is_string() && !arguments->is_object()) {
    throw bad_field(path + ".arguments", path + ".arguments must be a string");
  }
  history.add_call(chat_tool_call(id, name, arguments == nullptr ? text_of("") : *arguments));
}

/// Items of clients' own making or of tools that only a provider runs do not end a conversation that has them.
void add_item(const PromptJson& item, const std::string& path, History& history) {
  require_object(item, path);
  const std::string* given = opt_string(item, "type", path + '.');
  const std::string type = given != nullptr ? *given : "message";
  if (type == "message") {
    add_message(item, path, history);
  } else if (type == "reasoning") {
    auto text = joined_text(item, "content", path);
    const auto summary = joined_text(item, "summary", path);
    if (!text) text = summary;
    if (text) history.add_reasoning(*text);
  } else if (type == "function_call" || type == "custom_tool_call") {
    add_call(item, type == "custom_tool_call", path, history);
  } else if (type == "function_call_output" || type == "custom_tool_call_output") {
    history.add_output(require_string(item, "call_id", path + '.'),
                       read_content(require_member(item, "output", path), path + ".output"));
  } else if (type == "agent_message") {
    const char* key = item.find("content") != nullptr ? "content" : "text";
    history.add_assistant(read_content(require_member(item, key, path), path + '.' + key));
  } else if (type == "web_search_call") {
    history.add("user", text_of("[A web search was made here.]"));
  } else if (type == "compaction" || type == "item_reference") {
    history.add("user", text_of("[An earlier part of the conversation is not available.]"));
  } else {
    spdlog::debug("responses: {} of unknown type {} left out", path, in_quotes(type, kLongestWord));
  }
}

std::vector<PromptJson> read_messages(const PromptJson& body) {
  History history;
  if (const std::string* instructions = opt_string(body, "instructions");
      instructions != nullptr && !instructions->empty()) {
    history.add("system", text_of(*instructions));
  }
  const PromptJson* input = body.find("input");
  if (input == nullptr) throw bad_field("input", "input is required");
  if (input->is_string()) {
    history.add("user", *input);
  } else if (input->is_array()) {
    for (size_t i = 0; i < input->items().size(); ++i) add_item(input->items()[i], indexed("input", i), history);
  } else {
    throw bad_field("input", "input must be a string or a list of items");
  }
  std::vector<PromptJson> messages = history.take();
  if (messages.empty()) throw bad_field("input", "input must not be empty");
  return messages;
}

// ---- tools

/// A function as the template wants it. Free text of a custom tool becomes the one argument `input`.
PromptJson read_function(const PromptJson& tool, bool custom, const std::string& space, const std::string& path) {
  const std::string& name = require_string(tool, "name", path + '.');
  const std::string full = full_tool_name(space, name);
  check_tool_name(name, path + ".name");
  check_tool_name(full, path + ".name");
  opt_string(tool, "description", path + '.');
  opt_object(tool, "parameters", path + '.');
  PromptJson::Object function;
  for (const auto& [key, value] : tool.members()) {
    const bool left_out = key == "type" || value.is_null() || (custom && (key == "format" || key == "parameters"));
    if (!left_out) function.emplace_back(key, key == "name" ? text_of(full) : value);
  }
  if (custom) {
    static const PromptJson kInput =
        PromptJson::parse(R"({"type":"object","properties":{"input":{"type":"string"}},"required":["input"]})");
    function.emplace_back("parameters", kInput);
  }
  return chat_tool(std::move(function));
}

/// Appends the functions of a list: a tool that only a provider runs is left out, a namespace gives all of its own.
void read_tool_list(const PromptJson::Array& tools, const std::string& space, const std::string& path,
                    ResponsesRequest& request) {
  std::vector<PromptJson>& out = request.chat.prompt.tools;
  for (size_t i = 0; i < tools.size(); ++i) {
    const PromptJson& tool = tools[i];
    const std::string tool_path = indexed(path, i);
    require_object(tool, tool_path);
    const std::string& type = require_string(tool, "type", tool_path + '.');
    if (type == "function" || type == "custom") {
      const PromptJson* nested = opt_object(tool, "function", tool_path + '.');
      const bool custom = nested == nullptr && type == "custom";
      const std::string holder = tool_path + (nested != nullptr ? ".function" : "");
      out.push_back(read_function(nested != nullptr ? *nested : tool, custom, space, holder));
      const std::string& name = (nested != nullptr ? *nested : tool).find("name")->as_string();
      const std::string full = full_tool_name(space, name);
      request.tools[full] = {space, name, custom};
      request.chat.parameters_fields[full] = holder + ".parameters";
    } else if (type == "namespace" && space.empty()) {
      const std::string& name = require_string(tool, "name", tool_path + '.');
      check_tool_name(name, tool_path + ".name");
      if (const PromptJson::Array* inner = opt_array(tool, "tools", tool_path + '.')) {
        read_tool_list(*inner, name, tool_path + ".tools", request);
      }
    } else {
      spdlog::debug("responses: {} of type {} left out", tool_path, in_quotes(type, kLongestWord));
    }
    if (out.size() > kMaxTools) throw bad_field("tools", "tools must hold at most 1024 tools");
  }
}

// ---- the rest

void check_include(const PromptJson& body) {
  static constexpr std::array<std::string_view, 8> kKnown = {
      "code_interpreter_call.outputs",  "computer_call_output.output.image_url",
      "file_search_call.results",       "message.input_image.image_url",
      "message.output_text.logprobs",   "reasoning.encrypted_content",
      "web_search_call.action.sources", "web_search_call.results"};
  const PromptJson::Array* include = opt_array(body, "include");
  if (include == nullptr) return;
  for (size_t i = 0; i < include->size(); ++i) {
    const PromptJson& value = (*include)[i];
    const std::string path = indexed("include", i);
    if (!value.is_string() || !contains(kKnown, value.as_string())) {
      throw bad_field(path, path + " is not a value that a response can include");
    }
  }
}

void read_text(const PromptJson& body, OutputConstraint& constraint) {
  const PromptJson* text = opt_object(body, "text");
  const PromptJson* format = text != nullptr ? opt_object(*text, "format", "text.") : nullptr;
  if (format != nullptr) read_flat_format(*format, "text.format", constraint);
}

/// What the template hears of `reasoning`, and of the switches that chat requests have too.
PromptJson template_variables(const PromptJson& body) {
  PromptJson::Object variables;
  for (const char* key : {"chat_template_kwargs", "enable_thinking", "thinking"}) {
    if (const PromptJson* value = body.find(key)) variables.emplace_back(key, *value);
  }
  const PromptJson* reasoning = opt_object(body, "reasoning");
  const std::string* effort = reasoning != nullptr ? opt_string(*reasoning, "effort", "reasoning.") : nullptr;
  if (effort != nullptr) {
    require_one_of(*effort, kEfforts, "reasoning.effort");
    variables.emplace_back("reasoning_effort", text_of(*effort));
  }
  return PromptJson::object(std::move(variables));
}

PromptJson shortest(float value) {
  char text[32];
  return PromptJson::number({text, std::to_chars(text, text + sizeof text, value).ptr});
}

/// Bounded as clients of the API know it.
void check_metadata(const PromptJson& body) {
  constexpr size_t kMostPairs = 16;
  constexpr int64_t kLongestKey = 64;
  constexpr int64_t kLongestValue = 512;
  const PromptJson* metadata = opt_object(body, "metadata");
  if (metadata == nullptr) return;
  if (metadata->members().size() > kMostPairs) throw bad_field("metadata", "metadata must hold at most 16 pairs");
  for (const auto& [key, value] : metadata->members()) {
    if (count_characters(key) > kLongestKey) {
      throw bad_field("metadata", "keys of metadata must have at most 64 characters");
    }
    const std::string path = "metadata." + printable(key);
    if (!value.is_string() || count_characters(value.as_string()) > kLongestValue) {
      throw bad_field(path, path + " must be a string of at most 512 characters");
    }
  }
}

PromptJson read_echo(const PromptJson& body, const CommonFields& common) {
  static constexpr std::array<std::string_view, 2> kTruncations = {"auto", "disabled"};
  const std::string* truncation = opt_string(body, "truncation");
  if (truncation != nullptr && !contains(kTruncations, *truncation)) {
    throw bad_field("truncation", "truncation must be auto or disabled");
  }
  check_metadata(body);
  opt_string(body, "user");
  opt_bool(body, "store");

  PromptJson::Object echo;
  const auto add = [&](const char* key, PromptJson fallback) {
    const PromptJson* value = body.find(key);
    echo.emplace_back(key, value != nullptr ? *value : std::move(fallback));
  };
  add("instructions", {});
  add("max_output_tokens", {});
  add("metadata", PromptJson::object({}));
  add("parallel_tool_calls", PromptJson::boolean(true));
  add("reasoning", PromptJson::object({{"effort", {}}, {"summary", {}}}));
  add("temperature", shortest(common.sampling.temperature));
  add("text", PromptJson::object({{"format", PromptJson::object({{"type", text_of("text")}})}}));
  add("tool_choice", text_of("auto"));
  add("tools", PromptJson::array({}));
  add("top_p", shortest(common.sampling.top_p));
  add("truncation", text_of("disabled"));
  add("user", {});
  return PromptJson::object(std::move(echo));
}

}  // namespace

ResponsesRequest parse_responses_request(std::string_view body, const RequestRules& rules) {
  const PromptJson json = parse_body(body);
  ResponsesRequest request;
  ChatRequest& chat = request.chat;
  chat.common = read_common_fields(json, rules);
  if (chat.common.choices != 1) throw bad_field("n", "n must be 1: a response has one reply");
  chat.prompt_field = "input";
  chat.common.max_tokens = opt_int(json, "max_output_tokens", 1, kMaxTokens);
  chat.common.max_tokens_field = "max_output_tokens";
  refuse_unsupported(json, kUnsupported);
  check_include(json);
  read_text(json, chat.common.constraint);
  chat.prompt.messages = read_messages(json);
  const PromptJson::Array* tools = opt_tools(json, rules.settings.api.lenient_empty_tools);
  if (tools != nullptr) read_tool_list(*tools, {}, "tools", request);
  chat.tool_choice = read_tool_choice(json, chat.prompt.tools, true);
  keep_allowed(chat.tool_choice, chat.prompt.tools);
  chat.parallel_tool_calls = opt_bool(json, "parallel_tool_calls").value_or(true);
  read_template(template_variables(json), rules, chat.prompt);
  chat.reasoning_budget = opt_reasoning_budget(json);
  request.echo = read_echo(json, chat.common);
  return request;
}

}  // namespace glm53::server
