// Embedding rows into the four residual streams.
//
// Operation   streams[r][h] = table[ids[r]]
// Shapes      table [vocab, D] bf16, ids [rows], streams [rows, 4, D] bf16
// Rounding    none
// Bound       memory: 2·D bytes read, 8·D written a row
#include <stdexcept>

#include "kernels/common/cuda_check.h"
#include "kernels/common/overlap.h"
#include "kernels/row_ops/row_ops.h"

namespace glm53::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kStreams = 4;

__global__ void __launch_bounds__(kThreads)
    embed_kernel(const uint4* table, int64_t vocab, const int32_t* ids, int row_vectors, uint4* streams) {
  start_after_previous();
  const int64_t row = blockIdx.x;
  const int64_t id = ids[row];
  const bool present = id >= 0 && id < vocab;
  for (int i = static_cast<int>(threadIdx.x); i < row_vectors; i += kThreads) {
    const uint4 value = present ? __ldg(table + id * row_vectors + i) : uint4{};
#pragma unroll
    for (int h = 0; h < kStreams; ++h) streams[(row * kStreams + h) * row_vectors + i] = value;
  }
}

}  // namespace

void embed(const __nv_bfloat16* table, int64_t vocab, const int32_t* ids, int rows, int hidden, __nv_bfloat16* streams,
           cudaStream_t stream) {
  if (hidden < 8 || hidden % 8 != 0) throw std::invalid_argument("embed: hidden is not a multiple of 8");
  if (rows < 1) return;
  launch_overlapped("embed launch", embed_kernel, static_cast<unsigned>(rows), kThreads, 0, stream,
                    reinterpret_cast<const uint4*>(table), vocab, ids, hidden / 8, reinterpret_cast<uint4*>(streams));
}

}  // namespace glm53::kernels
