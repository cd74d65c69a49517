#include "checkpoint/direct_reader.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "glm53/core/error.h"
#include "glm53/core/printable.h"
#include "glm53/core/read_file.h"

namespace glm53 {
namespace {

constexpr uint64_t kMaxGap = 64 << 10;     // cheaper to read than a second request
constexpr uint64_t kMinRequest = 1 << 20;  // a longer range is not split for a smaller rest of a block

uint64_t align_down(uint64_t value) { return value / kDirectAlignment * kDirectAlignment; }
uint64_t align_up(uint64_t value) { return align_down(value + kDirectAlignment - 1); }

class Planner {
 public:
  explicit Planner(uint64_t block_bytes) : block_bytes_(block_bytes) {}

  void add(size_t index, const TensorRange& range) {
    const HostTensor& tensor = *range.tensor;
    if (range.first > tensor.bytes.size() || range.size > tensor.bytes.size() - range.first) {
      throw std::invalid_argument("tensor " + tensor.name + ": bytes " + std::to_string(range.first) + " to " +
                                  std::to_string(range.first + range.size) + " lie outside of it");
    }
    const size_t file = file_index(tensor.file);
    uint64_t position = tensor.file_offset + range.first;
    const uint64_t end = position + range.size;
    while (position < end) {
      if (!extends_last(file, position)) start_extent(file, position, end);
      ReadPlan::Extent& extent = plan_.extents.back();
      const uint64_t size = std::min(end, limit(extent)) - position;
      plan_.pieces.push_back(
          {index, plan_.first_extent.size() - 1, extent.at + position - extent.begin, size, position});
      position += size;
      extent.end = std::max(extent.end, position);
    }
  }

  ReadPlan finish() {
    plan_.first_extent.push_back(plan_.extents.size());
    return std::move(plan_);
  }

 private:
  size_t file_index(const std::string& path) {
    const auto [found, is_new] = files_.emplace(path, plan_.files.size());
    if (is_new) plan_.files.push_back(path);
    return found->second;
  }

  /// Where the extent ends at the latest: with its block.
  uint64_t limit(const ReadPlan::Extent& extent) const { return extent.begin + block_bytes_ - extent.at; }

  bool extends_last(size_t file, uint64_t position) const {
    if (plan_.extents.empty()) return false;
    const ReadPlan::Extent& last = plan_.extents.back();
    return last.file == file && position >= last.begin && position <= last.end + kMaxGap && position < limit(last);
  }

  void start_extent(size_t file, uint64_t position, uint64_t end) {
    const uint64_t begin = align_down(position);
    uint64_t at = 0;
    bool fits = false;
    if (!plan_.extents.empty()) {
      const ReadPlan::Extent& last = plan_.extents.back();
      at = last.at + align_up(last.end - last.begin);
      fits = at + std::min(align_up(end - begin), kMinRequest) <= block_bytes_;
    }
    if (!fits) {
      plan_.first_extent.push_back(plan_.extents.size());
      at = 0;
    }
    plan_.extents.push_back({file, begin, position, at});
  }

  const uint64_t block_bytes_;
  std::map<std::string, size_t, std::less<>> files_;
  ReadPlan plan_;
};

uint64_t block_bytes(const StagingRing& ring) {
  if (ring.blocks().empty()) throw std::invalid_argument("staging ring without blocks");
  const uint64_t size = ring.blocks().front().size();
  for (const std::span<std::byte>& block : ring.blocks()) {
    if (size == 0 || block.size() != size || size % kDirectAlignment != 0 ||
        reinterpret_cast<uintptr_t>(block.data()) % kDirectAlignment != 0) {
      throw std::invalid_argument("staging ring: blocks must be of one size and aligned to 4096 bytes");
    }
  }
  return size;
}

}  // namespace

ReadPlan plan_reads(const std::vector<TensorRange>& ranges, uint64_t block_bytes) {
  Planner planner(block_bytes);
  for (size_t i = 0; i < ranges.size(); ++i) planner.add(i, ranges[i]);
  return planner.finish();
}

/// A file that is read directly as long as its file system takes it.
class DirectReader::File {
 public:
  File(const std::string& path, bool direct) : file_(path) { direct_ = direct && set_direct(true); }

  uint64_t size() const { return static_cast<uint64_t>(file_.size()); }
  int descriptor() const { return file_.descriptor(); }
  bool is_direct() const { return direct_; }
  void stop_direct() {
    set_direct(false);
    direct_ = false;
  }

 private:
  bool set_direct(bool on) {
    const int flags = ::fcntl(descriptor(), F_GETFL);
    return flags >= 0 && ::fcntl(descriptor(), F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
  }

  RegularFile file_;
  std::atomic<bool> direct_;
};

DirectReader::DirectReader(std::vector<TensorRange> ranges, StagingRing& ring, DirectReaderOptions options)
    : ranges_(std::move(ranges)),
      ring_(ring),
      plan_(plan_reads(ranges_, block_bytes(ring))),
      filled_(plan_.blocks(), 0) {
  for (const std::string& path : plan_.files) {
    files_.push_back(std::make_unique<File>(path, options.direct));
    if (!files_.back()->is_direct()) direct_ = false;
  }
  for (size_t block = 0; block < plan_.blocks(); ++block) {
    for (size_t i = plan_.first_extent[block]; i < plan_.first_extent[block + 1]; ++i) {
      const ReadPlan::Extent& extent = plan_.extents[i];
      const uint64_t size = files_[extent.file]->size();
      if (extent.end > size) fail(block, extent.file, std::max(size, extent.begin), "ends before this tensor does");
    }
  }
  const size_t threads = std::min(static_cast<size_t>(std::max(options.threads, 1)), plan_.blocks());
  for (size_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this](std::stop_token stop) { read_blocks(std::move(stop)); });
  }
}

