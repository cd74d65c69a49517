// The shape of a tokenizer.json (spec 40 §1.1): what it says, once every part that this server does not implement has
// been refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace glm53::text {

struct AddedToken {
  int32_t id = 0;
  std::string text;  ///< not empty
  bool special = false;
};

struct TokenizerJson {
  std::vector<std::pair<std::string, int32_t>> vocab;  ///< piece in the byte alphabet, id; file order
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<AddedToken> added_tokens;
  bool ignore_merges = false;
  std::string split_pattern;
};

/// Ids stay below this, so that tables indexed by id have a bounded size whatever a file says.
inline constexpr int32_t kMaxTokenIds = 1 << 24;

/// Checks the form of every part; whether names and ids agree with each other is the caller's to check. Throws Error
/// naming the part (not the file).
TokenizerJson parse_tokenizer_json(std::string_view text);

}  // namespace glm53::text
