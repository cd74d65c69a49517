// Weights: from the checkpoint to packed device memory. Every load_* call allocates what the weight takes and queues
// the jobs that fill it; finish_loading runs them (load_queue.h). Device staging is one buffer that the jobs use one
// after the other by the order of the stream, so that nothing waits between them.
#include <algorithm>
#include <memory>
#include <stdexcept>

#include "backend/cuda/cuda_backend_impl.h"
#include "backend/cuda/load_exl3.h"
#include "backend/weight_source.h"
#include "glm53/core/error.h"

namespace glm53::cuda {
namespace {

/// Device staging of one job, about: a larger matrix comes in slices of whole rows.
constexpr int64_t kSliceBytes = int64_t{64} << 20;

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

void add_kind(std::vector<kernels::TrellisKind>& kinds, const kernels::TrellisKind& kind) {
  const bool known = std::ranges::any_of(kinds, [&](const kernels::TrellisKind& k) {
    return k.bits == kind.bits && k.codebook == kind.codebook && k.column_major == kind.column_major;
  });
  if (!known) kinds.push_back(kind);
}

/// Rows of W (tile rows of the trellis) that hold `range`, in whole Hadamard blocks: they lie together in the file.
Range hadamard_blocks(Range range) {
  return {range.begin / kExl3HadamardBlock * kExl3HadamardBlock,
          (range.end + kExl3HadamardBlock - 1) / kExl3HadamardBlock * kExl3HadamardBlock};
}

}  // namespace

void CudaBackend::plan_weights(bool planning) {
  planning_weights_ = planning;
  weight_bytes_ = 0;
}

void CudaBackend::upload(void* device, const void* host, size_t bytes) {
  kernels::check_cuda(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "upload of a weight");
}

void CudaBackend::load_part(const LinearPart& part, const UseSlice& use) {
  if (part.native != nullptr) {
    load_native_part(part, use);
  } else {
    load_exl3_part(part, use);
  }
}

void CudaBackend::load_native_part(const LinearPart& part, const UseSlice& use) {
  const HostTensor& tensor = *part.native;
  const kernels::SourceType type = source_type(tensor);
  const int64_t stored_columns = tensor.shape.back();
  const auto element = static_cast<int64_t>(dtype_bytes(tensor.dtype));
  const int64_t row_bytes = stored_columns * element;
  const int64_t slice_rows =
      part.transposed ? part.rows.size() : std::clamp<int64_t>(kSliceBytes / row_bytes, 1, part.rows.size());
  const auto number = static_cast<int32_t>(native_parts_.size());
  native_parts_.push_back(&tensor);
  for (int64_t row = 0; row < part.rows.size(); row += slice_rows) {
    const int64_t rows = std::min(slice_rows, part.rows.size() - row);
    LoadJob job;
    const size_t at = job.to_device(tensor, static_cast<size_t>((part.rows.begin + row) * row_bytes),
                                    static_cast<size_t>(rows * row_bytes));
    job.work = [=, this, first = part.columns.begin, columns = part.columns.size(), transposed = part.transposed](
                   std::byte* device, const std::byte*) {
      kernels::SourceMatrix source{device + at + first * element, type, rows, columns, stored_columns, 1};
      kernels::mark_non_finite(source, number, first_not_finite_.as<int32_t>(), stream_);
      if (transposed) source = {source.data, type, columns, rows, 1, stored_columns};
      use(source, row);
    };
    queue_.add(std::move(job));
  }
}

void CudaBackend::load_exl3_part(const LinearPart& part, const UseSlice& use) {
  const Exl3Stored& matrix = *part.exl3;
  const Range in = hadamard_blocks(part.columns);
  const int64_t columns = part.columns.size();
  const int64_t rows = part.rows.size();
  // De-quantised in slices: whole rows of the result, or, transposed, all of it.
  const int64_t slice_rows =
      part.transposed ? rows : std::clamp<int64_t>(kSliceBytes / (columns * int64_t{sizeof(Bf16)}), 1, rows);
  LoadJob job;
  const size_t tiles = transfer_trellis(job, matrix, in);
  const StoredScales stored(job, matrix);
  const size_t suh = job.reserve_device(static_cast<size_t>(in.size()) * sizeof(uint16_t));
  const size_t svh = job.reserve_device(static_cast<size_t>(matrix.out) * sizeof(uint16_t));
  const size_t dense = job.reserve_device(static_cast<size_t>(slice_rows * columns) * sizeof(Bf16));
  job.work = [=, this, first_out = part.rows.begin, first_in = part.columns.begin - in.begin,
              kind = trellis_kind(matrix), transposed = part.transposed,
              out = static_cast<int>(matrix.out)](std::byte* device, const std::byte* host) {
    const Exl3Matrix scales = stored.read(host);
    upload(device + suh, scales.suh.data() + in.begin, static_cast<size_t>(in.size()) * sizeof(uint16_t));
    upload(device + svh, scales.svh.data(), scales.svh.size() * sizeof(uint16_t));
    stream_.wait();  // scales go
    auto* weight = reinterpret_cast<Bf16*>(device + dense);
    for (int64_t row = 0; row < rows; row += slice_rows) {
      const int64_t count = std::min(slice_rows, rows - row);
      const kernels::DequantiseRange range{
          .first_out = static_cast<int>(first_out + row),
          .rows = static_cast<int>(count),
          .first_in = static_cast<int>(first_in),
          .columns = static_cast<int>(columns),
          .stride = columns,
      };
      kernels::exl3_dequantise(reinterpret_cast<const uint32_t*>(device + tiles),
                               reinterpret_cast<const __half*>(device + suh),
                               reinterpret_cast<const __half*>(device + svh), kind, static_cast<int>(in.size()), out,
                               range, weight, stream_);
      kernels::SourceMatrix source{weight, kernels::SourceType::bf16, count, columns, columns, 1};
      if (transposed) source = {weight, kernels::SourceType::bf16, columns, count, 1, columns};
      use(source, row);
    }
  };
  queue_.add(std::move(job));
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
  packed.weight = {format, out, in, packed.data.as<uint8_t>(), 1};
  int64_t first = 0;
  for (const LinearPart& part : parts) {
    first = align_part(first);
    load_part(part, [=, this, data = packed.data.as<uint8_t>()](const kernels::SourceMatrix& source, int64_t row) {
      kernels::pack_linear(source, format, out, first + row, data, stream_);
    });
    first += part.out();
  }
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
  packed.weight = {format, out, in, packed.data.as<uint8_t>(), count};
  for (size_t m = 0; m < matrices.size(); ++m) {
    load_part(matrices[m], [=, this, data = packed.data.as<uint8_t>() + m * bytes](const kernels::SourceMatrix& source,
                                                                                   int64_t row) {
      kernels::pack_linear(source, format, out, row, data, stream_);
    });
  }
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
  load_part(part, [this, in = part.in(), is_fp32 = matrix.is_fp32, data = matrix.data.as<void>()](
                      const kernels::SourceMatrix& source, int64_t row) {
    if (is_fp32) {
      kernels::convert_matrix(source, static_cast<float*>(data) + row * in, stream_);
    } else {
      kernels::convert_matrix(source, static_cast<Bf16*>(data) + row * in, stream_);
    }
  });
  matrices_.push_back(std::move(matrix));
  return {part.out(), part.in(), static_cast<int>(matrices_.size()) - 1};
}

Vector CudaBackend::load_vector(std::string_view, std::span<const VectorPart> parts) {
  struct Fetched {
    const HostTensor* tensor;
    int64_t count;
    size_t at;
  };
  int64_t size = 0;
  for (const VectorPart& part : parts) size += part.range.size();
  weight_bytes_ += size * static_cast<int64_t>(sizeof(float));
  if (planning_weights_) return {size, -1};
  LoadJob job;
  std::vector<Fetched> fetched;
  for (const VectorPart& part : parts) {
    const size_t element = dtype_bytes(part.tensor->dtype);
    const size_t at = job.to_host(*part.tensor, static_cast<size_t>(part.range.begin) * element,
                                  static_cast<size_t>(part.range.size()) * element);
    fetched.push_back({part.tensor, part.range.size(), at});
  }
  vectors_.emplace_back(static_cast<size_t>(size) * sizeof(float));
  job.work = [this, fetched, data = vectors_.back().as<float>()](std::byte*, const std::byte* host) {
    float* target = data;
    for (const Fetched& part : fetched) {
      HostTensor tensor = *part.tensor;
      tensor.shape = {part.count};
      tensor.bytes = {host + part.at, stored_bytes(tensor)};
      tensor.synthetic.reset();
      const VectorPart whole{&tensor, {0, part.count}};
      const std::vector<float> values = read_parts({&whole, 1});
      upload(target, values.data(), values.size() * sizeof(float));
      stream_.wait();  // values go
      target += part.count;
    }
  };
  queue_.add(std::move(job));
  return {size, static_cast<int>(vectors_.size()) - 1};
}

ExpertBank CudaBackend::load_experts(std::string_view, std::span<const ExpertParts> experts) {
  const auto loader = std::make_shared<ExpertBankLoader>(std::vector<ExpertParts>(experts.begin(), experts.end()));
  const ExpertParts& first = experts.front();
  ExpertBank handle{static_cast<int>(experts.size()), first.gate.in(), first.gate.out(), -1};
  weight_bytes_ += static_cast<int64_t>(loader->bytes());
  if (planning_weights_) return handle;
  DeviceExperts bank;
  bank.memory = DeviceBuffer(loader->bytes());
  ExpertBankLoader::queue_jobs(loader, bank.memory.as<std::byte>(), queue_, stream_);
  for (const ExpertParts& parts : experts) {
    add_kind(bank.view.gate_up_kinds, trellis_kind(*parts.gate.exl3));
    add_kind(bank.view.gate_up_kinds, trellis_kind(*parts.up.exl3));
    add_kind(bank.view.down_kinds, trellis_kind(*parts.down.exl3));
  }
  bank.view.records = loader->records();
  bank.view.experts = handle.experts;
  bank.view.hidden = static_cast<int>(handle.hidden);
  bank.view.width = static_cast<int>(handle.width);
  bank.view.limit = geometry_.swiglu_limit;
  experts_.push_back(std::move(bank));
  handle.handle = static_cast<int>(experts_.size()) - 1;
  return handle;
}

void CudaBackend::finish_loading(const OpenTensorStream& open, const std::function<void(int64_t)>& progress) {
  const auto none = static_cast<int32_t>(native_parts_.size());
  first_not_finite_ = DeviceBuffer(sizeof none);
  upload(first_not_finite_.as<void>(), &none, sizeof none);
  queue_.run(options_.device, stream_, open, progress);
  int32_t first = none;
  kernels::check_cuda(
      cudaMemcpyAsync(&first, first_not_finite_.as<void>(), sizeof first, cudaMemcpyDeviceToHost, stream_),
      "check of the weights");
  stream_.wait();
  if (first < none) refuse_not_finite(*native_parts_[static_cast<size_t>(first)]);
  native_parts_.clear();
}

}  // namespace glm53::cuda
