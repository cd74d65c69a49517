#include "checkpoint/json_file.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "glm53/core/error.h"

namespace glm53 {

std::string printable(std::string_view text) {
  constexpr size_t kMaxShown = 200;
  std::string shown(text.substr(0, kMaxShown));
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  if (text.size() > kMaxShown) shown += "...";
  return shown;
}

std::string read_text_file(const std::string& path, size_t max_bytes) {
  std::error_code failure;
  const std::filesystem::file_status status = std::filesystem::status(path, failure);
  if (!std::filesystem::exists(status)) throw Error(path + ": no such file");
  if (!std::filesystem::is_regular_file(status)) throw Error(path + ": not a regular file");
  const uintmax_t size = std::filesystem::file_size(path, failure);
  if (failure) throw Error(path + ": " + failure.message());
  if (size > max_bytes) {
    throw Error(path + ": " + std::to_string(size) + " bytes, more than the limit of " + std::to_string(max_bytes));
  }
  std::string text(size, '\0');
  std::ifstream stream(path, std::ios::binary);
  if (!stream.read(text.data(), static_cast<std::streamsize>(size))) throw Error(path + ": cannot be read");
  return text;
}

nlohmann::json parse_json_object(std::string_view text, const std::string& file, int max_depth) {
  using nlohmann::json;
  std::vector<std::set<std::string>> keys_of_open_objects;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (depth >= max_depth) {
          throw Error(file + ": JSON is nested deeper than " + std::to_string(max_depth) + " levels");
        }
        if (event == json::parse_event_t::object_start) keys_of_open_objects.emplace_back();
        break;
      case json::parse_event_t::object_end:
        keys_of_open_objects.pop_back();
        break;
      case json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!keys_of_open_objects.back().insert(key).second) {
          throw Error(file + ": key \"" + printable(key) + "\" occurs twice");
        }
        break;
      }
      default:
        break;
    }
    return true;
  };
  json root;
  try {
    root = json::parse(text.begin(), text.end(), check);
  } catch (const json::parse_error& error) {
    throw Error(file + ": not valid JSON at byte " + std::to_string(error.byte));
  } catch (const json::exception&) {
    throw Error(file + ": holds a JSON number that is out of range");
  }
  if (!root.is_object()) throw Error(file + ": the top level is not a JSON object");
  return root;
}

}  // namespace glm53
