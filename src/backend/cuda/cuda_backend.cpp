// Device, memory, sequences and the frame of a forward call. The sub-blocks of the model are in the other cuda_*.cpp.
#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "backend/batch_check.h"
#include "backend/cuda/cuda_backend_impl.h"
#include "glm53/core/error.h"
#include "glm53/core/float_convert.h"
#include "glm53/core/limits.h"
#include "kernels/common/e4m3.h"
#include "kernels/row_ops/row_ops.h"
#include "kernels/sampler/sampler.h"
#include "kernels/sparse_attention/sparse_attention.h"

namespace glm53 {

std::string cuda_device_problem(int device) {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) return std::string("no usable NVIDIA driver: ") + cudaGetErrorString(result);
  if (device < 0 || device >= count) {
    return "cuda.device: " + std::to_string(device) + " does not exist; this machine has " + std::to_string(count) +
           " CUDA device(s)";
  }
  cudaDeviceProp properties{};
  kernels::check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  const int capability = 10 * properties.major + properties.minor;
  if (capability != 90 && capability != 121) {
    return std::string(properties.name) + " has compute capability " + std::to_string(properties.major) + "." +
           std::to_string(properties.minor) + "; this build holds code for 9.0 and 12.1";
  }
  return {};
}

int64_t cuda_free_memory(int device) {
  kernels::check_cuda(cudaSetDevice(device), "cudaSetDevice");
  size_t free = 0;
  size_t total = 0;
  kernels::check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

std::unique_ptr<Backend> make_cuda_backend(const Geometry& geometry, const CudaBackendOptions& options) {
  const std::string problem = cuda_device_problem(options.device);
  if (!problem.empty()) throw Error("backend: cuda cannot be used: " + problem);
  kernels::check_cuda(cudaSetDevice(options.device), "cudaSetDevice");
  return std::make_unique<cuda::CudaBackend>(geometry, options);
}

}  // namespace glm53

