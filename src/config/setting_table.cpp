#include "config/setting_table.h"

#include <algorithm>
#include <cctype>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace glm53::config {

namespace {

template <auto Section, auto Field>
FieldRef field(Settings& settings) {
  return &((settings.*Section).*Field);
}

template <auto Field>
FieldRef top_field(Settings& settings) {
  return &(settings.*Field);
}

using Access = FieldRef (*)(Settings&);
using Words = std::vector<std::string_view>;

SettingKey integer(std::string_view section, std::string_view key, Access access, int64_t low, int64_t high,
                   std::string_view help) {
  return {section, key, access, help, low, high, {}, true, false};
}

SettingKey flag(std::string_view section, std::string_view key, Access access, std::string_view help) {
  return {section, key, access, help, 0, 0, {}, true, false};
}

SettingKey choice(std::string_view section, std::string_view key, Access access, Words allowed, std::string_view help) {
  return {section, key, access, help, 0, 0, std::move(allowed), true, false};
}

SettingKey text(std::string_view section, std::string_view key, Access access, std::string_view help,
                bool may_be_empty) {
  return {section, key, access, help, 0, 0, {}, may_be_empty, false};
}

SettingKey secrets(std::string_view section, std::string_view key, Access access, std::string_view help) {
  return {section, key, access, help, 0, 0, {}, true, true};
}

SettingKey texts(std::string_view section, std::string_view key, Access access, std::string_view help,
                 bool may_be_empty = true) {
  return {section, key, access, help, 0, 0, {}, may_be_empty, false};
}

constexpr int kDay = 86400;
// Page tables index 64-token pages by int32; this stays far below and above every published context.
constexpr int64_t kMaxContext = int64_t{1} << 30;

std::vector<SettingKey> make_table() {
  using S = Settings;
  std::vector<SettingKey> table;
  const auto add = [&table](SettingKey key) { table.push_back(std::move(key)); };

  add(text("model", "path", field<&S::model, &ModelSettings::path>, "checkpoint directory", true));
  add(texts("model", "served_name", field<&S::model, &ModelSettings::served_name>,
            "model names in requests and replies; the first is the default", false));
  add(choice("model", "load_format", field<&S::model, &ModelSettings::load_format>, {"checkpoint", "dummy"},
             "dummy: random weights for the directory's config.json, no checkpoint"));
  add(integer("dummy", "experts_k", field<&S::dummy, &DummySettings::experts_k>, 1, 8,
              "bits a weight of dummy routed experts"));
  add(texts("dummy", "layer_k", field<&S::dummy, &DummySettings::layer_k>,
            "LAYER:K where the experts of single layers differ"));
  add(integer("dummy", "seed", field<&S::dummy, &DummySettings::seed>, 0, std::numeric_limits<int64_t>::max(),
              "seed of dummy weights"));

  add(text("server", "host", field<&S::server, &ServerSettings::host>, "address to listen on", false));
  add(integer("server", "port", field<&S::server, &ServerSettings::port>, 0, 65535, "TCP port; 0 = any free port"));
  add(secrets("server", "api_key", field<&S::server, &ServerSettings::api_key>,
              "keys that clients may use; none = open to everybody"));
  add(integer("server", "max_body_mib", field<&S::server, &ServerSettings::max_body_mib>, 1, 4096,
              "largest request body, MiB"));
  add(integer("server", "max_bodies_mib", field<&S::server, &ServerSettings::max_bodies_mib>, 1, 1 << 20,
              "most that the bodies of all requests hold together, MiB; more are answered 503"));
  add(integer("server", "max_connections", field<&S::server, &ServerSettings::max_connections>, 1, 65536,
              "connections at once; more are answered 503"));
  add(integer("server", "header_kib", field<&S::server, &ServerSettings::header_kib>, 1, 1024,
              "largest header block of a request, KiB"));
  add(integer("server", "header_timeout_s", field<&S::server, &ServerSettings::header_timeout_s>, 1, kDay,
              "time for a whole header block"));
  add(integer("server", "body_timeout_s", field<&S::server, &ServerSettings::body_timeout_s>, 1, kDay,
              "silence allowed while a body arrives"));
  add(integer("server", "write_timeout_s", field<&S::server, &ServerSettings::write_timeout_s>, 1, kDay,
              "a request is cancelled when its client takes nothing of the reply for so long"));
  add(integer("server", "idle_timeout_s", field<&S::server, &ServerSettings::idle_timeout_s>, 1, kDay,
              "an idle connection is closed after this"));
  add(texts("server", "cors_origin", field<&S::server, &ServerSettings::cors_origin>,
            "whose web pages may read replies: * or origins; [] = this server's own alone"));
  add(flag("server", "access_log", field<&S::server, &ServerSettings::access_log>,
           "log a line for each request, without its text, query and headers"));

  add(integer("cluster", "tp", field<&S::cluster, &ClusterSettings::tp>, 1, 4, "tensor-parallel ranks"));
  add(integer("cluster", "rank", field<&S::cluster, &ClusterSettings::rank>, 0, 3, "rank of this process"));
  add(text("cluster", "master_addr", field<&S::cluster, &ClusterSettings::master_addr>, "address of rank 0", true));
  add(integer("cluster", "master_port", field<&S::cluster, &ClusterSettings::master_port>, 1, 65535,
              "rendezvous port of rank 0"));

  add(choice("", "backend", top_field<&S::backend>, {"auto", "cpu", "cuda"}, "device that computes"));
  add(integer("cuda", "device", field<&S::cuda, &CudaSettings::device>, 0, 63, "number of the CUDA device"));
  add(flag("cuda", "graphs", field<&S::cuda, &CudaSettings::graphs>, "record decode steps at start, replay them"));
  add(choice("cpu", "mode", field<&S::cpu, &CpuSettings::mode>, {"fp32", "bf16"}, "arithmetic of the CPU backend"));
  add(integer("cpu", "threads", field<&S::cpu, &CpuSettings::threads>, 0, 1024, "CPU threads; 0 = all cores"));

  add(integer("", "context", top_field<&S::context>, 2, kMaxContext, "tokens of prompt and reply together"));
  add(choice("kv", "dtype", field<&S::kv, &KvSettings::dtype>, {"bf16", "fp8"}, "storage of the latent cache"));
  add(choice("kv", "index", field<&S::kv, &KvSettings::index>, {"", "bf16", "fp8"},
             "storage of the indexer's pool keys; \"\" = as kv.dtype"));
  add(choice("dense", "format", field<&S::dense, &DenseSettings::format>, {"bf16", "fp8", "q4"},
             "storage of dense weights"));
  const auto add_group = [&add](std::string_view key, Access access, std::string_view help) {
    add(choice("dense.groups", key, access, {"", "bf16", "fp8", "q4"}, help));
  };
  using G = DenseGroupSettings;
  add_group("kda", field<&S::dense_groups, &G::kda>, "of the KDA layers; \"\" = as dense.format");
  add_group("mla", field<&S::dense_groups, &G::mla>, "of the MLA layers; \"\" = as dense.format");
  add_group("kv_b", field<&S::dense_groups, &G::kv_b>, "of the MLA layers' kv_b; \"\" = bf16");
  add_group("mlp", field<&S::dense_groups, &G::mlp>, "of the dense layers' MLP; \"\" = as dense.format");
  add_group("shared", field<&S::dense_groups, &G::shared>, "of the shared experts; \"\" = as dense.format");
  add_group("head", field<&S::dense_groups, &G::head>, "of lm_head; \"\" = fp8 with dense.format q4, else bf16");

  add(integer("scheduler", "max_streams", field<&S::scheduler, &SchedulerSettings::max_streams>, 1, 8,
              "most replies at once"));
  add(integer("scheduler", "max_queued", field<&S::scheduler, &SchedulerSettings::max_queued>, -1, 1000000,
              "most waiting choices; -1 = no limit, 0 = refuse when busy"));
  add(integer("scheduler", "prefill_rows", field<&S::scheduler, &SchedulerSettings::prefill_rows>, 1, 65536,
              "most prompt rows of one forward call"));

  add(choice("draft", "kind", field<&S::draft, &DraftSettings::kind>, {"dflash2", "mtp", "none"}, "drafter"));
  add(text("draft", "path", field<&S::draft, &DraftSettings::path>, "directory of the dflash2 drafter", true));

  add(flag("stream", "smooth", field<&S::stream, &StreamSettings::smooth>, "spread accepted drafts evenly in time"));
  add(integer("stream", "smooth_ms", field<&S::stream, &StreamSettings::smooth_ms>, 0, 60000,
              "longest delay that smoothing adds"));

  add(integer("defaults", "max_tokens", field<&S::defaults, &DefaultsSettings::max_tokens>, 0,
              std::numeric_limits<int>::max(),
              "reply tokens of chat and Responses requests that name none; 0 = up to the context"));
  add(flag("defaults", "thinking", field<&S::defaults, &DefaultsSettings::thinking>, "reason before the reply"));
  add(choice("defaults", "effort", field<&S::defaults, &DefaultsSettings::effort>, {"", "low", "high", "max"},
             "reasoning effort; \"\" = the template's own"));
  add(flag("defaults", "keep_reasoning", field<&S::defaults, &DefaultsSettings::keep_reasoning>,
           "keep the reasoning of earlier turns in the prompt"));
  add(integer("defaults", "reasoning_budget", field<&S::defaults, &DefaultsSettings::reasoning_budget>, 0,
              std::numeric_limits<int>::max(), "most reasoning tokens; 0 = no limit"));
  add(choice("defaults", "generation_config", field<&S::defaults, &DefaultsSettings::generation_config>,
             {"auto", "vllm"},
             "sampling of requests that do not say: the checkpoint's generation_config.json, or neutral"));
  add(text("defaults", "override_generation_config", field<&S::defaults, &DefaultsSettings::override_generation_config>,
           "JSON object over it: temperature, top_p, top_k, min_p, repetition_penalty, eos_token_id", true));

  add(choice("template", "effort_at", field<&S::chat_template, &TemplateSettings::effort_at>,
             {"head", "before_last_user", "tail"}, "place of the effort line in the prompt"));
  add(flag("guards", "assistant_ends", field<&S::guards, &GuardSettings::assistant_ends>,
           "<|assistant|> in a reply ends it"));
  add(flag("guards", "loop", field<&S::guards, &GuardSettings::loop>,
           "reasoning that runs in circles for 256 tokens is closed"));

  add(choice("api", "content_markers", field<&S::api, &ApiSettings::content_markers>, {"special", "text"},
             "token markers inside message content: as their ids, or as plain text"));
  add(choice("api", "reasoning_field", field<&S::api, &ApiSettings::reasoning_field>,
             {"both", "reasoning_content", "reasoning"}, "field of a reply that carries the reasoning"));
  add(choice("api", "stop_scope", field<&S::api, &ApiSettings::stop_scope>, {"content", "all"},
             "where stop strings are looked for"));
  add(flag("api", "flush_partial_utf8", field<&S::api, &ApiSettings::flush_partial_utf8>,
           "an incomplete last character becomes U+FFFD instead of nothing"));
  add(choice("api", "anthropic_default_thinking", field<&S::api, &ApiSettings::anthropic_default_thinking>,
             {"on", "off"}, "whether /v1/messages thinks, unseen, when a request says nothing about thinking"));
  add(choice("api", "tool_stream", field<&S::api, &ApiSettings::tool_stream>, {"whole", "incremental"},
             "tool calls in streams: each at once, or its arguments as they come"));
  add(choice("api", "tool_tags", field<&S::api, &ApiSettings::tool_tags>, {"ids", "text-too"},
             "tags of tool calls: the model's own tokens, or also their text where a line of content begins"));
  add(flag("api", "tool_grammar", field<&S::api, &ApiSettings::tool_grammar>,
           "calls that the model may make are held to the functions and parameters of the request"));
  add(choice("api", "unclosed_think", field<&S::api, &ApiSettings::unclosed_think>, {"reasoning", "content"},
             "what a reply that ends without </think> has written, unless it is streamed"));
  add(flag("api", "lenient_empty_tools", field<&S::api, &ApiSettings::lenient_empty_tools>,
           "an empty list of tools in a request counts as none, instead of being refused"));
  add(integer("api", "max_n", field<&S::api, &ApiSettings::max_n>, 1, 128, "most choices (n) of one request"));
  add(integer("api", "sse_keepalive_s", field<&S::api, &ApiSettings::sse_keepalive_s>, 0, kDay,
              "comment line after this much silence in a stream; 0 = off"));
  add(flag("api", "chat_page", field<&S::api, &ApiSettings::chat_page>, "a chat page for browsers at /"));

  add(integer("ops", "drain_s", field<&S::ops, &OpsSettings::drain_s>, 0, kDay,
              "time for running requests after SIGTERM"));
  add(choice("ops", "log_format", field<&S::ops, &OpsSettings::log_format>, {"text", "json"}, "form of the log"));
  add(choice("ops", "log_level", field<&S::ops, &OpsSettings::log_level>, {"trace", "debug", "info", "warn", "error"},
             "least level that is logged"));
  return table;
}

/// A wrong section costs at most this, so that `port` at top level finds server.port and not cpu.
constexpr int kWrongSection = 2;

std::string variable_name(std::string_view setting) {
  std::string name = fmt::format("GLM53_{}", setting);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return c == '.' ? '_' : static_cast<char>(std::toupper(c)); });
  return name;
}

}  // namespace

