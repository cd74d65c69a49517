#include "config/command_line.h"

#include <CLI/CLI.hpp>
#include <array>
#include <iterator>

#include <fmt/format.h>

#include "config/effective_settings.h"
#include "config/setting_table.h"
#include "glm53/core/error.h"
#include "glm53/core/printable.h"

namespace glm53::config {

namespace {

/// An option that is short for --set KEY=VALUE; most have the name that launch scripts for vLLM use.
struct Shortcut {
  const char* option;
  const char* key;
  const char* value;
};
constexpr Shortcut kShortcuts[] = {
    {"--host", "server.host", "ADDRESS"},
    {"--port", "server.port", "N"},
    {"--api-key", "server.api_key", "KEY,KEY"},
    {"--rank", "cluster.rank", "N"},
    {"--load-format", "model.load_format", "FORMAT"},
    {"--served-model-name", "model.served_name", "NAME,NAME"},
    {"--max-model-len", "context", "N"},
    {"--max-num-seqs", "scheduler.max_streams", "N"},
    {"--max-num-batched-tokens", "scheduler.prefill_rows", "N"},
    {"--kv-cache-dtype", "kv.dtype", "bf16|fp8"},
    {"--generation-config", "defaults.generation_config", "auto|vllm"},
    {"--override-generation-config", "defaults.override_generation_config", "JSON"},
};

struct RawOptions {
  std::string config_file;
  std::vector<std::string> sets;
  std::array<std::string, std::size(kShortcuts)> shortcuts;
  bool print_config = false;
  bool check = false;
  bool version = false;
};

/// The one description of the options; parsing and --help both build it.
void describe_options(CLI::App& app, RawOptions& raw) {
  app.name("glm53-serve");
  app.description("Serves GLM-5.3-Flash from EXL3 checkpoints over an OpenAI-style HTTP API.");
  app.set_help_flag("-h,--help", "print this text and exit");
  app.add_option("--config", raw.config_file, "YAML configuration file")->type_name("FILE");
  app.add_option("--set", raw.sets, "set one key; may be repeated, the last one of a key wins")
      ->type_name("SECTION.KEY=VALUE")
      ->allow_extra_args(false);
  for (size_t i = 0; i < std::size(kShortcuts); ++i) {
    const auto& [option, key, value] = kShortcuts[i];
    // One that is repeated makes a list, as --api-key may be.
    app.add_option(option, raw.shortcuts[i], fmt::format("short for --set {}={}", key, value))
        ->type_name(value)
        ->join(',');
  }
  CLI::Option* check =
      app.add_flag("--check", raw.check,
                   "validate configuration, tokenizer and the headers of all tensors, print a memory plan and exit");
  app.add_flag("--print-config", raw.print_config, "print the effective configuration as YAML and exit")
      ->excludes(check);
  app.add_flag("--version", raw.version, "print the version and exit");
}

Assignment parse_set(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw Error(fmt::format("--set: expected SECTION.KEY=VALUE, found {}", in_quotes(text)));
  }
  return {"--set", text.substr(0, equals), text.substr(equals + 1)};
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CLI::App app;
  RawOptions raw;
  describe_options(app, raw);
  CommandLine line;
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    line.action = CommandLine::Action::kHelp;
    return line;
  } catch (const CLI::ParseError& e) {
    throw Error(fmt::format("command line: {} (--help lists the options)", printable(e.what())));
  }
  if (raw.version) {
    line.action = CommandLine::Action::kVersion;
  } else if (raw.print_config) {
    line.action = CommandLine::Action::kPrintConfig;
  } else if (raw.check) {
    line.action = CommandLine::Action::kCheck;
  }
  if (app.count("--config") > 0 && raw.config_file.empty()) throw Error("--config: the file name is empty");
  line.config_file = raw.config_file;
  for (const std::string& text : raw.sets) line.assignments.push_back(parse_set(text));
  for (size_t i = 0; i < std::size(kShortcuts); ++i) {
    const auto& [option, key, value] = kShortcuts[i];
    if (app.count(option) > 0) line.assignments.push_back({option, key, raw.shortcuts[i]});
  }
  return line;
}

std::string help_text() {
  CLI::App app;
  RawOptions raw;
  describe_options(app, raw);
  std::string text = app.help();
  text +=
      "\nKeys. Each may stand in the file as `section:` / `key: value`, be set by --set section.key=value, or by the\n"
      "environment variable GLM53_SECTION_KEY. Command line > environment > file > default. A list is separated by\n"
      "commas outside the file. Relative paths count from the working directory.\n\n";
  const EffectiveSettings defaults = default_settings();
  const auto& table = setting_table();
  for (size_t i = 0; i < table.size(); ++i) {
    text += fmt::format("  {:<37}{} ({}; default {})\n", table[i].name(), table[i].help, table[i].expected(),
                        value_text(defaults, static_cast<int>(i)));
  }
  return text;
}

}  // namespace glm53::config
