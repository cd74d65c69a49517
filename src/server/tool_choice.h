// Which tools a request offers and what it says about calling them (spec 40 §4.5, §6.1), for all routes alike.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/prompt_json.h"
#include "text/reply_parser.h"

namespace glm53::server {

inline constexpr size_t kMaxTools = 1024;

struct ToolChoice {
  enum class Mode : uint8_t {
    kNone,      ///< no calls: the text of one stays in the reply
    kAuto,      ///< the model decides
    kRequired,  ///< at least one call
    kNamed      ///< exactly one call, of `name`
  };
  Mode mode = Mode::kNone;
  std::string name;                  ///< kNamed
  std::vector<std::string> allowed;  ///< kAuto, kRequired: the only functions to be called; empty: all

  /// Whether the function may be called, as far as the choice names functions.
  bool permits(const std::string& function) const;
  /// Whether it names functions at all.
  bool restricts() const { return mode == Mode::kNamed || !allowed.empty(); }
};

/// `tools` of a body; null when absent, as an empty list is to be taken with `lenient` (api.lenient_empty_tools).
/// Throws ApiError naming it: no list, an empty one, more than kMaxTools.
const text::PromptJson::Array* opt_tools(const text::PromptJson& body, bool lenient);

/// Throws ApiError 400 naming `field` for a function's name that no reply can carry (text::is_callable_name).
void check_tool_name(const std::string& name, const std::string& field);

/// What the model calls a function of a namespace; empty: of none.
std::string full_tool_name(const std::string& space, const std::string& name);

/// The object that holds a tool's name and parameters: the tool's `function`, or the tool itself where it is flat.
const text::PromptJson& tool_function(const text::PromptJson& tool);

/// `tool_choice` of a chat or Responses request over checked `tools`; absent: auto with tools, else none. Forms: none,
/// auto, required, {"type":"function","function":{"name"}} or flat with `name` (and `namespace`), and allowed_tools,
/// nested or flat. Throws ApiError naming the field: an unknown form, a function that is not in `tools`, and any choice
/// but none without tools, except that auto is fine with `empty_is_auto`.
ToolChoice read_tool_choice(const text::PromptJson& body, const std::vector<text::PromptJson>& tools,
                            bool empty_is_auto = false);

/// A choice of one function. Throws ApiError 400 naming `field` when it is not in `tools`.
ToolChoice named_choice(const std::string& name, const std::vector<text::PromptJson>& tools, const std::string& field);

/// Of the tools that the prompt shows, those that allowed_tools leaves: the model would call what it sees.
void keep_allowed(const ToolChoice& choice, std::vector<text::PromptJson>& tools);

/// What the reply's parser has to know; null where no calls are looked for. Of several tools of one name the last
/// counts.
std::shared_ptr<const text::OfferedTools> offered_tools(const std::vector<text::PromptJson>& tools,
                                                        const ToolChoice& choice);

}  // namespace glm53::server
