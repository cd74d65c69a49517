#include "text/tool_arguments.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "text/json_pointer.h"

namespace glm53::text {
namespace {

struct Typing {
  std::string schema;  ///< of the argument
  std::string text;
  std::string value;  ///< as JSON
};

void PrintTo(const Typing& typing, std::ostream* out) { *out << typing.schema << " <- '" << typing.text << "'"; }

const char* const kDefinitions =
    R"("$defs":{"days":{"type":"integer"},"loop":{"$ref":"#/$defs/loop"},"a/b":{"type":"boolean"},
       "node":{"type":"object","properties":{"value":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}}},
       "deep":{"allOf":[{"$ref":"#/$defs/deep2"}]},"deep2":{"oneOf":[{"type":"number"},{"$ref":"#/$defs/deep"}]}})";

PromptJson parameters_of(const std::string& argument) {
  return PromptJson::parse(R"({"type":"object","properties":{"k":)" + argument + "}," + kDefinitions + "}");
}

class ArgumentTyping : public testing::TestWithParam<Typing> {};

TEST_P(ArgumentTyping, Value) {
  const Typing& typing = GetParam();
  const PromptJson parameters = parameters_of(typing.schema);
  ArgumentTypers typers;
  ArgumentTyper& typer = typers.of(parameters);
  EXPECT_EQ(typer.value("k", typing.text).dump(), typing.value);
  if (typer.only_text("k")) {
    EXPECT_EQ(typing.value, PromptJson::string(typing.text).dump());
  }
}

const std::string kString = R"({"type":"string"})";
const std::string kInteger = R"({"type":"integer"})";
const std::string kNumber = R"({"type":"number"})";
const std::string kBoolean = R"({"type":"boolean"})";
const std::string kObject = R"({"type":"object"})";
const std::string kArray = R"({"type":"array"})";
const std::string kOptional = R"({"anyOf":[{"type":"integer"},{"type":"null"}]})";

