// The class behind make_cuda_backend. Its operations are spread over cuda_*.cpp, one sub-block of the model a file.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/load_queue.h"
#include "backend/cuda/sample_buffers.h"
#include "backend/cuda/step_tables.h"
#include "kernels/experts/experts.h"
#include "kernels/indexer/index_layout.h"
#include "kernels/kda/kda.h"
#include "kernels/latent_cache/latent_layout.h"
#include "kernels/linear/linear.h"
#include "kernels/mhc/mhc.h"

namespace glm53::cuda {

using Bf16 = __nv_bfloat16;

/// A product's output width: parts of a fused Linear begin at multiples of 8 outputs, so that a later product can read
/// them as 16-byte aligned rows. The outputs between are zero.
constexpr int64_t align_part(int64_t outputs) { return (outputs + 7) / 8 * 8; }

struct DeviceLinear {
  DeviceBuffer data;
  kernels::PackedWeight weight;  ///< out counts the gaps between parts
};

struct DeviceMatrix {
  DeviceBuffer data;  ///< [rows, columns] bf16, or fp32
  bool is_fp32 = false;
};

struct DeviceExperts {
  DeviceBuffer memory;  ///< as ExpertBankLoader lays it out
  kernels::ExpertBankView view;
};

/// A sparse layer's caches.
struct SparseCaches {
  DeviceBuffer latents;    ///< [pages, 64, row bytes]
  DeviceBuffer pool_keys;  ///< [pages, index page bytes]
  DeviceBuffer rings;      ///< [slots, 32, 2, index_dim] bf16
};

struct KdaCaches {
  DeviceBuffer state, conv_ring, log_key, log_value, log_decay, log_beta;
  kernels::KdaLayerState view;
};

/// Entries of a slot's ring of raw index keys: most window rows + kpool − 1, rounded up.
inline constexpr int kIndexRing = 32;

/// What both mHC launches of a site take.
struct MhcLaunch {
  kernels::MhcSiteWeights weights;
  kernels::MhcShape shape;
  void* workspace = nullptr;
};

/// What the host knows of a slot without asking the device.
struct SlotMirror {
  int64_t position = 0;
  int64_t window_begin = 0;
  int window_rows = 0;
  bool commit_pending = false;
  bool last_was_window = false;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(const Geometry& geometry, const CudaBackendOptions& options);

  std::string_view name() const override { return "cuda"; }

  // cuda_weights.cpp
  void plan_weights(bool planning) override;
  Linear load_linear(std::string_view name, LinearGroup group, std::span<const LinearPart> parts) override;
  LinearBatch load_linear_batch(std::string_view name, LinearGroup group,
                                std::span<const LinearPart> matrices) override;
  Matrix load_matrix(std::string_view name, const LinearPart& part, Precision precision) override;
  Vector load_vector(std::string_view name, std::span<const VectorPart> parts) override;
  ExpertBank load_experts(std::string_view name, std::span<const ExpertParts> experts) override;
  int64_t bytes_to_load() const override { return queue_.bytes(); }
  void finish_loading(const OpenTensorStream& open, const std::function<void(int64_t)>& progress) override;

  // cuda_backend.cpp
  MemoryPlan plan_memory(const CachePlan& plan) const override;
  void create_caches(const CachePlan& plan) override;
  Tensor create_activations(std::string_view name, int64_t width, Precision precision) override;
  Tensor create_logit_rows(std::string_view name, int64_t width, Precision precision) override;
  void reset_sequence(int slot) override;
  void commit(int slot, int kept_rows) override;
  void begin_forward(const Batch& batch) override;
  void end_forward() override;
  void read_rows(Tensor tensor, int first_row, int rows, std::span<float> out) override;
  void write_rows(Tensor tensor, int first_row, int rows, std::span<const float> values) override;
  std::vector<float> read_kda_state(int slot, int kda_index) override;
  std::vector<float> read_conv_state(int slot, int kda_index) override;
  std::vector<float> read_latent(int sparse_index, std::span<const int32_t> pages, int64_t position) override;
  std::vector<float> read_pool_key(int sparse_index, std::span<const int32_t> pages, int64_t pool) override;
  void set_trace(TraceSink* sink) override;

  // cuda_graphs.cpp
  void prepare(const std::function<void()>& operations, bool recordable) override;
  bool replay(const Batch& batch) override;

  // synthetic_history.cpp
  void fill_history(int slot, int64_t position, uint32_t seed);

  // cuda_rows.cpp
  void embed(const Matrix& embedding, Tensor streams) override;
  void mhc_pre(const MhcSite& site, Tensor streams, Tensor mix, Tensor normed) override;
  void mhc_post(const MhcSite& site, Tensor streams, Tensor mix, Tensor y) override;
  void mhc_post_pre(const MhcSite& done, const MhcSite& next, Tensor streams, Tensor mix, Tensor y,
                    Tensor normed) override;
  void head(const HeadWeights& weights, Tensor streams, Tensor hidden, Tensor logits) override;

  // cuda_sample.cpp
  void sample(Tensor logits, std::span<const SampleRow> rows, std::span<SampledToken> out) override;

