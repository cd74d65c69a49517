// Arbitrary bytes as a configuration file: each is read or refused with one line. What was read prints as a file that
// reads back to the same values.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "config/effective_settings.h"
#include "config/setting_table.h"
#include "glm53/core/error.h"

namespace {

using namespace glm53::config;

EffectiveSettings settings_from(std::string_view text) {
  EffectiveSettings settings = default_settings();
  apply_file(read_yaml(text, "fuzz.yaml"), "fuzz.yaml", settings);
  return settings;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  EffectiveSettings first;
  try {
    first = settings_from({reinterpret_cast<const char*>(data), size});
  } catch (const glm53::Error& e) {
    const std::string_view message = e.what();
    if (message.empty() || message.find('\n') != std::string_view::npos) std::abort();
    return 0;
  }
  // A masked secret is refused on purpose when it is read back.
  first.values.server.api_key.clear();
  const EffectiveSettings second = settings_from(to_yaml(first));
  for (size_t i = 0; i < setting_table().size(); ++i) {
    if (value_text(first, static_cast<int>(i)) != value_text(second, static_cast<int>(i))) std::abort();
  }
  return 0;
}