namespace glm53::cuda {
namespace {

std::logic_error misuse(const std::string& what) { return std::logic_error("cuda backend: " + what); }

int64_t kda_layer_bytes(const Geometry& g, int heads, int sequences) {
  const int64_t width = int64_t{heads} * g.kda_head_dim;
  const int64_t state = width * g.kda_head_dim * 4;
  const int64_t ring = kernels::kKdaConvRing * 3 * width * 2;
  const int64_t log = kernels::kKdaRows * (width * (2 + 2 + 4) + heads * 4);
  return sequences * (state + ring + log);
}

/// What the widest sub-block takes a row (cuda_kda.cpp, cuda_sparse_attention.cpp, cuda_mlp.cpp), before the weights
/// are known; prepare() measures it.
int64_t scratch_row_bytes(const Geometry& g, int ranks) {
  const int64_t low_rank = 2LL * g.kda_head_dim;  // f_a and g_a: what every known checkpoint has
  const int64_t kda = 2LL * (6 * g.kda_width() / ranks + g.kda_heads / ranks + low_rank + 16);
  const int64_t heads = g.mla_heads / ranks;
  const int64_t sparse =
      2LL * (2 * g.q_lora + g.latent + heads * (g.qk_dim + 2 * g.latent + g.v_dim) + 2 * g.index_heads * g.index_dim) +
      4LL * (2 * g.index_dim + 2 * g.index_heads + g.pools_per_query() + 8);
  const int64_t dense = 6LL * g.dense_intermediate / ranks;
  const int64_t width = g.moe_intermediate / ranks;
  const int64_t moe = 4LL * (g.experts + g.hidden) + 6LL * g.shared_experts * width +
                      g.experts_per_token * (4LL * g.hidden + 10LL * width + 64);
  return std::max({kda, sparse, dense, moe});
}

/// Kernel code, recorded graphs, step tables, the workspace of split products, rounding of allocations: 0.24 to 0.53
/// GiB were taken beyond the rest of the plan at the real geometry on an H200 (bench_model, three dense formats).
constexpr int64_t kRuntimeBytes = int64_t{640} << 20;

/// Scores, selection and split attention, whatever the rows.
int64_t scratch_fixed_bytes(const Geometry& g, const CachePlan& plan) {
  const int64_t scores = std::min(int64_t{64} << 20, int64_t{4} * plan.max_rows * plan.most_tokens() / g.index_kpool);
  return scores + (int64_t{8} << 20) +
         kernels::sparse_attention_workspace(kernels::kWindowRows, g.mla_heads, g.index_kpool, g.pools_per_query());
}

}  // namespace

CudaBackend::CudaBackend(const Geometry& geometry, const CudaBackendOptions& options)
    : geometry_(geometry),
      options_(options),
      kda_heads_(geometry.kda_heads / options.tensor_parallel),
      latent_format_(options.fp8_latents ? kernels::LatentFormat::kFp8 : kernels::LatentFormat::kBf16),
      index_format_(options.fp8_index ? kernels::IndexFormat::kFp8 : kernels::IndexFormat::kBf16) {
  const auto require = [](bool holds, const char* key, const char* what) {
    if (!holds) throw Error(std::string(key) + ": the CUDA backend supports " + what + " only");
  };
  require(geometry.kda_head_dim == kernels::kKdaHeadDim, "linear_attn_config.head_dim", "128");
  require(geometry.conv_kernel == 4, "short_conv_kernel_size", "4");
  require(geometry.hc_streams == kernels::kMhcStreams, "hc_mult", "4 streams");
  require(geometry.latent == 512, "kv_lora_rank", "512");
  require(geometry.index_dim == kernels::kIndexDim, "index_head_dim", "128");
  require(geometry.index_kpool == 4 || geometry.index_kpool == 16, "index_kpool", "4 and 16");
  require(geometry.hidden % 256 == 0, "hidden_size", "multiples of 256");
  // A row of logits is read in fours, and an id shares a word with the row's best value.
  require(geometry.vocab % (4 * options.tensor_parallel) == 0 && geometry.vocab <= 1 << kernels::kSamplerIdBits,
          "vocab_size", "multiples of 4 a rank, up to 262144,");
}

DeviceBuffer CudaBackend::make_zeroed(size_t bytes) {
  DeviceBuffer buffer(bytes);
  kernels::check_cuda(cudaMemsetAsync(buffer.as<void>(), 0, bytes, stream_), "cudaMemsetAsync");
  return buffer;
}

// ----------------------------------------------------------------------------------------------------- memory

MemoryPlan CudaBackend::plan_memory(const CachePlan& plan) const {
  const Geometry& g = geometry_;
  MemoryPlan memory;
  memory.weights = weight_bytes_;
  memory.sequence_state = kda_layer_bytes(g, kda_heads_, plan.sequences) * g.kda_layer_count() +
                          int64_t{plan.sequences} * kIndexRing * kernels::kIndexRingEntry * 2 * g.sparse_layer_count();
  const int64_t page_bytes = kPageTokens * kernels::latent_row_bytes(latent_format_, g.latent) +
                             kernels::index_page_bytes(index_format_, g.index_kpool);
  memory.pages = plan.pages * page_bytes * g.sparse_layer_count();
  const int64_t row_bytes = 2LL * (g.hc_streams + 2) * g.hidden + 4LL * kernels::kMhcMix;
  memory.activations = plan.max_rows * (row_bytes + scratch_row_bytes(g, options_.tensor_parallel)) +
                       plan.max_logit_rows * (2LL * g.hidden + 4LL * g.vocab) + scratch_fixed_bytes(g, plan) +
                       SampleBuffers::device_bytes(plan, g.vocab);
  memory.runtime = kRuntimeBytes;
  return memory;
}

void CudaBackend::create_caches(const CachePlan& plan) {
  if (!queue_.empty()) throw misuse("create_caches before finish_loading");
  const Geometry& g = geometry_;
  plan_ = plan;
  mirrors_.resize(static_cast<size_t>(plan.sequences));
  tables_ = std::make_unique<StepTables>(plan.max_rows, plan.max_logit_rows, plan.sequences, plan.pages);
  sample_buffers_ = std::make_unique<SampleBuffers>(plan, g.vocab);
  std::vector<int32_t> small(static_cast<size_t>(std::max(plan.sequences, kMaxWindowRows) + 1));
  std::iota(small.begin(), small.end(), 0);
  small_ints_ = DeviceBuffer(small.size() * sizeof(int32_t));
  upload(small_ints_.as<void>(), small.data(), small_ints_.bytes());
  stream_.wait();
  slot_table_ = make_zeroed(static_cast<size_t>(plan.sequences) * sizeof(kernels::KdaSlot));
  const auto slots = static_cast<size_t>(plan.sequences);
  const auto width = static_cast<size_t>(kda_heads_) * kernels::kKdaHeadDim;
  for (int i = 0; i < g.kda_layer_count(); ++i) {
    KdaCaches& layer = kda_.emplace_back();
    layer.state = make_zeroed(slots * width * kernels::kKdaHeadDim * sizeof(float));
    layer.conv_ring = make_zeroed(slots * kernels::kKdaConvRing * 3 * width * sizeof(Bf16));
    layer.log_key = make_zeroed(slots * kernels::kKdaRows * width * sizeof(Bf16));
    layer.log_value = make_zeroed(slots * kernels::kKdaRows * width * sizeof(Bf16));
    layer.log_decay = make_zeroed(slots * kernels::kKdaRows * width * sizeof(float));
    layer.log_beta = make_zeroed(slots * kernels::kKdaRows * static_cast<size_t>(kda_heads_) * sizeof(float));
    layer.view = {.state = layer.state.as<float>(),
                  .conv_ring = layer.conv_ring.as<Bf16>(),
                  .log_key = layer.log_key.as<Bf16>(),
                  .log_value = layer.log_value.as<Bf16>(),
                  .log_decay = layer.log_decay.as<float>(),
                  .log_beta = layer.log_beta.as<float>(),
                  .slots = slot_table_.as<kernels::KdaSlot>(),
                  .heads = kda_heads_};
  }
  const auto pages = static_cast<size_t>(plan.pages);
  for (int i = 0; i < g.sparse_layer_count(); ++i) {
    SparseCaches& layer = sparse_.emplace_back();
    layer.latents =
        make_zeroed(pages * kPageTokens * static_cast<size_t>(kernels::latent_row_bytes(latent_format_, g.latent)));
    layer.pool_keys = make_zeroed(pages * static_cast<size_t>(kernels::index_page_bytes(index_format_, g.index_kpool)));
    layer.rings = make_zeroed(slots * kIndexRing * kernels::kIndexRingEntry * sizeof(Bf16));
  }
  size_t workspace = 0;
  for (const DeviceLinear& packed : linears_) {
    const kernels::PackedWeight& w = packed.weight;
    workspace = std::max(workspace, kernels::linear_window_workspace(w.out, w.in, w.matrices));
  }
  linear_workspace_ = make_zeroed(workspace);
}

Tensor CudaBackend::create_activations(std::string_view, int64_t width, Precision precision) {
  const size_t element = precision == Precision::kFp32 ? sizeof(float) : sizeof(Bf16);
  activations_.push_back(make_zeroed(static_cast<size_t>(plan_.max_rows * width) * element));
  return {activations_.back().as<void>(), precision, plan_.max_rows, width};
}

Tensor CudaBackend::create_logit_rows(std::string_view, int64_t width, Precision precision) {
  const size_t element = precision == Precision::kFp32 ? sizeof(float) : sizeof(Bf16);
  activations_.push_back(make_zeroed(static_cast<size_t>(plan_.max_logit_rows * width) * element));
  return {activations_.back().as<void>(), precision, plan_.max_logit_rows, width};
}

// -------------------------------------------------------------------------------------------------- sequences

void CudaBackend::reset_sequence(int slot) {
  mirrors_.at(static_cast<size_t>(slot)) = {};
  const int32_t* ids = device_int(slot);
  for (const KdaCaches& layer : kda_) kernels::kda_reset(layer.view, ids, 1, stream_);
  kernels::kda_reset_slots(slots(), ids, 1, stream_);
}

void CudaBackend::commit(int slot, int kept_rows) {
  SlotMirror& mirror = mirrors_.at(static_cast<size_t>(slot));
  const int64_t most = mirror.commit_pending ? mirror.window_rows : mirror.position - mirror.window_begin;
  if (!mirror.last_was_window || kept_rows < 0 || kept_rows > most) {
    throw misuse("commit of " + std::to_string(kept_rows) + " rows in slot " + std::to_string(slot) +
                 ", whose last window has " + std::to_string(mirror.window_rows));
  }
  mirror.position = mirror.window_begin + kept_rows;
  mirror.commit_pending = false;
  kernels::kda_commit(slots(), device_int(slot), device_int(kept_rows), 1, stream_);
}

// ------------------------------------------------------------------------------------------------ forward call

void CudaBackend::check(const Batch& batch) const {
  check_batch(batch, plan_, geometry_.vocab, [this](int slot) {
    const SlotMirror& mirror = mirrors_[static_cast<size_t>(slot)];
    return SlotPosition{mirror.position, mirror.commit_pending};
  });
}

void CudaBackend::begin_forward(const Batch& batch) {
  if (in_forward_) throw misuse("begin_forward inside a forward call");
  check(batch);
  tables_->upload(batch, stream_);
  call_segments_.assign(batch.segments.begin(), batch.segments.end());
  call_rows_ = batch.rows();
  in_forward_ = true;
}

void CudaBackend::end_forward() {
  advance_slots();
  finish_call(call_segments_);
  in_forward_ = false;
}

void CudaBackend::advance_slots() {
  for (const Run& run : tables_->runs()) kernels::kda_advance(slots(), run.tables, run.window(), stream_);
}

void CudaBackend::finish_call(std::span<const Segment> segments) {
  for (const Segment& segment : segments) {
    SlotMirror& mirror = mirrors_[static_cast<size_t>(segment.slot)];
    mirror.last_was_window = segment.kind == SegmentKind::kWindow;
    if (mirror.last_was_window) {
      mirror.window_begin = mirror.position;
      mirror.window_rows = segment.rows;
      mirror.commit_pending = true;
    } else {
      mirror.position += segment.rows;
    }
  }
}

// ------------------------------------------------------------------------------------------------- host access

void CudaBackend::read_rows(Tensor tensor, int first_row, int rows, std::span<float> out) {
  const auto count = static_cast<size_t>(rows * tensor.width);
  if (tensor.precision == Precision::kFp32) {
    kernels::check_cuda(cudaMemcpyAsync(out.data(), fp32_row(tensor, first_row), count * sizeof(float),
                                        cudaMemcpyDeviceToHost, stream_),
                        "read_rows");
    stream_.wait();
    return;
  }
  std::vector<uint16_t> bits(count);
  kernels::check_cuda(cudaMemcpyAsync(bits.data(), bf16_row(tensor, first_row), count * sizeof(uint16_t),
                                      cudaMemcpyDeviceToHost, stream_),
                      "read_rows");
  stream_.wait();
  std::ranges::transform(bits, out.begin(), bf16_to_float);
}

void CudaBackend::write_rows(Tensor tensor, int first_row, int rows, std::span<const float> values) {
  const auto count = static_cast<size_t>(rows * tensor.width);
  if (tensor.precision == Precision::kFp32) {
    upload(fp32_row(tensor, first_row), values.data(), count * sizeof(float));
    stream_.wait();
    return;
  }
  std::vector<uint16_t> bits(count);
  std::ranges::transform(values.first(count), bits.begin(), float_to_bf16);
  upload(bf16_row(tensor, first_row), bits.data(), count * sizeof(uint16_t));
  stream_.wait();
}

std::vector<float> CudaBackend::read_kda_state(int slot, int kda_index) {
  const int64_t d = kernels::kKdaHeadDim;
  const auto count = static_cast<size_t>(kda_heads_ * d * d);
  const DeviceBuffer settled(count * sizeof(float));
  kernels::kda_settle(kda_.at(static_cast<size_t>(kda_index)).view, device_int(slot), 1, settled.as<float>(), stream_);
  std::vector<float> by_value(count);
  kernels::check_cuda(
      cudaMemcpyAsync(by_value.data(), settled.as<void>(), settled.bytes(), cudaMemcpyDeviceToHost, stream_),
      "read_kda_state");
  stream_.wait();
  std::vector<float> by_key(count);  // the device keeps [v][k]
  for (int64_t h = 0; h < kda_heads_; ++h) {
    for (int64_t k = 0; k < d; ++k) {
      for (int64_t v = 0; v < d; ++v) by_key[(h * d + k) * d + v] = by_value[(h * d + v) * d + k];
    }
  }
  return by_key;
}

std::vector<float> CudaBackend::read_conv_state(int slot, int kda_index) {
  const KdaCaches& layer = kda_.at(static_cast<size_t>(kda_index));
  const int64_t width = 3LL * kda_heads_ * kernels::kKdaHeadDim;
  std::vector<uint16_t> ring(static_cast<size_t>(kernels::kKdaConvRing * width));
  kernels::check_cuda(
      cudaMemcpyAsync(ring.data(), layer.conv_ring.as<Bf16>() + slot * static_cast<int64_t>(ring.size()),
                      ring.size() * sizeof(uint16_t), cudaMemcpyDeviceToHost, stream_),
      "read_conv_state");
  stream_.wait();
  std::vector<float> rows;
  const int64_t position = mirrors_.at(static_cast<size_t>(slot)).position;
  for (int64_t p = position - 3; p < position; ++p) {
    // Rows of negative positions are zeros, whatever the ring holds there.
    const int64_t at = (p + kernels::kKdaConvRing) % kernels::kKdaConvRing * width;
    for (int64_t c = 0; c < width; ++c) rows.push_back(p < 0 ? 0.0F : bf16_to_float(ring[at + c]));
  }
  return rows;
}

std::vector<float> CudaBackend::read_latent(int sparse_index, std::span<const int32_t> pages, int64_t position) {
  const SparseCaches& layer = sparse_.at(static_cast<size_t>(sparse_index));
  const int64_t bytes = kernels::latent_row_bytes(latent_format_, geometry_.latent);
  std::vector<uint8_t> row(static_cast<size_t>(bytes));
  kernels::check_cuda(
      cudaMemcpyAsync(row.data(), layer.latents.as<uint8_t>() + kernels::latent_row(pages.data(), position) * bytes,
                      row.size(), cudaMemcpyDeviceToHost, stream_),
      "read_latent");
  stream_.wait();
  std::vector<float> values(static_cast<size_t>(geometry_.latent));
  if (latent_format_ == kernels::LatentFormat::kBf16) {
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t bits;
      std::memcpy(&bits, row.data() + 2 * i, sizeof bits);
      values[i] = bf16_to_float(bits);
    }
    return values;
  }
  float scale;
  std::memcpy(&scale, row.data() + geometry_.latent, sizeof scale);
  for (size_t i = 0; i < values.size(); ++i) values[i] = kernels::from_e4m3(row[i]) * scale;
  return values;
}

