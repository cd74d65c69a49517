// The byte alphabet of byte-level BPE (spec 40 §1.4): bytes 21-7E, A1-AC and AE-FF stand for themselves, the other 68,
// in ascending order, for U+0100, U+0101, ...
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace glm53::text {

/// "Ġword" for " word".
std::string bytes_to_alphabet(std::string_view bytes);

/// Inverse; nullopt when `piece` (valid UTF-8) has a character outside the alphabet.
std::optional<std::string> alphabet_to_bytes(std::string_view piece);

}  // namespace glm53::text
