#include "config/command_line.h"

#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include "config/effective_settings.h"
#include "config/setting_table.h"
#include "glm53/core/error.h"
#include "glm53/core/printable.h"

namespace glm53::config {

namespace {

struct RawOptions {
  std::string config_file;
  std::vector<std::string> sets;
  std::string port;
  std::string rank;
  std::string load_format;
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
  app.add_option("--port", raw.port, "short for --set server.port=N")->type_name("N");
  app.add_option("--rank", raw.rank, "short for --set cluster.rank=N")->type_name("N");
  app.add_option("--load-format", raw.load_format, "short for --set model.load_format=FORMAT")->type_name("FORMAT");
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
  if (app.count("--port") > 0) line.assignments.push_back({"--port", "server.port", raw.port});
  if (app.count("--rank") > 0) line.assignments.push_back({"--rank", "cluster.rank", raw.rank});
  if (app.count("--load-format") > 0) {
    line.assignments.push_back({"--load-format", "model.load_format", raw.load_format});
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
    text += fmt::format("  {:<33}{} ({}; default {})\n", table[i].name(), table[i].help, table[i].expected(),
                        value_text(defaults, static_cast<int>(i)));
  }
  return text;
}

}  // namespace glm53::config
