// The configuration layers: reader, typed assignment, precedence, nearest keys, print-out.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/command_line.h"
#include "config/effective_settings.h"
#include "config/environment.h"
#include "config/setting_table.h"
#include "config/setting_value.h"
#include "data_file.h"
#include "glm53/core/error.h"

namespace glm53::config {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

EffectiveSettings from_yaml(const std::string& text) {
  EffectiveSettings settings = default_settings();
  apply_file(read_yaml(text, "test.yaml"), "test.yaml", settings);
  return settings;
}

/// The message of the Error that `body` throws; a failure when it throws none.
template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), kExitBadInput);
    return e.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

CommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "glm53-serve");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

std::string origin_of(const EffectiveSettings& settings, const std::string& section, const std::string& key) {
  return settings.origins.at(static_cast<size_t>(find_setting(section, key)));
}

TEST(Yaml, ReadsEveryType) {
  const Settings s = from_yaml(R"(
model: {path: "a dir/ä", served_name: 123}
server:
  port: 0
  api_key: [one, "two"]
context: 1048576
stream:
  smooth: false
defaults:
  effort: high
)")
                         .values;
  EXPECT_EQ(s.model.path, "a dir/ä");
  EXPECT_THAT(s.model.served_name, testing::ElementsAre("123"));
  EXPECT_EQ(s.server.port, 0);
  EXPECT_THAT(s.server.api_key, testing::ElementsAre("one", "two"));
  EXPECT_EQ(s.context, 1048576);
  EXPECT_FALSE(s.stream.smooth);
  EXPECT_EQ(s.defaults.effort, "high");
}

TEST(Yaml, TextWithoutKeysIsEmpty) {
  for (const char* text : {"", "\n", "# only a comment\n", "---\n", "---\n...\n", "~\n", "{}\n", "\xEF\xBB\xBF"}) {
    const EffectiveSettings settings = from_yaml(text);
    EXPECT_THAT(settings.origins, Not(Contains(testing::Ne("default")))) << text;
  }
}

TEST(Yaml, SectionMayBeEmpty) { EXPECT_EQ(from_yaml("server:\n  # port: 1\nkv: {}\n").values.server.port, 8888); }

TEST(Yaml, DenseGroupsAreASectionWithinASection) {
  const EffectiveSettings s = from_yaml(R"(
dense:
  groups: {kda: fp8, "head": bf16}
  format: q4
kv: {index: bf16}
)");
  EXPECT_EQ(s.values.dense.format, "q4");
  EXPECT_EQ(s.values.dense_groups.kda, "fp8");
  EXPECT_EQ(s.values.dense_groups.head, "bf16");
  EXPECT_EQ(s.values.dense_groups.mla, "");
  EXPECT_EQ(s.values.kv.index, "bf16");
  EXPECT_EQ(origin_of(s, "dense.groups", "kda"), "test.yaml:3");
  EXPECT_EQ(origin_of(s, "dense", "format"), "test.yaml:4");
  EXPECT_EQ(from_yaml("dense:\n  groups:\n    # kda: q4\n  format: fp8\n").values.dense.format, "fp8");
  EXPECT_EQ(from_yaml("dense: {groups: {}}").values.dense_groups.kda, "");
  EXPECT_EQ(from_yaml("dense.groups: {mla: q4}").values.dense_groups.mla, "q4");
}

TEST(Yaml, DenseGroupErrorsNameTheKey) {
  const auto message = [](const std::string& text) { return error_of([&] { from_yaml(text); }); };
  EXPECT_EQ(message("dense: {groups: {kda: int4}}"),
            "test.yaml:1: dense.groups.kda: expected one of \"\", bf16, fp8, q4, found \"int4\"");
  EXPECT_EQ(message("dense:\n  groups:\n    kds: q4\n"),
            "test.yaml:3: unknown key \"dense.groups.kds\", the nearest is dense.groups.kda");
  EXPECT_EQ(message("dense: {groups: q4}"), "test.yaml:1: dense.groups: expected a section of keys, found a value");
  EXPECT_EQ(message("dense: {groups: {kda: {x: q4}}}"),
            "test.yaml:1: dense.groups.kda: a mapping is not expected here");
  EXPECT_EQ(message("dense: {groups: {kda: q4, kda: q4}}"), "test.yaml:1: dense.groups.kda is given twice");
  EXPECT_EQ(message("dense: {groups: {}, groups: {}}"), "test.yaml:1: dense.groups is given twice");
  EXPECT_EQ(message("kv: {groups: {kda: q4}}"), "test.yaml:1: kv.groups: a mapping is not expected here");
}

