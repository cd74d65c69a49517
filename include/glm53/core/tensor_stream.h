// Bytes of a checkpoint's tensors, streamed in an order known beforehand through a bounded ring of staging memory. A
// backend owns the ring (pinned memory on a GPU), a reader fills it, and neither knows the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "glm53/core/host_tensor.h"

namespace glm53 {

/// Bytes [first, first + size) of a tensor. The tensor outlives every stream over it.
struct TensorRange {
  const HostTensor* tensor = nullptr;
  uint64_t first = 0;
  uint64_t size = 0;
};

/// Staging memory in blocks, filled and emptied round robin.
class StagingRing {
 public:
  virtual ~StagingRing() = default;
  /// All of one size, aligned to 4096 bytes and a multiple of 4096 long.
  virtual const std::vector<std::span<std::byte>>& blocks() const = 0;
  /// Every copy out of the block has been issued. Called by the thread that takes bytes from the stream.
  virtual void used(size_t block) = 0;
  /// Returns when the copies issued before the last used(block) are over, so that the block may be overwritten. Called
  /// by reading threads, for one block by one at a time.
  virtual void wait_until_free(size_t block) = 0;
};

/// The ranges it was opened with, in order. One thread takes from it.
class TensorStream {
 public:
  using Use = std::function<void(std::span<const std::byte>)>;
  virtual ~TensorStream() = default;
  /// Calls `use` with the next range's bytes, in pieces, in order. A piece stays valid until StagingRing::used of its
  /// block, which later calls make. Throws Error naming file and tensor when they cannot be read.
  virtual void next(const Use& use) = 0;
};

/// Opens a stream over `ranges`; `ring` outlives it.
using OpenTensorStream =
    std::function<std::unique_ptr<TensorStream>(std::vector<TensorRange> ranges, StagingRing& ring)>;

}  // namespace glm53
