#include "glm53/core/utf8.h"
#include "text/tokenizer.h"

namespace glm53::text {

std::string IncrementalDecoder::push(std::string_view bytes) {
  pending_ += bytes;
  std::string text;
  const size_t tail = append_utf8(pending_, text);
  pending_.erase(0, pending_.size() - tail);
  return text;
}

std::string IncrementalDecoder::finish(bool flush) {
  const bool cut = !pending_.empty();
  pending_.clear();
  return std::string(cut && flush ? kReplacementCharacter : "");
}

}  // namespace glm53::text