TEST(Yaml, OneKeyOfAListKeyNeedsNoBrackets) {
  EXPECT_THAT(from_yaml("server: {api_key: 'a,b'}").values.server.api_key, testing::ElementsAre("a,b"));
  EXPECT_THAT(from_yaml("server: {api_key: ''}").values.server.api_key, testing::IsEmpty());
  EXPECT_THAT(from_yaml("server: {api_key: []}").values.server.api_key, testing::IsEmpty());
}

TEST(Yaml, OriginsAreOneOrSeveral) {
  const auto settings = [](const std::string& origins) {
    return from_yaml("model: {path: m}\ncluster: {tp: 1}\ndraft: {kind: none}\nserver: {cors_origin: " + origins +
                     "}\n")
        .values;
  };
  EXPECT_THAT(default_settings().values.server.cors_origin, testing::ElementsAre("*"));
  EXPECT_THAT(settings("\"\"").server.cors_origin, testing::IsEmpty());
  EXPECT_THAT(settings("[https://a.example, 'http://b.example:8080']").server.cors_origin,
              testing::ElementsAre("https://a.example", "http://b.example:8080"));
  for (const char* good : {"'*'", "https://a.example", "'null'", "[http://localhost:3000, 'null']",
                           "'http://a.example:443'", "'http://[::1]:3000'"}) {
    EXPECT_NO_THROW(check_consistency(settings(good))) << good;
  }
  for (const char* bad :
       {"a.example", "https://a.example/", "https://", "'://a'", "['*', https://a.example]", "https://*.example",
        "'https://a.example,https://b.example'", "https://A.example", "HTTPS://a.example", "'https://a.example:443'",
        "'http://a.example:80'", "'https://a.example:'", "https://user@a.example"}) {
    EXPECT_THAT(error_of([&] { check_consistency(settings(bad)); }),
                testing::StartsWith("server.cors_origin: expected"))
        << bad;
  }
}

TEST(Yaml, HostInDigitsIsAnAddress) {
  const auto check = [](const std::string& host) {
    check_consistency(
        from_yaml("model: {path: m}\ncluster: {tp: 1}\ndraft: {kind: none}\nserver: {host: '" + host + "'}\n").values);
  };
  for (const char* good : {"0.0.0.0", "127.0.0.1", "::", "::1", "localhost", "spark2", "999.example"}) {
    EXPECT_NO_THROW(check(good)) << good;
  }
  for (const char* bad : {"999.1.1.1", "1.2.3.4.5", "[::1]", "127.0.0.1:8888", ":::"}) {
    EXPECT_THAT(error_of([&] { check(bad); }), testing::StartsWith("server.host: expected a name or an address, found"))
        << bad;
  }
}

TEST(Yaml, AllBodiesHoldAtLeastOne) {
  const auto message = error_of([] {
    check_consistency(
        from_yaml("model: {path: m}\ncluster: {tp: 1}\ndraft: {kind: none}\nserver: {max_body_mib: 300}\n").values);
  });
  EXPECT_EQ(message, "server.max_bodies_mib: 256 is below server.max_body_mib, which is 300");
}

TEST(Yaml, DummyLayersAreAListOfPairs) {
  const Settings s = from_yaml("model: {load_format: dummy}\ndummy:\n  layer_k: [4:3, 5:3]\n  seed: 7\n").values;
  EXPECT_EQ(s.model.load_format, "dummy");
  EXPECT_THAT(s.dummy.layer_k, testing::ElementsAre("4:3", "5:3"));
  EXPECT_EQ(s.dummy.seed, 7);
  EXPECT_EQ(s.dummy.experts_k, 4);
}

