#include "main/startup.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include "checkpoint/config_json.h"
#include "config/effective_settings.h"
#include "engine/page_pool.h"
#include "glm53/core/error.h"
#include "glm53/core/limits.h"
#include "glm53/core/printable.h"
#include "glm53/core/read_file.h"
#include "main/choose_backend.h"

namespace glm53 {

namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr int64_t kMaxTemplateBytes = 1 << 20;
constexpr int64_t kMaxTokenizerBytes = 256 << 20;  // the real one has 20 MB

/// Added tokens that the chat format is written with (spec 40 §1.2, §2). Without one of them a prompt would be encoded
/// as plain text and the model would answer nonsense.
constexpr const char* kRequiredTokens[] = {"[gMASK]",       "<sop>",           "<|system|>",      "<|user|>",
                                           "<|assistant|>", "<|observation|>", "<think>",         "</think>",
                                           "<tool_call>",   "</tool_call>",    "<tool_response>", "</tool_response>",
                                           "<arg_key>",     "</arg_key>",      "<arg_value>",     "</arg_value>"};

/// Digits alone, without a leading zero: the form of integer keys.
std::optional<int> plain_number(std::string_view digits) {
  const bool all_digits = std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!all_digits || (digits.size() > 1 && digits.front() == '0')) return std::nullopt;
  int number = 0;
  const bool fits = std::from_chars(digits.data(), digits.data() + digits.size(), number).ec == std::errc();
  return fits ? std::optional(number) : std::nullopt;
}

/// dummy.layer_k as layer -> K.
std::map<int, int> dummy_layer_k(const Settings& settings) {
  std::map<int, int> layers;
  for (const std::string& item : settings.dummy.layer_k) {
    const std::string_view text = item;
    const size_t colon = text.find(':');
    const auto layer = plain_number(text.substr(0, colon));
    const auto bits = colon == std::string::npos ? std::nullopt : plain_number(text.substr(colon + 1));
    if (!layer || !bits || *bits < 1 || *bits > 8) {
      throw Error(fmt::format("dummy.layer_k: expected LAYER:K with K from 1 to 8, found {}", in_quotes(item)));
    }
    if (!layers.emplace(*layer, *bits).second) {
      throw Error(fmt::format("dummy.layer_k: layer {} is given twice", *layer));
    }
  }
  return layers;
}

MemoryPlan plan_with_weights(const Backend& backend, const CachePlan& caches, int64_t weights) {
  MemoryPlan plan = backend.plan_memory(caches);
  plan.weights = weights;
  return plan;
}

/// The largest multiple of a page, at most settings.context, whose plan fits; 0 when none does.
int64_t largest_context(const Settings& settings, const Backend& backend, int64_t weights, int64_t available) {
  int64_t fits = 0;
  int64_t pages_too_many = engine::pages_for(settings.context) + 1;
  while (fits + 1 < pages_too_many) {
    const int64_t pages = fits + (pages_too_many - fits) / 2;
    const CachePlan caches = plan_caches(settings, pages * kPageTokens);
    const bool fit = plan_with_weights(backend, caches, weights).total() <= available;
    (fit ? fits : pages_too_many) = pages;
  }
  return fits * kPageTokens;
}

/// Dummy weights can do without a tokenizer; a checkpoint that lacks its file is not whole.
text::Tokenizer open_tokenizer(const Settings& settings, int vocab) {
  const std::filesystem::path path = std::filesystem::path(settings.model.path) / "tokenizer.json";
  if (settings.model.load_format == "dummy" && !std::filesystem::exists(path)) {
    spdlog::warn("{}: no tokenizer.json: only prompts of token ids can be served", settings.model.path);
    return text::Tokenizer::without_vocabulary(vocab);
  }
  const std::string file = path.string();
  text::Tokenizer tokenizer = text::Tokenizer::from_json(read_file(file, kMaxTokenizerBytes), file);
  for (const char* token : kRequiredTokens) tokenizer.require_added(token);
  if (tokenizer.id_count() > vocab) {
    throw Error(
        fmt::format("{}: token id {} is beyond the model's vocab_size {}", file, tokenizer.id_count() - 1, vocab));
  }
  return tokenizer;
}

