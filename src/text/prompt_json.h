// JSON values that reach a prompt: order-preserving objects, number literals kept exactly, printed as Python's
// json.dumps(ensure_ascii=False) prints them (spec 40 §2.5). Parsing itself is nlohmann's.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace glm53::text {

class PromptJson {
 public:
  enum class Kind : uint8_t { kNull, kBool, kNumber, kString, kArray, kObject };
  using Array = std::vector<PromptJson>;
  using Object =
      std::vector<std::pair<std::string, PromptJson>>;  ///< client order; a repeated key keeps its first place

  PromptJson() = default;
  // Out of line: GCC 12 takes an inlined move of the variant for a read of uninitialised memory.
  PromptJson(const PromptJson&);
  PromptJson(PromptJson&&) noexcept;
  PromptJson& operator=(const PromptJson&);
  PromptJson& operator=(PromptJson&&) noexcept;
  ~PromptJson();

  static PromptJson boolean(bool value);
  /// `literal` is a valid JSON number whose value a double can hold, or an integer of any length.
  static PromptJson number(std::string literal);
  static PromptJson string(std::string value);
  static PromptJson array(Array items);
  static PromptJson object(Object members);

  /// What one text may hold: four prompts of a million token ids. A value takes 40 to 72 bytes of memory, which `[]`
  /// after `[]` would make of three.
  static constexpr size_t kMaxValues = size_t{1} << 22;

  /// Throws ParseError for invalid JSON, invalid UTF-8, a lone surrogate escape, nesting deeper than `max_depth`, more
  /// than kMaxValues values, a non-integer beyond the range of double, and an integer of more than 4,300 digits
  /// (Python's own limit), the last four as LimitError. The message is one line and quotes nothing of the text.
  static PromptJson parse(std::string_view text, int max_depth = 128);
  struct ParseError : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  /// Of JSON that is valid, but more than is read here. The message is what the text has: "more than ...".
  struct LimitError : ParseError {
    using ParseError::ParseError;
  };

  Kind kind() const { return static_cast<Kind>(value_.index()); }
  bool is_null() const { return kind() == Kind::kNull; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_array() const { return kind() == Kind::kArray; }
  bool is_object() const { return kind() == Kind::kObject; }
  bool is_number() const { return kind() == Kind::kNumber; }
  bool is_bool() const { return kind() == Kind::kBool; }

  // Each accessor belongs to one kind; another kind is a std::bad_variant_access.
  bool as_bool() const { return std::get<bool>(value_); }                              ///< kBool
  const std::string& as_string() const { return std::get<std::string>(value_); }       ///< kString
  const std::string& number_literal() const { return std::get<Number>(value_).text; }  ///< kNumber, as written (-0: 0)
  const Array& items() const { return std::get<Array>(value_); }                       ///< kArray
  const Object& members() const { return std::get<Object>(value_); }                   ///< kObject

  /// Member of an object; nullptr when absent, null, or this is not an object. Null counts as not given everywhere.
  const PromptJson* find(std::string_view key) const;
  /// As find, but a present null is returned.
  const PromptJson* find_even_null(std::string_view key) const;
  /// Python truth: false for null, false, 0, "", [] and {}.
  bool truthy() const;

  /// json.dumps(value, ensure_ascii=False).
  std::string dump() const;

 private:
  struct Number {
    std::string text;
  };
  void dump_to(std::string& out) const;

  std::variant<std::monostate, bool, Number, std::string, Array, Object> value_;  ///< in the order of Kind
};

}  // namespace glm53::text
