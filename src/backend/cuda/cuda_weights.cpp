// Weights: from the checkpoint's views to packed device memory.
#include <algorithm>
#include <array>
#include <stdexcept>

#include "backend/cuda/cuda_backend_impl.h"
#include "backend/weight_source.h"
#include "glm53/core/error.h"

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

kernels::TrellisKind trellis_kind(const Exl3Matrix& matrix) {
  return {matrix.bits, static_cast<int32_t>(matrix.codebook), matrix.order == Exl3TileOrder::kColumnMajor ? 1 : 0};
}

void add_kind(std::vector<kernels::TrellisKind>& kinds, const kernels::TrellisKind& kind) {
  const bool known = std::ranges::any_of(kinds, [&](const kernels::TrellisKind& k) {
    return k.bits == kind.bits && k.codebook == kind.codebook && k.column_major == kind.column_major;
  });
  if (!known) kinds.push_back(kind);
}

}  // namespace

void CudaBackend::upload(void* device, const void* host, size_t bytes) {
  kernels::check_cuda(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "upload of a weight");
}

kernels::SourceMatrix CudaBackend::stage(const LinearPart& part) {
  kernels::SourceMatrix source;
  int64_t stored_columns = 0;
  if (part.native != nullptr) {
    const HostTensor& tensor = *part.native;
    stored_columns = tensor.shape.back();
    const size_t element = dtype_bytes(tensor.dtype);
    const size_t row_bytes = static_cast<size_t>(stored_columns) * element;
    const size_t bytes = static_cast<size_t>(part.rows.size()) * row_bytes;
    staging_.emplace_back(bytes);
    upload(staging_.back().as<void>(), tensor.bytes.data() + static_cast<size_t>(part.rows.begin) * row_bytes, bytes);
    source.type = source_type(tensor);
    source.data = staging_.back().as<std::byte>() + static_cast<size_t>(part.columns.begin) * element;
  } else {
    const Exl3Matrix& matrix = *part.exl3;
    staging_.emplace_back(matrix.trellis.size());
    const auto* tiles = staging_.back().as<uint32_t>();
    upload(staging_.back().as<void>(), matrix.trellis.data(), matrix.trellis.size());
    staging_.emplace_back(matrix.suh.size() * sizeof(uint16_t));
    const auto* suh = staging_.back().as<__half>();
    upload(staging_.back().as<void>(), matrix.suh.data(), staging_.back().bytes());
    staging_.emplace_back(matrix.svh.size() * sizeof(uint16_t));
    const auto* svh = staging_.back().as<__half>();
    upload(staging_.back().as<void>(), matrix.svh.data(), staging_.back().bytes());
    stored_columns = part.columns.size();
    staging_.emplace_back(static_cast<size_t>(part.rows.size() * stored_columns) * sizeof(Bf16));
    const kernels::DequantiseRange range{
        .first_out = static_cast<int>(part.rows.begin),
        .rows = static_cast<int>(part.rows.size()),
        .first_in = static_cast<int>(part.columns.begin),
        .columns = static_cast<int>(part.columns.size()),
        .stride = stored_columns,
    };
    kernels::exl3_dequantise(tiles, suh, svh, trellis_kind(matrix), static_cast<int>(matrix.in),
                             static_cast<int>(matrix.out), range, staging_.back().as<Bf16>(), stream_);
    source.type = kernels::SourceType::bf16;
    source.data = staging_.back().as<Bf16>();
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
  DeviceLinear packed;
  packed.data = make_zeroed(static_cast<size_t>(kernels::packed_bytes(format, out, in)));
  int64_t first = 0;
  for (const LinearPart& part : parts) {
    first = align_part(first);
    kernels::pack_linear(stage(part), format, out, first, packed.data.as<uint8_t>(), stream_);
    first += part.out();
  }
  packed.weight = {format, out, in, packed.data.as<uint8_t>(), 1};
  stream_.wait();
  staging_.clear();
  weight_bytes_ += static_cast<int64_t>(packed.data.bytes());
  linears_.push_back(std::move(packed));
  return {out, in, static_cast<int>(linears_.size()) - 1};
}

LinearBatch CudaBackend::load_linear_batch(std::string_view name, LinearGroup group,
                                           std::span<const LinearPart> matrices) {
  const int64_t out = matrices.front().out();
  const int64_t in = matrices.front().in();
  const kernels::WeightFormat format = weight_format(group, name, in);
  const auto bytes = static_cast<size_t>(kernels::packed_bytes(format, out, in));
  DeviceLinear packed;
  packed.data = make_zeroed(bytes * matrices.size());
  for (size_t m = 0; m < matrices.size(); ++m) {
    kernels::pack_linear(stage(matrices[m]), format, out, 0, packed.data.as<uint8_t>() + m * bytes, stream_);
    stream_.wait();
    staging_.clear();
  }
  packed.weight = {format, out, in, packed.data.as<uint8_t>(), static_cast<int>(matrices.size())};
  weight_bytes_ += static_cast<int64_t>(packed.data.bytes());
  linears_.push_back(std::move(packed));
  return {out, in, static_cast<int>(matrices.size()), static_cast<int>(linears_.size()) - 1};
}

Matrix CudaBackend::load_matrix(std::string_view, const LinearPart& part, Precision precision) {
  DeviceMatrix matrix;
  matrix.is_fp32 = precision == Precision::kFp32 && !is_exact_in_bf16(part);
  const auto elements = static_cast<size_t>(part.out() * part.in());
  matrix.data = DeviceBuffer(elements * (matrix.is_fp32 ? sizeof(float) : sizeof(Bf16)));
  const kernels::SourceMatrix source = stage(part);
  if (matrix.is_fp32) {
    kernels::convert_matrix(source, matrix.data.as<float>(), stream_);
  } else {
    kernels::convert_matrix(source, matrix.data.as<Bf16>(), stream_);
  }
  stream_.wait();
  staging_.clear();
  weight_bytes_ += static_cast<int64_t>(matrix.data.bytes());
  matrices_.push_back(std::move(matrix));
  return {part.out(), part.in(), static_cast<int>(matrices_.size()) - 1};
}

Vector CudaBackend::load_vector(std::string_view, std::span<const VectorPart> parts) {
  const std::vector<float> values = read_parts(parts);
  vectors_.emplace_back(values.size() * sizeof(float));
  upload(vectors_.back().as<void>(), values.data(), vectors_.back().bytes());
  stream_.wait();
  weight_bytes_ += static_cast<int64_t>(vectors_.back().bytes());
  return {static_cast<int64_t>(values.size()), static_cast<int>(vectors_.size()) - 1};
}

kernels::ExpertMatrix CudaBackend::load_expert_matrix(const LinearPart& part, DeviceExperts& bank,
                                                      const __half* shared_suh) {
  if (part.exl3 == nullptr) {
    throw Error("tensor " + part.native->name + ": the CUDA backend needs EXL3 routed experts");
  }
  const Exl3Matrix& matrix = *part.exl3;
  const auto in = static_cast<int>(part.columns.size());
  const auto out = static_cast<int>(part.rows.size());
  staging_.emplace_back(matrix.trellis.size());
  upload(staging_.back().as<void>(), matrix.trellis.data(), matrix.trellis.size());
  bank.memory.emplace_back(static_cast<size_t>(in) * static_cast<size_t>(out) / 8 * static_cast<size_t>(matrix.bits));
  auto* words = bank.memory.back().as<uint32_t>();
  kernels::exl3_pack({.tiles = staging_.back().as<uint32_t>(),
                      .tile_columns = static_cast<int>(matrix.out / kExl3TileEdge),
                      .first_tile_row = static_cast<int>(part.columns.begin / kExl3TileEdge),
                      .first_tile_column = static_cast<int>(part.rows.begin / kExl3TileEdge)},
                     in, out, matrix.bits, words, stream_);
  const auto upload_vector = [&](const std::vector<uint16_t>& values, Range range) {
    bank.memory.emplace_back(static_cast<size_t>(range.size()) * sizeof(uint16_t));
    upload(bank.memory.back().as<void>(), values.data() + range.begin, bank.memory.back().bytes());
    return bank.memory.back().as<const __half>();
  };
  kernels::ExpertMatrix result;
  result.words = words;
  result.suh = shared_suh != nullptr ? shared_suh : upload_vector(matrix.suh, part.columns);
  result.svh = upload_vector(matrix.svh, part.rows);
  result.kind = trellis_kind(matrix);
  return result;
}

ExpertBank CudaBackend::load_experts(std::string_view, std::span<const ExpertParts> experts) {
  DeviceExperts bank;
  std::vector<kernels::ExpertRecord> records;
  for (const ExpertParts& parts : experts) {
    kernels::ExpertRecord record;
    record.gate = load_expert_matrix(parts.gate, bank, nullptr);
    // Rows are rotated once where gate and up share their input signs and scales.
    const bool shared = parts.up.exl3 != nullptr && parts.gate.exl3->suh == parts.up.exl3->suh;
    record.up = load_expert_matrix(parts.up, bank, shared ? record.gate.suh : nullptr);
    record.down = load_expert_matrix(parts.down, bank, nullptr);
    add_kind(bank.view.gate_up_kinds, record.gate.kind);
    add_kind(bank.view.gate_up_kinds, record.up.kind);
    add_kind(bank.view.down_kinds, record.down.kind);
    records.push_back(record);
    stream_.wait();
    staging_.clear();
  }
  bank.memory.emplace_back(records.size() * sizeof(kernels::ExpertRecord));
  upload(bank.memory.back().as<void>(), records.data(), bank.memory.back().bytes());
  stream_.wait();
  const ExpertParts& first = experts.front();
  bank.view.records = bank.memory.back().as<const kernels::ExpertRecord>();
  bank.view.experts = static_cast<int>(experts.size());
  bank.view.hidden = static_cast<int>(first.gate.in());
  bank.view.width = static_cast<int>(first.gate.out());
  bank.view.limit = geometry_.swiglu_limit;
  for (const DeviceBuffer& buffer : bank.memory) weight_bytes_ += static_cast<int64_t>(buffer.bytes());
  experts_.push_back(std::move(bank));
  return {static_cast<int>(experts.size()), first.gate.in(), first.gate.out(), static_cast<int>(experts_.size()) - 1};
}

}  // namespace glm53::cuda
