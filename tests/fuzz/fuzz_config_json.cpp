// config.json: any text ends in a geometry whose lists agree with its layer count, or in an Error.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "checkpoint/config_json.h"
#include "glm53/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const glm53::Geometry geometry =
        glm53::geometry_from_json(std::string_view(reinterpret_cast<const char*>(data), size), "config.json");
    const auto layers = static_cast<size_t>(geometry.layers);
    if (layers == 0 || geometry.attention.size() != layers || geometry.mlp.size() != layers) std::abort();
  } catch (const glm53::Error& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();  // messages are one line
  }
  return 0;
}
