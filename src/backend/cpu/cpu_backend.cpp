// Weights, memory, sequences and the frame of a forward call. The sub-blocks of the model are in the other cpu_*.cpp.
#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <stdexcept>

#include "backend/batch_check.h"
#include "backend/cpu/cpu_backend_impl.h"
#include "backend/weight_source.h"
#include "glm53/core/error.h"
#include "glm53/core/float_convert.h"

namespace glm53 {

std::unique_ptr<Backend> make_cpu_backend(const Geometry& geometry, const CpuBackendOptions& options) {
  return std::make_unique<cpu::CpuBackend>(geometry, options);
}

}  // namespace glm53

namespace glm53::cpu {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);
// Tile of one task of multiply(): small enough to share a few hundred rows among cores, large enough that a task is
// longer than handing it out.
constexpr int kRowsPerTask = 64;
constexpr int64_t kPanelsPerTask = 8;

std::logic_error misuse(const std::string& what) { return std::logic_error("cpu backend: " + what); }

}  // namespace

CpuBackend::CpuBackend(const Geometry& geometry, const CpuBackendOptions& options)
    : geometry_(geometry),
      kda_heads_(geometry.kda_heads / options.tensor_parallel),
      serving_(options.mode == CpuMode::kServing),
      latent_format_(options.latents),
      fp8_index_(options.mode == CpuMode::kServing && options.fp8_index),
      pool_(options.threads),
      kernels_(vector_kernels()) {
  if (geometry.kda_head_dim != 128) throw Error("linear_attn_config.head_dim: the CPU backend supports 128 only");
  if (geometry.hc_streams != 4) throw Error("hc_mult: the CPU backend supports 4 streams only");
  if (geometry.conv_kernel != 4) throw Error("short_conv_kernel_size: the CPU backend supports 4 only");
  if (fp8_index_ && !std::has_single_bit(static_cast<unsigned>(geometry.index_dim))) {
    throw Error("index_head_dim: kv.index fp8 needs a power of two");
  }
  if (kPageTokens % geometry.index_kpool != 0) throw Error("index_kpool must divide 64, the positions of a page");
}

// ---------------------------------------------------------------------------------------------------- weights

PackedLinear CpuBackend::pack(std::span<const LinearPart> parts) const {
  PackedLinear packed;
  packed.in = parts.front().in();
  bool exact_in_bf16 = true;
  for (const LinearPart& part : parts) {
    packed.out += part.out();
    exact_in_bf16 = exact_in_bf16 && is_exact_in_bf16(part);
    if (part.in() != packed.in) throw misuse("stacked parts of different input width");
  }
  packed.format = exact_in_bf16 ? PanelFormat::kBF16 : PanelFormat::kF32;
  packed.bytes = panel_bytes(packed.format, packed.in, packed.out);
  if (planning_weights_) return packed;
  packed.panels.resize(static_cast<size_t>(packed.bytes));
  int64_t row = 0;
  for (const LinearPart& part : parts) {
    const std::vector<float> values = read_part(part);
    pack_panels(values.data(), packed.in, row, part.out(), packed.in, packed.format, packed.panels.data());
    row += part.out();
  }
  return packed;
}

void CpuBackend::plan_weights(bool planning) {
  planning_weights_ = planning;
  weight_bytes_ = 0;
}

/// Index in linears_ of the packed parts; of no use while planning.
int CpuBackend::add_linear(std::span<const LinearPart> parts) {
  PackedLinear packed = pack(parts);
  weight_bytes_ += packed.bytes;
  if (!planning_weights_) linears_.push_back(std::move(packed));
  return static_cast<int>(linears_.size()) - 1;
}

Linear CpuBackend::load_linear(std::string_view, LinearGroup, std::span<const LinearPart> parts) {
  int64_t out = 0;
  for (const LinearPart& part : parts) out += part.out();
  return {out, parts.front().in(), add_linear(parts)};
}

