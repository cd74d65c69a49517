#include "hostile_schemas.h"

namespace glm53::test {
namespace {

/// {"$defs": {"d0": …, "d1": …, …}, …}: `count` definitions by `text(i)`, then `rest`.
template <typename Text>
std::string with_definitions(int count, Text text, const std::string& rest) {
  std::string schema = R"({"$defs":{)";
  for (int i = 0; i < count; ++i) {
    schema += (i == 0 ? "\"d" : ",\"d") + std::to_string(i) + "\":";
    schema += text(i);
  }
  return schema + "}," + rest + "}";
}

std::string reference(int i) { return R"({"$ref":"#/$defs/d)" + std::to_string(i) + "\"}"; }

std::string strings(int count, const std::string& prefix) {
  std::string list;
  for (int i = 0; i < count; ++i) list += (i == 0 ? "\"" : ",\"") + prefix + std::to_string(i) + "\"";
  return list;
}

}  // namespace

std::string repeated(const std::string& text, int times, const std::string& between) {
  std::string all;
  for (int i = 0; i < times; ++i) all += (i == 0 ? "" : between) + text;
  return all;
}

std::vector<std::pair<std::string, std::string>> hostile_schemas() {
  std::vector<std::pair<std::string, std::string>> all;
  const auto add = [&](const char* name, std::string text) { all.emplace_back(name, std::move(text)); };

  add("patterns", R"({"anyOf":[)" + repeated(R"({"type":"string","pattern":"(a|b|[c-z]x){500}"})", 5000, ",") + "]}");
  // Nothing of the pattern remains in the grammar, so that its limits never see it.
  add("patterns beside a constant",
      R"({"anyOf":[)" + repeated(R"({"const":"b","pattern":"(a{9999}){19}"})", 15000, ",") + "]}");
  add("many values beside a large pattern",
      R"({"enum":[)" + strings(30000, "aaaa") + R"(],"pattern":"^((a|[a-z0-9])?){9000}$"})");
  add("products of patterns", R"({"allOf":[)" + repeated(R"({"pattern":"(.*a){60}"})", 50, ",") + "]}");
  add("products of patterns beside a constant",
      R"({"anyOf":[)" +
          repeated(R"({"const":"c","allOf":[{"pattern":"^(.*a){99}x$"},{"pattern":"^(.*b){99}y$"}]})", 15000, ",") +
          "]}");

  std::string references;
  for (int i = 0; i < 100'000; ++i) references += (i == 0 ? "" : ",") + reference(i % 19'000);
  const auto plain = [](int) { return std::string(R"({"type":"integer"})"); };
  add("references that are merged", with_definitions(19'000, plain, "\"allOf\":[" + references + "]"));
  const std::string long_name(200'000, 'x');
  add("a reference of many characters", "{\"" + long_name + R"(":{"type":"integer"},"$defs":{"d0":{"$ref":"#/)" +
                                            long_name + R"("}},"allOf":[)" + repeated(reference(0), 60'000, ",") +
                                            "]}");
  add("references that double", with_definitions(
                                    25,
                                    [](int i) {
                                      return i == 0 ? std::string(R"({"properties":{"x":{}}})")
                                                    : "{\"allOf\":[" + reference(i - 1) + "," + reference(i - 1) + "]}";
                                    },
                                    "\"allOf\":[" + reference(24) + "]"));
  add("alternatives that multiply",
      "{\"allOf\":[" + repeated(R"({"anyOf":[{"type":"null"},{"const":1},{"const":2},{"const":3}]})", 9, ",") + "]}");
  add("one requirement many times", with_definitions(
                                        1, [](int) { return R"({"required":[)" + strings(10'000, "name") + "]}"; },
                                        "\"allOf\":[" + repeated(reference(0), 20'000, ",") + "]"));
  add("schemas of one property that pile up", with_definitions(
                                                  1,
                                                  [](int) {
                                                    std::string properties;
                                                    for (int i = 0; i < 3000; ++i)
                                                      properties +=
                                                          (i == 0 ? "\"p" : ",\"p") + std::to_string(i) + "\":{}";
                                                    return "{\"properties\":{" + properties + "}}";
                                                  },
                                                  "\"allOf\":[" + repeated(reference(0), 20'000, ",") + "]"));
  add("many properties merged one by one", [] {
    std::string parts;
    for (int i = 0; i < 60'000; ++i) {
      parts += (i == 0 ? "" : ",") + (R"({"properties":{"p)" + std::to_string(i)) + R"(":{}}})";
    }
    return "{\"allOf\":[" + parts + "]}";
  }());
  add("values merged with themselves", with_definitions(
                                           1, [](int) { return "{\"enum\":[" + strings(10'000, "value") + "]}"; },
                                           "\"allOf\":[" + repeated(reference(0), 20'000, ",") + "]"));
  add("a large constant merged with itself",
      with_definitions(
          1, [](int) { return "{\"const\":[" + strings(50'000, "value") + "]}"; },
          "\"allOf\":[" + repeated(reference(0), 20'000, ",") + "]"));
  add("keywords that say nothing, again and again", [] {
    std::string unknown = "{\"type\":\"object\"";
    for (int i = 0; i < 20'000; ++i) unknown += ",\"x-" + std::to_string(i) + "\":1";
    return with_definitions(
        1, [&](int) { return unknown + "}"; }, "\"allOf\":[" + repeated(reference(0), 20'000, ",") + "]");
  }());
  add("a long text", "{\"enum\":[\"" + std::string(5'000'000, 'x') + "\"]}");
  add("long values", [] {
    std::string values;
    for (int i = 0; i < 60'000; ++i) {
      values += (i == 0 ? "\"" : ",\"") + std::to_string(i * 7919 % 1'000'003) + std::string(60, 'x') + "\"";
    }
    return "{\"enum\":[" + values + "]}";
  }());
  add("an array of long arrays",
      repeated(R"({"type":"array","maxItems":10000,"items":)", 50) + "{}" + repeated("}", 50));
  return all;
}

std::vector<std::string> hostile_parameters() {
  std::vector<std::string> all;
  for (int tool = 0; tool < 1000; ++tool) {
    std::string properties;
    for (int i = 0; i < 40; ++i) {
      properties += (i == 0 ? "\"p" : ",\"p") + std::to_string(i) +
                    R"(":{"type":"array","items":{"type":"object","properties":{"a":{"pattern":"^[a-z]{1,40}$"}}}})";
    }
    all.push_back("{\"type\":\"object\",\"properties\":{" + properties + "}}");
  }
  return all;
}

}  // namespace glm53::test
