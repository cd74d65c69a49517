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

bool has_fp8_index(const Settings& settings) {
  return (settings.kv.index.empty() ? settings.kv.dtype : settings.kv.index) == "fp8";
}

struct DenseGroup {
  const char* key;
  std::string DenseGroupSettings::*setting;
  LinearGroup group;
};

constexpr DenseGroup kDenseGroups[] = {
    {"dense.groups.kda", &DenseGroupSettings::kda, LinearGroup::kKda},
    {"dense.groups.mla", &DenseGroupSettings::mla, LinearGroup::kMla},
    {"dense.groups.kv_b", &DenseGroupSettings::kv_b, LinearGroup::kKvB},
    {"dense.groups.mlp", &DenseGroupSettings::mlp, LinearGroup::kMlp},
    {"dense.groups.shared", &DenseGroupSettings::shared, LinearGroup::kShared},
    {"dense.groups.head", &DenseGroupSettings::head, LinearGroup::kHead},
};

bool is_fp32_cpu(const Settings& settings) { return settings.cpu.mode == "fp32"; }

std::vector<std::string> cpu_problems(const Settings& settings) {
  std::vector<std::string> problems;
  const auto only_bf16 = [&problems](const char* key, const std::string& value, const char* what) {
    if (value == "bf16" || value.empty()) return;
    problems.push_back(fmt::format("{}: {} is not supported by {}; supported: bf16", key, value, what));
  };
  if (is_fp32_cpu(settings)) {
    only_bf16("kv.dtype", settings.kv.dtype, "cpu.mode fp32");
    only_bf16("kv.index", settings.kv.index, "cpu.mode fp32");
  }
  only_bf16("dense.format", settings.dense.format, "the CPU backend");
  for (const DenseGroup& group : kDenseGroups) {
    only_bf16(group.key, settings.dense_groups.*group.setting, "the CPU backend");
  }
  return problems;
}

std::unique_ptr<Backend> make_cpu(const Settings& settings, const Geometry& geometry) {
  CpuBackendOptions options;
  options.threads = settings.cpu.threads;
  options.tensor_parallel = settings.cluster.tp;
  options.mode = is_fp32_cpu(settings) ? CpuMode::kFp32 : CpuMode::kServing;
  options.latents = settings.kv.dtype == "fp8" ? LatentFormat::kFp8 : LatentFormat::kBf16;
  options.fp8_index = has_fp8_index(settings);
  return make_cpu_backend(geometry, options);
}

}  // namespace

#ifdef GLM53_HAVE_CUDA

namespace {

DenseFormat dense_format(const std::string& name) {
  return name == "fp8" ? DenseFormat::kFp8 : name == "q4" ? DenseFormat::kQ4 : DenseFormat::kBf16;
}

DenseFormats dense_formats(const Settings& settings) {
  DenseFormats formats = dense_formats(dense_format(settings.dense.format));
  for (const DenseGroup& group : kDenseGroups) {
    const std::string& name = settings.dense_groups.*group.setting;
    if (!name.empty()) formats[group.group] = dense_format(name);
  }
  return formats;
}

/// `backend: auto` is the GPU where cuda.device can be used.
bool is_cuda(const Settings& settings) {
  if (settings.backend == "auto") return cuda_device_problem(settings.cuda.device).empty();
  return settings.backend == "cuda";
}

}  // namespace

std::vector<std::string> backend_problems(const Settings& settings) {
  if (is_cuda(settings)) return {};
  return cpu_problems(settings);
}

std::unique_ptr<Backend> make_backend(const Settings& settings, const Geometry& geometry) {
  if (!is_cuda(settings)) return make_cpu(settings, geometry);
  CudaBackendOptions options;
  options.device = settings.cuda.device;
  options.tensor_parallel = settings.cluster.tp;
  options.fp8_latents = settings.kv.dtype == "fp8";
  options.graphs = settings.cuda.graphs;
  options.fp8_index = has_fp8_index(settings);
  options.dense = dense_formats(settings);
  return make_cuda_backend(geometry, options);
}

int64_t available_backend_memory(const Settings& settings) {
  if (!is_cuda(settings)) return available_memory();
  return cuda_free_memory(settings.cuda.device);
}

#else

std::vector<std::string> backend_problems(const Settings& settings) {
  if (settings.backend == "cuda") return {"backend: cuda is not part of this build; supported: cpu, auto"};
  return cpu_problems(settings);
}

std::unique_ptr<Backend> make_backend(const Settings& settings, const Geometry& geometry) {
  return make_cpu(settings, geometry);
}

int64_t available_backend_memory(const Settings&) { return available_memory(); }

#endif

}  // namespace glm53