std::string SettingKey::name() const { return section.empty() ? std::string(key) : fmt::format("{}.{}", section, key); }

std::string SettingKey::environment_name() const { return variable_name(name()); }

bool SettingKey::is_list() const {
  Settings settings;
  return std::holds_alternative<std::vector<std::string>*>(field(settings));
}

std::string SettingKey::expected() const {
  if (!allowed.empty()) {
    std::vector<std::string_view> words = allowed;
    std::replace(words.begin(), words.end(), std::string_view(), std::string_view("\"\""));
    return fmt::format("one of {}", fmt::join(words, ", "));
  }
  Settings settings;
  switch (field(settings).index()) {
    case 0:
    case 1:
      return fmt::format("an integer from {} to {}", low, high);
    case 2:
      return "true or false";
    case 3:
      return may_be_empty ? "text" : "non-empty text";
    default:
      return may_be_empty ? "text or a list of texts" : "non-empty text or a list of such";
  }
}

const std::vector<SettingKey>& setting_table() {
  static const std::vector<SettingKey> table = make_table();
  return table;
}

bool is_section(std::string_view name) {
  if (name.empty()) return false;
  const auto& table = setting_table();
  return std::any_of(table.begin(), table.end(), [&](const SettingKey& k) { return k.section == name; });
}

