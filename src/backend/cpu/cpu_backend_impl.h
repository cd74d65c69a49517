// The class behind make_cpu_backend. Its operations are spread over cpu_*.cpp, one sub-block of the model a file.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/sampler.h"
#include "backend/cpu/sequence_state.h"
#include "backend/cpu/thread_pool.h"
#include "backend/cpu/vector_kernels.h"

namespace glm53::cpu {

/// A Linear in memory: panels for VectorKernels::linear.
struct PackedLinear {
  int64_t out = 0;
  int64_t in = 0;
  PanelFormat format = PanelFormat::kF32;
  int64_t bytes = 0;              ///< of the panels, also where they are only planned
  std::vector<std::byte> panels;  ///< [ceil(out / 16), in, 16] fp32 or bf16

  int64_t panel_count() const { return (out + kPanelOutputs - 1) / kPanelOutputs; }
};

/// Whether serving mode rounds a result to bf16. In fp32 mode nothing is rounded either way.
enum class Rounding : uint8_t { kBf16, kNone };

/// One routed expert, de-quantised to fp32 at load.
struct PackedExpert {
  PackedLinear gate_up;  ///< [2·width, hidden]
  PackedLinear down;     ///< [hidden, width]
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(const Geometry& geometry, const CpuBackendOptions& options);

  std::string_view name() const override { return "cpu"; }

  // cpu_backend.cpp: weights, memory, sequences, the frame of a forward call
  void plan_weights(bool planning) override;
  Linear load_linear(std::string_view name, LinearGroup group, std::span<const LinearPart> parts) override;
  LinearBatch load_linear_batch(std::string_view name, LinearGroup group,
                                std::span<const LinearPart> matrices) override;
  Matrix load_matrix(std::string_view name, const LinearPart& part, Precision precision) override;
  Vector load_vector(std::string_view name, std::span<const VectorPart> parts) override;
  ExpertBank load_experts(std::string_view name, std::span<const ExpertParts> experts) override;
  void create_caches(const CachePlan& plan) override;
  Tensor create_activations(std::string_view name, int64_t width, Precision precision) override;
  Tensor create_logit_rows(std::string_view name, int64_t width, Precision precision) override;
  void prepare(const std::function<void()>&, bool) override {}  // buffers have their final sizes already
  bool replay(const Batch&) override { return false; }
  void reset_sequence(int slot) override;
  void commit(int slot, int kept_rows) override;
  void begin_forward(const Batch& batch) override;
  void end_forward() override;
  void embed(const Matrix& embedding, Tensor streams) override;
  void head(const HeadWeights& weights, Tensor streams, Tensor hidden, Tensor logits) override;
  void sample(Tensor logits, std::span<const SampleRow> rows, std::span<SampledToken> out) override;
  void read_rows(Tensor tensor, int first_row, int rows, std::span<float> out) override;
  void write_rows(Tensor tensor, int first_row, int rows, std::span<const float> values) override;
  std::vector<float> read_latent(int sparse_index, std::span<const int32_t> pages, int64_t position) override;
  std::vector<float> read_pool_key(int sparse_index, std::span<const int32_t> pages, int64_t pool) override;
  void set_trace(TraceSink* sink) override { trace_ = sink; }

  // cpu_memory_plan.cpp
  MemoryPlan plan_memory(const CachePlan& plan) const override;
  /// Bytes of the activation and scratch buffers that exist now; tests hold the plan against it.
  int64_t activation_bytes() const;

  // cpu_mhc.cpp
  void mhc_pre(const MhcSite& site, Tensor streams, Tensor mix, Tensor normed) override;
  void mhc_post(const MhcSite& site, Tensor streams, Tensor mix, Tensor y) override;

  // cpu_kda.cpp
  void kda(const KdaWeights& weights, Tensor x, Tensor y) override;
  std::vector<float> read_kda_state(int slot, int kda_index) override;
  std::vector<float> read_conv_state(int slot, int kda_index) override;

  // cpu_sparse_attention.cpp
  void sparse_attention(const SparseAttentionWeights& weights, Tensor x, Tensor y) override;

  // cpu_mlp.cpp
  void dense_mlp(const MlpWeights& weights, Tensor x, Tensor y) override;
  void moe(const MoeWeights& weights, Tensor x, Tensor y) override;

