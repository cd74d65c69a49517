// References within a JSON document, as schemas write them ("#/$defs/city"; RFC 6901 in a URI fragment). Pure.
#pragma once

#include <cstddef>
#include <string_view>

#include "text/prompt_json.h"

namespace glm53::text {

/// Whether `reference` is "#" or "#/...": of this document, not of another one or by a name.
bool is_local_reference(std::string_view reference);

/// What a local reference points to; nullptr for nothing, or for null. Adds the number of members that were compared to
/// `compared`: a caller with many references can bound the whole.
const PromptJson* find_reference(const PromptJson& document, std::string_view reference, size_t* compared = nullptr);

}  // namespace glm53::text
