// A configured value before it has a type, and its checked assignment to a field of Settings.
#pragma once

#include <string>
#include <vector>

#include "config/setting_table.h"

namespace glm53::config {

struct SettingValue {
  enum class Kind : uint8_t {
    kText,    ///< command line or environment, no list: `text` is the whole value
    kPlain,   ///< YAML scalar without quotes
    kQuoted,  ///< YAML scalar in quotes, or a block scalar: text whatever it looks like
    kNull,    ///< YAML key without a value
    kList,    ///< YAML sequence of scalars, or a list of the command line or environment
  };
  Kind kind = Kind::kText;
  std::string text;
  std::vector<std::string> items;  ///< kList
};

/// What --print-config shows for a secret; refused as a value, so that a saved print-out cannot become the key.
inline constexpr const char* kSecretMask = "<redacted>";

/// Sets the field of `key` in `settings`. Throws Error "section.key: expected …, found …" when the value does not have
/// the key's type, range or form. Integers are decimal; one with a leading zero is refused, since YAML 1.1 readers take
/// it for octal.
void assign_setting(const SettingKey& key, const SettingValue& value, Settings& settings);

}  // namespace glm53::config
