// Turns CUDA runtime errors into exceptions. Host code only.
#pragma once

#include <stdexcept>
#include <string>

#include <cuda_runtime_api.h>

namespace glm53::kernels {

/// A CUDA call or launch failed; the message names the call and CUDA's reason.
struct CudaError : std::runtime_error {
  CudaError(const char* call, cudaError_t why)
      : std::runtime_error(std::string(call) + ": " + cudaGetErrorName(why) + ": " + cudaGetErrorString(why)),
        code(why) {}
  cudaError_t code;
};

inline void check_cuda(cudaError_t result, const char* call) {
  if (result != cudaSuccess) throw CudaError(call, result);
}

/// Devices this process can use; 0 where there is no GPU or no driver for it.
inline int cuda_device_count() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  // Without a driver the runtime reports "insufficient driver", not "no device".
  if (result == cudaErrorNoDevice || result == cudaErrorInsufficientDriver) return 0;
  check_cuda(result, "cudaGetDeviceCount");
  return count;
}

}  // namespace glm53::kernels
