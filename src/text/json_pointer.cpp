#include "text/json_pointer.h"

#include <algorithm>
#include <charconv>
#include <string>

namespace glm53::text {

namespace {

std::string unescaped(std::string_view token) {
  std::string name;
  for (size_t i = 0; i < token.size(); ++i) {
    const char* const next = token.data() + i + 1;
    unsigned code = 0;
    if (token[i] == '~' && i + 1 < token.size() && (*next == '0' || *next == '1')) {
      name += *next == '0' ? '~' : '/';
      ++i;
    } else if (token[i] == '%' && i + 2 < token.size() && std::from_chars(next, next + 2, code, 16).ptr == next + 2) {
      name += static_cast<char>(code);
      i += 2;
    } else {
      name += token[i];
    }
  }
  return name;
}

const PromptJson* element(const PromptJson& array, std::string_view name) {
  size_t index = 0;
  const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  const bool valid = error == std::errc() && stop == name.data() + name.size() && index < array.items().size();
  return valid ? &array.items()[index] : nullptr;
}

}  // namespace

bool is_local_reference(std::string_view reference) { return reference == "#" || reference.starts_with("#/"); }

const PromptJson* find_reference(const PromptJson& document, std::string_view reference, size_t* compared) {
  if (!is_local_reference(reference)) return nullptr;
  const PromptJson* at = &document;
  size_t begin = 1;
  while (begin < reference.size() && at != nullptr) {
    const size_t end = std::min(reference.find('/', begin + 1), reference.size());
    const std::string name = unescaped(reference.substr(begin + 1, end - begin - 1));
    if (compared != nullptr && at->is_object()) *compared += at->members().size();
    at = at->is_array() ? element(*at, name) : at->find(name);
    begin = end;
  }
  return at;
}

}  // namespace glm53::text
