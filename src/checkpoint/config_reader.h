// Checked access to the keys of a configuration file's JSON object. null counts as absent; a value of the wrong JSON
// type or out of range throws Error naming the file and the full key.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace glm53 {

/// A view on one JSON object; the document must outlive it.
class ConfigReader {
 public:
  /// `path` is put before keys in messages: "" at the top, "text_config." below.
  ConfigReader(const nlohmann::json& object, std::string file, std::string path);

  bool has(std::string_view key) const;
  std::optional<ConfigReader> object(std::string_view key) const;

  /// An integer in [low, high]. 1.0 and 1e3 are not integers.
  std::optional<int64_t> integer(std::string_view key, int64_t low, int64_t high) const;
  int require_int(std::string_view key, int low, int high) const;
  int int_or(std::string_view key, int fallback, int low, int high) const;

  /// A number in [low, high], written as an integer or not.
  std::optional<double> number(std::string_view key, double low, double high) const;
  float float_or(std::string_view key, float fallback, double low, double high) const;

  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> string(std::string_view key) const;

  /// Lists whose elements are all of one type, integers within [low, high].
  std::optional<std::vector<int64_t>> integers(std::string_view key, int64_t low, int64_t high) const;
  std::optional<std::vector<std::string>> strings(std::string_view key) const;

  /// One token id below `vocab` or a list of them, which must not be empty; each once.
  std::optional<std::vector<int>> token_ids(std::string_view key, int vocab) const;

  /// Throws unless the key is absent or has the one value that this program implements.
  void only(std::string_view key, bool value) const;
  void only(std::string_view key, int64_t value) const;
  void only(std::string_view key, std::string_view value) const;
  /// A literal would otherwise become a bool.
  void only(std::string_view key, const char* value) const { only(key, std::string_view(value)); }

  /// "config.json: text_config.hidden_size " + what.
  [[noreturn]] void fail(std::string_view key, const std::string& what) const;

 private:
  /// null when absent.
  const nlohmann::json* find(std::string_view key) const;

  const nlohmann::json* object_;
  std::string file_;
  std::string path_;
};

}  // namespace glm53
