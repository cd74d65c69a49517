#include "checkpoint/json_file.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "glm53/core/error.h"
#include "glm53/core/printable.h"

namespace glm53 {

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
          throw Error(file + ": key " + in_quotes(key) + " occurs twice");
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
