#include "text/chat_prompt.h"

#include <map>
#include <optional>
#include <set>

#include "glm53/core/printable.h"

namespace glm53::text {

namespace {

constexpr std::string_view kThinkOpen = "<think>";
constexpr std::string_view kThinkClose = "</think>";

constexpr std::string_view kToolsHead =
    "<|system|>\n"
    "# Tools\n"
    "\n"
    "You may call one or more functions to assist with the user query.\n"
    "\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n"
    "<tools>\n";
constexpr std::string_view kToolsTail =
    "</tools>\n"
    "\n"
    "For each function call, output the function name and arguments within the following XML format:\n"
    "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>"
    "<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>";

// A reference of a few bytes prints a tool of any size, so a small request could ask for an endless prompt.
constexpr size_t kMaxReferenceBytes = size_t{16} << 20;

constexpr size_t kLongestWord = 64;  // of a client in a message

std::string indexed(std::string_view list, size_t index) {
  return std::string(list) + '[' + std::to_string(index) + ']';
}

const std::string* find_string(const PromptJson& object, std::string_view key) {
  const PromptJson* value = object.find(key);
  return value != nullptr && value->is_string() ? &value->as_string() : nullptr;
}

const std::string& require_string(const PromptJson& object, std::string_view key, const std::string& path) {
  const std::string* value = find_string(object, key);
  if (value == nullptr) {
    throw ChatPromptError(path + '.' + std::string(key), path + '.' + std::string(key) + " must be a string");
  }
  return *value;
}

void require_object(const PromptJson& value, const std::string& path) {
  if (!value.is_object()) {
    throw ChatPromptError(path, path + " must be an object");
  }
}

// Tools and calls come nested ({"function": {...}}) or flat. Returns the object that holds the name.
const PromptJson& function_of(const PromptJson& tool, const std::string& path) {
  require_object(tool, path);
  const PromptJson* function = tool.find("function");
  if (function == nullptr) {
    return tool;
  }
  require_object(*function, path + ".function");
  return function->truthy() ? *function : tool;
}

// Id of a tool result, empty when it has none.
std::string_view result_id(const PromptJson& result) {
  for (const std::string_view key : {"tool_call_id", "id"}) {
    if (const std::string* id = find_string(result, key); id != nullptr && !id->empty()) {
      return *id;
    }
  }
  return {};
}

enum class Role { kSystem, kUser, kAssistant, kTool };

Role role_of(const PromptJson& message, const std::string& path) {
  static constexpr std::pair<std::string_view, Role> kRoles[] = {
      {"system", Role::kSystem},       {"developer", Role::kSystem}, {"user", Role::kUser},
      {"assistant", Role::kAssistant}, {"tool", Role::kTool},        {"function", Role::kTool}};
  require_object(message, path);
  const std::string& role = require_string(message, "role", path);
  for (const auto& [name, value] : kRoles) {
    if (role == name) {
      return value;
    }
  }
  throw ChatPromptError(path + ".role", "unknown role " + in_quotes(role, kLongestWord) + " in " + path);
}

void add_part(const PromptJson& part, const std::string& path, PromptText& out) {
  if (part.is_string()) {
    out.add_content(part.as_string());
    return;
  }
  if (!part.is_object()) {
    throw ChatPromptError(path, path + " must be a string or an object");
  }
  const std::string& type = require_string(part, "type", path);
  if (type == "text" || type == "input_text" || type == "output_text") {
    out.add_content(require_string(part, "text", path));
  } else if (type == "image" || type == "image_url") {
    out.add_media(MediaPart::Kind::kImage, path);
  } else if (type == "video" || type == "video_url") {
    out.add_media(MediaPart::Kind::kVideo, path);
  } else if (type == "audio" || type == "audio_url" || type == "input_audio") {
    throw ChatPromptError(path + ".type", "audio input is not supported");
  } else if (type != "refusal" && type != "thinking" && type != "reasoning") {
    throw ChatPromptError(path + ".type", "unknown content part type " + in_quotes(type, kLongestWord) + " in " + path);
  }
}

// VIS of spec 40 §2.3. `content` may be nullptr.
PromptText visible(const PromptJson* content, const std::string& path, bool of_tool) {
  PromptText out;
  if (content == nullptr || content->is_null()) {
    return out;
  }
  if (content->is_string()) {
    out.add_content(content->as_string());
  } else if (content->is_array()) {
    for (size_t i = 0; i < content->items().size(); ++i) {
      add_part(content->items()[i], indexed(path, i), out);
    }
  } else if (of_tool) {
    out.add_content(content->dump());
  } else {
    throw ChatPromptError(path, path + " must be a string or a list of parts");
  }
  return out;
}

class Renderer {
 public:
  explicit Renderer(const ChatPromptInput& input) : input_(input) {}

