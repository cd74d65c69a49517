// Device memory of a test, all NaN (0xFF bytes) until something is written.
#pragma once

#include <memory>
#include <vector>

#include <cuda_runtime_api.h>

#include "kernels/common/cuda_check.h"

namespace glm53::kernels {

template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t count) : count_(count) {
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, count * sizeof(T)), "cudaMalloc");
    memory_.reset(static_cast<T*>(memory));
    poison();
  }
  explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(values.size()) { write(values); }

  T* get() const { return memory_.get(); }
  size_t size() const { return count_; }
  void poison() { check_cuda(cudaMemset(get(), 0xFF, count_ * sizeof(T)), "cudaMemset"); }
  void write(const std::vector<T>& values) {
    check_cuda(cudaMemcpy(get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    check_cuda(cudaMemcpy(values.data(), get(), count_ * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }

 private:
  struct Free {
    void operator()(T* memory) const { cudaFree(memory); }
  };
  std::unique_ptr<T, Free> memory_;
  size_t count_;
};

}  // namespace glm53::kernels
