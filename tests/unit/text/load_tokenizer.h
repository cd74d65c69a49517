// Tokenizers of test data.
#pragma once

#include <string>

#include "data_file.h"
#include "text/tokenizer.h"

namespace glm53::test {

inline text::Tokenizer load_tokenizer(const std::string& path) {
  return text::Tokenizer::from_json(read_file(path), path);
}

}  // namespace glm53::test