INSTANTIATE_TEST_SUITE_P(
    Strings, ArgumentTyping,
    testing::Values(Typing{kString, "007", R"("007")"}, Typing{kString, "true", R"("true")"},
                    Typing{kString, "null", R"("null")"}, Typing{kString, R"({"a":1})", R"("{\"a\":1}")"},
                    Typing{kString, " a\n", R"(" a\n")"}, Typing{kString, "", R"("")"},
                    Typing{kString, R"("quoted")", R"("\"quoted\"")"}, Typing{kString, "Köln 😀", R"("Köln 😀")"},
                    Typing{"{}", "12", R"("12")"}, Typing{"true", "12", R"("12")"},
                    Typing{R"({"description":"x"})", "[1]", R"("[1]")"}, Typing{R"({"type":"Str"})", "1", R"("1")"},
                    Typing{R"({"type":"varchar"})", "1", R"("1")"}, Typing{R"({"enum":["1","2"]})", "1", R"("1")"},
                    Typing{R"({"type":7})", "1", R"("1")"}, Typing{R"({"$ref":"other.json"})", "1", R"("1")"},
                    Typing{R"({"$ref":"#/$defs/none"})", "1", R"("1")"},
                    Typing{R"({"$ref":"#/$defs/loop"})", "1", R"("1")"}));

INSTANTIATE_TEST_SUITE_P(
    Numbers, ArgumentTyping,
    testing::Values(
        Typing{kInteger, "5", "5"}, Typing{kInteger, " -12\n", "-12"}, Typing{kInteger, "+7", "7"},
        Typing{kInteger, "007", "7"}, Typing{kInteger, "-0", "0"}, Typing{kInteger, "1_000", "1000"},
        Typing{kInteger, "123456789012345678901234567890", "123456789012345678901234567890"},
        Typing{kInteger, "1__0", R"("1__0")"}, Typing{kInteger, "_1", R"("_1")"}, Typing{kInteger, "1_", R"("1_")"},
        Typing{kInteger, "five", R"("five")"}, Typing{kInteger, "", R"("")"}, Typing{kInteger, "3.5", "3.5"},
        Typing{kInteger, "[1]", "[1]"}, Typing{kInteger, "- 1", R"("- 1")"},
        Typing{kInteger, std::string(4301, '9'), '"' + std::string(4301, '9') + '"'},
        Typing{R"({"type":"int32"})", "5", "5"}, Typing{R"({"type":"uint8"})", "5", "5"},
        Typing{R"({"type":"long"})", "5", "5"}, Typing{R"({"enum":[1,2]})", "1", "1"},
        Typing{R"({"const":1})", "1", "1"}, Typing{R"({"$ref":"#/$defs/days"})", "3", "3"},
        Typing{R"({"$ref":"#/$defs/deep"})", "3.5", "3.5"}, Typing{kNumber, "3.0", "3"},
        Typing{kNumber, "3.25", "3.25"}, Typing{kNumber, "-.5", "-0.5"}, Typing{kNumber, "5.", "5"},
        Typing{kNumber, "1e3", "1000"}, Typing{kNumber, "1E-7", "1e-07"}, Typing{kNumber, "-0.0", "0"},
        Typing{kNumber, "1e22", "10000000000000000000000"},
        Typing{kNumber, "12345678901234567890", "12345678901234567890"}, Typing{kNumber, "1e-400", "0"},
        Typing{kNumber, "inf", R"("inf")"}, Typing{kNumber, "nan", R"("nan")"}, Typing{kNumber, "1e999", R"("1e999")"},
        Typing{kNumber, "0x10", R"("0x10")"}, Typing{kNumber, "+-5", R"("+-5")"}, Typing{kNumber, "1_0.5", "10.5"},
        Typing{kNumber, ".", R"(".")"}, Typing{kNumber, "e5", R"("e5")"}, Typing{kNumber, "5e", R"("5e")"},
        Typing{R"({"type":"float64"})", "2.5", "2.5"}, Typing{R"({"type":["integer","number"]})", "2.5", "2.5"},
        Typing{R"({"type":["string","integer"]})", "2", "2"},
        Typing{R"({"type":["string","integer"]})", "2a", R"("2a")"}));

INSTANTIATE_TEST_SUITE_P(Others, ArgumentTyping,
                         testing::Values(Typing{kBoolean, "true", "true"}, Typing{kBoolean, " FALSE ", "false"},
                                         Typing{kBoolean, "1", "true"}, Typing{kBoolean, "0", "false"},
                                         Typing{kBoolean, "yes", R"("yes")"}, Typing{kBoolean, "2", "2"},
                                         Typing{R"({"type":"bool"})", "true", "true"},
                                         Typing{R"({"$ref":"#/$defs/a~1b"})", "true", "true"},
                                         Typing{kOptional, "null", "null"}, Typing{kOptional, "NULL", "null"},
                                         Typing{kOptional, "4", "4"}, Typing{kOptional, " null", "null"},
                                         Typing{kOptional, "none", R"("none")"},
                                         Typing{R"({"type":"string","nullable":true})", "null", "null"},
                                         Typing{R"({"type":"string","nullable":true})", "x", R"("x")"},
                                         Typing{R"({"enum":["a",null]})", "null", "null"},
                                         Typing{R"({"type":["boolean","integer"]})", "1", "1"},
                                         Typing{R"({"type":"date"})", "2024-01-01", R"("2024-01-01")"},
                                         Typing{R"({"type":"any"})", "[1]", "[1]"}));

INSTANTIATE_TEST_SUITE_P(
    Nested, ArgumentTyping,
    testing::Values(
        Typing{kObject, R"({"b":1,"a":[1.0,null]})", R"({"b": 1, "a": [1.0, null]})"},
        Typing{kObject, R"({"a":12345678901234567890123})", R"({"a": 12345678901234567890123})"},
        Typing{kObject, "{'a': 1}", R"("{'a': 1}")"}, Typing{kObject, "[1]", "[1]"},
        Typing{kObject, R"({"a":1e999})", R"("{\"a\":1e999}")"}, Typing{kArray, "[1, \"x\"]", R"([1, "x"])"},
        Typing{kArray, "1, 2", R"("1, 2")"}, Typing{R"({"type":["array","string"]})", "{}", R"("{}")"},
        Typing{R"({"type":["array","string"]})", "[]", "[]"}, Typing{R"({"type":"dict"})", "{}", "{}"},
        Typing{R"({"type":"list"})", "[]", "[]"},
        Typing{R"({"type":"array","items":{"type":"integer"}})", R"(["5", "x", 6, 1.5])", R"([5, "x", 6, 1.5])"},
        Typing{R"({"type":"array","items":{"type":"string"}})", R"(["5", "null"])", R"(["5", "null"])"},
        Typing{R"({"type":"object","properties":{"n":{"type":"integer"},"s":{"type":"string"}}})",
               R"({"n":"5","s":"5","z":"5"})", R"({"n": 5, "s": "5", "z": "5"})"},
        Typing{R"({"type":"object","additionalProperties":{"type":"boolean"}})", R"({"x":"true"})", R"({"x": true})"},
        Typing{R"({"$ref":"#/$defs/node"})", R"({"value":"1","next":{"value":"2","next":"null"}})",
               R"({"value": 1, "next": {"value": 2, "next": null}})"},
        Typing{R"({"type":"object","properties":{"o":{"type":"object","properties":{"n":{"type":"integer"}}}}})",
               R"({"o":"{\"n\":\"3\"}"})", R"({"o": {"n": 3}})"},
        Typing{kObject, std::string(200, '[') + std::string(200, ']'),
               '"' + std::string(200, '[') + std::string(200, ']') + '"'}));

TEST(ArgumentTyper, KeysWithoutASchema) {
  const auto value = [](const char* parameters, const char* text) {
    const PromptJson schema = PromptJson::parse(parameters);
    return ArgumentTypers().of(schema).value("x", text).dump();
  };
  for (const char* none : {"null", "{}", R"({"type":"object","properties":{"k":{"type":"integer"}}})",
                           R"({"additionalProperties":true})", R"({"additionalProperties":{}})"}) {
    EXPECT_EQ(value(none, "5"), "5") << none;
    EXPECT_EQ(value(none, "007"), R"("007")") << none;
    EXPECT_EQ(value(none, "true"), "true") << none;
    EXPECT_EQ(value(none, "None"), R"("None")") << none;
    EXPECT_EQ(value(none, R"("quoted")"), R"("\"quoted\"")") << none;
    EXPECT_EQ(value(none, R"({"a": 1})"), R"({"a": 1})") << none;
    EXPECT_EQ(value(none, "Oslo"), R"("Oslo")") << none;
  }
  EXPECT_EQ(value(R"({"additionalProperties":{"type":"string"}})", "5"), R"("5")");
  EXPECT_EQ(value(R"({"additionalProperties":{"type":"integer"}})", "+5"), "5");
}

TEST(ArgumentTyper, WhereTextIsCertain) {
  const PromptJson schema = PromptJson::parse(
      R"({"properties":{"s":{"type":"string"},"n":{"type":["string","null"]},"i":{"type":"integer"},"any":{}}})");
  ArgumentTypers typers;
  ArgumentTyper& typer = typers.of(schema);
  EXPECT_TRUE(typer.only_text("s"));
  EXPECT_TRUE(typer.only_text("any"));
  EXPECT_FALSE(typer.only_text("n"));
  EXPECT_FALSE(typer.only_text("i"));
  EXPECT_FALSE(typer.only_text("unknown"));
  EXPECT_TRUE(typer.admits_text("s"));
  EXPECT_TRUE(typer.admits_text("n"));
  EXPECT_FALSE(typer.admits_text("i"));
  EXPECT_TRUE(typer.admits_text("unknown"));
}

TEST(ArgumentTyper, ReferencesToTheWholeSchema) {
  const PromptJson schema =
      PromptJson::parse(R"({"type":"object","properties":{"n":{"type":"integer"},"self":{"$ref":"#"}}})");
  EXPECT_EQ(ArgumentTypers().of(schema).value("self", R"({"n":"1","self":{"n":"2"}})").dump(),
            R"({"n": 1, "self": {"n": 2}})");
}

/// Each of 2,000 definitions refers to all: followed one by one they are 2,000 * 2,000 for every one of 2,000 keys.
PromptJson overlapping_schema() {
  std::string all;
  std::string definitions;
  std::string properties;
  for (int i = 0; i < 2000; ++i) {
    const std::string name = "d" + std::to_string(i);
    all += (i == 0 ? "" : ",") + std::string(R"({"$ref":"#/$defs/)") + name + R"("})";
    definitions += (i == 0 ? "\"" : ",\"") + name + R"(":{"$ref":"#/$defs/all"})";
    properties += (i == 0 ? "\"" : ",\"") + name + R"(":{"anyOf":[{"$ref":"#/$defs/all"},{"type":"integer"}]})";
  }
  return PromptJson::parse(R"({"properties":{)" + properties + R"(},"$defs":{"all":{"anyOf":[)" + all + "]}," +
                           definitions + "}}");
}

TEST(ArgumentTyper, OverlappingAlternativesEnd) {
  const PromptJson schema = overlapping_schema();
  ArgumentTypers typers;
  ArgumentTyper& typer = typers.of(schema);
  for (int i = 0; i < 2000; ++i) {
    const std::string value = typer.value("d" + std::to_string(i), "5").dump();
    EXPECT_TRUE(value == "5" || value == "\"5\"") << value;
  }
}

TEST(ArgumentTypers, OneForEachToolAndOneBoundForAll) {
  const PromptJson hostile = overlapping_schema();
  const PromptJson plain = PromptJson::parse(R"({"properties":{"n":{"type":"integer"}}})");
  const PromptJson late = PromptJson::parse(R"({"properties":{"n":{"type":"boolean"}}})");
  ArgumentTypers typers;
  ArgumentTyper& typer = typers.of(plain);
  EXPECT_EQ(typer.value("n", "+5").dump(), "5");
  for (int i = 0; i < 2000; ++i) typers.of(hostile).value("d" + std::to_string(i), "5");
  // What has been looked at before stays known; beyond the bound a schema says nothing.
  EXPECT_EQ(&typers.of(plain), &typer);
  EXPECT_EQ(typer.value("n", "+7").dump(), "7");
  EXPECT_EQ(typers.of(late).value("n", "1").dump(), "1");
  EXPECT_EQ(ArgumentTypers().of(late).value("n", "1").dump(), "true");
}

TEST(JsonPointer, FindReference) {
  const PromptJson document = PromptJson::parse(R"({"a":{"b":[1,{"c":2}],"x/y":3,"m~n":4,"p q":5,"":6,"none":null}})");
  const auto at = [&](const char* reference) {
    const PromptJson* found = find_reference(document, reference);
    return found == nullptr ? "-" : found->dump();
  };
  EXPECT_EQ(at("#"), document.dump());
  EXPECT_EQ(at("#/a/b/0"), "1");
  EXPECT_EQ(at("#/a/b/1/c"), "2");
  EXPECT_EQ(at("#/a/x~1y"), "3");
  EXPECT_EQ(at("#/a/m~0n"), "4");
  EXPECT_EQ(at("#/a/p%20q"), "5");
  EXPECT_EQ(at("#/a/"), "6");
  for (const char* nothing : {"", "a", "/a", "#a", "http://x#/a", "#/b", "#/a/b/2", "#/a/b/-1", "#/a/b/0x", "#/a/none",
                              "#/a/b/0/c", "#/a/b/99999999999999999999"}) {
    EXPECT_EQ(at(nothing), "-") << nothing;
  }
  size_t compared = 0;
  find_reference(document, "#/a/b/1/c", &compared);
  EXPECT_EQ(compared, 1u + 6u + 1u);
}

}  // namespace
}  // namespace glm53::text