LinearBatch CpuBackend::load_linear_batch(std::string_view, LinearGroup, std::span<const LinearPart> matrices) {
  const int first = add_linear(matrices.first(1));
  for (size_t m = 1; m < matrices.size(); ++m) add_linear(matrices.subspan(m, 1));
  return {matrices.front().out(), matrices.front().in(), static_cast<int>(matrices.size()), first};
}

Matrix CpuBackend::load_matrix(std::string_view, const LinearPart& part, Precision) {
  const int handle = add_linear({&part, 1});
  return {part.out(), part.in(), handle};
}

Vector CpuBackend::load_vector(std::string_view, std::span<const VectorPart> parts) {
  int64_t count = 0;
  for (const VectorPart& part : parts) count += part.range.size();
  weight_bytes_ += count * kFloatBytes;
  if (planning_weights_) return {count, -1};
  vectors_.push_back(read_parts(parts));
  return {count, static_cast<int>(vectors_.size()) - 1};
}

ExpertBank CpuBackend::load_experts(std::string_view, std::span<const ExpertParts> experts) {
  std::vector<PackedExpert> bank(experts.size());
  pool_.parallel_for(static_cast<int64_t>(experts.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      const ExpertParts& parts = experts[static_cast<size_t>(e)];
      const std::array gate_up = {parts.gate, parts.up};
      bank[e].gate_up = pack(gate_up);
      bank[e].down = pack(std::array{parts.down});
    }
  });
  for (const PackedExpert& expert : bank) weight_bytes_ += expert.gate_up.bytes + expert.down.bytes;
  const ExpertParts& first = experts.front();
  const ExpertBank handle{static_cast<int>(experts.size()), first.gate.in(), first.gate.out(),
                          static_cast<int>(expert_banks_.size())};
  if (!planning_weights_) expert_banks_.push_back(std::move(bank));
  return handle;
}

// ----------------------------------------------------------------------------------------------------- memory

void CpuBackend::create_caches(const CachePlan& plan) {
  plan_ = plan;
  sampler_scratch_.reserve(static_cast<size_t>(geometry_.vocab));
  for (int i = 0; i < plan.sequences; ++i) sequences_.push_back(make_sequence_state(geometry_, kda_heads_));
  const auto pages = static_cast<size_t>(plan.pages);
  pages_.resize(static_cast<size_t>(geometry_.sparse_layer_count()));
  for (LatentPages& layer : pages_) {
    layer.latents.resize(pages * kPageTokens * static_cast<size_t>(geometry_.latent));
    layer.pool_keys.resize(pages * static_cast<size_t>(kPageTokens / geometry_.index_kpool * geometry_.index_dim));
  }
}

Tensor CpuBackend::create_activations(std::string_view, int64_t width, Precision precision) {
  activations_.emplace_back(static_cast<size_t>(plan_.max_rows * width));
  return {activations_.back().data(), precision, plan_.max_rows, width};
}

Tensor CpuBackend::create_logit_rows(std::string_view, int64_t width, Precision precision) {
  activations_.emplace_back(static_cast<size_t>(plan_.max_logit_rows * width));
  return {activations_.back().data(), precision, plan_.max_logit_rows, width};
}

float* CpuBackend::scratch(const char* name, int64_t count) {
  std::vector<float>& buffer = scratch_[name];
  if (buffer.size() < static_cast<size_t>(count)) buffer.resize(static_cast<size_t>(count));
  return buffer.data();
}

// -------------------------------------------------------------------------------------------------- sequences

void CpuBackend::reset_sequence(int slot) { sequences_.at(static_cast<size_t>(slot)).reset(); }

void CpuBackend::commit(int slot, int kept_rows) {
  SequenceState& sequence = sequences_.at(static_cast<size_t>(slot));
  const bool may_keep = sequence.commit_pending ? kept_rows <= sequence.window_rows
                                                : kept_rows <= sequence.position - sequence.state_position;
  if (sequence.log_kind != LogKind::kWindow || kept_rows < 0 || !may_keep) {
    throw misuse("commit of " + std::to_string(kept_rows) + " rows in slot " + std::to_string(slot) +
                 ", whose last window has " + std::to_string(sequence.window_rows));
  }
  sequence.position = sequence.state_position + kept_rows;
  sequence.commit_pending = false;
}