  // cuda_kda.cpp, cuda_sparse_attention.cpp, cuda_mlp.cpp
  void kda(const KdaWeights& weights, Tensor x, Tensor y) override;
  void sparse_attention(const SparseAttentionWeights& weights, Tensor x, Tensor y) override;
  void dense_mlp(const MlpWeights& weights, Tensor x, Tensor y) override;
  void moe(const MoeWeights& weights, Tensor x, Tensor y) override;

 private:
  const kernels::PackedWeight& linear(int handle) const { return linears_.at(static_cast<size_t>(handle)).weight; }
  const DeviceMatrix& matrix(const Matrix& weight) const { return matrices_.at(static_cast<size_t>(weight.handle)); }
  const float* vector(const Vector& weight) const {
    return vectors_.at(static_cast<size_t>(weight.handle)).as<float>();
  }

  /// y = x · Wᵀ for `rows` rows by the kernels of the run's kind. x and y point at their first row.
  template <typename T>
  void multiply(const kernels::PackedWeight& weight, bool window, int rows, const Bf16* x, int64_t x_stride, T* y,
                int64_t y_stride, int64_t x_matrix_stride = 0, int64_t y_matrix_stride = 0);
  DeviceBuffer make_zeroed(size_t bytes);

  MhcLaunch mhc_launch(const MhcSite& site);

  // cuda_weights.cpp
  /// Throws Error naming the tensor when the kernels cannot take its input width.
  kernels::WeightFormat weight_format(LinearGroup group, std::string_view name, int64_t in) const;
  /// Given rows [row, row + source.rows) of a part, on the device.
  using UseSlice = std::function<void(const kernels::SourceMatrix& source, int64_t row)>;
  /// Queues jobs that bring the part, slice by slice, as pack_linear and convert_matrix read it, and call `use`.
  void load_part(const LinearPart& part, const UseSlice& use);
  void load_native_part(const LinearPart& part, const UseSlice& use);
  void load_exl3_part(const LinearPart& part, const UseSlice& use);
  void upload(void* device, const void* host, size_t bytes);

  kernels::KdaSlot* slots() const { return slot_table_.as<kernels::KdaSlot>(); }
  /// Device address of a small number: kernels take slots and row counts as arrays.
  const int32_t* device_int(int value) const { return small_ints_.as<int32_t>() + value; }

  /// Throws std::logic_error for a caller's mistake.
  void check(const Batch& batch) const;
  /// What the host remembers of a call that has been put on the stream.
  void finish_call(std::span<const Segment> segments);
  /// KDA slots move past the call's rows: the last launch of every call.
  void advance_slots();
  /// Runs `operations` over a call of padding alone, or records them over the tables of such a call.
  Graph record(const PaddedForm& form, const std::function<void()>& operations, bool keep);

  const Geometry geometry_;
  const CudaBackendOptions options_;
  const int kda_heads_;
  const kernels::LatentFormat latent_format_;
  const kernels::IndexFormat index_format_;
  Stream stream_;

  std::vector<DeviceLinear> linears_;
  std::vector<DeviceMatrix> matrices_;
  std::vector<DeviceBuffer> vectors_;
  std::vector<DeviceExperts> experts_;
  LoadQueue queue_;                              ///< of weights whose bytes are still to come
  std::vector<const HostTensor*> native_parts_;  ///< loaded as matrices, in the order of the jobs
  DeviceBuffer first_not_finite_;                ///< [1] int32: the first of them with a NaN or infinity
  int64_t weight_bytes_ = 0;
  bool planning_weights_ = false;

  CachePlan plan_;
  std::unique_ptr<StepTables> tables_;
  std::unique_ptr<SampleBuffers> sample_buffers_;
  Event sampled_;
  DeviceBuffer slot_table_;  ///< [sequences] KdaSlot
  DeviceBuffer small_ints_;  ///< [largest slot or row count + 1] int32, each its own index
  DeviceBuffer linear_workspace_;
  std::vector<KdaCaches> kda_;        ///< [KDA layers]
  std::vector<SparseCaches> sparse_;  ///< [sparse layers]
  std::vector<DeviceBuffer> activations_;
  Scratch scratch_;
  /// By rows, and whether rows select among pools (more than pools_per_query · kpool positions).
  std::map<std::pair<int, bool>, Graph> graphs_;
  std::vector<SlotMirror> mirrors_;  ///< [sequences]

  std::vector<Segment> call_segments_;  ///< of the call in progress
  int call_rows_ = 0;
  bool in_forward_ = false;
};

inline Bf16* bf16_row(Tensor tensor, int64_t row) { return static_cast<Bf16*>(tensor.data) + row * tensor.width; }
inline float* fp32_row(Tensor tensor, int64_t row) { return static_cast<float*>(tensor.data) + row * tensor.width; }

extern template void CudaBackend::multiply<Bf16>(const kernels::PackedWeight&, bool, int, const Bf16*, int64_t, Bf16*,
                                                 int64_t, int64_t, int64_t);
extern template void CudaBackend::multiply<float>(const kernels::PackedWeight&, bool, int, const Bf16*, int64_t, float*,
                                                  int64_t, int64_t, int64_t);

}  // namespace glm53::cuda