GenerationConfig generation_defaults(const Settings& settings, const Geometry& geometry) {
  GenerationConfig config = load_generation_config(settings.model.path, geometry.vocab, geometry.eos_ids);
  if (settings.defaults.generation_config == "vllm") {
    // Its end ids are the model's, whatever the sampling.
    GenerationConfig neutral;
    neutral.eos_ids = std::move(config.eos_ids);
    config = std::move(neutral);
  }
  const std::string& json = settings.defaults.override_generation_config;
  if (json.empty()) return config;
  return override_generation_config(json, "defaults.override_generation_config", geometry.vocab, std::move(config));
}

}  // namespace

Geometry open_geometry(const Settings& settings) {
  const std::string& directory = settings.model.path;
  config::require_model_path(settings);
  dummy_layer_k(settings);  // like every key: also where model.load_format leaves it unused
  if (!std::filesystem::is_directory(directory)) {
    throw Error(fmt::format("model.path: {} is not a directory", directory));
  }
  return load_geometry(directory);
}

void check_supported(const Settings& s, const Geometry& geometry) {
  std::vector<std::string> problems;
  const auto only = [&problems](const char* key, const std::string& value, const std::string& supported) {
    if (value == supported) return;
    problems.push_back(fmt::format("{}: {} is not supported by this build; supported: {}", key, value, supported));
  };
  only("cluster.tp", std::to_string(s.cluster.tp), "1");
  only("draft.kind", s.draft.kind, "none");
  only("stream.smooth", s.stream.smooth ? "true" : "false", "false");
  if (s.context > geometry.max_positions) {
    problems.push_back(fmt::format("context: {} is more than the {} positions of {} (max_position_embeddings)",
                                   s.context, geometry.max_positions, s.model.path));
  }
  for (std::string& problem : backend_problems(s)) problems.push_back(std::move(problem));
  if (problems.empty()) return;
  if (problems.size() > 1) {
    problems.emplace_back(
        "some defaults are meant for the real model and for parts that are not there yet; start from a file of "
        "configs/");
  }
  throw Error(fmt::format("{}", fmt::join(problems, "\n")));
}

ModelFiles open_model_files(const Settings& settings, Geometry geometry) {
  text::Tokenizer tokenizer = open_tokenizer(settings, geometry.vocab);
  GenerationConfig generation = generation_defaults(settings, geometry);
  std::optional<Checkpoint> checkpoint;
  if (settings.model.load_format == "checkpoint") checkpoint = Checkpoint::open(settings.model.path);
  return {std::move(geometry), std::move(tokenizer), std::move(generation), std::move(checkpoint)};
}

void warn_of_other_template(const std::string& directory) {
  const std::filesystem::path path = std::filesystem::path(directory) / "chat_template.jinja";
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown)) return;
  std::string text;
  try {
    text = read_file(path.string(), kMaxTemplateBytes);
  } catch (const Error& error) {
    // Nothing but this warning needs the file.
    spdlog::warn("{}: prompts are rendered as GLM-5.3-Flash's template does", error.what());
    return;
  }
  std::vector<std::string_view> missing;
  // What no earlier template of the family has.
  for (const std::string_view feature : {"Reasoning Effort", "clear_thinking", "tool_reference"}) {
    if (text.find(feature) == std::string::npos) missing.push_back(feature);
  }
  if (missing.empty()) return;
  spdlog::warn("{} knows nothing of {}: prompts are not rendered with it, but as GLM-5.3-Flash's template does",
               path.string(), fmt::join(missing, ", "));
}

CheckpointInventory take_inventory(const Settings& settings, const ModelFiles& files) {
  if (files.checkpoint) return CheckpointInventory(*files.checkpoint, files.geometry);
  DummyOptions options;
  options.experts_k = settings.dummy.experts_k;
  options.seed = static_cast<uint64_t>(settings.dummy.seed);
  options.layer_k = dummy_layer_k(settings);
  return CheckpointInventory(files.geometry, options);
}

