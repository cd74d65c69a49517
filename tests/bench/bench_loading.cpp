// Loading against the disk: writes a synthetic checkpoint of real shapes, measures the rate at which O_DIRECT reads the
// same files, then loads it as the server does, on the GPU; without one the reader alone, into host memory. Prints GB/s
// and the ratio. Arguments: an empty directory, GiB (default 16). The checkpoint is removed at the end.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "checkpoint/direct_reader.h"
#include "checkpoint/safetensors.h"
#include "glm53/core/error.h"
#include "model/checkpoint_inventory.h"
#include "model/weights.h"
#include "synthetic_shards.h"
#ifdef GLM53_HAVE_CUDA
#include "backend/cuda/cuda_backend.h"
#endif

namespace {

using namespace glm53;
using Clock = std::chrono::steady_clock;

constexpr int kBits = 4;
constexpr double kGigabyte = 1e9;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

using AlignedMemory = std::unique_ptr<std::byte, decltype(&std::free)>;
AlignedMemory aligned_memory(size_t bytes) {
  AlignedMemory memory(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, bytes)), std::free);
  if (memory == nullptr) throw std::bad_alloc();
  std::fill_n(memory.get(), bytes, std::byte{0});  // the first touch of a page is not to be measured
  return memory;
}

/// Seconds in which `threads` threads read all files in requests of `request` bytes.
double read_raw(const std::vector<std::string>& paths, int threads, size_t request) {
  struct Request {
    int descriptor;
    off_t offset;
  };
  std::vector<int> descriptors;
  std::vector<Request> requests;
  for (const std::string& path : paths) {
    int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (descriptor < 0) throw Error(path + ": cannot be opened with O_DIRECT");
    descriptors.push_back(descriptor);
    const auto size = static_cast<off_t>(std::filesystem::file_size(path));
    for (off_t offset = 0; offset < size; offset += static_cast<off_t>(request))
      requests.push_back({descriptor, offset});
  }
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  std::vector<AlignedMemory> buffers;
  for (int i = 0; i < threads; ++i) buffers.push_back(aligned_memory(request));
  const auto start = Clock::now();
  {
    std::vector<std::jthread> readers;
    for (int i = 0; i < threads; ++i) {
      readers.emplace_back([&, buffer = buffers[static_cast<size_t>(i)].get()] {
        for (size_t r = next++; r < requests.size(); r = next++) {
          if (::pread(requests[r].descriptor, buffer, request, requests[r].offset) <= 0) failed = true;
        }
      });
    }
  }
  const double seconds = seconds_since(start);
  for (const int descriptor : descriptors) ::close(descriptor);
  if (failed) throw Error("a raw read failed");
  return seconds;
}

#ifdef GLM53_HAVE_CUDA
bool have_device() { return cuda_device_problem(0).empty(); }

double load_on_gpu(const std::string& directory, const Geometry& geometry) {
  const std::unique_ptr<Backend> backend = make_cuda_backend(geometry, {});
  const auto start = Clock::now();
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const CheckpointInventory inventory(checkpoint, geometry);
  const double opened = seconds_since(start);
  LoadStatus last;
  double queued = 0.0;
  load_weights(inventory, geometry, {}, *backend, [&](const LoadStatus& status) {
    if (last.total_bytes == 0) queued = seconds_since(start);
    last = status;
  });
  const double seconds = seconds_since(start);
  std::printf("  headers and inventory %.2f s, first weight after %.2f s, %s\n", opened, queued,
              last.direct ? "direct" : "through the page cache");
  return seconds;
}
#else
bool have_device() { return false; }
double load_on_gpu(const std::string&, const Geometry&) { return 0.0; }
#endif

class HostRing final : public StagingRing {
 public:
  HostRing(size_t blocks, size_t bytes) : memory_(aligned_memory(blocks * bytes)) {
    for (size_t i = 0; i < blocks; ++i) blocks_.emplace_back(memory_.get() + i * bytes, bytes);
  }
  const std::vector<std::span<std::byte>>& blocks() const override { return blocks_; }
  void used(size_t) override {}
  void wait_until_free(size_t) override {}

 private:
  AlignedMemory memory_;
  std::vector<std::span<std::byte>> blocks_;
};

double read_only(const std::string& directory) {
  HostRing ring(32, size_t{8} << 20);
  const auto start = Clock::now();
  const Checkpoint checkpoint = Checkpoint::open(directory);
  std::vector<TensorRange> ranges;
  for (const auto& [name, tensor] : checkpoint.tensors()) ranges.push_back({&tensor, 0, tensor.bytes.size()});
  const size_t count = ranges.size();
  DirectReader reader(std::move(ranges), ring);
  for (size_t i = 0; i < count; ++i) reader.next([](std::span<const std::byte>) {});
  return seconds_since(start);
}

void run(const std::string& directory, int64_t bytes) {
  const Geometry geometry = bench::geometry_of_size(bytes, kBits);
  auto start = Clock::now();
  const std::vector<std::string> paths = bench::write_shards(directory, geometry, kBits);
  double total = 0.0;
  for (const std::string& path : paths) total += static_cast<double>(std::filesystem::file_size(path)) / kGigabyte;
  const double written = seconds_since(start);
  std::printf("checkpoint: %.2f GB in %zu files, %d layers of %d experts; written at %.2f GB/s\n", total, paths.size(),
              geometry.layers, geometry.experts, total / written);
  double raw = 0.0;
  double loaded = 0.0;
  const auto measure_raw = [&](int threads, size_t mebibytes) {
    const double rate = total / read_raw(paths, threads, mebibytes << 20);
    std::printf("raw O_DIRECT, %d threads of %zu MiB: %.2f GB/s\n", threads, mebibytes, rate);
    std::fflush(stdout);
    raw = std::max(raw, rate);
  };
  const auto measure_load = [&] {
    const double seconds = have_device() ? load_on_gpu(directory, geometry) : read_only(directory);
    std::printf("%s: %.2f s, %.2f GB/s\n", have_device() ? "load on the GPU" : "reader alone (no GPU)", seconds,
                total / seconds);
    std::fflush(stdout);
    loaded = std::max(loaded, total / seconds);
  };
  // Alternating, so that a disk or a host cache that warms up favours neither.
  measure_raw(8, 8);
  measure_load();
  measure_raw(16, 8);
  measure_load();
  measure_raw(8, 16);
  std::printf("ratio %.1f %% (best load %.2f GB/s of best raw %.2f GB/s)\n", 100.0 * loaded / raw, loaded, raw);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s EMPTY_DIRECTORY [GIB]\n", argv[0]);
    return 2;
  }
  const std::filesystem::path directory = std::filesystem::path(argv[1]) / "bench-loading";
  int code = 0;
  try {
    std::filesystem::create_directories(directory);
    run(directory.string(), static_cast<int64_t>((argc > 2 ? std::atof(argv[2]) : 16.0) * (1 << 30)));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_loading: %s\n", error.what());
    code = 1;
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  return code;
}
