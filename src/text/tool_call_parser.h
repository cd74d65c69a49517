// One tool call of a reply, from the token after <tool_call> to </tool_call> (spec 40 §4.1, §4.3, §4.4, §4.6). Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/json_scan.h"
#include "text/offered_tools.h"
#include "text/prompt_json.h"
#include "text/tokenizer.h"
#include "text/tool_arguments.h"
#include "text/tool_tags.h"

namespace glm53::text {

inline constexpr int kMaxCalls = 128;             ///< of one reply; the last one ends it (spec 40 §4.5)
inline constexpr size_t kMaxToolName = 256;       ///< bytes
inline constexpr size_t kMaxArgumentName = 1024;  ///< bytes

/// Whether a reply can call a function of this name: 1 to kMaxToolName bytes, none of them white space or a control
/// character of ASCII, nor '<', with which a tag begins, and '{' not the first, with which a JSON body begins.
bool is_callable_name(std::string_view name);
/// Whether a reply can give an argument of this name: 1 to kMaxArgumentName bytes, no white space around them.
bool is_readable_key(std::string_view name);

/// Looks up the tools of a request by the names that a model writes.
class ToolNames {
 public:
  /// `tools` outlives the object; those whose name is not callable are never found.
  explicit ToolNames(const OfferedTools& tools);

  /// By the exact name, else by the only one that differs in the case of ASCII letters alone; else nullptr.
  const OfferedTool* find(const std::string& name) const;
  /// Whether `name` followed by `next` can begin a name: of an offered tool's characters, or 1-64 of [A-Za-z0-9_.-].
  bool continues(const std::string& name, char next) const;

 private:
  std::map<std::string, const OfferedTool*> exact_;
  std::map<std::string, const OfferedTool*> folded_;  ///< nullptr: several
  std::array<bool, 256> in_names_{};
  size_t longest_ = 64;
};

/// What is well formed is a call, and so is what the repairs of spec 40 §4.4 make well formed; all else is text.
/// Repairs need a tool that was offered.
///
/// In a value nested <tool_call> and </tool_call> pair up; both belong to the value.
class ToolCallParser {
 public:
  struct Options {
    /// Arguments of an offered tool are handed out as they come; what then turns out malformed is left out, since
    /// nothing can be taken back.
    bool incremental = false;
    bool strict = false;        ///< no repairs, no JSON body
    bool unknown_tools = true;  ///< well-formed calls of tools that were not offered are calls too
    bool flush_partial_utf8 = false;
  };
  enum class Status : uint8_t {
    kOpen,
    kCall,        ///< complete
    kCallBefore,  ///< complete, without the tag just fed: it opens the next block
    kText,        ///< no call
  };

  /// `names` and `typers` outlive the parser.
  ToolCallParser(const ToolNames& names, ArgumentTypers& typers, Options options)
      : names_(names), typers_(typers), options_(options), strict_(options.strict) {}

  // Nothing is fed after a status other than kOpen.
  Status push(std::string_view bytes);                  ///< of a token that is no tag
  Status push_tag(ToolTag tag, std::string_view text);  ///< not kNone; `text` as it would be printed
  /// The reply is complete as it is: kCall or kText.
  Status finish();
  /// The reply was cut off: completes the JSON that has been handed out. Only when opened().
  void cut();

  /// Name and the beginning of the arguments stand, and will not become text any more.
  bool opened() const { return opened_; }
  /// Name and arguments as far as they are known: with opened(), or after kCall and kCallBefore.
  const std::string& name() const { return name_; }
  /// JSON text since the last call of this; all of it makes one object, printed as Python's json.dumps does.
  std::string take_arguments();

 private:
  enum class State : uint8_t {
    kStart,     ///< before the name
    kName,      ///< in the name
    kBetween,   ///< behind the name or an argument
    kKey,       ///< behind <arg_key>
    kAfterKey,  ///< behind </arg_key>
    kValue,     ///< behind <arg_value>
    kJson,      ///< in a body that is JSON
    kJsonEnd,   ///< behind one that is a call
    kSkip,      ///< in the malformed rest of a call that is opened
  };

  Status take_text(std::string_view text);
  Status take_head(std::string_view text);
  Status take_tag(ToolTag tag, std::string_view text);
  Status tag_between(ToolTag tag);
  Status tag_after_key(ToolTag tag);
  Status tag_in_value(ToolTag tag, std::string_view text);
  Status tag_while_skipping(ToolTag tag);
  Status malformed(ToolTag tag = ToolTag::kNone);
  bool take_word(char c);
  bool find_tool();
  bool end_name();
  void open();
  void begin_value();
  void add_value_text(std::string_view text);
  void end_value(bool closed);
  void key_without_value();
  void begin_member(std::string_view key);
  void add_member(PromptJson value);
  Status complete(Status status = Status::kCall);
  Status take_json(std::string_view text);
  bool read_json();

  const ToolNames& names_;
  ArgumentTypers& typers_;
  Options options_;
  bool strict_;  ///< of this call: by the options, or because its tool is not known
  State state_ = State::kStart;
  IncrementalDecoder decoder_;
  std::string name_;
  ArgumentTyper* typer_ = nullptr;  ///< of the tool, once it is known
  JsonObjectScan json_;
  bool opened_ = false;
  bool any_argument_ = false;
  std::string word_;  ///< in kBetween: a key that nothing opened
  bool word_ended_ = false;
  std::string key_;
  std::string text_;        ///< of a key, a value or a JSON body; of a value that is streaming what is held back
  bool streaming_ = false;  ///< the value is handed out piece by piece
  int nested_ = 0;          ///< <tool_call> tags open within the value
  PromptJson::Object members_;
  std::map<std::string, size_t> places_;  ///< in members_
  bool first_member_ = true;              ///< of the JSON handed out
  std::string arguments_;
};

}  // namespace glm53::text
