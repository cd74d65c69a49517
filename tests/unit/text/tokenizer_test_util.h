// Small tokenizer.json files made by hand.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace glm53::text {

inline const char* const kFamilyPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// A file of the family's form; at first it has one token a byte, whose id is the byte, and nothing else.
struct SmallTokenizer {
  struct Added {
    std::string text;
    int32_t id;
    bool special;
  };

  SmallTokenizer();

  std::map<std::string, int32_t> vocab;  ///< pieces in the byte alphabet
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<Added> added_tokens;
  bool ignore_merges = false;
  bool merges_as_strings = false;
  bool vocab_last = false;  ///< model.merges before model.vocab
  std::string normalizer = "null";
  std::string post_processor = "null";

  /// Appends a merge; the join gets `id` unless it has one already.
  void merge(const std::string& left, const std::string& right, int32_t id);

  std::string json() const;
  Tokenizer load() const { return Tokenizer::from_json(json(), "test.json"); }
};

/// The letter of the byte alphabet for `byte` (spec 40 §1.4).
std::string byte_letter(int byte);

std::string utf8_of(const std::vector<char32_t>& code_points);

}  // namespace glm53::text
