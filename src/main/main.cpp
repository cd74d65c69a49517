// glm53-serve: the start, in order. Each step either succeeds or ends the process with one line on stderr.
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "comm/local_communicator.h"
#include "config/command_line.h"
#include "config/effective_settings.h"
#include "config/environment.h"
#include "engine/engine.h"
#include "engine/model_runner.h"
#include "glm53/core/error.h"
#include "main/choose_backend.h"
#include "main/logging.h"
#include "main/shutdown_signals.h"
#include "main/startup.h"
#include "model/checkpoint_inventory.h"
#include "model/glm53_model.h"
#include "model/weights.h"
#include "server/server.h"

namespace glm53 {
namespace {

using Clock = std::chrono::steady_clock;
using Action = config::CommandLine::Action;

server::GenerationDefaults generation_defaults(const ModelFiles& files) {
  server::GenerationDefaults defaults;
  defaults.temperature = files.generation.temperature;
  defaults.top_p = files.generation.top_p;
  defaults.top_k = files.generation.top_k;
  defaults.min_p = files.generation.min_p;
  defaults.repetition = files.generation.repetition;
  defaults.eos_ids.assign(files.generation.eos_ids.begin(), files.generation.eos_ids.end());
  defaults.vocab = files.geometry.vocab;
  return defaults;
}

std::string url_of(const server::Server& server, const std::string& host) {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return "http://" + (is_ipv6 ? '[' + host + ']' : host) + ':' + std::to_string(server.port());
}

/// Serves until a signal comes or the engine fails; returns the exit code.
int serve(const Settings& settings, const engine::Engine& engine, server::Server& server, ShutdownSignals& signals,
          Clock::time_point process_start) {
  signals.serve();
  spdlog::info("ready after {:.2f} s: {} on {}", std::chrono::duration<double>(Clock::now() - process_start).count(),
               settings.model.served_name.front(), url_of(server, settings.server.host));
  bool failed = false;
  while (!failed && !signals.wait(std::chrono::seconds(1))) failed = engine.status().failed;
  // A failed engine cannot finish anything; a supervisor starts the process anew.
  server.stop(std::chrono::seconds(failed ? 0 : settings.ops.drain_s));
  if (failed) spdlog::error("the engine failed: exit");
  return failed ? 1 : 0;
}

int run(int argc, char** argv) {
  const Clock::time_point process_start = Clock::now();
  const config::CommandLine command = config::parse_command_line(argc, argv);
  if (command.action == Action::kHelp || command.action == Action::kVersion) {
    fmt::print("{}", command.action == Action::kHelp ? config::help_text() : "glm53-serve " GLM53_VERSION "\n");
    return 0;
  }
  const config::EffectiveSettings effective = config::load_settings(command, config::read_environment());
  if (command.action == Action::kPrintConfig) {
    fmt::print("{}", config::to_yaml(effective));
    return 0;
  }
  const Settings& settings = effective.values;
  Geometry opened = open_geometry(settings);
  check_supported(settings, opened);
  config::check_consistency(settings);

  start_logging(settings);
  ShutdownSignals signals;

  const ModelFiles files = open_model_files(settings, std::move(opened));
  const Geometry& geometry = files.geometry;
  const CheckpointInventory inventory = take_inventory(settings, files);
  spdlog::info("settings: {}", config::changed_values(effective));
  warn_of_other_template(settings.model.path);
  spdlog::info("{}: {} layers, hidden {}, {} experts, vocabulary {}; {}", settings.model.path, geometry.layers,
               geometry.hidden, geometry.experts, geometry.vocab, weights_text(settings, files));
  if (geometry.vision && !inventory.vision_problem().empty()) {
    spdlog::warn("the vision tower of this checkpoint cannot be used: {}", inventory.vision_problem());
  }

  std::unique_ptr<Backend> backend = make_backend(settings, geometry);
  const int64_t available = available_backend_memory(settings);
  const Shard shard{settings.cluster.rank, settings.cluster.tp};
  const CachePlan caches = plan_caches(settings, settings.context);
  MemoryPlan memory = backend->plan_memory(caches);
  memory.weights = plan_weights(inventory, geometry, shard, *backend);
  require_fit(settings, *backend, memory.weights, available);
  if (command.action == Action::kCheck) {
    fmt::print("{}", memory_table(memory, caches, available));
    return 0;
  }
  std::unique_ptr<engine::Engine> engine;  // outlives the server
  server::Server server(files.tokenizer, settings, generation_defaults(files), GLM53_VERSION);
  server.start();
  spdlog::info("listening on {}; 503 until the model is loaded", url_of(server, settings.server.host));
  ModelWeights weights = load_weights(inventory, geometry, shard, *backend, LoadProgress(geometry.layers));

  spdlog::info("memory: {} MiB planned, {} MiB available; context {}", memory.total() >> 20, available >> 20,
               settings.context);
  if (settings.scheduler.max_streams > 1) {
    spdlog::warn("scheduler.max_streams: {} asked for; this version runs one request at a time, the others queue",
                 settings.scheduler.max_streams);
  }
  auto model = std::make_unique<Glm53Model>(geometry, std::move(backend), std::make_unique<LocalCommunicator>(),
                                            std::move(weights), caches);
  const engine::EngineLimits limits{settings.context, settings.scheduler.max_queued, settings.scheduler.prefill_rows};
  engine = std::make_unique<engine::Engine>(engine::make_model_runner(std::move(model)), files.tokenizer, limits);
  server.serve(*engine);
  return serve(settings, *engine, server, signals, process_start);
}

/// A daemon may be started without the standard descriptors. What it opens next would become them, and the log would go
/// to a client.
void open_standard_descriptors() {
  int descriptor = 0;
  do {
    descriptor = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  } while (descriptor >= STDIN_FILENO && descriptor <= STDERR_FILENO);
  if (descriptor >= 0) ::close(descriptor);
}

int report(const Error& error) {
  fmt::print(stderr, "glm53-serve: error: {}\n", error.what());
  return error.exit_code();
}

}  // namespace
}  // namespace glm53

int main(int argc, char** argv) {
  glm53::open_standard_descriptors();
  try {
    return glm53::run(argc, argv);
  } catch (const glm53::TensorProblems& e) {
    for (const std::string& problem : e.problems()) spdlog::error("{}", problem);
    return glm53::report(e);
  } catch (const glm53::Error& e) {
    return glm53::report(e);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "glm53-serve: error: out of memory\n");
    return glm53::kExitDoesNotFit;
  } catch (const std::exception& e) {
    fmt::print(stderr, "glm53-serve: error: {}\n", e.what());
    return 1;
  }
}
