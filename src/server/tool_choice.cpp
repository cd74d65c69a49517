#include "server/tool_choice.h"

#include <algorithm>
#include <map>
#include <utility>

#include "glm53/core/contains.h"
#include "glm53/core/printable.h"
#include "server/api_error.h"
#include "server/json_get.h"

namespace glm53::server {
namespace {

using text::PromptJson;
using Mode = ToolChoice::Mode;

constexpr size_t kLongestName = 64;  // of a client in a message

const std::string& name_of(const PromptJson& tool) { return tool_function(tool).find("name")->as_string(); }

bool holds(const std::vector<PromptJson>& tools, const std::string& name) {
  return std::any_of(tools.begin(), tools.end(), [&](const PromptJson& tool) { return name_of(tool) == name; });
}

void require_offered(const std::string& name, const std::vector<PromptJson>& tools, const std::string& field) {
  if (!holds(tools, name)) throw bad_field(field, field + " names " + in_quotes(name, kLongestName) + ", not in tools");
}

struct Reference {
  std::string name;
  std::string field;  ///< that gave it
};

/// A function that is referred to: {"type":"function","function":{"name"}}, or flat with `name` and perhaps
/// `namespace`. A custom tool is a function too.
Reference read_reference(const PromptJson& object, const std::string& path) {
  const std::string& type = require_string(object, "type", path + '.');
  if (type != "function" && type != "custom") {
    throw bad_field(path + ".type", path + ".type must be function");
  }
  const PromptJson* nested = opt_object(object, type, path + '.');
  const std::string prefix = nested != nullptr ? path + '.' + type + '.' : path + '.';
  const PromptJson& holder = nested != nullptr ? *nested : object;
  const std::string& name = require_string(holder, "name", prefix);
  const std::string* space = opt_string(holder, "namespace", prefix);
  return {full_tool_name(space != nullptr ? *space : "", name), prefix + "name"};
}

/// {"type":"allowed_tools","allowed_tools":{"mode","tools"}}, or the two members at its own level.
ToolChoice read_allowed(const PromptJson& object, const std::vector<PromptJson>& tools) {
  const PromptJson* nested = opt_object(object, "allowed_tools", "tool_choice.");
  const std::string path = nested != nullptr ? "tool_choice.allowed_tools" : "tool_choice";
  const PromptJson& holder = nested != nullptr ? *nested : object;
  const std::string& mode = require_string(holder, "mode", path + '.');
  if (mode != "auto" && mode != "required") {
    throw bad_field(path + ".mode", path + ".mode must be auto or required");
  }
  const PromptJson::Array* list = opt_array(holder, "tools", path + '.');
  if (list == nullptr || list->empty()) throw bad_field(path + ".tools", path + ".tools is required");
  if (list->size() > kMaxTools) throw bad_field(path + ".tools", path + ".tools must hold at most 1024 tools");
  ToolChoice choice{mode == "auto" ? Mode::kAuto : Mode::kRequired, {}, {}};
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string item = indexed(path + ".tools", i);
    require_object((*list)[i], item);
    Reference reference = read_reference((*list)[i], item);
    require_offered(reference.name, tools, reference.field);
    choice.allowed.push_back(std::move(reference.name));
  }
  return choice;
}

ToolChoice read_word(const std::string& word) {
  if (word == "none") return {Mode::kNone, {}, {}};
  if (word == "auto") return {Mode::kAuto, {}, {}};
  if (word == "required") return {Mode::kRequired, {}, {}};
  throw bad_field("tool_choice", "tool_choice must be none, auto, required or an object");
}

}  // namespace

bool ToolChoice::permits(const std::string& function) const {
  return mode == Mode::kNamed ? function == name : allowed.empty() || contains(allowed, function);
}

const PromptJson::Array* opt_tools(const PromptJson& body, bool lenient) {
  const PromptJson::Array* tools = opt_array(body, "tools");
  if (tools == nullptr) return nullptr;
  if (tools->size() > kMaxTools) throw bad_field("tools", "tools must hold at most 1024 tools");
  if (!tools->empty()) return tools;
  if (lenient) return nullptr;
  throw bad_field("tools", "`tools` must not be an empty array: leave it out, or give at least one tool");
}

void check_tool_name(const std::string& name, const std::string& field) {
  if (text::is_callable_name(name)) return;
  throw bad_field(field, field + " must be 1 to " + std::to_string(text::kMaxToolName) +
                             " bytes without white space, control characters and '<', and not begin with '{'");
}

std::string full_tool_name(const std::string& space, const std::string& name) {
  return space.empty() ? name : space + "__" + name;
}

const PromptJson& tool_function(const PromptJson& tool) {
  const PromptJson* nested = tool.find("function");
  return nested != nullptr && nested->is_object() ? *nested : tool;
}

ToolChoice named_choice(const std::string& name, const std::vector<PromptJson>& tools, const std::string& field) {
  require_offered(name, tools, field);
  return {Mode::kNamed, name, {}};
}

ToolChoice read_tool_choice(const PromptJson& body, const std::vector<PromptJson>& tools, bool empty_is_auto) {
  const PromptJson* value = body.find("tool_choice");
  if (value == nullptr) return {tools.empty() ? Mode::kNone : Mode::kAuto, {}, {}};
  if (!value->is_string() && !value->is_object()) {
    throw bad_field("tool_choice", "tool_choice must be none, auto, required or an object");
  }
  if (value->is_string()) {
    ToolChoice choice = read_word(value->as_string());
    if (tools.empty() && choice.mode == Mode::kAuto && empty_is_auto) choice.mode = Mode::kNone;
    if (tools.empty() && choice.mode != Mode::kNone) throw bad_field("tool_choice", "tool_choice needs tools");
    return choice;
  }
  if (tools.empty()) throw bad_field("tool_choice", "tool_choice needs tools");
  if (require_string(*value, "type", "tool_choice.") == "allowed_tools") return read_allowed(*value, tools);
  const Reference reference = read_reference(*value, "tool_choice");
  return named_choice(reference.name, tools, reference.field);
}

void keep_allowed(const ToolChoice& choice, std::vector<PromptJson>& tools) {
  if (choice.allowed.empty()) return;
  std::erase_if(tools, [&](const PromptJson& tool) { return !choice.permits(name_of(tool)); });
}

std::shared_ptr<const text::OfferedTools> offered_tools(const std::vector<PromptJson>& tools,
                                                        const ToolChoice& choice) {
  if (choice.mode == Mode::kNone || tools.empty()) return nullptr;
  std::map<std::string, const PromptJson*> last;
  for (const PromptJson& tool : tools) {
    if (choice.permits(name_of(tool))) last[name_of(tool)] = &tool_function(tool);
  }
  auto offered = std::make_shared<text::OfferedTools>();
  for (const auto& [name, function] : last) {
    const PromptJson* parameters = function->find("parameters");
    const PromptJson* strict = function->find("strict");
    offered->push_back({name, parameters != nullptr ? *parameters : PromptJson(),
                        strict != nullptr && strict->is_bool() && strict->as_bool()});
  }
  return offered;
}

}  // namespace glm53::server
