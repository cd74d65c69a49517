#include "config/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <string_view>

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
  bool auto_is_unset = false;  ///< the value `auto` leaves the key as it is
  bool several = false;        ///< may be followed by several values
};
constexpr Shortcut kShortcuts[] = {
    {"--host", "server.host", "ADDRESS"},
    {"--port", "server.port", "N"},
    {"--api-key", "server.api_key", "KEY,KEY"},
    {"--rank", "cluster.rank", "N"},
    {"--tensor-parallel-size", "cluster.tp", "N"},
    {"--load-format", "model.load_format", "checkpoint|dummy", true},
    {"--served-model-name", "model.served_name", "NAME,NAME", false, true},
    {"--max-model-len", "context", "N"},
    {"--max-num-seqs", "scheduler.max_streams", "N"},
    {"--max-num-batched-tokens", "scheduler.prefill_rows", "N"},
    {"--kv-cache-dtype", "kv.dtype", "bf16|fp8", true},
    {"--generation-config", "defaults.generation_config", "auto|vllm"},
    {"--override-generation-config", "defaults.override_generation_config", "JSON"},
};

/// The one description of the options; parsing and --help both build it. Values are read as Option::results(): typed
/// ones would take "{}" and brackets for lists of CLI11's own.
void describe_options(CLI::App& app) {
  app.name("glm53-serve");
  app.description("Serves GLM-5.3-Flash from EXL3 checkpoints over an OpenAI-style HTTP API.");
  app.set_help_flag("-h,--help", "print this text and exit");
  const auto add_value = [&app](const std::string& option, const std::string& value, const std::string& help) {
    return app.add_option(option, CLI::callback_t(), help)->type_name(value);
  };
  const auto add_flag = [&app](const std::string& option, const std::string& help) {
    return app.add_flag(option, help);
  };
  const auto all = CLI::MultiOptionPolicy::TakeAll;
  add_value("--config", "FILE", "YAML configuration file");
  add_value("--set", "SECTION.KEY=VALUE", "set one key; may be repeated, the last one of a key wins")
      ->multi_option_policy(all);
  for (const Shortcut& shortcut : kShortcuts) {
    const bool has_auto = shortcut.auto_is_unset;
    add_value(shortcut.option, fmt::format("{}{}", has_auto ? "auto|" : "", shortcut.value),
              fmt::format("short for --set {}={}{}", shortcut.key, shortcut.value,
                          has_auto ? "; auto leaves it as it is" : ""))
        ->multi_option_policy(all);
  }
  CLI::Option* check = add_flag(
      "--check", "validate configuration, tokenizer and the headers of all tensors, print a memory plan and exit");
  add_flag("--print-config", "print the effective configuration as YAML and exit")->excludes(check);
  add_flag("--version", "print the version and exit");
}

bool takes_value(const CLI::App& app, const std::string& name) {
  const CLI::Option* option = app.get_option_no_throw(name);
  return option != nullptr && option->get_items_expected_max() > 0;
}

bool takes_several(std::string_view name) {
  return std::any_of(std::begin(kShortcuts), std::end(kShortcuts),
                     [&](const Shortcut& shortcut) { return shortcut.several && name == shortcut.option; });
}

/// The arguments with every value on its own, behind its option. CLI11 takes the next argument, whatever it is, for the
/// value of `--option=` and of an option whose value was forgotten.
std::vector<std::string> separate_values(const CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    if (!takes_value(app, name)) {
      arguments.push_back(argument);
      continue;
    }
    if (equals != std::string::npos) {
      arguments.insert(arguments.end(), {name, argument.substr(equals + 1)});
      continue;
    }
    if (i + 1 == argc || std::string_view(argv[i + 1]).starts_with("--")) {
      throw Error(fmt::format("{}: the value is missing (one that begins with -- is given as {}=VALUE)", name, name));
    }
    do {
      arguments.insert(arguments.end(), {name, argv[++i]});
    } while (takes_several(name) && i + 1 < argc && argv[i + 1][0] != '-');
  }
  return arguments;
}

Assignment parse_set(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw Error(fmt::format("--set: expected SECTION.KEY=VALUE, found {}", in_quotes(text)));
  }
  return {"--set", text.substr(0, equals), {text.substr(equals + 1)}};
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CLI::App app;
  describe_options(app);
  std::vector<std::string> arguments = separate_values(app, argc, argv);
  std::reverse(arguments.begin(), arguments.end());  // as CLI::App::parse wants them
  CommandLine line;
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    line.action = CommandLine::Action::kHelp;
    return line;
  } catch (const CLI::ParseError& e) {
    throw Error(fmt::format("command line: {} (--help lists the options)", printable(e.what())));
  }
  if (app.count("--version") > 0) {
    line.action = CommandLine::Action::kVersion;
  } else if (app.count("--print-config") > 0) {
    line.action = CommandLine::Action::kPrintConfig;
  } else if (app.count("--check") > 0) {
    line.action = CommandLine::Action::kCheck;
  }
  if (app.count("--config") > 0) {
    line.config_file = app.get_option("--config")->results().front();
    if (line.config_file.empty()) throw Error("--config: the file name is empty");
  }
  for (const std::string& text : app.get_option("--set")->results()) line.assignments.push_back(parse_set(text));
  for (const Shortcut& shortcut : kShortcuts) {
    const std::vector<std::string>& texts = app.get_option(shortcut.option)->results();
    if (texts.empty() || (shortcut.auto_is_unset && texts.back() == "auto")) continue;
    line.assignments.push_back({shortcut.option, shortcut.key, texts});
  }
  return line;
}

std::string help_text() {
  CLI::App app;
  describe_options(app);
  std::string text = app.help();
  text +=
      "\nKeys. Each may stand in the file as `section:` / `key: value`, be set by --set section.key=value, or by the\n"
      "environment variable GLM53_SECTION_KEY. Command line > environment > file > default. Outside the file a list "
      "is\n"
      "a,b or, as in it, [a, b]; [] is none. A repeated short option adds to a list, else its last value wins.\n"
      "Relative paths count from the working directory.\n\n";
  const EffectiveSettings defaults = default_settings();
  const auto& table = setting_table();
  for (size_t i = 0; i < table.size(); ++i) {
    text += fmt::format("  {:<37}{} ({}; default {})\n", table[i].name(), table[i].help, table[i].expected(),
                        value_text(defaults, static_cast<int>(i)));
  }
  return text;
}

}  // namespace glm53::config