TEST(Yaml, WindowsLineEndsKeepLineNumbers) {
  EXPECT_EQ(origin_of(from_yaml("server:\r\n  port: 5\r\n"), "server", "port"), "test.yaml:2");
}

// Every file of the corpus names a part of its message in its first line.
TEST(Yaml, MalformedCorpus) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(GLM53_TEST_DATA "/malformed/yaml")) {
    SCOPED_TRACE(entry.path().filename().string());
    const std::string text = test::read_file(entry.path());
    const std::string mark = "# expect: ";
    ASSERT_TRUE(text.starts_with(mark));
    const std::string expected = text.substr(mark.size(), text.find('\n') - mark.size());
    const std::string message = error_of([&] {
      EffectiveSettings settings = default_settings();
      apply_file(read_yaml_file(entry.path().string()), entry.path().string(), settings);
      check_consistency(settings.values);
    });
    EXPECT_THAT(message, HasSubstr(expected));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    EXPECT_LT(message.size(), 500U);
    ++files;
  }
  EXPECT_GE(files, 70);
}

TEST(Yaml, UnreadableFiles) {
  EXPECT_EQ(error_of([] { read_yaml_file("/no/such/file.yaml"); }), "/no/such/file.yaml: No such file or directory");
  EXPECT_THAT(error_of([] { read_yaml_file(GLM53_TEST_DATA); }), HasSubstr("is a directory"));
}

TEST(Precedence, CommandLineOverEnvironmentOverFileOverDefault) {
  const std::string path = testing::TempDir() + "/glm53_precedence.yaml";
  std::ofstream(path) << "server:\n  port: 1\n  host: file\n  max_body_mib: 7\n";
  CommandLine command = parse({"--config", path.c_str(), "--set", "server.port=3", "--set", "server.port=4"});
  const EffectiveSettings s =
      load_settings(command, {{"GLM53_SERVER_PORT", "2"}, {"GLM53_SERVER_HOST", "env"}, {"GLM53_CONTEXT", "77"}});
  EXPECT_EQ(s.values.server.port, 4);
  EXPECT_EQ(s.values.server.host, "env");
  EXPECT_EQ(s.values.server.max_body_mib, 7);
  EXPECT_EQ(s.values.context, 77);
  EXPECT_EQ(s.values.server.header_kib, 16);
  EXPECT_EQ(origin_of(s, "server", "port"), "--set");
  EXPECT_EQ(origin_of(s, "server", "host"), "environment GLM53_SERVER_HOST");
  EXPECT_EQ(origin_of(s, "server", "max_body_mib"), path + ":4");
  EXPECT_EQ(origin_of(s, "server", "header_kib"), "default");
  std::filesystem::remove(path);

  const EffectiveSettings groups =
      load_settings(parse({"--set", "dense.groups.kda=q4"}), {{"GLM53_DENSE_GROUPS_KV_B", "fp8"}});
  EXPECT_EQ(groups.values.dense_groups.kda, "q4");
  EXPECT_EQ(groups.values.dense_groups.kv_b, "fp8");
}

