// Follows the text of a JSON object as it comes: where it ends, and where it cannot be one any more. Pure.
#pragma once

#include <cstdint>
#include <string>

namespace glm53::text {

/// Knows JSON's structure, not its spelling: numbers, words, escapes and depth are PromptJson::parse's to refuse.
/// Whatever PromptJson::parse takes for an object is followed to its end.
class JsonObjectScan {
 public:
  enum class Status : uint8_t { kOpen, kComplete, kNotJson };
  /// The next byte, the object's '{' first. Nothing is fed after a status other than kOpen.
  Status push(char c);

 private:
  enum class Next : uint8_t { kValue, kFirstKey, kKey, kColon, kFirstItem, kCommaOrEnd };

  Status begin_value(char c);
  Status close(char c);

  Next next_ = Next::kValue;
  std::string open_;  ///< what will close the objects and lists around, innermost last
  bool in_string_ = false;
  bool escaped_ = false;  ///< by the last byte of the string
  bool in_word_ = false;  ///< a number, true, false or null
};

}  // namespace glm53::text