  ChatPrompt render();

 private:
  void add_effort();
  void add_tools();
  void add_assistant(size_t index);
  void add_call(const PromptJson& call, const std::string& path);
  void add_tool_run(size_t begin, size_t end);
  PromptText references(const PromptJson::Array& items, const std::string& path);

  const ChatPromptInput& input_;
  std::vector<Role> roles_;              ///< of each message
  std::optional<size_t> last_user_;      ///< index of the last message of role user
  std::vector<std::string> tool_lines_;  ///< JSON text of each tool and a line feed
  std::multimap<std::string_view, size_t> tools_by_name_;
  size_t reference_bytes_ = 0;
  PromptText prompt_;
  std::vector<std::string> ignored_arguments_;
};

void Renderer::add_effort() {
  if (input_.thinking) {
    prompt_.add_template("<|system|>Reasoning Effort: ");
    prompt_.add_template(input_.effort == "low" ? "Low" : input_.effort == "high" ? "High" : "Max");
  }
}

void Renderer::add_tools() {
  if (input_.tools.empty()) {
    return;
  }
  prompt_.add_template(kToolsHead);
  for (size_t i = 0; i < input_.tools.size(); ++i) {
    const PromptJson& tool = input_.tools[i];
    const PromptJson& function = function_of(tool, indexed("tools", i));
    PromptJson::Object shown;
    for (const auto& member : function.members()) {
      if (member.first != "defer_loading" && member.first != "strict") {
        shown.push_back(member);
      }
    }
    tool_lines_.push_back(PromptJson::object(std::move(shown)).dump() + '\n');
    if (const std::string* name = find_string(function, "name")) {
      tools_by_name_.emplace(*name, i);
    }
    const auto deferred = [](const PromptJson& object) {
      const PromptJson* flag = object.find("defer_loading");
      return flag != nullptr && flag->truthy();
    };
    if (!deferred(tool) && !deferred(function)) {
      prompt_.add_content(tool_lines_.back());
    }
  }
  prompt_.add_template(kToolsTail);
}

void Renderer::add_assistant(size_t index) {
  const PromptJson& message = input_.messages[index];
  const std::string path = indexed("messages", index);
  const bool continued = input_.continue_final_message && index + 1 == input_.messages.size();
  const PromptText content = visible(message.find("content"), path + ".content", false);
  const std::string text = content.text();

  PromptText reasoning;
  size_t begin = 0;
  const std::string* given = find_string(message, "reasoning");
  if (const std::string* other = find_string(message, "reasoning_content");
      other != nullptr && (given == nullptr || given->empty())) {
    given = other;
  }
  if (given != nullptr) {
    reasoning.add_content(*given);
  } else if (const size_t close = text.find(kThinkClose); close != std::string::npos) {
    const size_t open = std::string_view(text).substr(0, close).rfind(kThinkOpen);
    reasoning = content.slice(open == std::string::npos ? 0 : open + kThinkOpen.size(), close);
    begin = text.rfind(kThinkClose) + kThinkClose.size();
  }
  const bool cleared = input_.clear_thinking && last_user_ && index <= *last_user_;

  prompt_.add_template("<|assistant|>");
  prompt_.add_template(kThinkOpen);
  if (!cleared) {
    prompt_.append(reasoning);
  }
  prompt_.add_template(kThinkClose);
  std::string_view body = strip_front(std::string_view(text).substr(begin));
  begin = text.size() - body.size();
  if (!continued) {
    body = strip_back(body);
  }
  prompt_.append(content.slice(begin, begin + body.size()));

  const PromptJson* calls = message.find("tool_calls");
  const PromptJson* legacy_call = message.find("function_call");
  if (calls != nullptr && !calls->is_array()) {
    throw ChatPromptError(path + ".tool_calls", path + ".tool_calls must be a list");
  }
  const bool has_calls = calls != nullptr && !calls->items().empty();
  if (continued && (has_calls || legacy_call != nullptr)) {
    throw ChatPromptError(path, "continue_final_message: the final message has tool calls after its text");
  }
  if (has_calls) {
    for (size_t i = 0; i < calls->items().size(); ++i) {
      add_call(calls->items()[i], indexed(path + ".tool_calls", i));
    }
  } else if (legacy_call != nullptr) {
    add_call(*legacy_call, path + ".function_call");
  }
}

void Renderer::add_call(const PromptJson& call, const std::string& path) {
  const PromptJson& function = function_of(call, path);
  const std::string function_path = &function == &call ? path : path + ".function";
  prompt_.add_template("<tool_call>");
  prompt_.add_content(require_string(function, "name", function_path));

  const PromptJson* arguments = function.find("arguments");
  PromptJson parsed;
  if (arguments != nullptr && arguments->is_string()) {
    if (arguments->as_string().empty()) {
      arguments = nullptr;
    } else {
      try {
        parsed = PromptJson::parse(arguments->as_string());
      } catch (const PromptJson::ParseError&) {
        // Reported below as not an object.
      }
      arguments = &parsed;
    }
  }
  if (arguments != nullptr && !arguments->is_object()) {
    ignored_arguments_.push_back(function_path + ".arguments");
  } else if (arguments != nullptr) {
    for (const auto& [key, value] : arguments->members()) {
      prompt_.add_template("<arg_key>");
      prompt_.add_content(key);
      prompt_.add_template("</arg_key><arg_value>");
      prompt_.add_content(value.is_string() ? value.as_string() : value.dump());
      prompt_.add_template("</arg_value>");
    }
  }
  prompt_.add_template("</tool_call>");
}

PromptText Renderer::references(const PromptJson::Array& items, const std::string& path) {
  PromptText out;
  out.add_template("<tools>\n");
  for (size_t i = 0; i < items.size(); ++i) {
    require_object(items[i], indexed(path, i));
    const std::string* name = find_string(items[i], "name");
    if (name == nullptr) {
      name = find_string(items[i], "tool_name");
    }
    if (name == nullptr) {
      continue;
    }
    const auto [first, last] = tools_by_name_.equal_range(*name);
    for (auto tool = first; tool != last; ++tool) {
      const std::string& line = tool_lines_[tool->second];
      reference_bytes_ += line.size();
      if (reference_bytes_ > kMaxReferenceBytes) {
        throw ChatPromptError(indexed(path, i), "tool references add more than 16 MiB to the prompt");
      }
      out.add_content(line);
    }
  }
  out.add_template("</tools>");
  return out;
}

// A run of tool messages [begin, end): in the order of the calls where ids tell it, else as sent (spec 40 §2.6).
void Renderer::add_tool_run(size_t begin, size_t end) {
  struct Entry {
    std::string_view id;
    PromptText text;
  };
  std::vector<Entry> entries;
  for (size_t m = begin; m < end; ++m) {
    const PromptJson& message = input_.messages[m];
    const PromptJson* content = message.find("content");
    const std::string path = indexed("messages", m) + ".content";
    const PromptJson* first =
        content != nullptr && content->is_array() && !content->items().empty() ? &content->items()[0] : nullptr;
    if (first != nullptr && first->find_even_null("output") != nullptr) {
      for (size_t i = 0; i < content->items().size(); ++i) {
        const PromptJson& item = content->items()[i];
        require_object(item, indexed(path, i));
        entries.push_back({result_id(item), visible(item.find("output"), indexed(path, i) + ".output", true)});
      }
      continue;
    }
    const std::string* type = first != nullptr ? find_string(*first, "type") : nullptr;
    entries.push_back({result_id(message), type != nullptr && *type == "tool_reference"
                                               ? references(content->items(), path)
                                               : visible(content, path, true)});
  }

  // Entries in call order; stays empty for message order.
  std::vector<size_t> order;
  const PromptJson* calls =
      begin > 0 && roles_[begin - 1] == Role::kAssistant ? input_.messages[begin - 1].find("tool_calls") : nullptr;
  if (calls != nullptr) {
    std::map<std::string_view, size_t> entry_of;
    bool sortable = true;
    for (size_t i = 0; i < entries.size(); ++i) {
      sortable = sortable && !entries[i].id.empty() && entry_of.emplace(entries[i].id, i).second;
    }
    std::set<std::string_view> call_ids;
    for (const PromptJson& call : calls->items()) {
      const std::string* id = find_string(call, "id");
      sortable = sortable && id != nullptr && !id->empty() && call_ids.insert(*id).second;
      if (!sortable) {
        break;
      }
      if (const auto found = entry_of.find(*id); found != entry_of.end()) {
        order.push_back(found->second);
      }
    }
    if (!sortable || order.size() != entries.size()) {  // fewer: some result answers no call
      order.clear();
    }
  }
  prompt_.add_template("<|observation|>");
  for (size_t i = 0; i < entries.size(); ++i) {
    prompt_.add_template("<tool_response>");
    prompt_.append(entries[order.empty() ? i : order[i]].text);
    prompt_.add_template("</tool_response>");
  }
}

ChatPrompt Renderer::render() {
  const std::vector<PromptJson>& messages = input_.messages;
  if (messages.empty()) {
    throw ChatPromptError("messages", "messages must not be empty");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    roles_.push_back(role_of(messages[i], indexed("messages", i)));
    if (roles_.back() == Role::kUser) {
      last_user_ = i;
    }
  }
  if (input_.continue_final_message) {
    if (input_.add_generation_prompt) {
      throw ChatPromptError("continue_final_message",
                            "continue_final_message and add_generation_prompt must not both be true");
    }
    if (roles_.back() != Role::kAssistant) {
      throw ChatPromptError(indexed("messages", messages.size() - 1) + ".role",
                            "continue_final_message needs a final message of role assistant");
    }
  }
  EffortPlacement effort_at = input_.effort_at;
  if (!input_.add_generation_prompt || (effort_at == EffortPlacement::kBeforeLastUser && !last_user_)) {
    effort_at = EffortPlacement::kHead;
  }

  prompt_.add_template("[gMASK]<sop>");
  if (effort_at == EffortPlacement::kHead) {
    add_effort();
  }
  add_tools();
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string content_path = indexed("messages", i) + ".content";
    switch (roles_[i]) {
      case Role::kSystem:
        prompt_.add_template("<|system|>");
        prompt_.append(visible(messages[i].find("content"), content_path, false));
        break;
      case Role::kUser:
        if (effort_at == EffortPlacement::kBeforeLastUser && i == *last_user_) {
          add_effort();
        }
        prompt_.add_template("<|user|>");
        prompt_.append(visible(messages[i].find("content"), content_path, false));
        break;
      case Role::kAssistant:
        add_assistant(i);
        break;
      case Role::kTool: {
        size_t end = i + 1;
        while (end < messages.size() && roles_[end] == Role::kTool) {
          ++end;
        }
        add_tool_run(i, end);
        i = end - 1;
        break;
      }
    }
  }
  if (input_.add_generation_prompt) {
    if (effort_at == EffortPlacement::kTail) {
      add_effort();
    }
    prompt_.add_template("<|assistant|>");
    prompt_.add_template(kThinkOpen);
    if (!input_.thinking) {
      prompt_.add_template(kThinkClose);
    }
  }
  return {prompt_.segments(), prompt_.media(), std::move(ignored_arguments_)};
}

}  // namespace

std::string ChatPrompt::text() const {
  std::string out;
  for (const TextSegment& segment : segments) {
    out += segment.text;
  }
  return out;
}

ChatPrompt render_chat_prompt(const ChatPromptInput& input) { return Renderer(input).render(); }

}  // namespace glm53::text
