// The structure of a configuration file: top-level keys, sections, and the setting table's sections within a section,
// nothing else of YAML. What the keys mean is decided by the setting table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/setting_value.h"

namespace glm53::config {

/// `key: value`, in file order.
struct YamlEntry {
  std::string section;  ///< "" at top level
  std::string key;      ///< "" for a section's own line
  SettingValue value;   ///< not set for a section's own line
  int line = 0;         ///< 1-based
};

/// Parses `text`; `file` names it in messages. Throws Error "file:line: …": text that is not YAML or not UTF-8, larger
/// than 256 KiB, a repeated key, anchors, aliases, tags, merge keys, several documents, deeper nesting than a list in a
/// section or in the table's sections within one. Empty text gives no entries. Aliases are never expanded and nesting
/// never recursed into, so that hostile text costs no more than its size.
std::vector<YamlEntry> read_yaml(std::string_view text, const std::string& file);

/// Reads the file and parses it.
std::vector<YamlEntry> read_yaml_file(const std::string& path);

}  // namespace glm53::config
