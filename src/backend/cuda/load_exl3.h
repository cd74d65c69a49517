// Loading EXL3 matrices: what of them is transferred, and the experts of one layer.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/load_queue.h"
#include "backend/weights.h"
#include "kernels/experts/experts.h"

namespace glm53::cuda {

inline size_t stored_bytes(const HostTensor& tensor) {
  return static_cast<size_t>(tensor.element_count()) * dtype_bytes(tensor.dtype);
}

kernels::TrellisKind trellis_kind(const Exl3Stored& matrix);

/// What an EXL3 matrix holds beside its trellis, on its way through a job's host memory.
class StoredScales {
 public:
  StoredScales(LoadJob& job, const Exl3Stored& matrix);
  /// Checked and expanded (read_exl3), without the trellis. `host` as LoadJob::work gets it.
  Exl3Matrix read(const std::byte* host) const;

 private:
  static constexpr std::array kMembers = {&Exl3Stored::suh, &Exl3Stored::svh, &Exl3Stored::bias,
                                          &Exl3Stored::codebook_marker, &Exl3Stored::order_marker};
  const Exl3Stored* matrix_;
  std::array<size_t, kMembers.size()> at_{};
};

/// The trellis of rows [rows) of W [in, out], multiples of 16, which lie together in the file; returns its place in
/// device staging.
size_t transfer_trellis(LoadJob& job, const Exl3Stored& matrix, Range rows);

/// Fills the memory of one expert bank, one job an expert: the trellis words of all matrices, then suh and svh of all,
/// then the records. The latter two are put together on the host and go up with the last expert; the scales of a
/// synthetic bank are made in place.
class ExpertBankLoader {
 public:
  /// Throws Error for a matrix that is not EXL3.
  explicit ExpertBankLoader(std::vector<ExpertParts> experts);

  size_t bytes() const { return words_ + image_bytes_; }
  /// Queues the jobs; `memory` [bytes()] on the device, 256-byte aligned. Call once.
  static void queue_jobs(const std::shared_ptr<ExpertBankLoader>& loader, std::byte* memory, LoadQueue& queue,
                         cudaStream_t stream);
  /// Once the jobs are queued; the records hold when they have run.
  const kernels::ExpertRecord* records() const;

 private:
  struct Placed {
    LinearPart part;
    std::optional<StoredScales> stored;  ///< none of synthetic matrices
    size_t tiles;                        ///< in device staging
    size_t words;                        ///< in memory_
    size_t scales;                       ///< in the image: suh, then svh
  };
  Placed place(LoadJob& job, const LinearPart& part);
  /// The part's suh and svh, to the image or, made, to memory_. Returns where they will be on the device.
  std::pair<const __half*, const __half*> load_scales(const Placed& placed, const Exl3Matrix& read,
                                                      cudaStream_t stream);
  void load(size_t expert, std::span<const Placed> placed, const std::byte* device, const std::byte* host,
            cudaStream_t stream);
  size_t record_at(size_t expert) const {
    return image_bytes_ - (experts_.size() - expert) * sizeof(kernels::ExpertRecord);
  }

  std::vector<ExpertParts> experts_;
  size_t words_ = 0;        ///< bytes of trellis words
  size_t image_bytes_ = 0;  ///< of all that follows them
  bool synthetic_ = false;
  std::byte* memory_ = nullptr;
  std::vector<std::byte> image_;
  size_t next_words_ = 0;
  size_t next_scales_ = 0;
};

}  // namespace glm53::cuda
