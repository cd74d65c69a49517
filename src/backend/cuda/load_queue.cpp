#include "backend/cuda/load_queue.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>

#include "kernels/synthetic/synthetic.h"

namespace glm53::cuda {
namespace {

constexpr size_t kBlockBytes = size_t{8} << 20;
constexpr int64_t kMaxBlocks = 32;

/// Pinned blocks. An event a block says when the copies out of it are over.
class PinnedRing final : public StagingRing {
 public:
  PinnedRing(size_t blocks, int device, cudaStream_t stream)
      : device_(device), stream_(stream), memory_(blocks * kBlockBytes), copied_(blocks) {
    for (size_t i = 0; i < blocks; ++i) blocks_.emplace_back(memory_.as<std::byte>() + i * kBlockBytes, kBlockBytes);
  }
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;
  ~PinnedRing() override { cudaStreamSynchronize(stream_); }  // after an exception copies may still run

  const std::vector<std::span<std::byte>>& blocks() const override { return blocks_; }
  void used(size_t block) override { copied_[block].record(stream_); }
  void wait_until_free(size_t block) override {
    kernels::check_cuda(cudaSetDevice(device_), "cudaSetDevice");  // of the reading thread
    copied_[block].wait();
  }

 private:
  const int device_;
  const cudaStream_t stream_;
  PinnedBuffer memory_;
  std::deque<Event> copied_;
  std::vector<std::span<std::byte>> blocks_;
};

/// To `host`, or, where that is null, to `device`.
void put(std::span<const std::byte> bytes, std::byte* host, std::byte* device, cudaStream_t stream) {
  if (host != nullptr) {
    std::memcpy(host, bytes.data(), bytes.size());
  } else {
    kernels::check_cuda(cudaMemcpyAsync(device, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream),
                        "upload of a weight");
  }
}

void make_synthetic(const LoadJob::Transfer& transfer, std::byte* device, std::byte* host, cudaStream_t stream) {
  const HostTensor& tensor = *transfer.range.tensor;
  const size_t element = dtype_bytes(tensor.dtype);
  const auto first = static_cast<int64_t>(transfer.range.first / element);
  const auto count = static_cast<int64_t>(transfer.range.size / element);
  if (transfer.to_host) {
    copy_elements(tensor, first, count, host + transfer.at);
    return;
  }
  fill_synthetic(tensor, first, count, device + transfer.at, stream);
}

}  // namespace

void fill_synthetic(const HostTensor& tensor, int64_t first, int64_t count, void* target, cudaStream_t stream) {
  const SyntheticRule& rule = *tensor.synthetic;
  kernels::SyntheticTensor made;
  made.key[0] = rule.key[0];
  made.key[1] = rule.key[1];
  made.signs = rule.kind == SyntheticRule::Kind::kSigns;
  made.centre = rule.centre;
  made.scale = rule.scale;
  if (rule.kind == SyntheticRule::Kind::kBits) {
    made.form = kernels::SyntheticForm::bits;
  } else if (tensor.dtype == DType::kF32) {
    made.form = kernels::SyntheticForm::f32;
  } else {
    made.form = tensor.dtype == DType::kF16 ? kernels::SyntheticForm::f16 : kernels::SyntheticForm::bf16;
  }
  kernels::fill_synthetic(made, first, count, target, stream);
}

size_t LoadJob::reserve(size_t& total, size_t bytes) {
  const size_t at = total;
  total += (bytes + 255) / 256 * 256;
  return at;
}

size_t LoadJob::to_device(const HostTensor& tensor, size_t first, size_t size) {
  transfers.push_back({{&tensor, first, size}, false, reserve_device(size)});
  return transfers.back().at;
}

size_t LoadJob::to_host(const HostTensor& tensor, size_t first, size_t size) {
  transfers.push_back({{&tensor, first, size}, true, reserve_host(size)});
  return transfers.back().at;
}

void LoadQueue::add(LoadJob job) {
  // One job's tensors in the order of the file, whatever the order in which its work looks at them.
  std::ranges::stable_sort(job.transfers, {}, [](const LoadJob::Transfer& transfer) {
    const HostTensor& tensor = *transfer.range.tensor;
    return std::tuple(std::string_view(tensor.file), tensor.file_offset + transfer.range.first);
  });
  for (const LoadJob::Transfer& transfer : job.transfers) bytes_ += static_cast<int64_t>(transfer.range.size);
  jobs_.push_back(std::move(job));
}

void LoadQueue::run(int device, cudaStream_t stream, const OpenTensorStream& open,
                    const std::function<void(int64_t)>& progress) {
  const std::vector<LoadJob> jobs = std::exchange(jobs_, {});
  const int64_t total = std::exchange(bytes_, 0);
  std::vector<TensorRange> ranges;
  size_t device_bytes = 0;
  size_t host_bytes = 0;
  for (const LoadJob& job : jobs) {
    for (const LoadJob::Transfer& transfer : job.transfers) {
      if (!transfer.range.tensor->synthetic) ranges.push_back(transfer.range);
    }
    device_bytes = std::max(device_bytes, job.device_bytes);
    host_bytes = std::max(host_bytes, job.host_bytes);
  }
  const int64_t blocks = std::clamp<int64_t>(total / static_cast<int64_t>(kBlockBytes) + 1, 1, kMaxBlocks);
  PinnedRing ring(static_cast<size_t>(blocks), device, stream);
  const DeviceBuffer staging(device_bytes);
  std::vector<std::byte> host(host_bytes);
  std::unique_ptr<TensorStream> source;
  if (!ranges.empty()) source = open(std::move(ranges), ring);

  int64_t done = 0;
  for (const LoadJob& job : jobs) {
    for (const LoadJob::Transfer& transfer : job.transfers) {
      if (transfer.range.tensor->synthetic) {
        make_synthetic(transfer, staging.as<std::byte>(), host.data(), stream);
      } else {
        size_t at = transfer.at;
        source->next([&](std::span<const std::byte> piece) {
          put(piece, transfer.to_host ? host.data() + at : nullptr, staging.as<std::byte>() + at, stream);
          at += piece.size();
        });
      }
      done += static_cast<int64_t>(transfer.range.size);
    }
    job.work(staging.as<std::byte>(), host.data());
    if (progress) progress(done);
  }
  kernels::check_cuda(cudaStreamSynchronize(stream), "loading of the weights");
}

}  // namespace glm53::cuda
