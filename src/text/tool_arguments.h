// From the text of a call's arguments to JSON values, as the tool's parameter schema says (spec 40 §4.2). Pure.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/prompt_json.h"

namespace glm53::text {

/// Types the arguments of one tool. Text is valid UTF-8. Total: any text for any key under any schema has a value.
///
/// Beyond the union of spec 40 §4.2, `const` counts as an enum of one value and OpenAPI's `nullable` as the type null.
/// Strings inside a parsed object or array are typed anew where their own schema has no string. References that are
/// not local or point to nothing say nothing, and so does what lies beyond kWork.
class ArgumentTyper {
 public:
  /// Schema members looked at in all, so that schemas of many overlapping alternatives cannot hold a reply up.
  static constexpr size_t kWork = 4'000'000;

  /// `parameters` is the JSON schema of all arguments, null for none. `work` counts what is looked at. Both outlive the
  /// typer.
  ArgumentTyper(const PromptJson& parameters, size_t& work) : document_(parameters), work_(work) {}

  /// Whatever the text of this argument, its value is the string of that text.
  bool only_text(std::string_view key);
  /// Whether an argument may be a string.
  bool admits_text(std::string_view key);
  PromptJson value(std::string_view key, std::string_view text);

 private:
  enum Type : unsigned {
    kNull = 1,
    kInteger = 2,
    kNumber = 4,
    kBoolean = 8,
    kObject = 16,
    kArray = 32,
    kString = 64,
    kUnknown = 128,  ///< a name that is no type: anything but the default
  };
  /// What a schema says, with all that it refers to and all its alternatives.
  struct Summary {
    unsigned types = 0;                                                      ///< 0: not said, which means a string
    std::vector<std::pair<std::string_view, const PromptJson*>> properties;  ///< by name; of equal ones the first holds
    const PromptJson* items = nullptr;
    const PromptJson* additional = nullptr;  ///< schema of other properties
  };

  static unsigned type_of(std::string_view name);
  static unsigned type_of(const PromptJson& value);
  const Summary& summary_of(const PromptJson& schema);
  void read_keyword(const std::string& keyword, const PromptJson& value, Summary& summary,
                    std::vector<const PromptJson*>& further);
  unsigned types_of(const PromptJson& schema);
  const PromptJson* schema_of(const Summary& object, std::string_view key);
  PromptJson typed(const PromptJson& schema, std::string_view text, int depth);
  PromptJson nested(const PromptJson& schema, const PromptJson& value, int depth);

  const PromptJson& document_;
  std::map<const PromptJson*, Summary> summaries_;
  size_t& work_;
};

/// The typers of one reply: one for each tool, and kWork for all of them together, however many calls there are.
class ArgumentTypers {
 public:
  ArgumentTypers() = default;
  ArgumentTypers(const ArgumentTypers&) = delete;
  ArgumentTypers& operator=(const ArgumentTypers&) = delete;

  /// `parameters` as for ArgumentTyper; outlives the object.
  ArgumentTyper& of(const PromptJson& parameters) {
    return typers_.try_emplace(&parameters, parameters, work_).first->second;
  }

 private:
  size_t work_ = 0;
  std::map<const PromptJson*, ArgumentTyper> typers_;
};

}  // namespace glm53::text