std::vector<float> CudaBackend::read_pool_key(int sparse_index, std::span<const int32_t> pages, int64_t pool) {
  const SparseCaches& layer = sparse_.at(static_cast<size_t>(sparse_index));
  const int64_t per_page = kPageTokens / geometry_.index_kpool;
  const int64_t page_bytes = kernels::index_page_bytes(index_format_, geometry_.index_kpool);
  std::vector<uint8_t> page(static_cast<size_t>(page_bytes));
  kernels::check_cuda(
      cudaMemcpyAsync(page.data(),
                      layer.pool_keys.as<uint8_t>() + pages[static_cast<size_t>(pool / per_page)] * page_bytes,
                      page.size(), cudaMemcpyDeviceToHost, stream_),
      "read_pool_key");
  stream_.wait();
  const int64_t at = pool % per_page;
  std::vector<float> key(kernels::kIndexDim);
  if (index_format_ == kernels::IndexFormat::kBf16) {
    for (size_t i = 0; i < key.size(); ++i) {
      uint16_t bits;
      std::memcpy(&bits, page.data() + (at * kernels::kIndexDim + static_cast<int64_t>(i)) * 2, sizeof bits);
      key[i] = bf16_to_float(bits);
    }
    return key;
  }
  // Planar and rotated: the codes of all pools, then their scales. The rotation stays; it preserves every dot product.
  float scale;
  std::memcpy(&scale, page.data() + per_page * kernels::kIndexDim + at * 4, sizeof scale);
  for (size_t i = 0; i < key.size(); ++i) {
    key[i] = kernels::from_e4m3(page[static_cast<size_t>(at * kernels::kIndexDim) + i]) * scale;
  }
  return key;
}

