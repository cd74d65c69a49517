#include "server/chat_request.h"

#include <array>
#include <limits>

#include "server/api_error.h"
#include "server/json_get.h"

namespace glm53::server {
namespace {

using text::PromptJson;

constexpr UnsupportedField kUnsupported[] = {
    {"chat_template", Neutral::kNothing}, {"documents", Neutral::kEmpty}, {"functions", Neutral::kEmpty},
    {"function_call", Neutral::kNothing}, {"audio", Neutral::kNothing},
};

// ---- thinking (spec 40 §2.2)

/// Template variables as one source gives them; absent and null count as not given.
struct TemplateKwargs {
  std::optional<bool> enable_thinking;
  std::optional<bool> thinking;
  std::optional<bool> clear_thinking;
  std::optional<std::string> effort;
  std::optional<bool> add_generation_prompt;
  std::optional<bool> continue_final_message;

  /// What `later` gives wins, key by key.
  void merge(const TemplateKwargs& later) {
    const auto take = [](auto& mine, const auto& theirs) {
      if (theirs) mine = theirs;
    };
    take(enable_thinking, later.enable_thinking);
    take(thinking, later.thinking);
    take(clear_thinking, later.clear_thinking);
    take(effort, later.effort);
    take(add_generation_prompt, later.add_generation_prompt);
    take(continue_final_message, later.continue_final_message);
  }
};

std::optional<bool> truth(const PromptJson& source, std::string_view key) {
  const PromptJson* value = source.find(key);
  if (value == nullptr) return std::nullopt;
  return value->truthy();
}

/// The switches that a request may give at top level or in chat_template_kwargs. `thinking` may be an object,
/// {"type": "enabled" | "disabled" | …, "clear_thinking": …}; a type of another name leaves the default.
void read_thinking(const PromptJson& source, TemplateKwargs& out) {
  out.enable_thinking = truth(source, "enable_thinking");
  const PromptJson* thinking = source.find("thinking");
  if (thinking != nullptr && thinking->is_object()) {
    const PromptJson* type = thinking->find("type");
    if (type != nullptr && type->is_string()) {
      if (type->as_string() == "enabled") out.thinking = true;
      if (type->as_string() == "disabled") out.thinking = false;
    }
    out.clear_thinking = truth(*thinking, "clear_thinking");
  } else {
    out.thinking = truth(source, "thinking");
  }
  if (const auto clear = truth(source, "clear_thinking")) out.clear_thinking = clear;
}

TemplateKwargs server_kwargs(const DefaultsSettings& defaults) {
  TemplateKwargs kwargs;
  // On is what the template does without the switch. Giving it here would outvote a request's `thinking: false`, since
  // one of the two names being true is enough.
  if (!defaults.thinking) kwargs.enable_thinking = false;
  kwargs.clear_thinking = !defaults.keep_reasoning;
  if (!defaults.effort.empty()) kwargs.effort = defaults.effort;
  return kwargs;
}

TemplateKwargs request_kwargs(const PromptJson& body) {
  TemplateKwargs kwargs;
  const PromptJson* object = opt_object(body, "chat_template_kwargs");
  if (object == nullptr) return kwargs;
  read_thinking(*object, kwargs);
  if (const PromptJson* effort = object->find("reasoning_effort")) {
    kwargs.effort = effort->is_string() ? effort->as_string() : std::string();  // any value: the template's rule
  }
  kwargs.add_generation_prompt = truth(*object, "add_generation_prompt");
  kwargs.continue_final_message = truth(*object, "continue_final_message");
  return kwargs;
}

TemplateKwargs top_level_kwargs(const PromptJson& body, const TemplateKwargs& template_kwargs) {
  TemplateKwargs kwargs;
  read_thinking(body, kwargs);
  kwargs.add_generation_prompt = opt_bool(body, "add_generation_prompt");
  kwargs.continue_final_message = opt_bool(body, "continue_final_message");
  if (const std::string* effort = opt_string(body, "reasoning_effort")) {
    require_one_of(*effort, kEfforts, "reasoning_effort");
    kwargs.effort = *effort;
    // An effort implies a switch, unless the request has one.
    const bool switched =
        template_kwargs.enable_thinking || template_kwargs.thinking || kwargs.enable_thinking || kwargs.thinking;
    if (!switched) kwargs.enable_thinking = *effort != "none";
  }
  return kwargs;
}

// ---- messages and tools

bool is_media_type(std::string_view type) {
  return type == "image" || type == "image_url" || type == "input_image" || type == "video" || type == "video_url" ||
         type == "input_video";
}

/// Content is a string or a list of parts; the items of a tool result may hold such lists in turn, one level down.
void refuse_media(const PromptJson& content, const std::string& path) {
  if (!content.is_array()) return;
  for (size_t i = 0; i < content.items().size(); ++i) {
    const PromptJson& part = content.items()[i];
    const PromptJson* type = part.find("type");
    if (type != nullptr && type->is_string() && is_media_type(type->as_string())) {
      throw bad_field(indexed(path, i), "image and video input is not supported by this version: " + indexed(path, i));
    }
    if (const PromptJson* output = part.find("output"); output != nullptr && output->is_array()) {
      for (size_t k = 0; k < output->items().size(); ++k) {
        const PromptJson* inner = output->items()[k].find("type");
        if (inner != nullptr && inner->is_string() && is_media_type(inner->as_string())) {
          const std::string field = indexed(indexed(path, i) + ".output", k);
          throw bad_field(field, "image and video input is not supported by this version: " + field);
        }
      }
    }
  }
}

std::vector<PromptJson> read_messages(const PromptJson& body) {
  const PromptJson::Array* messages = opt_array(body, "messages");
  if (messages == nullptr) throw bad_field("messages", "messages is required");
  if (messages->empty()) throw bad_field("messages", "messages must not be empty");
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string path = indexed("messages", i);
    if (!(*messages)[i].is_object()) throw bad_field(path, path + " must be an object");
    if (const PromptJson* content = (*messages)[i].find("content")) refuse_media(*content, path + ".content");
  }
  return *messages;
}

void read_tools(const PromptJson& body, bool lenient, ChatRequest& request) {
  const PromptJson::Array* tools = opt_tools(body, lenient);
  if (tools == nullptr) return;
  for (size_t i = 0; i < tools->size(); ++i) {
    const PromptJson& tool = (*tools)[i];
    const std::string path = indexed("tools", i);
    if (!tool.is_object()) throw bad_field(path, path + " must be an object");
    if (const std::string* type = opt_string(tool, "type", path + '.'); type != nullptr && *type != "function") {
      throw bad_field(path + ".type", path + ".type must be function");
    }
    const PromptJson* function = opt_object(tool, "function", path + '.');
    const std::string prefix = path + (function != nullptr ? ".function." : ".");
    const std::string* name = opt_string(function != nullptr ? *function : tool, "name", prefix);
    if (name == nullptr) throw bad_field(prefix + "name", prefix + "name is required");
    check_tool_name(*name, prefix + "name");
    request.parameters_fields[*name] = prefix + "parameters";
  }
  request.prompt.tools = *tools;
}

void check_modalities(const PromptJson& body) {
  const PromptJson::Array* modalities = opt_array(body, "modalities");
  if (modalities == nullptr) return;
  for (const PromptJson& modality : *modalities) {
    if (!modality.is_string() || modality.as_string() != "text") {
      throw bad_field("modalities", "modalities may only hold \"text\"");
    }
  }
}

/// −1: none.
int read_logprobs(const PromptJson& body) {
  const bool wanted = opt_bool(body, "logprobs").value_or(false);
  const int64_t top = opt_int(body, "top_logprobs", 0, std::numeric_limits<int32_t>::max()).value_or(0);
  if (top != 0 && !wanted) {
    throw bad_field("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.");
  }
  if (top > kMaxTopLogprobs) throw too_many_logprobs("top_logprobs", top);
  return wanted ? static_cast<int>(top) : -1;
}

/// The final message's text where it is the assistant's.
std::string read_echo(const PromptJson& body, const PromptJson& final_message) {
  if (!opt_bool(body, "echo").value_or(false)) return {};
  const PromptJson* role = final_message.find("role");
  const PromptJson* content = final_message.find("content");
  const bool own = role != nullptr && role->is_string() && role->as_string() == "assistant";
  return own && content != nullptr && content->is_string() ? content->as_string() : std::string();
}

}  // namespace