std::vector<std::string> setting_names(std::string_view section) {
  std::vector<std::string> names;
  for (const SettingKey& key : setting_table()) {
    if (key.section == section) names.push_back(key.name());
  }
  return names;
}

int find_setting(std::string_view section, std::string_view key) {
  const auto& table = setting_table();
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const SettingKey& k) { return k.section == section && k.key == key; });
  return found == table.end() ? -1 : static_cast<int>(found - table.begin());
}

int edit_distance(std::string_view a, std::string_view b) {
  // Names are short; a long input is cut so that hostile keys cost nothing.
  constexpr size_t kLongest = 64;
  a = a.substr(0, kLongest);
  b = b.substr(0, kLongest);
  const size_t width = b.size() + 1;
  std::vector<int> cost((a.size() + 1) * width);
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      int& here = cost[i * width + j];
      if (i == 0 || j == 0) {
        here = static_cast<int>(i + j);
        continue;
      }
      const int replaced = cost[(i - 1) * width + j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      here = std::min({cost[(i - 1) * width + j] + 1, cost[i * width + j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        here = std::min(here, cost[(i - 2) * width + j - 2] + 1);
      }
    }
  }
  return cost.back();
}

std::string nearest_setting(std::string_view section, std::string_view key) {
  const auto& table = setting_table();
  const auto distance = [&](const SettingKey& k) {
    return std::min(edit_distance(section, k.section), kWrongSection) + edit_distance(key, k.key);
  };
  return std::min_element(table.begin(), table.end(),
                          [&](const SettingKey& a, const SettingKey& b) { return distance(a) < distance(b); })
      ->name();
}

std::string nearest_section(std::string_view name) {
  std::string_view best;
  int best_distance = std::numeric_limits<int>::max();
  for (const SettingKey& key : setting_table()) {
    if (key.section.empty()) continue;
    const int distance = edit_distance(name, key.section);
    if (distance < best_distance) {
      best_distance = distance;
      best = key.section;
    }
  }
  return std::string(best);
}

std::string nearest_environment_name(std::string_view name) {
  std::string best;
  int best_distance = std::numeric_limits<int>::max();
  for (const SettingKey& key : setting_table()) {
    const std::string candidate = key.environment_name();
    // GLM53_PORT is server.port without its section.
    const int distance = std::min(edit_distance(name, candidate), edit_distance(name, variable_name(key.key)) +
                                                                      (key.section.empty() ? 0 : kWrongSection));
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace glm53::config
