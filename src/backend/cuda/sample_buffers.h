// Memory of sample() on both sides of the bus, planned at start.
#pragma once

#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "backend/cuda/device_memory.h"
#include "kernels/sampler/sampler.h"

namespace glm53::cuda {

/// One call's rows and lists go up as one copy, what it picked comes down as one. Masks stay on the device and go up
/// only when they differ from what lies there, since the mask of most steps is that of the step before.
class SampleBuffers {
 public:
  SampleBuffers(const CachePlan& plan, int vocab);
  static int64_t device_bytes(const CachePlan& plan, int vocab);

  /// Uploads the rows, runs the kernels and starts the download; read() after the stream got there. The call before
  /// must have been read. logits [·, stride] fp32 on the device.
  void run(const float* logits, int64_t stride, std::span<const SampleRow> rows, cudaStream_t stream);
  void read(std::span<const SampleRow> rows, std::span<SampledToken> out) const;

 private:
  void stage_masks(std::span<const SampleRow> rows, kernels::SamplerRow* entries, cudaStream_t stream);
  template <typename Entry, typename Item>
  const Entry* stage_lists(std::span<const SampleRow> rows, std::span<const Item> SampleRow::*list,
                           kernels::SamplerRow* entries, kernels::SamplerList kernels::SamplerRow::*range);

  int capacity_;  ///< rows of a call
  int vocab_;
  int mask_words_;
  size_t upload_used_ = 0;  ///< bytes of the call being staged
  size_t upload_bytes_;
  PinnedBuffer pinned_upload_, pinned_masks_, pinned_results_;
  DeviceBuffer device_upload_;   ///< SamplerRow [rows], then the lists
  DeviceBuffer device_masks_;    ///< [capacity, mask_words]; the pinned ones are its mirror
  DeviceBuffer device_results_;  ///< [capacity] of: ids, status, logprobs, top ids [32], top logprobs [32]
  DeviceBuffer workspace_;
};

}  // namespace glm53::cuda