std::optional<int64_t> opt_reasoning_budget(const PromptJson& body) {
  return opt_int(body, "thinking_token_budget", -1, kMaxTokens);
}

void read_template(const PromptJson& body, const RequestRules& rules, text::ChatPromptInput& prompt) {
  const TemplateKwargs in_body = request_kwargs(body);
  TemplateKwargs kwargs = server_kwargs(rules.settings.defaults);
  kwargs.merge(in_body);
  kwargs.merge(top_level_kwargs(body, in_body));

  const bool given = kwargs.thinking || kwargs.enable_thinking;
  prompt.thinking = !given || kwargs.thinking.value_or(false) || kwargs.enable_thinking.value_or(false);
  prompt.effort = kwargs.effort.value_or("");
  prompt.clear_thinking = kwargs.clear_thinking.value_or(false);
  prompt.add_generation_prompt = kwargs.add_generation_prompt.value_or(true);
  prompt.continue_final_message = kwargs.continue_final_message.value_or(false);
  if (prompt.add_generation_prompt && prompt.continue_final_message) {
    throw bad_field("continue_final_message",
                    "continue_final_message needs add_generation_prompt false: a final message is either continued or "
                    "followed by a new one");
  }
  const std::string& effort_at = rules.settings.chat_template.effort_at;
  prompt.effort_at = effort_at == "tail"               ? text::EffortPlacement::kTail
                     : effort_at == "before_last_user" ? text::EffortPlacement::kBeforeLastUser
                                                       : text::EffortPlacement::kHead;
}

ChatRequest parse_chat_request(std::string_view body, const RequestRules& rules) {
  const PromptJson json = parse_body(body);
  ChatRequest request;
  request.common = read_common_fields(json, rules);
  request.common.logprobs = read_logprobs(json);
  check_modalities(json);
  refuse_unsupported(json, kUnsupported);
  request.include_reasoning = opt_bool(json, "include_reasoning").value_or(true);
  request.separate_reasoning = opt_bool(json, "separate_reasoning").value_or(true);
  request.prompt.messages = read_messages(json);
  read_tools(json, rules.settings.api.lenient_empty_tools, request);
  request.tool_choice = read_tool_choice(json, request.prompt.tools, json.find("tools") != nullptr);
  keep_allowed(request.tool_choice, request.prompt.tools);
  request.parallel_tool_calls = opt_bool(json, "parallel_tool_calls").value_or(true);
  read_template(json, rules, request.prompt);
  request.reasoning_budget = opt_reasoning_budget(json);
  request.echo = read_echo(json, request.prompt.messages.back());
  return request;
}

}  // namespace glm53::server
