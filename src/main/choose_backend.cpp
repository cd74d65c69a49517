#include "main/choose_backend.h"

#include <string>

#include <fmt/format.h>

#include "backend/cpu/cpu_backend.h"
#include "glm53/core/error.h"
#include "main/startup.h"
#ifdef GLM53_HAVE_CUDA
#include "backend/cuda/cuda_backend.h"
#endif

namespace glm53 {
namespace {

std::unique_ptr<Backend> make_cpu(const Settings& settings, const Geometry& geometry) {
  const bool serving = settings.cpu.mode == "bf16";
  if (!serving && settings.kv.dtype != "bf16") {
    throw Error(fmt::format("kv.dtype: {} is not supported by cpu.mode fp32; supported: bf16", settings.kv.dtype));
  }
  CpuBackendOptions options;
  options.threads = settings.cpu.threads;
  options.tensor_parallel = settings.cluster.tp;
  options.mode = serving ? CpuMode::kServing : CpuMode::kFp32;
  options.latents = settings.kv.dtype == "fp8" ? LatentFormat::kFp8 : LatentFormat::kBf16;
  return make_cpu_backend(geometry, options);
}

}  // namespace

#ifdef GLM53_HAVE_CUDA

const char* resolve_backend(const Settings& settings) {
  if (settings.backend == "auto") return cuda_device_problem(settings.cuda.device).empty() ? "cuda" : "cpu";
  return settings.backend == "cuda" ? "cuda" : "cpu";
}

std::unique_ptr<Backend> make_backend(const Settings& settings, const Geometry& geometry) {
  if (std::string(resolve_backend(settings)) == "cpu") return make_cpu(settings, geometry);
  CudaBackendOptions options;
  options.device = settings.cuda.device;
  options.tensor_parallel = settings.cluster.tp;
  options.fp8_latents = settings.kv.dtype == "fp8";
  options.fp8_index = options.fp8_latents;
  options.graphs = settings.cuda.graphs;
  return make_cuda_backend(geometry, options);
}

int64_t available_backend_memory(const Settings& settings) {
  if (std::string(resolve_backend(settings)) == "cpu") return available_memory();
  return cuda_free_memory(settings.cuda.device);
}

#else

const char* resolve_backend(const Settings& settings) {
  if (settings.backend == "cuda") throw Error("backend: cuda is not part of this build; supported: cpu, auto");
  return "cpu";
}

std::unique_ptr<Backend> make_backend(const Settings& settings, const Geometry& geometry) {
  resolve_backend(settings);
  return make_cpu(settings, geometry);
}

int64_t available_backend_memory(const Settings&) { return available_memory(); }

#endif

}  // namespace glm53