 private:
  struct RoutedRow;  // cpu_mlp.cpp

  // ---- helpers of all operations
  const PackedLinear& linear(const Linear& weight) const { return linears_.at(static_cast<size_t>(weight.handle)); }
  const PackedLinear& linear(const Matrix& weight) const { return linears_.at(static_cast<size_t>(weight.handle)); }
  const PackedLinear& linear(const LinearBatch& weight, int matrix) const {
    return linears_.at(static_cast<size_t>(weight.handle + matrix));
  }
  const float* vector(const Vector& weight) const { return vectors_.at(static_cast<size_t>(weight.handle)).data(); }
  /// y [rows, out] = x [rows, in] · Wᵀ on all threads.
  void multiply(const PackedLinear& weight, const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride,
                Rounding rounding = Rounding::kBf16);
  /// The same on the calling thread.
  void multiply_here(const PackedLinear& weight, const float* x, int64_t x_stride, int rows, float* y,
                     int64_t y_stride) const;
  /// y = x · rsqrt(mean(x²) + eps) · weight; x and y may be the same. Spec 10 §3.2.
  void rms_norm(const float* x, const float* weight, int64_t width, float* y,
                Rounding rounding = Rounding::kBf16) const;
  /// Serving mode: values → nearest bf16 or fp16. fp32 mode: nothing.
  void round_bf16(float* values, int64_t count) const;
  void round_fp16(float* values, int64_t count) const;
  /// A named scratch buffer of at least `count` floats; contents undefined. One name, one use inside an operation.
  float* scratch(const char* name, int64_t count);
  PackedLinear pack(std::span<const LinearPart> parts) const;
  int add_linear(std::span<const LinearPart> parts);
  void trace(int layer, std::string_view name, const float* values, int64_t width) const;

  // cpu_kda.cpp
  /// Applies the rows that the KDA states do not hold yet, so that the states stand at `position`. Required where a
  /// window follows prompt rows or the other way round, and before the next window.
  void settle(SequenceState& sequence);
  void settle_layer(const SequenceState& sequence, KdaState& layer);
  struct KdaRows;
  void kda_prompt_segment(const Segment& segment, int head, KdaState& layer, const KdaRows& rows);
  void kda_window_segment(const Segment& segment, int head, KdaState& layer, const KdaRows& rows);

  // cpu_sparse_attention.cpp
  void write_latent(const float* latent, float* page_row) const;
  void quantise_index_vector(float* values) const;
  void write_pool_key(const IndexRing& ring, int64_t first, const float* pool_position, float* weights,
                      float* pool_key) const;

  // cpu_mlp.cpp
  enum class MlpPrecision : uint8_t { kBf16, kExpert };
  void swiglu_rows(const PackedLinear& gate_up, const PackedLinear& down, MlpPrecision precision, const float* x,
                   int64_t x_stride, int rows, float* y, int64_t y_stride) const;

  const Geometry geometry_;
  const int kda_heads_;  ///< of this rank
  const bool serving_;   ///< CpuMode::kServing
  const LatentFormat latent_format_;
  const bool fp8_index_;
  mutable ThreadPool pool_;
  const VectorKernels& kernels_;
  TraceSink* trace_ = nullptr;

  std::vector<PackedLinear> linears_;
  std::vector<std::vector<float>> vectors_;
  std::vector<std::vector<PackedExpert>> expert_banks_;
  int64_t weight_bytes_ = 0;
  bool planning_weights_ = false;

  CachePlan plan_;
  std::vector<SequenceState> sequences_;  ///< [plan.sequences]
  std::vector<LatentPages> pages_;        ///< [sparse layers]
  std::vector<std::vector<float>> activations_;
  std::map<std::string, std::vector<float>, std::less<>> scratch_;
  SamplerScratch sampler_scratch_;

  // The call in progress.
  Batch batch_;
  bool in_forward_ = false;
};

/// For comparisons: NaN ranks with −inf, so that sorting stays defined whatever the activations hold.
inline float nan_lowest(float value) { return std::isnan(value) ? -INFINITY : value; }

/// Row r of an activation.
inline float* row_of(Tensor tensor, int64_t r) { return static_cast<float*>(tensor.data) + r * tensor.width; }

}  // namespace glm53::cpu