TEST(Precedence, ShortcutsWinOverSet) {
  const CommandLine command = parse({"--port", "5", "--rank=1", "--set", "server.port=6"});
  const EffectiveSettings s = load_settings(command, {});
  EXPECT_EQ(s.values.server.port, 5);
  EXPECT_EQ(s.values.cluster.rank, 1);
  EXPECT_EQ(origin_of(s, "server", "port"), "--port");
  const Settings more = load_settings(parse({"--served-model-name", "a,org/b", "--generation-config=vllm",
                                             "--override-generation-config", R"({"top_p": 0.5, "top_k": 3})"}),
                                      {})
                            .values;
  EXPECT_THAT(more.model.served_name, testing::ElementsAre("a", "org/b"));
  const Settings scripts =
      load_settings(parse({"--api-key", "one", "--api-key=two,three", "--host", "::1", "--max-model-len", "4096",
                           "--max-num-seqs", "2", "--max-num-batched-tokens", "512", "--kv-cache-dtype", "bf16"}),
                    {})
          .values;
  EXPECT_THAT(scripts.server.api_key, testing::ElementsAre("one", "two", "three"));
  EXPECT_EQ(scripts.server.host, "::1");
  EXPECT_EQ(scripts.context, 4096);
  EXPECT_EQ(scripts.scheduler.max_streams, 2);
  EXPECT_EQ(scripts.scheduler.prefill_rows, 512);
  EXPECT_EQ(scripts.kv.dtype, "bf16");
  EXPECT_EQ(load_settings(parse({"--port", "1", "--port", "2"}), {}).values.server.port, 2);
  EXPECT_EQ(more.defaults.generation_config, "vllm");
  EXPECT_EQ(more.defaults.override_generation_config, R"({"top_p": 0.5, "top_k": 3})");
}

TEST(Precedence, ListsOutsideTheFileAreReadLikeThoseInIt) {
  const auto keys = [](const std::string& text) {
    const Settings set = load_settings(parse({"--set", ("server.api_key=" + text).c_str()}), {}).values;
    const Settings shortcut = load_settings(parse({"--api-key", text.c_str()}), {}).values;
    const Settings environment = load_settings(parse({}), {{"GLM53_SERVER_API_KEY", text}}).values;
    EXPECT_EQ(set.server.api_key, shortcut.server.api_key) << text;
    EXPECT_EQ(set.server.api_key, environment.server.api_key) << text;
    return set.server.api_key;
  };
  EXPECT_THAT(keys("[]"), testing::IsEmpty());
  EXPECT_THAT(keys("[ ]"), testing::IsEmpty());
  EXPECT_THAT(keys(""), testing::IsEmpty());
  EXPECT_THAT(keys("[a, b]"), testing::ElementsAre("a", "b"));
  EXPECT_THAT(keys("a,b"), testing::ElementsAre("a", "b"));
  EXPECT_THAT(keys("a, b "), testing::ElementsAre("a", "b"));
  EXPECT_THAT(keys(R"(["a, b", 'c]'])"), testing::ElementsAre("a, b", "c]"));
  EXPECT_THAT(keys("[a"), testing::ElementsAre("[a"));
  EXPECT_THAT(load_settings(parse({"--set", "dummy.layer_k=[4:3, 5:3]"}), {}).values.dummy.layer_k,
              testing::ElementsAre("4:3", "5:3"));
  EXPECT_THAT(load_settings(parse({"--api-key", "[a, b]", "--api-key=c"}), {}).values.server.api_key,
              testing::ElementsAre("a", "b", "c"));
  for (const char* bad : {"[[hunter2]]", "[hunter2], [b]", "[!hunter2 a]", "[&hunter2 a]", "[hunter2: {b: c]",
                          "[hunter2]\nserver: [b]", "[hunter2, '']", "hunter2,,b", ",", "[hunter2, ]x]"}) {
    const std::string message = error_of([&] { load_settings(parse({"--api-key", bad}), {}); });
    EXPECT_THAT(message, testing::StartsWith("--api-key: server.api_key: ")) << bad;
    EXPECT_THAT(message, Not(HasSubstr("hunter2"))) << bad;
  }
}

TEST(Precedence, OptionsOfLaunchScripts) {
  const auto values = [](std::vector<const char*> arguments) {
    return load_settings(parse(std::move(arguments)), {}).values;
  };
  EXPECT_EQ(values({"--tensor-parallel-size", "3"}).cluster.tp, 3);
  EXPECT_THAT(values({"--served-model-name", "a", "b", "--served-model-name=c", "--port", "1"}).model.served_name,
              testing::ElementsAre("a", "b", "c"));
  EXPECT_EQ(values({"--set", "kv.dtype=bf16", "--kv-cache-dtype", "auto"}).kv.dtype, "bf16");
  EXPECT_EQ(values({"--load-format", "auto"}).model.load_format, "checkpoint");
  EXPECT_EQ(values({"--load-format", "auto", "--load-format", "dummy"}).model.load_format, "dummy");
  EXPECT_EQ(values({"--generation-config", "auto"}).defaults.generation_config, "auto");
  EXPECT_EQ(values({"--override-generation-config", "{}"}).defaults.override_generation_config, "{}");
}

