// One table describes every configuration key. The YAML reader, --set, the environment, --print-config and --help all
// work from it, so that a key cannot exist for one of them only. A key is here only if this program acts on it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "glm53/core/settings.h"

namespace glm53::config {

/// A field of Settings; the alternative is the key's type.
using FieldRef = std::variant<int*, int64_t*, bool*, std::string*, std::vector<std::string>*>;

struct SettingKey {
  std::string_view section;  ///< "" for a top-level key; "dense.groups" is a section within a section
  std::string_view key;
  FieldRef (*field)(Settings&);
  std::string_view help;  ///< one line
  int64_t low = 0;        ///< integers: least and greatest value
  int64_t high = 0;
  std::vector<std::string_view> allowed;  ///< text: the only values; empty = any
  bool may_be_empty = true;               ///< text without `allowed`, or a list
  bool secret = false;                    ///< never printed, in no message

  std::string name() const;              ///< "server.port", "context"
  std::string environment_name() const;  ///< "GLM53_SERVER_PORT", "GLM53_CONTEXT"
  bool is_list() const;
  std::string expected() const;  ///< "an integer from 0 to 65535", for messages and --help
};

/// All keys, sections together, in the order of --print-config.
const std::vector<SettingKey>& setting_table();

bool is_section(std::string_view name);
/// SettingKey::name() of the section's keys.
std::vector<std::string> setting_names(std::string_view section);

/// Index in setting_table(), or −1.
int find_setting(std::string_view section, std::string_view key);

/// The known key nearest to an unknown one, by edit distance; a right key in a wrong section counts as near.
std::string nearest_setting(std::string_view section, std::string_view key);
std::string nearest_section(std::string_view name);
/// Nearest of environment_name().
std::string nearest_environment_name(std::string_view name);

/// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`.
int edit_distance(std::string_view a, std::string_view b);

}  // namespace glm53::config
