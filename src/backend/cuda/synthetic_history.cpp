#include "backend/cuda/synthetic_history.h"

#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "backend/cuda/cuda_backend_impl.h"
#include "glm53/core/float_convert.h"
#include "glm53/core/limits.h"

namespace glm53::cuda {
namespace {

constexpr float kScale = 0x1p-6F;  // of E4M3 codes up to 448

uint8_t random_code(std::mt19937& random) {
  uint8_t code = 0;
  do {
    code = static_cast<uint8_t>(random());
  } while ((code & 0x7F) == 0x7F);  // NaN
  return code;
}

void put_float(std::byte* to, float value) { std::memcpy(to, &value, sizeof value); }

/// `bytes` of bf16 values of about ±1.
void fill_bf16(std::byte* to, int64_t bytes, std::mt19937& random) {
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < bytes; i += 2) {
    const uint16_t bits = float_to_bf16(normal(random));
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

/// Fills `buffer` with repetitions of `block`.
void tile(const DeviceBuffer& buffer, const std::vector<std::byte>& block, cudaStream_t stream) {
  size_t done = std::min(block.size(), buffer.bytes());
  auto* const data = buffer.as<std::byte>();
  kernels::check_cuda(cudaMemcpyAsync(data, block.data(), done, cudaMemcpyHostToDevice, stream), "synthetic history");
  while (done < buffer.bytes()) {
    const size_t count = std::min(done, buffer.bytes() - done);
    kernels::check_cuda(cudaMemcpyAsync(data + done, data, count, cudaMemcpyDeviceToDevice, stream),
                        "synthetic history");
    done += count;
  }
  kernels::check_cuda(cudaStreamSynchronize(stream), "synthetic history");
}

}  // namespace

void CudaBackend::fill_history(int slot, int64_t position, uint32_t seed) {
  constexpr int64_t kPages = 64;  // random ones; the rest repeats them
  const Geometry& g = geometry_;
  std::mt19937 random(seed);

  const int64_t row_bytes = kernels::latent_row_bytes(latent_format_, g.latent);
  std::vector<std::byte> latents(static_cast<size_t>(kPages * kPageTokens * row_bytes));
  const int64_t page_bytes = kernels::index_page_bytes(index_format_, g.index_kpool);
  std::vector<std::byte> keys(static_cast<size_t>(kPages * page_bytes));
  for (SparseCaches& layer : sparse_) {
    if (latent_format_ == kernels::LatentFormat::kBf16) {
      fill_bf16(latents.data(), static_cast<int64_t>(latents.size()), random);
    } else {
      for (int64_t row = 0; row < kPages * kPageTokens; ++row) {
        std::byte* const at = latents.data() + row * row_bytes;
        for (int64_t c = 0; c < g.latent; ++c) at[c] = std::byte{random_code(random)};
        put_float(at + g.latent, kScale);
      }
    }
    if (index_format_ == kernels::IndexFormat::kBf16) {
      fill_bf16(keys.data(), static_cast<int64_t>(keys.size()), random);
    } else {
      const int64_t pools = kPageTokens / g.index_kpool;
      for (int64_t page = 0; page < kPages; ++page) {
        std::byte* const at = keys.data() + page * page_bytes;
        for (int64_t c = 0; c < pools * kernels::kIndexDim; ++c) at[c] = std::byte{random_code(random)};
        for (int64_t p = 0; p < pools; ++p) put_float(at + pools * kernels::kIndexDim + p * 4, kScale);
      }
    }
    tile(layer.latents, latents, stream_);
    tile(layer.pool_keys, keys, stream_);
  }

  kernels::KdaSlot state;
  state.state_position = position;
  upload(slots() + slot, &state, sizeof state);
  stream_.wait();
  mirrors_.at(static_cast<size_t>(slot)).position = position;
}

}  // namespace glm53::cuda

namespace glm53 {

void fill_synthetic_history(Backend& backend, int slot, int64_t position, uint32_t seed) {
  auto* const cuda_backend = dynamic_cast<cuda::CudaBackend*>(&backend);
  if (cuda_backend == nullptr || position % kKdaChunk != 0) {
    throw std::invalid_argument("fill_synthetic_history: the CUDA backend and a multiple of 16 positions are required");
  }
  cuda_backend->fill_history(slot, position, seed);
}

}  // namespace glm53
