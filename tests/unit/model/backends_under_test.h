// The backends that this test program holds. Tests of the exactness contract run on each.
#pragma once

#include <string>
#include <vector>

#include "tiny_model.h"
#ifdef GLM53_TEST_CUDA
#include "backend/cuda/cuda_backend.h"
#endif

namespace glm53::test {

struct BackendUnderTest {
  std::string name;
  BackendFactory make;
  std::string problem;  ///< why it cannot be used here; empty if it can
};

/// The CPU's two modes; in the GPU test program the GPU's cache formats and formats of dense weights.
inline std::vector<BackendUnderTest> backends_under_test() {
#ifdef GLM53_TEST_CUDA
  const std::string problem = cuda_device_problem(0);
  const auto cuda = [](bool fp8, DenseFormats dense, bool graphs = true) {
    return [=](const Geometry& geometry) {
      CudaBackendOptions options;
      options.graphs = graphs;
      options.fp8_latents = fp8;
      options.fp8_index = fp8;
      options.dense = dense;
      return make_cuda_backend(geometry, options);
    };
  };
  DenseFormats all_fp8 = dense_formats(DenseFormat::kFp8);
  all_fp8[LinearGroup::kHead] = all_fp8[LinearGroup::kKvB] = DenseFormat::kFp8;
  return {{"cuda_bf16", cuda(false, {}), problem},
          {"cuda_fp8", cuda(true, {}), problem},
          {"cuda_fp8_dense", cuda(true, all_fp8), problem},
          {"cuda_q4_dense", cuda(false, dense_formats(DenseFormat::kQ4)), problem}};
#else
  const auto cpu = [](CpuMode mode, LatentFormat latents) {
    return [=](const Geometry& geometry) {
      CpuBackendOptions options;
      options.threads = 2;
      options.mode = mode;
      options.latents = latents;
      options.fp8_index = latents == LatentFormat::kFp8;
      return make_cpu_backend(geometry, options);
    };
  };
  return {{"cpu_fp32", cpu(CpuMode::kFp32, LatentFormat::kBf16), ""},
          {"cpu_serving", cpu(CpuMode::kServing, LatentFormat::kFp8), ""}};
#endif
}

}  // namespace glm53::test