// ------------------------------------------------------------------------------------------------ forward call

void CpuBackend::begin_forward(const Batch& batch) {
  if (in_forward_) throw misuse("begin_forward inside a forward call");
  check_batch(batch, plan_, geometry_.vocab, [this](int slot) {
    const SequenceState& sequence = sequences_[static_cast<size_t>(slot)];
    return SlotPosition{sequence.position, sequence.commit_pending};
  });
  for (const Segment& segment : batch.segments) {
    SequenceState& sequence = sequences_[static_cast<size_t>(segment.slot)];
    if (segment.kind == SegmentKind::kWindow || sequence.log_kind == LogKind::kWindow) settle(sequence);
  }
  batch_ = batch;
  in_forward_ = true;
}

void CpuBackend::end_forward() {
  for (const Segment& segment : batch_.segments) {
    SequenceState& sequence = sequences_[static_cast<size_t>(segment.slot)];
    if (segment.kind == SegmentKind::kWindow) {
      sequence.log_kind = LogKind::kWindow;
      sequence.window_rows = segment.rows;
      sequence.commit_pending = true;
      continue;
    }
    sequence.log_kind = LogKind::kPrompt;
    sequence.position += segment.rows;
    if (sequence.position >= chunk_end(sequence.state_position)) {
      sequence.state_position = sequence.position / kKdaChunk * kKdaChunk;
    }
  }
  batch_ = {};
  in_forward_ = false;
}

void CpuBackend::embed(const Matrix& embedding, Tensor streams) {
  const PackedLinear& table = linear(embedding);
  const int64_t hidden = table.in;
  for (int r = 0; r < batch_.rows(); ++r) {
    const int32_t id = batch_.token_ids[static_cast<size_t>(r)];
    // Element i of output `id` lies at [id / 16][i][id % 16] of the panels.
    const int64_t first = (id / kPanelOutputs) * hidden * kPanelOutputs + id % kPanelOutputs;
    float* row = row_of(streams, r);
    for (int64_t i = 0; i < hidden; ++i) {
      const int64_t element = first + i * kPanelOutputs;
      row[i] = table.format == PanelFormat::kBF16
                   ? bf16_to_float(reinterpret_cast<const uint16_t*>(table.panels.data())[element])
                   : reinterpret_cast<const float*>(table.panels.data())[element];
    }
    for (int stream = 1; stream < geometry_.hc_streams; ++stream) std::copy_n(row, hidden, row + stream * hidden);
  }
}

void CpuBackend::head(const HeadWeights& weights, Tensor streams, Tensor hidden, Tensor logits) {
  const int64_t width = geometry_.hidden;
  const auto rows = static_cast<int>(batch_.logit_rows.size());
  const float* norm = vector(weights.norm);
  for (int i = 0; i < rows; ++i) {
    const float* x = row_of(streams, batch_.logit_rows[static_cast<size_t>(i)]);
    float* mean = row_of(hidden, i);
    for (int64_t d = 0; d < width; ++d) {
      mean[d] = 0.25F * ((x[d] + x[width + d]) + (x[2 * width + d] + x[3 * width + d]));
    }
    round_bf16(mean, width);
    rms_norm(mean, norm, width, mean);
  }
  multiply(linear(weights.lm_head), row_of(hidden, 0), hidden.width, rows, row_of(logits, 0), logits.width,
           Rounding::kNone);
}

void CpuBackend::sample(Tensor logits, std::span<const SampleRow> rows, std::span<SampledToken> out) {
  check_sample_rows(rows, out, plan_, static_cast<int>(logits.width));
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::span<const float> row(row_of(logits, rows[i].logits_row), static_cast<size_t>(logits.width));
    out[i] = sample_row(row, rows[i], sampler_scratch_);
  }
}

// ------------------------------------------------------------------------------------------------- host access

void CpuBackend::read_rows(Tensor tensor, int first_row, int rows, std::span<float> out) {
  std::copy_n(row_of(tensor, first_row), rows * tensor.width, out.begin());
}

