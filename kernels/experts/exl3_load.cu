// EXL3 at load time: packing for the expert kernels, dequantisation for dense modules.
//
// Operation   exl3_pack: a permutation of a trellis' words; exl3_dequantise: W = diag(suh) H W_q H diag(svh),
// transposed Shapes      trellis [in/16, out/16, 8·K] uint32; packed [out/16, in/128, 64·K] uint32; weight [out, in]
// Rounding    W in fp32, rows rotated and scaled before columns; rounded once to bf16 or fp16
// Bound       memory; load time only
#include <stdexcept>

#include "kernels/common/cuda_check.h"
#include "kernels/common/dynamic_shared.h"
#include "kernels/common/hadamard.h"
#include "kernels/experts/exl3_run.h"
#include "kernels/experts/experts.h"

namespace glm53::kernels {
namespace {

constexpr int kBlock = 128;
constexpr int kStride = kBlock + 1;  // floats a row of the shared block: columns fall into different banks
constexpr int kThreads = 256;
constexpr size_t kDequantiseShared = sizeof(float) * kBlock * kStride;

/// One block: one unit of 16 columns × 128 rows, 8 tiles.
__global__ void exl3_pack_kernel(TrellisSource source, int bits, uint32_t* packed) {
  const int unit_row = static_cast<int>(blockIdx.x);
  const int tile_column = static_cast<int>(blockIdx.y);
  uint32_t* unit = packed + (static_cast<int64_t>(tile_column) * gridDim.x + unit_row) * 64 * bits;
  for (int i = static_cast<int>(threadIdx.x); i < 64 * bits; i += static_cast<int>(blockDim.x)) {
    const int tile = i / (8 * bits);  // of the unit, along k: half q, lane % 4
    const int word = i % (8 * bits);  // lane / 4, j
    const int64_t tile_row = source.first_tile_row + 8 * unit_row + tile;
    const int64_t from = (tile_row * source.tile_columns + source.first_tile_column + tile_column) * 8 * bits + word;
    const int lane = word / bits * 4 + tile % 4;
    unit[packed_word(bits, lane, tile / 4 * bits + word % bits)] = source.tiles[from];
  }
}

__device__ float code_value(const uint32_t* tile, TrellisKind kind, int position) {
  const int words = 8 * kind.bits;
  const int first = (position * kind.bits + kind.bits - 16 + 32 * words) % (32 * words);
  const uint32_t high = tile[first / 32];
  const uint32_t low = tile[(first / 32 + 1) % words];
  const uint64_t both = (static_cast<uint64_t>(high) << 32) | low;
  const auto state = static_cast<uint32_t>(both >> (48 - first % 32)) & 0xFFFFU;
  const CodeHash hash = code_hash(kind.codebook);
  const uint32_t x = state * hash.multiplier + hash.addend;
  const uint32_t pair = kind.codebook == 2 ? value_pair<true>(x, x) : value_pair<false>(x, x);
  return __low2float(*reinterpret_cast<const __half2*>(&pair));
}

__device__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16(value); }
__device__ void store(__half* to, float value) { *to = __float2half_rn(value); }

/// One block: 128 × 128 weights. block[k][n] in shared memory.
template <typename Output>
__global__ __launch_bounds__(kThreads) void exl3_dequantise_kernel(const uint32_t* tiles, const __half* suh,
                                                                   const __half* svh, TrellisKind kind, int out,
                                                                   DequantiseRange range, Output* weight) {
  extern __shared__ float block[];
  const int k0 = static_cast<int>(blockIdx.x) * kBlock;
  const int n0 = static_cast<int>(blockIdx.y) * kBlock;
  if (k0 + kBlock <= range.first_in || k0 >= range.first_in + range.columns || n0 + kBlock <= range.first_out ||
      n0 >= range.first_out + range.rows) {
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < kBlock * kBlock; i += kThreads) {
    const int tile = i / 256;
    const int p = i % 256;
    const int64_t index = static_cast<int64_t>(k0 / 16 + tile / 8) * (out / 16) + n0 / 16 + tile % 8;
    const int lane = p / 8;
    const int row = kind.column_major != 0 ? p % 16 : 2 * (lane % 4) + (p & 1) + 8 * ((p >> 1) & 1);
    const int column = kind.column_major != 0 ? p / 16 : lane / 4 + 8 * ((p % 8) >> 2);
    block[(tile / 8 * 16 + row) * kStride + tile % 8 * 16 + column] =
        code_value(tiles + index * 8 * kind.bits, kind, p);
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int n = static_cast<int>(threadIdx.x) / 32; n < kBlock; n += kThreads / 32) {
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = block[(4 * lane + i) * kStride + n];
    hadamard_128(v, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      block[(4 * lane + i) * kStride + n] = v[i] * __half2float(suh[k0 + 4 * lane + i]);
    }
  }
  __syncthreads();
  for (int k = static_cast<int>(threadIdx.x) / 32; k < kBlock; k += kThreads / 32) {
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = block[k * kStride + 4 * lane + i];
    hadamard_128(v, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      block[k * kStride + 4 * lane + i] = v[i] * __half2float(svh[n0 + 4 * lane + i]);
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kBlock * kBlock; i += kThreads) {
    const int n = n0 + i / kBlock - range.first_out;
    const int k = k0 + i % kBlock - range.first_in;
    if (n >= 0 && n < range.rows && k >= 0 && k < range.columns) {
      store(weight + n * range.stride + k, block[i % kBlock * kStride + i / kBlock]);
    }
  }
}

void check_sizes(int in, int out, int bits, const char* what) {
  if (in < kBlock || out < kBlock || in % kBlock != 0 || out % kBlock != 0 || bits < 1 || bits > 8) {
    throw std::invalid_argument(std::string(what) + ": sizes must be multiples of 128 and K 1..8");
  }
}

template <typename Output>
void dequantise(const uint32_t* tiles, const __half* suh, const __half* svh, TrellisKind kind, int in, int out,
                const DequantiseRange& range, Output* weight, cudaStream_t stream) {
  check_sizes(in, out, kind.bits, "exl3_dequantise");
  if (range.first_out < 0 || range.first_in < 0 || range.first_out + range.rows > out ||
      range.first_in + range.columns > in || range.stride < range.columns) {
    throw std::invalid_argument("exl3_dequantise: the range lies outside the matrix");
  }
  allow_dynamic_shared<exl3_dequantise_kernel<Output>, kDequantiseShared>("exl3_dequantise shared memory");
  const dim3 grid(static_cast<unsigned>(in / kBlock), static_cast<unsigned>(out / kBlock));
  exl3_dequantise_kernel<<<grid, kThreads, kDequantiseShared, stream>>>(tiles, suh, svh, kind, out, range, weight);
  check_cuda(cudaGetLastError(), "exl3_dequantise launch");
}

}  // namespace

void exl3_pack(const TrellisSource& source, int in, int out, int bits, uint32_t* packed, cudaStream_t stream) {
  check_sizes(in, out, bits, "exl3_pack");
  const dim3 grid(static_cast<unsigned>(in / kBlock), static_cast<unsigned>(out / 16));
  exl3_pack_kernel<<<grid, kThreads, 0, stream>>>(source, bits, packed);
  check_cuda(cudaGetLastError(), "exl3_pack launch");
}

void exl3_dequantise(const uint32_t* tiles, const __half* suh, const __half* svh, TrellisKind kind, int in, int out,
                     const DequantiseRange& range, __nv_bfloat16* weight, cudaStream_t stream) {
  dequantise(tiles, suh, svh, kind, in, out, range, weight, stream);
}

void exl3_dequantise(const uint32_t* tiles, const __half* suh, const __half* svh, TrellisKind kind, int in, int out,
                     const DequantiseRange& range, __half* weight, cudaStream_t stream) {
  dequantise(tiles, suh, svh, kind, in, out, range, weight, stream);
}

}  // namespace glm53::kernels
