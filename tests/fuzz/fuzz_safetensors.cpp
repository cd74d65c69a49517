// Safetensors headers: any bytes end in entries that lie inside the file, or in an Error.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "checkpoint/safetensors.h"
#include "glm53/core/error.h"

namespace {

void parse(std::string_view prefix, uint64_t file_size) {
  try {
    for (const glm53::SafetensorsEntry& entry : glm53::parse_safetensors_header(prefix, file_size, "fuzz")) {
      if (entry.begin > entry.end || entry.end > file_size) std::abort();
    }
  } catch (const glm53::Error& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();  // messages are one line
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  parse(bytes, size);
  // The same bytes once more as the JSON alone, so that a mutation need not guess the length in front of it; data of a
  // size that depends on the input follow.
  const uint64_t length = size;
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  file += bytes;
  parse(file, file.size() + (size == 0 ? 0 : data[size - 1]));
  return 0;
}
