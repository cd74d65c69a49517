// Owners of device memory, pinned host memory, streams and events.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include <cuda_runtime_api.h>

#include "glm53/core/error.h"
#include "kernels/common/cuda_check.h"

namespace glm53::cuda {

/// cudaMalloc'd bytes, 256-byte aligned.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Throws Error with kExitDoesNotFit when the device has no such room: memory is taken at start only.
  explicit DeviceBuffer(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    const cudaError_t result = cudaMalloc(&data_, bytes);
    if (result == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // an answer, not a fault of the device
      throw Error("not enough device memory: " + std::to_string(bytes >> 20) + " MiB more were asked for",
                  kExitDoesNotFit);
    }
    kernels::check_cuda(result, "cudaMalloc");
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer() { cudaFree(data_); }

  /// Zeroes every byte; on the default stream, so done before any later work of a blocking stream.
  void zero() const {
    if (bytes_ > 0) kernels::check_cuda(cudaMemset(data_, 0, bytes_), "cudaMemset");
  }

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Page-locked host bytes, for copies that do not wait.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(size_t bytes) { kernels::check_cuda(cudaMallocHost(&data_, bytes), "cudaMallocHost"); }
  PinnedBuffer(PinnedBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~PinnedBuffer() { cudaFreeHost(data_); }

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

/// Working memory of the sub-blocks, one allocation for all. A sub-block calls begin(), takes its buffers, and is done
/// with them at its last launch: the next one on the stream reuses the bytes. Until allocate() the same calls only
/// measure, so that the code that places the buffers is the code that sizes them.
class Scratch {
 public:
  void begin() { used_ = 0; }

  /// 256-byte aligned, uninitialised; null while measuring.
  template <typename T>
  T* take(int64_t elements) {
    const size_t at = used_;
    used_ += (static_cast<size_t>(elements) * sizeof(T) + 255) / 256 * 256;
    most_ = std::max(most_, used_);
    if (!is_allocated_) return nullptr;
    if (used_ > memory_.bytes()) throw std::logic_error("cuda backend: a sub-block needs more scratch than planned");
    return reinterpret_cast<T*>(memory_.as<std::byte>() + at);
  }

  void allocate() {
    memory_ = DeviceBuffer(most_);
    is_allocated_ = true;
  }

 private:
  DeviceBuffer memory_;
  size_t used_ = 0;
  size_t most_ = 0;
  bool is_allocated_ = false;
};

class Stream {
 public:
  Stream() { kernels::check_cuda(cudaStreamCreate(&stream_), "cudaStreamCreate"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }
  void wait() const { kernels::check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// A recorded sequence of launches.
class Graph {
 public:
  Graph() = default;
  /// Records what `launches` puts on `stream`, without running it.
  template <typename Launches>
  Graph(cudaStream_t stream, const Launches& launches) {
    kernels::check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    cudaGraph_t recorded = nullptr;
    try {
      launches();
    } catch (...) {
      cudaStreamEndCapture(stream, &recorded);
      if (recorded != nullptr) cudaGraphDestroy(recorded);
      throw;
    }
    kernels::check_cuda(cudaStreamEndCapture(stream, &recorded), "cudaStreamEndCapture");
    const cudaError_t result = cudaGraphInstantiate(&executable_, recorded, 0);
    cudaGraphDestroy(recorded);
    kernels::check_cuda(result, "cudaGraphInstantiate");
    const cudaError_t uploaded = cudaGraphUpload(executable_, stream);
    if (uploaded != cudaSuccess) cudaGraphExecDestroy(executable_);  // a constructor that throws has no destructor
    kernels::check_cuda(uploaded, "cudaGraphUpload");
  }
  Graph(Graph&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(executable_, other.executable_);
    return *this;
  }
  ~Graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
  }
  void launch(cudaStream_t stream) const {
    kernels::check_cuda(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

class Event {
 public:
  Event() {
    kernels::check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  void record(cudaStream_t stream) const { kernels::check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  void wait() const { kernels::check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize"); }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace glm53::cuda