TEST(Precedence, ANameIsServedAtLeast) {
  for (const char* none : {"[]", "''", "['']", "[a, '']"}) {
    EXPECT_THAT(error_of([&] { from_yaml(std::string("model: {served_name: ") + none + "}"); }),
                HasSubstr("model.served_name: expected non-empty text or a list of such, found"))
        << none;
  }
}

TEST(Environment, UnknownVariableNamesTheNearest) {
  EffectiveSettings s = default_settings();
  EXPECT_EQ(error_of([&] {
              apply_environment({{"GLM53_SERVER_PROT", "1"}}, s);
            }),
            "environment: unknown variable \"GLM53_SERVER_PROT\", the nearest is GLM53_SERVER_PORT");
  EXPECT_THAT(error_of([&] { apply_environment({{"GLM53_", "1"}}, s); }), HasSubstr("unknown variable"));
  for (const auto& [name, nearest] : {std::pair("GLM53_PORT", "GLM53_SERVER_PORT"),
                                      {"GLM53_CONTXT", "GLM53_CONTEXT"},
                                      {"GLM53_API_KEY", "GLM53_SERVER_API_KEY"}}) {
    EXPECT_THAT(error_of([&] { apply_environment({{name, "1"}}, s); }), testing::EndsWith(nearest));
  }
}

TEST(Environment, BadValueNamesTheVariable) {
  EffectiveSettings s = default_settings();
  EXPECT_EQ(error_of([&] {
              apply_environment({{"GLM53_SERVER_PORT", ""}}, s);
            }),
            "environment GLM53_SERVER_PORT: server.port: expected an integer from 0 to 65535, found \"\"");
  EXPECT_EQ(error_of([&] {
              apply_environment({{"GLM53_MODEL_PATH", "\xff"}}, s);
            }),
            "environment GLM53_MODEL_PATH: model.path: the value is not UTF-8");
}

TEST(Environment, ReadsOnlyItsOwnPrefix) {
  ASSERT_EQ(setenv("GLM53_KV_DTYPE", "bf16=x", 1), 0);
  ASSERT_EQ(setenv("XGLM53_KV_DTYPE", "1", 1), 0);
  const auto variables = read_environment();
  unsetenv("GLM53_KV_DTYPE");
  unsetenv("XGLM53_KV_DTYPE");
  EXPECT_THAT(variables, Contains(testing::Pair("GLM53_KV_DTYPE", "bf16=x")));
  EXPECT_THAT(variables, Not(Contains(testing::Key("XGLM53_KV_DTYPE"))));
}

TEST(CommandLineTest, Actions) {
  using Action = CommandLine::Action;
  EXPECT_EQ(parse({}).action, Action::kServe);
  EXPECT_EQ(parse({"--check"}).action, Action::kCheck);
  EXPECT_EQ(parse({"--print-config"}).action, Action::kPrintConfig);
  EXPECT_EQ(parse({"--version"}).action, Action::kVersion);
  EXPECT_EQ(parse({"--help"}).action, Action::kHelp);
  EXPECT_EQ(parse({"-h"}).action, Action::kHelp);
}

TEST(CommandLineTest, SetKeepsTheValueAsItIs) {
  const CommandLine command = parse({"--set", "model.path=a=b [c], d", "--set=server.api_key=k1,k2"});
  ASSERT_EQ(command.assignments.size(), 2U);
  EXPECT_EQ(command.assignments[0].name, "model.path");
  EXPECT_THAT(command.assignments[0].texts, testing::ElementsAre("a=b [c], d"));
  EXPECT_THAT(load_settings(command, {}).values.server.api_key, testing::ElementsAre("k1", "k2"));
}

