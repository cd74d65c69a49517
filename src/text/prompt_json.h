// JSON values that reach a prompt: order-preserving objects, number literals kept exactly, printed as Python's
// json.dumps(ensure_ascii=False) prints them (spec 40 §2.5). Parsing itself is nlohmann's.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace glm53::text {

class PromptJson {
 public:
  enum class Kind : uint8_t { kNull, kBool, kNumber, kString, kArray, kObject };
  using Array = std::vector<PromptJson>;
  using Object =
      std::vector<std::pair<std::string, PromptJson>>;  ///< client order; a repeated key keeps its first place

  PromptJson() = default;
  static PromptJson boolean(bool value);
  /// `literal` is a valid JSON number.
  static PromptJson number(std::string literal);
  static PromptJson string(std::string value);
  static PromptJson array(Array items);
  static PromptJson object(Object members);

  /// Throws ParseError for invalid JSON, invalid UTF-8, a lone surrogate escape or nesting deeper than `max_depth`.
  static PromptJson parse(std::string_view text, int max_depth = 128);
  struct ParseError : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }
  bool is_number() const { return kind_ == Kind::kNumber; }
  bool is_bool() const { return kind_ == Kind::kBool; }

  bool as_bool() const { return bool_; }                       ///< kBool
  const std::string& as_string() const { return text_; }       ///< kString
  const std::string& number_literal() const { return text_; }  ///< kNumber, as the client wrote it
  const Array& items() const { return array_; }                ///< kArray
  const Object& members() const { return object_; }            ///< kObject

  /// Member of an object; nullptr when absent, null, or this is not an object. Null counts as not given everywhere.
  const PromptJson* find(std::string_view key) const;
  /// As find, but a present null is returned.
  const PromptJson* find_even_null(std::string_view key) const;
  /// Python truth: false for null, false, 0, "", [] and {}.
  bool truthy() const;

  /// json.dumps(value, ensure_ascii=False).
  std::string dump() const;

 private:
  Kind kind_ = Kind::kNull;
  bool bool_ = false;
  std::string text_;
  Array array_;
  Object object_;
};

}  // namespace glm53::text
