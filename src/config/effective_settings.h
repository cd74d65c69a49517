// The merged configuration: command line over environment over file over built-in default.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "config/command_line.h"
#include "config/yaml_reader.h"
#include "glm53/core/settings.h"

namespace glm53::config {

struct EffectiveSettings {
  Settings values;
  std::vector<std::string> origins;  ///< for each key of setting_table(): "default", "spark2.yaml:7", "--set", …
};

EffectiveSettings default_settings();

/// Each layer overrides what is there. Throws Error naming place and key: an unknown key with the nearest known one, a
/// value of the wrong type or out of range.
void apply_file(const std::vector<YamlEntry>& entries, const std::string& file, EffectiveSettings& settings);
void apply_environment(const std::vector<std::pair<std::string, std::string>>& variables, EffectiveSettings& settings);
void apply_command_line(const std::vector<Assignment>& assignments, EffectiveSettings& settings);

/// All layers in order.
EffectiveSettings load_settings(const CommandLine& command,
                                const std::vector<std::pair<std::string, std::string>>& environment);

/// Throws Error, which says how to set it, where model.path is empty: what a first start lacks.
void require_model_path(const Settings& settings);

/// What one key alone cannot show: values that contradict each other, or a needed one that is missing. Throws Error.
void check_consistency(const Settings& settings);

/// Value of a key as YAML, secrets masked. `index` of setting_table().
std::string value_text(const EffectiveSettings& settings, int index);

/// On one line, for the log: every value that is not its default, with its origin. Secrets are masked.
std::string changed_values(const EffectiveSettings& settings);

/// A configuration file with the effective values, each with its origin as a comment. Secrets are masked.
std::string to_yaml(const EffectiveSettings& settings);

}  // namespace glm53::config
