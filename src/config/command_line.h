// The command line of glm53-serve.
#pragma once

#include <string>
#include <vector>

namespace glm53::config {

/// One setting given on the command line.
struct Assignment {
  std::string option;  ///< "--set" or the shortcut that gave it
  std::string name;    ///< "server.port"
  /// More than one where a shortcut is repeated: a list takes all of them, any other key the last one. Not empty.
  std::vector<std::string> texts;
};

struct CommandLine {
  enum class Action : uint8_t { kServe, kCheck, kPrintConfig, kVersion, kHelp };
  Action action = Action::kServe;
  std::string config_file;              ///< "" = none
  std::vector<Assignment> assignments;  ///< in order; the last one of a key wins, --port and its like over --set
};

/// Throws Error for an unknown option, a missing value or a --set without "=". `--option=` gives empty text; a value
/// that begins with "--" is taken as `--option=VALUE` only, so that a forgotten value does not swallow the next option.
CommandLine parse_command_line(int argc, const char* const* argv);

/// The text of --help: options, then every key with its environment variable, default and meaning.
std::string help_text();

}  // namespace glm53::config
