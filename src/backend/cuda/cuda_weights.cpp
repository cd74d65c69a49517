// Weights: from the checkpoint's views to packed device memory.
#include <algorithm>
#include <array>
#include <stdexcept>

#include "backend/cuda/cuda_backend_impl.h"
#include "backend/weight_source.h"
#include "glm53/core/error.h"
#include "kernels/synthetic/synthetic.h"

namespace glm53::cuda {
namespace {

kernels::SourceType source_type(const HostTensor& tensor) {
  switch (tensor.dtype) {
    case DType::kF32:
      return kernels::SourceType::f32;
    case DType::kF16:
      return kernels::SourceType::f16;
    case DType::kBF16:
      return kernels::SourceType::bf16;
    default:
      throw Error(tensor.file + ": tensor " + tensor.name + " has dtype " + std::string(dtype_name(tensor.dtype)) +
                  "; expected F32, F16 or BF16");
  }
}

kernels::SyntheticTensor synthetic_tensor(const HostTensor& tensor) {
  const SyntheticRule& rule = *tensor.synthetic;
  kernels::SyntheticTensor result;
  result.key[0] = rule.key[0];
  result.key[1] = rule.key[1];
  result.signs = rule.kind == SyntheticRule::Kind::kSigns;
  result.centre = rule.centre;
  result.scale = rule.scale;
  if (rule.kind == SyntheticRule::Kind::kBits) {
    result.form = kernels::SyntheticForm::bits;
  } else if (tensor.dtype == DType::kF32) {
    result.form = kernels::SyntheticForm::f32;
  } else {
    result.form = tensor.dtype == DType::kF16 ? kernels::SyntheticForm::f16 : kernels::SyntheticForm::bf16;
  }
  return result;
}

/// Every array in device memory begins at such a multiple.
constexpr size_t align_array(size_t bytes) { return (bytes + 255) / 256 * 256; }

size_t word_bytes(const LinearPart& part) {
  return static_cast<size_t>(part.rows.size() * part.columns.size() / 8 * part.exl3->bits);
}

/// Of one matrix of an expert: words, suh, svh.
size_t expert_matrix_bytes(const LinearPart& part) {
  if (part.exl3 == nullptr) {
    throw Error("tensor " + part.native->name + ": the CUDA backend needs EXL3 routed experts");
  }
  return align_array(word_bytes(part)) + align_array(static_cast<size_t>(part.columns.size()) * sizeof(__half)) +
         align_array(static_cast<size_t>(part.rows.size()) * sizeof(__half));
}

/// Whether two vectors of scales are the same, so that rows can be rotated once for both matrices.
bool same_scales(const HostTensor& a, const HostTensor& b) {
  if (a.synthetic && b.synthetic) return a.synthetic->key == b.synthetic->key;
  return !a.synthetic && !b.synthetic && std::ranges::equal(a.bytes, b.bytes);
}

kernels::TrellisKind trellis_kind(const Exl3Stored& matrix) {
  return {matrix.bits, static_cast<int32_t>(matrix.codebook), matrix.order == Exl3TileOrder::kColumnMajor ? 1 : 0};
}

void add_kind(std::vector<kernels::TrellisKind>& kinds, const kernels::TrellisKind& kind) {
  const bool known = std::ranges::any_of(kinds, [&](const kernels::TrellisKind& k) {
    return k.bits == kind.bits && k.codebook == kind.codebook && k.column_major == kind.column_major;
  });
  if (!known) kinds.push_back(kind);
}

}  // namespace

void CudaBackend::plan_weights(bool planning) {
  planning_weights_ = planning;
  weight_bytes_ = 0;
}

void CudaBackend::upload(void* device, const void* host, size_t bytes) {
  kernels::check_cuda(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "upload of a weight");
}

std::byte* CudaBackend::take_staging(size_t bytes) {
  if (staging_used_ == staging_.size()) staging_.emplace_back();
  DeviceBuffer& buffer = staging_[staging_used_++];
  if (buffer.bytes() < bytes) buffer = DeviceBuffer(bytes);
  return buffer.as<std::byte>();
}

void CudaBackend::put_elements(const HostTensor& tensor, int64_t first, int64_t count, void* device) {
  if (tensor.synthetic) {
    kernels::fill_synthetic(synthetic_tensor(tensor), first, count, device, stream_);
    return;
  }
  const auto element = static_cast<int64_t>(dtype_bytes(tensor.dtype));
  upload(device, tensor.bytes.data() + first * element, static_cast<size_t>(count * element));
}

void CudaBackend::put_scales(const HostTensor& tensor, const std::vector<uint16_t>& values, Range range, void* device) {
  if (tensor.synthetic) {
    put_elements(tensor, range.begin, range.size(), device);
  } else {
    upload(device, values.data() + range.begin, static_cast<size_t>(range.size()) * sizeof(uint16_t));
  }
}

kernels::SourceMatrix CudaBackend::stage(const LinearPart& part) {
  staging_used_ = 0;  // in stream order after all earlier uses
  kernels::SourceMatrix source;
  int64_t stored_columns = 0;
  if (part.native != nullptr) {
    const HostTensor& tensor = *part.native;
    stored_columns = tensor.shape.back();
    const int64_t elements = part.rows.size() * stored_columns;
    const size_t element = dtype_bytes(tensor.dtype);
    std::byte* rows = take_staging(static_cast<size_t>(elements) * element);
    source.type = source_type(tensor);
    put_elements(tensor, part.rows.begin * stored_columns, elements, rows);
    source.data = rows + static_cast<size_t>(part.columns.begin) * element;
  } else {
    const Exl3Stored& stored = *part.exl3;
    const Exl3Matrix matrix = read_exl3(stored);
    auto* tiles = take_staging(static_cast<size_t>(stored.trellis->element_count()) * sizeof(uint16_t));
    put_elements(*stored.trellis, 0, stored.trellis->element_count(), tiles);
    auto* suh = take_staging(matrix.suh.size() * sizeof(uint16_t));
    put_scales(*stored.suh, matrix.suh, {0, stored.in}, suh);
    auto* svh = take_staging(matrix.svh.size() * sizeof(uint16_t));
    put_scales(*stored.svh, matrix.svh, {0, stored.out}, svh);
    stored_columns = part.columns.size();
    auto* weight =
        reinterpret_cast<Bf16*>(take_staging(static_cast<size_t>(part.rows.size() * stored_columns) * sizeof(Bf16)));
    const kernels::DequantiseRange range{
        .first_out = static_cast<int>(part.rows.begin),
        .rows = static_cast<int>(part.rows.size()),
        .first_in = static_cast<int>(part.columns.begin),
        .columns = static_cast<int>(part.columns.size()),
        .stride = stored_columns,
    };
    kernels::exl3_dequantise(reinterpret_cast<const uint32_t*>(tiles), reinterpret_cast<const __half*>(suh),
                             reinterpret_cast<const __half*>(svh), trellis_kind(stored), static_cast<int>(stored.in),
                             static_cast<int>(stored.out), range, weight, stream_);
    source.type = kernels::SourceType::bf16;
    source.data = weight;
  }
  source.rows = part.rows.size();
  source.columns = part.columns.size();
  source.row_stride = stored_columns;
  source.column_stride = 1;
  if (part.transposed) {
    std::swap(source.rows, source.columns);
    std::swap(source.row_stride, source.column_stride);
  }
  return source;
}

kernels::WeightFormat CudaBackend::weight_format(LinearGroup group, std::string_view name, int64_t in) const {
  if (in % kernels::kLinearColumns != 0) {
    throw Error("tensor " + std::string(name) + ": " + std::to_string(in) +
                " inputs; the CUDA backend needs a multiple of " + std::to_string(kernels::kLinearColumns));
  }
  switch (options_.dense[group]) {
    case DenseFormat::kBf16:
      return kernels::WeightFormat::bf16;
    case DenseFormat::kFp8:
      return kernels::WeightFormat::fp8;
    case DenseFormat::kQ4:
      return kernels::WeightFormat::q4;
  }
  throw std::logic_error("cuda backend: unknown dense format");
}

Linear CudaBackend::load_linear(std::string_view name, LinearGroup group, std::span<const LinearPart> parts) {
  int64_t out = 0;
  for (const LinearPart& part : parts) out = align_part(out) + part.out();
  const int64_t in = parts.front().in();
  const kernels::WeightFormat format = weight_format(group, name, in);
  const int64_t bytes = kernels::packed_bytes(format, out, in);
  weight_bytes_ += bytes;
  if (planning_weights_) return {out, in, -1};
  DeviceLinear packed;
  packed.data = make_zeroed(static_cast<size_t>(bytes));
  int64_t first = 0;
  for (const LinearPart& part : parts) {
    first = align_part(first);
    kernels::pack_linear(stage(part), format, out, first, packed.data.as<uint8_t>(), stream_);
    first += part.out();
  }
  packed.weight = {format, out, in, packed.data.as<uint8_t>(), 1};
  linears_.push_back(std::move(packed));
  return {out, in, static_cast<int>(linears_.size()) - 1};
}

LinearBatch CudaBackend::load_linear_batch(std::string_view name, LinearGroup group,
                                           std::span<const LinearPart> matrices) {
  const int64_t out = matrices.front().out();
  const int64_t in = matrices.front().in();
  const kernels::WeightFormat format = weight_format(group, name, in);
  const auto bytes = static_cast<size_t>(kernels::packed_bytes(format, out, in));
  const auto count = static_cast<int>(matrices.size());
  weight_bytes_ += static_cast<int64_t>(bytes) * count;
  if (planning_weights_) return {out, in, count, -1};
  DeviceLinear packed;
  packed.data = make_zeroed(bytes * matrices.size());
  for (size_t m = 0; m < matrices.size(); ++m) {
    kernels::pack_linear(stage(matrices[m]), format, out, 0, packed.data.as<uint8_t>() + m * bytes, stream_);
  }
  packed.weight = {format, out, in, packed.data.as<uint8_t>(), count};
  linears_.push_back(std::move(packed));
  return {out, in, count, static_cast<int>(linears_.size()) - 1};
}

Matrix CudaBackend::load_matrix(std::string_view, const LinearPart& part, Precision precision) {
  DeviceMatrix matrix;
  matrix.is_fp32 = precision == Precision::kFp32 && !is_exact_in_bf16(part);
  const auto elements = static_cast<size_t>(part.out() * part.in());
  const size_t bytes = elements * (matrix.is_fp32 ? sizeof(float) : sizeof(Bf16));
  weight_bytes_ += static_cast<int64_t>(bytes);
  if (planning_weights_) return {part.out(), part.in(), -1};
  matrix.data = DeviceBuffer(bytes);
  const kernels::SourceMatrix source = stage(part);
  if (matrix.is_fp32) {
    kernels::convert_matrix(source, matrix.data.as<float>(), stream_);
  } else {
    kernels::convert_matrix(source, matrix.data.as<Bf16>(), stream_);
  }
  matrices_.push_back(std::move(matrix));
  return {part.out(), part.in(), static_cast<int>(matrices_.size()) - 1};
}

Vector CudaBackend::load_vector(std::string_view, std::span<const VectorPart> parts) {
  int64_t count = 0;
  for (const VectorPart& part : parts) count += part.range.size();
  weight_bytes_ += count * static_cast<int64_t>(sizeof(float));
  if (planning_weights_) return {count, -1};
  const std::vector<float> values = read_parts(parts);
  vectors_.emplace_back(values.size() * sizeof(float));
  upload(vectors_.back().as<void>(), values.data(), vectors_.back().bytes());
  return {count, static_cast<int>(vectors_.size()) - 1};
}

kernels::ExpertMatrix CudaBackend::load_expert_matrix(const LinearPart& part, std::byte* device,
                                                      const __half* shared_suh) {
  const Exl3Stored& stored = *part.exl3;
  Exl3Matrix matrix;
  if (!stored.trellis->synthetic) matrix = read_exl3(stored);
  const auto in = static_cast<int>(part.columns.size());
  const auto out = static_cast<int>(part.rows.size());
  staging_used_ = 0;
  std::byte* tiles = take_staging(static_cast<size_t>(stored.trellis->element_count()) * sizeof(uint16_t));
  put_elements(*stored.trellis, 0, stored.trellis->element_count(), tiles);
  auto* words = reinterpret_cast<uint32_t*>(device);
  kernels::exl3_pack({.tiles = reinterpret_cast<const uint32_t*>(tiles),
                      .tile_columns = static_cast<int>(stored.out / kExl3TileEdge),
                      .first_tile_row = static_cast<int>(part.columns.begin / kExl3TileEdge),
                      .first_tile_column = static_cast<int>(part.rows.begin / kExl3TileEdge)},
                     in, out, stored.bits, words, stream_);
  auto* suh = reinterpret_cast<__half*>(device + align_array(word_bytes(part)));
  auto* svh = suh + align_array(static_cast<size_t>(in) * sizeof(__half)) / sizeof(__half);
  if (shared_suh == nullptr) put_scales(*stored.suh, matrix.suh, part.columns, suh);
  put_scales(*stored.svh, matrix.svh, part.rows, svh);
  kernels::ExpertMatrix result;
  result.words = words;
  result.suh = shared_suh != nullptr ? shared_suh : suh;
  result.svh = svh;
  result.kind = trellis_kind(stored);
  return result;
}

ExpertBank CudaBackend::load_experts(std::string_view, std::span<const ExpertParts> experts) {
  size_t bytes = 0;
  for (const ExpertParts& parts : experts) {
    for (const LinearPart* part : {&parts.gate, &parts.up, &parts.down}) bytes += expert_matrix_bytes(*part);
  }
  const size_t record_bytes = experts.size() * sizeof(kernels::ExpertRecord);
  weight_bytes_ += static_cast<int64_t>(bytes + record_bytes);
  const ExpertParts& first = experts.front();
  ExpertBank handle{static_cast<int>(experts.size()), first.gate.in(), first.gate.out(), -1};
  if (planning_weights_) return handle;

  DeviceExperts bank;
  bank.memory = DeviceBuffer(bytes + record_bytes);
  auto* next = bank.memory.as<std::byte>();
  const auto load = [&](const LinearPart& part, const __half* shared_suh) {
    std::byte* const at = next;
    next += expert_matrix_bytes(part);
    return load_expert_matrix(part, at, shared_suh);
  };
  std::vector<kernels::ExpertRecord> records;
  for (const ExpertParts& parts : experts) {
    kernels::ExpertRecord record;
    record.gate = load(parts.gate, nullptr);
    record.up = load(parts.up, same_scales(*parts.gate.exl3->suh, *parts.up.exl3->suh) ? record.gate.suh : nullptr);
    record.down = load(parts.down, nullptr);
    add_kind(bank.view.gate_up_kinds, record.gate.kind);
    add_kind(bank.view.gate_up_kinds, record.up.kind);
    add_kind(bank.view.down_kinds, record.down.kind);
    records.push_back(record);
  }
  upload(next, records.data(), record_bytes);
  bank.view.records = reinterpret_cast<const kernels::ExpertRecord*>(next);
  bank.view.experts = handle.experts;
  bank.view.hidden = static_cast<int>(handle.hidden);
  bank.view.width = static_cast<int>(handle.width);
  bank.view.limit = geometry_.swiglu_limit;
  experts_.push_back(std::move(bank));
  handle.handle = static_cast<int>(experts_.size()) - 1;
  return handle;
}

}  // namespace glm53::cuda
