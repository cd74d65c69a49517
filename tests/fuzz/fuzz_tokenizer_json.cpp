// Arbitrary bytes as tokenizer.json; what loads must encode and decode. Input that does not begin like JSON is a split
// pattern, up to the first line feed, and a text to split, so that patterns are tried without a whole vocabulary.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "glm53/core/error.h"
#include "glm53/core/utf8.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"

using namespace glm53;
using namespace glm53::text;

namespace {

// std::terminate is not reported with a stack by every fuzzer build; abort is.
void require(bool holds) {
  if (!holds) std::abort();
}

void try_tokenizer(std::string_view json) {
  const Tokenizer tokenizer = Tokenizer::from_json(json, "input");
  const std::string text = "don't hell \xE4\xBD\xA0 <think>12345\r\n\t  <|user|>\xF0\x9F\x98\x80";
  const std::vector<int32_t> ids = tokenizer.encode(text);
  require(tokenizer.decode(ids, false) == text);
  const std::vector<TextSegment> segments = {{TextSegment::Kind::kContent, text}, {TextSegment::Kind::kPlain, text}};
  require(tokenizer.decode(tokenizer.encode(segments), false) == text + text);
  for (int32_t id = -1; id <= std::min(tokenizer.id_count(), 400); ++id) {
    require(tokenizer.has_token(id) || tokenizer.token_bytes(id).empty());
    tokenizer.token_piece(id);
  }
}

void try_pattern(std::string_view input) {
  const size_t line = input.find('\n');
  if (line == std::string_view::npos) return;
  const PreTokenizer pre_tokenizer{std::string(input.substr(0, line))};
  const std::string text = to_valid_utf8(input.substr(line + 1, 64));
  std::string joined;
  for (const std::string_view piece : pre_tokenizer.split(text)) {
    require(!piece.empty());
    joined += piece;
  }
  require(joined == text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    if (input.starts_with('{')) {
      try_tokenizer(input);
    } else {
      try_pattern(input);
    }
  } catch (const Error& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos);
  } catch (const std::runtime_error&) {  // PCRE2 gave up: an answer, as for a request
  }
  return 0;
}
