#include "config/effective_settings.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>

#include "config/setting_table.h"
#include "glm53/core/ascii.h"
#include "glm53/core/error.h"
#include "glm53/core/printable.h"

namespace glm53::config {

namespace {

constexpr const char* kDefaultOrigin = "default";

/// Runs `set`, which assigns one key; a refused value is reported with the place it came from.
template <class Set>
void assign(int index, const std::string& origin, EffectiveSettings& settings, Set set) {
  try {
    set(setting_table()[static_cast<size_t>(index)]);
  } catch (const Error& e) {
    throw Error(fmt::format("{}: {}", origin, e.what()));
  }
  settings.origins[static_cast<size_t>(index)] = origin;
}

[[noreturn]] void refuse_key(const std::string& origin, const std::string& section, const std::string& key) {
  throw Error(fmt::format("{}: unknown key {}, the nearest is {}", origin,
                          in_quotes(section.empty() ? key : section + "." + key), nearest_setting(section, key)));
}

std::string yaml_string(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

/// An origin as browsers send it, so that one that never matches is no silent refusal.
bool is_origin(std::string_view text) {
  const size_t end = text.find("://");
  if (end == std::string_view::npos || end == 0 || !is_visible_ascii(text) || ascii_lower(text) != text) return false;
  const std::string_view scheme = text.substr(0, end);
  const std::string_view place = text.substr(end + 3);
  const bool default_port =
      (scheme == "http" && place.ends_with(":80")) || (scheme == "https" && place.ends_with(":443"));
  return !place.empty() && place.back() != ':' && !default_port &&
         place.find_first_of("/?#,*@") == std::string_view::npos;
}

void check_origins(const std::vector<std::string>& origins) {
  for (const std::string& origin : origins) {
    const bool everybody = origin == "*";
    if (everybody && origins.size() > 1) throw Error("server.cors_origin: expected * alone, or origins");
    if (!everybody && origin != "null" && !is_origin(origin)) {
      throw Error(
          fmt::format("server.cors_origin: expected * or origins without a path, as in https://example.org, in lower "
                      "case and without the scheme's own port, as browsers send them; found {}",
                      in_quotes(origin)));
    }
  }
}

/// An address in digits that is none would be found only when the server listens. Names are left to that: looking one
/// up may take long, and another machine may know it.
void check_host(const std::string& host) {
  const bool numeric =
      host.find(':') != std::string::npos || host.find_first_not_of("0123456789.") == std::string::npos;
  if (!numeric) return;
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) {
    throw Error(fmt::format("server.host: expected a name or an address, found {}", in_quotes(host)));
  }
  ::freeaddrinfo(found);
}

std::string_view without_outer_blanks(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

/// The items of a list given outside the file: `a,b`, or `[a, b]` as the file would have it.
std::vector<std::string> list_items(const SettingKey& key, const std::string& text) {
  if (text.starts_with('[') && text.ends_with(']')) {
    std::vector<YamlEntry> entries;
    try {
      entries = read_yaml("list: " + text, "");
    } catch (const Error&) {
      // Its message counts lines of a file, and may quote what is secret.
    }
    if (entries.size() == 1 && entries[0].value.kind == SettingValue::Kind::kList) return entries[0].value.items;
    throw Error(fmt::format("{}: what is in brackets is not a YAML list of texts", key.name()));
  }
  std::vector<std::string> items;
  for (size_t begin = 0; !text.empty() && begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    items.emplace_back(without_outer_blanks(std::string_view(text).substr(begin, end - begin)));
    begin = end + 1;
  }
  return items;
}

/// The value of one key from the command line or the environment; see Assignment::texts.
SettingValue given_value(const SettingKey& key, const std::vector<std::string>& texts) {
  if (!key.is_list()) return {SettingValue::Kind::kText, texts.back(), {}};
  SettingValue value{SettingValue::Kind::kList, "", {}};
  for (const std::string& text : texts) {
    const std::vector<std::string> items = list_items(key, text);
    value.items.insert(value.items.end(), items.begin(), items.end());
  }
  return value;
}

/// Assigns `texts` of the command line or the environment.
void assign_given(int index, const std::vector<std::string>& texts, const std::string& origin,
                  EffectiveSettings& settings) {
  assign(index, origin, settings,
         [&](const SettingKey& key) { assign_setting(key, given_value(key, texts), settings.values); });
}

struct ShowValue {
  bool secret;

  std::string operator()(const int* value) const { return fmt::to_string(*value); }
  std::string operator()(const int64_t* value) const { return fmt::to_string(*value); }
  std::string operator()(const bool* value) const { return *value ? "true" : "false"; }
  std::string operator()(const std::string* value) const { return yaml_string(*value); }
  std::string operator()(const std::vector<std::string>* value) const {
    std::string out;
    for (const std::string& item : *value) {
      out += (out.empty() ? "" : ", ") + yaml_string(secret ? std::string(kSecretMask) : item);
    }
    return '[' + out + ']';
  }
};

}  // namespace

EffectiveSettings default_settings() {
  EffectiveSettings settings;
  settings.origins.assign(setting_table().size(), kDefaultOrigin);
  return settings;
}

void apply_file(const std::vector<YamlEntry>& entries, const std::string& file, EffectiveSettings& settings) {
  for (const YamlEntry& entry : entries) {
    const std::string origin = fmt::format("{}:{}", printable(file, std::string::npos), entry.line);
    if (entry.key.empty()) {
      if (is_section(entry.section)) continue;
      if (find_setting("", entry.section) >= 0) {
        throw Error(fmt::format("{}: {}: expected one value, found a mapping", origin, entry.section));
      }
      throw Error(fmt::format("{}: unknown section {}, the nearest is {}", origin, in_quotes(entry.section),
                              nearest_section(entry.section)));
    }
    const std::string name = entry.section.empty() ? entry.key : entry.section + "." + entry.key;
    if (is_section(name)) {
      // `server:` with every key commented out.
      if (entry.value.kind == SettingValue::Kind::kNull) continue;
      throw Error(fmt::format("{}: {}: expected a section of keys, found a value", origin, name));
    }
    const int index = find_setting(entry.section, entry.key);
    if (index < 0) refuse_key(origin, entry.section, entry.key);
    assign(index, origin, settings, [&](const SettingKey& key) { assign_setting(key, entry.value, settings.values); });
  }
}

void apply_environment(const std::vector<std::pair<std::string, std::string>>& variables, EffectiveSettings& settings) {
  const auto& table = setting_table();
  for (const auto& [name, text] : variables) {
    int index = -1;
    for (size_t i = 0; i < table.size(); ++i) {
      if (table[i].environment_name() == name) index = static_cast<int>(i);
    }
    if (index < 0) {
      throw Error(fmt::format("environment: unknown variable {}, the nearest is {}", in_quotes(name),
                              nearest_environment_name(name)));
    }
    assign_given(index, {text}, "environment " + name, settings);
  }
}

void apply_command_line(const std::vector<Assignment>& assignments, EffectiveSettings& settings) {
  for (const Assignment& assignment : assignments) {
    const size_t dot = assignment.name.rfind('.');
    const std::string section = dot == std::string::npos ? "" : assignment.name.substr(0, dot);
    const std::string key = dot == std::string::npos ? assignment.name : assignment.name.substr(dot + 1);
    const int index = find_setting(section, key);
    if (is_section(assignment.name)) {
      throw Error(fmt::format("{}: {} is a section; its keys are {}", assignment.option, assignment.name,
                              fmt::join(setting_names(assignment.name), ", ")));
    }
    if (index < 0) refuse_key(assignment.option, section, key);
    assign_given(index, assignment.texts, assignment.option, settings);
  }
}

EffectiveSettings load_settings(const CommandLine& command,
                                const std::vector<std::pair<std::string, std::string>>& environment) {
  EffectiveSettings settings = default_settings();
  if (!command.config_file.empty()) apply_file(read_yaml_file(command.config_file), command.config_file, settings);
  apply_environment(environment, settings);
  apply_command_line(command.assignments, settings);
  return settings;
}

void require_model_path(const Settings& settings) {
  if (!settings.model.path.empty()) return;
  throw Error(
      "model.path: not set; it names the checkpoint's directory. Give a configuration with --config FILE, for example "
      "configs/tiny-cpu.yaml, or the key with --set model.path=DIRECTORY");
}

void check_consistency(const Settings& s) {
  require_model_path(s);
  check_host(s.server.host);
  check_origins(s.server.cors_origin);
  if (s.server.max_bodies_mib < s.server.max_body_mib) {
    throw Error(fmt::format("server.max_bodies_mib: {} is below server.max_body_mib, which is {}",
                            s.server.max_bodies_mib, s.server.max_body_mib));
  }
  if (s.cluster.rank >= s.cluster.tp) {
    throw Error(fmt::format("cluster.rank: {} is not below cluster.tp, which is {}", s.cluster.rank, s.cluster.tp));
  }
  if (s.cluster.tp > 1 && s.cluster.master_addr.empty()) {
    throw Error(fmt::format("cluster.master_addr: not set; cluster.tp {} needs the address of rank 0", s.cluster.tp));
  }
  if (s.draft.kind == "dflash2" && s.draft.path.empty()) {
    throw Error("draft.path: not set; draft.kind dflash2 needs the drafter's directory");
  }
}

std::string value_text(const EffectiveSettings& settings, int index) {
  const SettingKey& key = setting_table()[static_cast<size_t>(index)];
  Settings copy = settings.values;
  return std::visit(ShowValue{key.secret}, key.field(copy));
}

std::string changed_values(const EffectiveSettings& settings) {
  std::vector<std::string> changed;
  for (size_t i = 0; i < setting_table().size(); ++i) {
    if (settings.origins[i] == kDefaultOrigin) continue;
    changed.push_back(fmt::format("{}: {} ({})", setting_table()[i].name(), value_text(settings, static_cast<int>(i)),
                                  settings.origins[i]));
  }
  return fmt::format("{}", fmt::join(changed, ", "));
}

std::string to_yaml(const EffectiveSettings& settings) {
  const auto& table = setting_table();
  std::string out = "# Effective configuration: command line > environment > file > default.\n";
  std::string_view section;
  for (size_t i = 0; i < table.size(); ++i) {
    const SettingKey& key = table[i];
    // A section within a section follows the keys of the outer one.
    const size_t dot = key.section.find('.');
    const std::string indent(dot == std::string_view::npos ? 0 : 2, ' ');
    if (!key.section.empty() && key.section != section) {
      out += fmt::format("{}{}:\n", indent, dot == std::string_view::npos ? key.section : key.section.substr(dot + 1));
    }
    section = key.section;
    const std::string assignment = fmt::format("{}: {}", key.key, value_text(settings, static_cast<int>(i)));
    out += fmt::format("{}{}{}  # {}\n", indent, section.empty() ? "" : "  ", assignment, settings.origins[i]);
  }
  return out;
}

}  // namespace glm53::config
