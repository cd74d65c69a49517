#include "backend/cuda/load_exl3.h"

#include <cstring>
#include <tuple>
#include <utility>

#include "glm53/core/error.h"

namespace glm53::cuda {
namespace {

size_t words_bytes(const LinearPart& part) {
  return static_cast<size_t>(part.rows.size() * part.columns.size()) / 8 * static_cast<size_t>(part.exl3->bits);
}

/// suh of the part's inputs and svh of its outputs.
size_t scales_bytes(const LinearPart& part) {
  return static_cast<size_t>(part.columns.size() + part.rows.size()) * sizeof(uint16_t);
}

std::span<const uint16_t> slice(const std::vector<uint16_t>& values, Range range) {
  return std::span(values).subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
}

}  // namespace

kernels::TrellisKind trellis_kind(const Exl3Stored& matrix) {
  return {matrix.bits, static_cast<int32_t>(matrix.codebook), matrix.order == Exl3TileOrder::kColumnMajor ? 1 : 0};
}

StoredScales::StoredScales(LoadJob& job, const Exl3Stored& matrix) : matrix_(&matrix) {
  for (size_t i = 0; i < kMembers.size(); ++i) {
    const HostTensor* tensor = matrix.*kMembers[i];
    if (tensor != nullptr) at_[i] = job.to_host(*tensor, 0, stored_bytes(*tensor));
  }
}

Exl3Matrix StoredScales::read(const std::byte* host) const {
  Exl3Stored fetched = *matrix_;
  std::array<HostTensor, kMembers.size()> tensors;
  for (size_t i = 0; i < kMembers.size(); ++i) {
    if (matrix_->*kMembers[i] == nullptr) continue;
    tensors[i] = *(matrix_->*kMembers[i]);
    tensors[i].bytes = {host + at_[i], stored_bytes(tensors[i])};
    tensors[i].synthetic.reset();
    fetched.*kMembers[i] = &tensors[i];
  }
  return read_exl3(fetched);
}

size_t transfer_trellis(LoadJob& job, const Exl3Stored& matrix, Range rows) {
  const size_t row_bytes = stored_bytes(*matrix.trellis) / static_cast<size_t>(matrix.in);
  return job.to_device(*matrix.trellis, static_cast<size_t>(rows.begin) * row_bytes,
                       static_cast<size_t>(rows.size()) * row_bytes);
}

ExpertBankLoader::ExpertBankLoader(std::vector<ExpertParts> experts) : experts_(std::move(experts)) {
  for (const ExpertParts& parts : experts_) {
    for (const LinearPart* part : {&parts.gate, &parts.up, &parts.down}) {
      if (part->exl3 == nullptr) {
        throw Error("tensor " + part->native->name + ": the CUDA backend needs EXL3 routed experts");
      }
      words_ += words_bytes(*part);
      image_bytes_ += scales_bytes(*part);
      synthetic_ = part->exl3->trellis->synthetic.has_value();
    }
  }
  image_bytes_ += experts_.size() * sizeof(kernels::ExpertRecord);
}

void ExpertBankLoader::queue_jobs(const std::shared_ptr<ExpertBankLoader>& loader, std::byte* memory, LoadQueue& queue,
                                  cudaStream_t stream) {
  loader->memory_ = memory;
  for (size_t e = 0; e < loader->experts_.size(); ++e) {
    const ExpertParts& parts = loader->experts_[e];
    LoadJob job;
    std::vector<Placed> placed;
    for (const LinearPart* part : {&parts.gate, &parts.up, &parts.down}) placed.push_back(loader->place(job, *part));
    job.work = [loader, e, placed = std::move(placed), stream](std::byte* device, const std::byte* host) {
      loader->load(e, placed, device, host, stream);
    };
    queue.add(std::move(job));
  }
}

const kernels::ExpertRecord* ExpertBankLoader::records() const {
  return reinterpret_cast<const kernels::ExpertRecord*>(memory_ + words_ + record_at(0));
}

ExpertBankLoader::Placed ExpertBankLoader::place(LoadJob& job, const LinearPart& part) {
  const size_t words = std::exchange(next_words_, next_words_ + words_bytes(part));
  const size_t scales = std::exchange(next_scales_, next_scales_ + scales_bytes(part));
  const size_t tiles = transfer_trellis(job, *part.exl3, part.columns);
  std::optional<StoredScales> stored;
  if (!synthetic_) stored.emplace(job, *part.exl3);
  return {part, stored, tiles, words, scales};
}

void ExpertBankLoader::load(size_t expert, std::span<const Placed> placed, const std::byte* device,
                            const std::byte* host, cudaStream_t stream) {
  image_.resize(image_bytes_);  // at the first expert
  std::array<kernels::ExpertMatrix, 3> matrices;
  std::array<std::vector<uint16_t>, 3> suh;
  for (size_t i = 0; i < placed.size(); ++i) {
    const LinearPart& part = placed[i].part;
    auto* words = reinterpret_cast<uint32_t*>(memory_ + placed[i].words);
    kernels::exl3_pack({.tiles = reinterpret_cast<const uint32_t*>(device + placed[i].tiles),
                        .tile_columns = static_cast<int>(part.exl3->out / kExl3TileEdge),
                        .first_tile_row = 0,
                        .first_tile_column = static_cast<int>(part.rows.begin / kExl3TileEdge)},
                       static_cast<int>(part.columns.size()), static_cast<int>(part.rows.size()), part.exl3->bits,
                       words, stream);
    Exl3Matrix read;
    if (placed[i].stored) read = placed[i].stored->read(host);
    matrices[i].words = words;
    std::tie(matrices[i].suh, matrices[i].svh) = load_scales(placed[i], read, stream);
    matrices[i].kind = trellis_kind(*part.exl3);
    suh[i] = std::move(read.suh);
  }
  // Rows are rotated once where gate and up share their input signs and scales.
  const bool shared = synthetic_ ? placed[0].part.exl3->suh->synthetic->key == placed[1].part.exl3->suh->synthetic->key
                                 : suh[0] == suh[1];
  if (shared) matrices[1].suh = matrices[0].suh;
  const kernels::ExpertRecord record{matrices[0], matrices[1], matrices[2]};
  std::memcpy(image_.data() + record_at(expert), &record, sizeof record);
  if (expert + 1 < experts_.size()) return;
  const size_t first = synthetic_ ? record_at(0) : 0;
  kernels::check_cuda(cudaMemcpyAsync(memory_ + words_ + first, image_.data() + first, image_bytes_ - first,
                                      cudaMemcpyHostToDevice, stream),
                      "upload of an expert bank's scales");
  kernels::check_cuda(cudaStreamSynchronize(stream), "loading of an expert bank");
  image_ = {};
}

std::pair<const __half*, const __half*> ExpertBankLoader::load_scales(const Placed& placed, const Exl3Matrix& read,
                                                                      cudaStream_t stream) {
  const LinearPart& part = placed.part;
  const size_t inputs_at = placed.scales;
  const size_t outputs_at = inputs_at + static_cast<size_t>(part.columns.size()) * sizeof(uint16_t);
  auto* suh = reinterpret_cast<__half*>(memory_ + words_ + inputs_at);
  auto* svh = reinterpret_cast<__half*>(memory_ + words_ + outputs_at);
  if (synthetic_) {
    fill_synthetic(*part.exl3->suh, part.columns.begin, part.columns.size(), suh, stream);
    fill_synthetic(*part.exl3->svh, part.rows.begin, part.rows.size(), svh, stream);
  } else {
    const std::span<const uint16_t> inputs = slice(read.suh, part.columns);
    const std::span<const uint16_t> outputs = slice(read.svh, part.rows);
    std::memcpy(image_.data() + inputs_at, inputs.data(), inputs.size_bytes());
    std::memcpy(image_.data() + outputs_at, outputs.data(), outputs.size_bytes());
  }
  return {suh, svh};
}

}  // namespace glm53::cuda