TEST(CommandLineTest, AnOptionIsNoValue) {
  const CommandLine empty = parse({"--api-key=", "--check"});
  EXPECT_EQ(empty.action, CommandLine::Action::kCheck);
  EXPECT_THAT(load_settings(empty, {}).values.server.api_key, testing::IsEmpty());
  EXPECT_EQ(error_of([] {
              parse({"--api-key", "--check"});
            }),
            "--api-key: the value is missing (one that begins with -- is given as --api-key=VALUE)");
  EXPECT_THAT(error_of([] { parse({"--config", "--check"}); }), testing::StartsWith("--config: the value is missing"));
  EXPECT_THAT(error_of([] { parse({"--config="}); }), HasSubstr("the file name is empty"));
  EXPECT_THAT(error_of([] { parse({"--set=", "--check"}); }), HasSubstr("expected SECTION.KEY=VALUE"));
  EXPECT_THAT(error_of([] { load_settings(parse({"--port=", "--check"}), {}); }), HasSubstr("found \"\""));
  EXPECT_THAT(load_settings(parse({"--api-key=--x"}), {}).values.server.api_key, testing::ElementsAre("--x"));
}

TEST(CommandLineTest, ErrorsAreOneLine) {
  const std::vector<std::vector<const char*>> lines = {{"--prot", "1"},      {"stray"},
                                                       {"--config"},         {"--set"},
                                                       {"--set", "a"},       {"--set", "=1"},
                                                       {"--config", ""},     {"--check", "--print-config"},
                                                       {"--port"},           {"--config", "a", "--config", "b"},
                                                       {"--port", "1", "2"}, {"--set", "a.b=1", "c.d=2"}};
  for (const auto& arguments : lines) {
    const std::string message = error_of([&] { parse(arguments); });
    EXPECT_FALSE(message.empty());
    EXPECT_THAT(message, Not(HasSubstr("\n")));
  }
}

TEST(CommandLineTest, BadAssignmentsNameTheOption) {
  const auto message = [](std::vector<const char*> arguments) {
    return error_of([&] { load_settings(parse(std::move(arguments)), {}); });
  };
  EXPECT_EQ(message({"--port", "70000"}), "--port: server.port: expected an integer from 0 to 65535, found \"70000\"");
  EXPECT_EQ(message({"--set", "sever.port=1"}), "--set: unknown key \"sever.port\", the nearest is server.port");
  EXPECT_EQ(message({"--set", "contxt=1"}), "--set: unknown key \"contxt\", the nearest is context");
  EXPECT_EQ(message({"--set", "stream=1"}), "--set: stream is a section; its keys are stream.smooth, stream.smooth_ms");
  EXPECT_THAT(message({"--set", "dense.groups=bf16"}),
              HasSubstr("dense.groups is a section; its keys are dense.groups.kda, dense.groups.mla, "));
  EXPECT_THAT(message({"--set", "kv.dtype="}), HasSubstr("expected one of bf16, fp8, found \"\""));
}

TEST(Table, NamesAreUniqueAndSectionsContiguous) {
  std::set<std::string> names;
  std::set<std::string> variables;
  std::set<std::string> closed_sections;
  std::string section;
  for (const SettingKey& key : setting_table()) {
    EXPECT_TRUE(names.insert(key.name()).second) << key.name();
    EXPECT_TRUE(variables.insert(key.environment_name()).second) << key.name();
    EXPECT_FALSE(key.help.empty()) << key.name();
    if (key.section != section) {
      if (!section.empty()) closed_sections.insert(section);
      section = std::string(key.section);
      EXPECT_EQ(closed_sections.count(section), 0U) << section;
    }
  }
}

// A default outside its own range, or two keys on one field, would show here.
TEST(Table, DefaultsReadBackThroughEveryKey) {
  const EffectiveSettings defaults = default_settings();
  std::set<const void*> fields;
  Settings target;
  for (const SettingKey& key : setting_table()) {
    std::visit([&](auto* field) { EXPECT_TRUE(fields.insert(field).second) << key.name(); }, key.field(target));
  }
  EXPECT_EQ(to_yaml(from_yaml(to_yaml(defaults))).size() > 0, true);
}

