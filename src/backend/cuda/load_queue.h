// Loading put off until every weight is known: load_* calls queue jobs, and finish_loading runs them while a stream of
// tensors is read ahead in exactly their order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "backend/cuda/device_memory.h"
#include "glm53/core/tensor_stream.h"

namespace glm53::cuda {

/// One step of loading: bytes of stored tensors, or elements of synthetic ones, and the work on them.
struct LoadJob {
  struct Transfer {
    TensorRange range;
    bool to_host = false;
    size_t at = 0;  ///< in device staging, or in host memory
  };
  std::vector<Transfer> transfers;
  size_t device_bytes = 0;  ///< of staging: what the transfers bring and what the work puts beside it
  size_t host_bytes = 0;
  /// Enqueues the work on the queue's stream. Device staging is the next job's once that has run; host memory is the
  /// next job's when the call returns.
  std::function<void(std::byte* device, const std::byte* host)> work;

  /// Place for `bytes` more, 256-byte aligned.
  size_t reserve_device(size_t bytes) { return reserve(device_bytes, bytes); }
  size_t reserve_host(size_t bytes) { return reserve(host_bytes, bytes); }
  /// Bytes [first, first + size) of the tensor; returns where they go.
  size_t to_device(const HostTensor& tensor, size_t first, size_t size);
  size_t to_host(const HostTensor& tensor, size_t first, size_t size);

 private:
  static size_t reserve(size_t& total, size_t bytes);
};

/// target = elements [first, first + count) of a synthetic tensor, made on the device.
void fill_synthetic(const HostTensor& tensor, int64_t first, int64_t count, void* target, cudaStream_t stream);

class LoadQueue {
 public:
  void add(LoadJob job);
  bool empty() const { return jobs_.empty(); }
  /// Of all transfers added so far.
  int64_t bytes() const { return bytes_; }

  /// Runs and forgets all jobs, in the order in which they were added; returns when the device is done. `progress` is
  /// called after each with the bytes transferred so far.
  void run(int device, cudaStream_t stream, const OpenTensorStream& open, const std::function<void(int64_t)>& progress);

 private:
  std::vector<LoadJob> jobs_;
  int64_t bytes_ = 0;
};

}  // namespace glm53::cuda
