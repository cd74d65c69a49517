#include "tokenizer_test_util.h"

#include <nlohmann/json.hpp>

#include "glm53/core/utf8.h"

namespace glm53::text {

using nlohmann::ordered_json;

SmallTokenizer::SmallTokenizer() {
  for (int byte = 0; byte < 256; ++byte) vocab[byte_letter(byte)] = byte;
}

void SmallTokenizer::merge(const std::string& left, const std::string& right, int32_t id) {
  vocab.emplace(left + right, id);
  merges.emplace_back(left, right);
}

std::string SmallTokenizer::json() const {
  ordered_json merge_list = ordered_json::array();
  for (const auto& [left, right] : merges) {
    if (merges_as_strings) {
      merge_list.push_back(left + " " + right);
    } else {
      merge_list.push_back(ordered_json::array({left, right}));
    }
  }
  ordered_json model = {{"type", "BPE"}, {"ignore_merges", ignore_merges}};
  if (vocab_last) model["merges"] = merge_list;
  model["vocab"] = vocab;
  if (!vocab_last) model["merges"] = merge_list;

  ordered_json added = ordered_json::array();
  for (const Added& token : added_tokens) {
    ordered_json entry = {{"id", token.id}, {"content", token.text}, {"special", token.special}};
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) entry[flag] = false;
    added.push_back(entry);
  }
  const ordered_json split = {{"type", "Split"},
                              {"pattern", ordered_json{{"Regex", kFamilyPattern}}},
                              {"behavior", "Isolated"},
                              {"invert", false}};
  const ordered_json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  ordered_json file;
  file["added_tokens"] = added;
  file["normalizer"] = ordered_json::parse(normalizer);
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", ordered_json::array({split, byte_level})}};
  file["post_processor"] = ordered_json::parse(post_processor);
  file["decoder"] = ordered_json{{"type", "ByteLevel"}};
  file["model"] = model;
  return file.dump();
}

std::string byte_letter(int byte) {
  char32_t letter = static_cast<char32_t>(byte);
  if (byte <= 0x20) {
    letter += 0x100;
  } else if (byte >= 0x7F && byte <= 0xA0) {
    letter = 0x100 + 33 + (letter - 0x7F);
  } else if (byte == 0xAD) {
    letter = 0x100 + 67;
  }
  return utf8_of({letter});
}

std::string utf8_of(const std::vector<char32_t>& code_points) {
  std::string text;
  for (const char32_t code_point : code_points) append_code_point(code_point, text);
  return text;
}

}  // namespace glm53::text