void CudaBackend::set_trace(TraceSink* sink) {
  if (sink != nullptr) throw misuse("intermediate values are traced on the CPU backend only");
}

// ----------------------------------------------------------------------------------------------------- helpers

template <typename T>
void CudaBackend::multiply(const kernels::PackedWeight& weight, bool window, int rows, const Bf16* x, int64_t x_stride,
                           T* y, int64_t y_stride, int64_t x_matrix_stride, int64_t y_matrix_stride) {
  const kernels::LinearRows<T> shape{.x = x,
                                     .x_stride = x_stride,
                                     .y = y,
                                     .y_stride = y_stride,
                                     .rows = rows,
                                     .x_matrix_stride = x_matrix_stride,
                                     .y_matrix_stride = y_matrix_stride};
  if (window) {
    kernels::linear_window(weight, shape, linear_workspace_.as<void>(), stream_);
  } else {
    kernels::linear_prompt(weight, shape, stream_);
  }
}

template void CudaBackend::multiply<Bf16>(const kernels::PackedWeight&, bool, int, const Bf16*, int64_t, Bf16*, int64_t,
                                          int64_t, int64_t);
template void CudaBackend::multiply<float>(const kernels::PackedWeight&, bool, int, const Bf16*, int64_t, float*,
                                           int64_t, int64_t, int64_t);

}  // namespace glm53::cuda
