// Reads tensors past the page cache (spec 50 §5): several threads, O_DIRECT, large requests, in the order of use. On
// machines whose GPU shares the host's memory, pages that a buffered or mapped read leaves in the cache are missing for
// the weights themselves.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "glm53/core/tensor_stream.h"

namespace glm53 {

inline constexpr uint64_t kDirectAlignment = 4096;  ///< of file positions, sizes and memory; no disk's block is larger

struct DirectReaderOptions {
  int threads = 8;
  bool direct = true;  ///< false: buffered reads from the start, as where the file system refuses O_DIRECT
};

/// How a list of ranges is cut into blocks of the ring and requests to the file system.
struct ReadPlan {
  /// One request: bytes [begin, end) of a file, `begin` aligned, to `at` in the block; `end` is where the last wanted
  /// byte ends.
  struct Extent {
    size_t file = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t at = 0;
  };
  /// A range, or the part of it that lies in one block.
  struct Piece {
    size_t range = 0;
    size_t block = 0;
    uint64_t at = 0;
    uint64_t size = 0;
    uint64_t position = 0;  ///< in the file
  };
  std::vector<std::string> files;    ///< in order of first use
  std::vector<Extent> extents;       ///< block by block
  std::vector<size_t> first_extent;  ///< [blocks + 1]
  std::vector<Piece> pieces;         ///< in the order of the ranges

  size_t blocks() const { return first_extent.size() - 1; }
};

/// Neighbouring ranges of a file, in order and at most 64 KiB apart, share a request; a block takes as many requests
/// as fit. Throws std::invalid_argument for a range outside its tensor.
ReadPlan plan_reads(const std::vector<TensorRange>& ranges, uint64_t block_bytes);

class DirectReader final : public TensorStream {
 public:
  /// Opens every file and starts to read ahead, as far as the ring is long. Throws Error naming the file and its first
  /// tensor: missing, not a regular file, or ending before a tensor.
  DirectReader(std::vector<TensorRange> ranges, StagingRing& ring, DirectReaderOptions options = {});
  /// Stops, whatever has been taken; waits for the requests in flight.
  ~DirectReader() override;

  void next(const Use& use) override;

  /// Bytes that were asked of the file system so far, alignment and gaps included. Any thread.
  uint64_t bytes_read() const { return bytes_read_; }
  /// False as soon as a file had to be read through the page cache (which is then told to drop it). Any thread.
  bool is_direct() const { return direct_; }

 private:
  class File;

  void read_blocks(std::stop_token stop);
  void read_block(size_t block, std::stop_token stop);
  void read_extent(size_t block, const ReadPlan::Extent& extent);
  void wait_for(size_t block);
  void leave(size_t block);
  [[noreturn]] void fail(size_t block, size_t file, uint64_t position, const std::string& what) const;

  const std::vector<TensorRange> ranges_;
  StagingRing& ring_;
  const ReadPlan plan_;
  std::vector<std::unique_ptr<File>> files_;  ///< of plan_.files

  // of the taking thread
  size_t next_range_ = 0;
  size_t next_piece_ = 0;
  size_t current_block_ = 0;
  bool in_block_ = false;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  size_t claimed_ = 0;           ///< blocks that a thread reads or has read
  size_t left_ = 0;              ///< blocks that the taking thread is through with
  std::vector<uint8_t> filled_;  ///< [blocks]
  std::exception_ptr error_;     ///< the first one
  std::atomic<uint64_t> bytes_read_{0};
  std::atomic<bool> direct_{true};

  std::vector<std::jthread> threads_;  ///< last: they stop before anything above goes
};

}  // namespace glm53