TEST(Table, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("port", ""), 4);
  EXPECT_EQ(edit_distance("port", "prot"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance(std::string(1 << 20, 'a'), "a"), 63);
}

TEST(PrintConfig, ReadsBackToTheSameValuesAndNamesOrigins) {
  EffectiveSettings s = from_yaml("model:\n  path: \"a \\\"b\\\" \\\\ # ü: x\"\nserver: {port: 0}\n");
  apply_command_line({{"--set", "context", {"99"}}, {"--set", "dense.groups.mlp", {"q4"}}}, s);
  const std::string printed = to_yaml(s);
  EXPECT_THAT(printed, HasSubstr("context: 99  # --set\n"));
  EXPECT_THAT(printed, HasSubstr("  groups:\n    kda: \"\"  # default\n"));
  EXPECT_THAT(printed, HasSubstr("    mlp: \"q4\"  # --set\n"));
  EXPECT_THAT(printed, HasSubstr("  port: 0  # test.yaml:3\n"));
  EXPECT_THAT(printed, HasSubstr("  host: \"0.0.0.0\"  # default\n"));
  const EffectiveSettings again = from_yaml(printed);
  for (size_t i = 0; i < setting_table().size(); ++i) {
    EXPECT_EQ(value_text(again, static_cast<int>(i)), value_text(s, static_cast<int>(i)));
  }
  EXPECT_EQ(again.values.model.path, "a \"b\" \\ # ü: x");
}

TEST(PrintConfig, ChangedValuesAreOneLine) {
  EXPECT_EQ(changed_values(default_settings()), "");
  EffectiveSettings s = from_yaml("server: {api_key: [hunter2], port: 8888}\n");
  apply_command_line({{"--set", "dense.groups.mlp", {"q4"}}}, s);
  EXPECT_EQ(changed_values(s),
            "server.port: 8888 (test.yaml:1), server.api_key: [\"<redacted>\"] (test.yaml:1), "
            "dense.groups.mlp: \"q4\" (--set)");
}

TEST(PrintConfig, SecretsNeverShow) {
  EffectiveSettings s = from_yaml("server: {api_key: [hunter2]}");
  EXPECT_THAT(to_yaml(s), Not(HasSubstr("hunter2")));
  EXPECT_THAT(to_yaml(s), HasSubstr("api_key: [\"<redacted>\"]"));
  const auto message = [&](const std::string& text) {
    return error_of([&] { apply_environment({{"GLM53_SERVER_API_KEY", text}}, s); });
  };
  EXPECT_THAT(message("hunter2,,x"), Not(HasSubstr("hunter2")));
  EXPECT_THAT(message("hunter2\n"), Not(HasSubstr("hunter2")));
  // A saved print-out must not turn into a key that anybody can guess.
  EXPECT_THAT(error_of([&] { from_yaml(to_yaml(s)); }), HasSubstr("the mask that --print-config writes"));
}

TEST(Help, ListsEveryKey) {
  const std::string help = help_text();
  for (const SettingKey& key : setting_table()) EXPECT_THAT(help, HasSubstr("  " + key.name() + " "));
  for (const char* option :
       {"--config", "--set", "--port", "--rank", "--load-format", "--print-config", "--version", "--check"}) {
    EXPECT_THAT(help, HasSubstr(option));
  }
}

TEST(TinyConfig, IsConsistent) {
  const std::string path = GLM53_TEST_DATA "/../../configs/tiny-cpu.yaml";
  EffectiveSettings s = default_settings();
  apply_file(read_yaml_file(path), path, s);
  EXPECT_NO_THROW(check_consistency(s.values));
  EXPECT_EQ(s.values.model.path, "tests/data/models/glm53-tiny");
  EXPECT_EQ(s.values.backend, "cpu");
  EXPECT_EQ(s.values.context, 8192);
  EXPECT_EQ(s.values.cluster.tp, 1);
  EXPECT_EQ(s.values.server.host, "127.0.0.1");
}

}  // namespace
}  // namespace glm53::config