std::string weights_text(const Settings& settings, const ModelFiles& files) {
  if (files.checkpoint) {
    return fmt::format("{:.1f} MiB in {} files {}", static_cast<double>(files.checkpoint->total_bytes()) / kMiB,
                       files.checkpoint->file_count(), files.geometry.quantization_summary);
  }
  return fmt::format("dummy weights of seed {}, experts K = {}", settings.dummy.seed, settings.dummy.experts_k);
}

CachePlan plan_caches(const Settings& settings, int64_t context) {
  CachePlan plan;
  plan.sequences = 1;
  plan.pages = engine::pages_for(context);
  plan.context = context;
  plan.max_rows = std::max(settings.scheduler.prefill_rows, kMaxWindowRows);
  plan.max_logit_rows = kMaxWindowRows;
  return plan;
}

void LoadProgress::operator()(const LoadStatus& status) {
  constexpr double kGigabyte = 1e9;
  const auto now = std::chrono::steady_clock::now();
  const bool done = status.layers == layers_ && status.bytes == status.total_bytes;
  if (!status.direct && status.total_bytes > 0 && !std::exchange(warned_, true)) {
    spdlog::warn("the file system refuses O_DIRECT: weights are read through the page cache");
  }
  if (!done && now - last_ < std::chrono::seconds(1)) return;
  last_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double gigabytes = static_cast<double>(status.bytes) / kGigabyte;
  if (status.total_bytes == 0) {
    spdlog::info("loading weights: {} of {} layers ({} %), {:.1f} s", status.layers, layers_,
                 status.layers * 100 / layers_, seconds);
  } else if (done) {
    spdlog::info("loaded {:.2f} GB in {:.1f} s ({:.2f} GB/s)", gigabytes, seconds, gigabytes / seconds);
  } else {
    spdlog::info("loading weights: {} of {} layers, {:.1f} of {:.1f} GB, {:.2f} GB/s", status.layers, layers_,
                 gigabytes, static_cast<double>(status.total_bytes) / kGigabyte, gigabytes / seconds);
  }
}

int64_t available_memory() {
  std::ifstream stream("/proc/meminfo");
  for (std::string line; std::getline(stream, line);) {
    long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %lld kB", &kib) == 1) return kib * 1024;
  }
  throw Error("/proc/meminfo: cannot read MemAvailable");
}

std::string memory_table(const MemoryPlan& plan, const CachePlan& caches, int64_t available) {
  std::string out = fmt::format("{:<44}{:>12}\n", "memory plan", "MiB");
  const auto row = [&out](const std::string& name, int64_t bytes) {
    out += fmt::format("  {:<42}{:>12.1f}\n", name, static_cast<double>(bytes) / kMiB);
  };
  row("weights", plan.weights);
  row(fmt::format("sequence state ({} slot{})", caches.sequences, caches.sequences == 1 ? "" : "s"),
      plan.sequence_state);
  row(fmt::format("pages ({} of {} tokens)", caches.pages, kPageTokens), plan.pages);
  row(fmt::format("activations ({} rows)", caches.max_rows), plan.activations);
  if (plan.runtime > 0) row("code and graphs", plan.runtime);
  row("total", plan.total());
  row("available (MemAvailable)", available);
  return out;
}

void require_fit(const Settings& settings, const Backend& backend, int64_t weights, int64_t available) {
  const MemoryPlan plan = plan_with_weights(backend, plan_caches(settings, settings.context), weights);
  if (plan.total() <= available) return;
  const int64_t context = largest_context(settings, backend, weights, available);
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / kMiB; };
  throw Error(fmt::format("not enough memory: {:.1f} MiB needed (weights {:.1f}, sequence state {:.1f}, pages {:.1f}, "
                          "activations {:.1f}), {:.1f} MiB available; {}",
                          mib(plan.total()), mib(plan.weights), mib(plan.sequence_state), mib(plan.pages),
                          mib(plan.activations), mib(available),
                          context > 0 ? fmt::format("the largest context that fits is {}", context)
                                      : std::string("no context fits (scheduler.prefill_rows sizes the activations)")),
              kExitDoesNotFit);
}

}  // namespace glm53