DirectReader::~DirectReader() = default;

// ---- reading threads

void DirectReader::read_blocks(std::stop_token stop) {
  while (true) {
    size_t block = 0;
    {
      std::unique_lock lock(mutex_);
      const size_t ring_size = ring_.blocks().size();
      const bool go = changed_.wait(
          lock, stop, [&] { return error_ != nullptr || claimed_ == plan_.blocks() || claimed_ < left_ + ring_size; });
      if (!go || error_ != nullptr || claimed_ == plan_.blocks()) return;
      block = claimed_++;
    }
    std::exception_ptr error;
    try {
      read_block(block, stop);
    } catch (...) {
      error = std::current_exception();
    }
    {
      const std::scoped_lock lock(mutex_);
      if (error == nullptr) {
        filled_[block] = 1;
      } else if (error_ == nullptr) {
        error_ = error;
      }
    }
    changed_.notify_all();
  }
}

void DirectReader::read_block(size_t block, std::stop_token stop) {
  const size_t ring_size = ring_.blocks().size();
  if (block >= ring_size) ring_.wait_until_free(block % ring_size);
  for (size_t i = plan_.first_extent[block]; i < plan_.first_extent[block + 1] && !stop.stop_requested(); ++i) {
    read_extent(block, plan_.extents[i]);
  }
}

void DirectReader::read_extent(size_t block, const ReadPlan::Extent& extent) {
  File& file = *files_[extent.file];
  std::byte* target = ring_.blocks()[block % ring_.blocks().size()].data() + extent.at;
  const uint64_t wanted = extent.end - extent.begin;
  const uint64_t asked = align_up(wanted);
  uint64_t done = 0;
  while (done < wanted) {
    const bool direct = file.is_direct();
    const ssize_t count =
        ::pread(file.descriptor(), target + done, asked - done, static_cast<off_t>(extent.begin + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EINVAL && direct) {  // some file systems take the flag and refuse the read
      file.stop_direct();
      direct_ = false;
      continue;
    }
    if (count < 0) fail(block, extent.file, extent.begin + done, std::generic_category().message(errno));
    // A direct read goes on at an aligned position only; one that got no further has met the end of the file.
    const uint64_t got = done + static_cast<uint64_t>(count);
    const uint64_t next = got >= wanted || !direct ? got : align_down(got);
    if (next == done) fail(block, extent.file, extent.begin + got, "ends before this tensor does");
    done = next;
  }
  if (!file.is_direct()) {
    // Best effort: a page that stays in the cache costs memory, not correctness.
    ::posix_fadvise(file.descriptor(), static_cast<off_t>(extent.begin), static_cast<off_t>(asked),
                    POSIX_FADV_DONTNEED);
  }
  bytes_read_ += asked;
}

void DirectReader::fail(size_t block, size_t file, uint64_t position, const std::string& what) const {
  const auto covers = [&](const ReadPlan::Piece& piece) {
    return piece.block == block && ranges_[piece.range].tensor->file == plan_.files[file] &&
           position < piece.position + piece.size;
  };
  const auto piece = std::ranges::find_if(plan_.pieces, covers);
  const std::string tensor =
      piece == plan_.pieces.end() ? std::string() : ": tensor " + printable(ranges_[piece->range].tensor->name);
  throw Error(printable(plan_.files[file], std::string::npos) + tensor + ": " + what + " (position " +
              std::to_string(position) + ")");
}

// ---- the taking thread

void DirectReader::next(const Use& use) {
  if (next_range_ == ranges_.size()) throw std::logic_error("DirectReader: more ranges taken than there are");
  for (; next_piece_ < plan_.pieces.size() && plan_.pieces[next_piece_].range == next_range_; ++next_piece_) {
    const ReadPlan::Piece& piece = plan_.pieces[next_piece_];
    if (in_block_ && piece.block != current_block_) leave(current_block_);
    if (!in_block_) wait_for(piece.block);
    const std::span<std::byte> memory = ring_.blocks()[piece.block % ring_.blocks().size()];
    use(memory.subspan(piece.at, piece.size));
  }
  ++next_range_;
  if (in_block_ && next_piece_ == plan_.pieces.size()) leave(current_block_);
}

void DirectReader::wait_for(size_t block) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return filled_[block] != 0 || error_ != nullptr; });
  if (filled_[block] == 0) std::rethrow_exception(error_);
  current_block_ = block;
  in_block_ = true;
}

void DirectReader::leave(size_t block) {
  ring_.used(block % ring_.blocks().size());
  {
    const std::scoped_lock lock(mutex_);
    left_ = block + 1;
  }
  changed_.notify_all();
  in_block_ = false;
}

}  // namespace glm53
