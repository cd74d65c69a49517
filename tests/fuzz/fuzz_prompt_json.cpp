// JSON of a client: parsing never crashes, and what it prints is a fixed point.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/prompt_json.h"

using glm53::text::PromptJson;

namespace {

int depth(const PromptJson& json) {
  int deepest = 0;
  if (json.is_array()) {
    for (const PromptJson& item : json.items()) {
      deepest = std::max(deepest, depth(item));
    }
    return deepest + 1;
  }
  if (json.is_object()) {
    for (const auto& [key, value] : json.members()) {
      // find gives the first of a name, so a repeated one would show here.
      if (json.find_even_null(key) != &value) {
        std::abort();
      }
      deepest = std::max(deepest, depth(value));
    }
    return deepest + 1;
  }
  return 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int kMaxDepth = 16;
  PromptJson json;
  try {
    json = PromptJson::parse(std::string_view(reinterpret_cast<const char*>(data), size), kMaxDepth);
  } catch (const PromptJson::ParseError&) {
    return 0;
  }
  if (depth(json) > kMaxDepth) {
    std::abort();
  }
  const std::string text = json.dump();
  const PromptJson again = PromptJson::parse(text, kMaxDepth);  // what was printed must parse
  if (again.dump() != text || again.truthy() != json.truthy()) {
    std::abort();
  }
  return 0;
}