void CpuBackend::write_rows(Tensor tensor, int first_row, int rows, std::span<const float> values) {
  std::copy_n(values.begin(), rows * tensor.width, row_of(tensor, first_row));
}

std::vector<float> CpuBackend::read_latent(int sparse_index, std::span<const int32_t> pages, int64_t position) {
  const LatentPages& layer = pages_.at(static_cast<size_t>(sparse_index));
  const int64_t row =
      pages[static_cast<size_t>(position / kPageTokens)] * int64_t{kPageTokens} + position % kPageTokens;
  const float* first = layer.latents.data() + row * geometry_.latent;
  return {first, first + geometry_.latent};
}

std::vector<float> CpuBackend::read_pool_key(int sparse_index, std::span<const int32_t> pages, int64_t pool) {
  const LatentPages& layer = pages_.at(static_cast<size_t>(sparse_index));
  const int64_t pools_per_page = kPageTokens / geometry_.index_kpool;
  const int64_t row = pages[static_cast<size_t>(pool / pools_per_page)] * pools_per_page + pool % pools_per_page;
  const float* first = layer.pool_keys.data() + row * geometry_.index_dim;
  return {first, first + geometry_.index_dim};
}

// ----------------------------------------------------------------------------------------------------- helpers

void CpuBackend::multiply(const PackedLinear& weight, const float* x, int64_t x_stride, int rows, float* y,
                          int64_t y_stride, Rounding rounding) {
  const int64_t row_tasks = (rows + kRowsPerTask - 1) / kRowsPerTask;
  const int64_t panel_tasks = (weight.panel_count() + kPanelsPerTask - 1) / kPanelsPerTask;
  pool_.parallel_for(row_tasks * panel_tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / panel_tasks * kRowsPerTask;
      const int64_t row_end = std::min<int64_t>(row + kRowsPerTask, rows);
      const int64_t panel = task % panel_tasks * kPanelsPerTask;
      const int64_t panel_end = std::min(panel + kPanelsPerTask, weight.panel_count());
      kernels_.linear(x + row * x_stride, x_stride, static_cast<int>(row_end - row), weight.panels.data(),
                      weight.format, weight.in, weight.out, panel, panel_end, y + row * y_stride, y_stride);
      if (!serving_ || rounding == Rounding::kNone) continue;
      const int64_t column = panel * kPanelOutputs;
      const int64_t columns = std::min(panel_end * kPanelOutputs, weight.out) - column;
      for (int64_t r = row; r < row_end; ++r) round_bf16(y + r * y_stride + column, columns);
    }
  });
}

void CpuBackend::round_bf16(float* values, int64_t count) const {
  if (!serving_) return;
  for (int64_t i = 0; i < count; ++i) values[i] = bf16_to_float(float_to_bf16(values[i]));
}

void CpuBackend::round_fp16(float* values, int64_t count) const {
  if (!serving_) return;
  for (int64_t i = 0; i < count; ++i) values[i] = fp16_to_float(float_to_fp16(values[i]));
}

void CpuBackend::multiply_here(const PackedLinear& weight, const float* x, int64_t x_stride, int rows, float* y,
                               int64_t y_stride) const {
  kernels_.linear(x, x_stride, rows, weight.panels.data(), weight.format, weight.in, weight.out, 0,
                  weight.panel_count(), y, y_stride);
}

void CpuBackend::rms_norm(const float* x, const float* weight, int64_t width, float* y, Rounding rounding) const {
  const float mean_square = kernels_.sum_squares(x, width) / static_cast<float>(width);
  const float scale = 1.0F / std::sqrt(mean_square + geometry_.rms_norm_eps);
  for (int64_t i = 0; i < width; ++i) y[i] = x[i] * scale * weight[i];
  if (rounding == Rounding::kBf16) round_bf16(y, width);
}

void CpuBackend::trace(int layer, std::string_view name, const float* values, int64_t width) const {
  if (trace_ == nullptr) return;
  const int rows = batch_.rows();
  trace_->record("layer" + std::to_string(layer) + "." + std::string(name), {values, static_cast<size_t>(rows * width)},
                 rows);
}

}  // namespace glm53::cpu
