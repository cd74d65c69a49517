// Clamped SwiGLU.
//
// Operation   h = bf(silu(min(gate, limit)) · clamp(up, −limit, limit)); NaN passes the clamps
// Shapes      gate_up [rows, 2·width] bf16, gate first; h [rows, width] bf16
// Rounding    fp32, once at the end
// Bound       memory: 6 bytes a result
#include <stdexcept>

#include "kernels/common/cuda_check.h"
#include "kernels/common/overlap.h"
#include "kernels/common/vector8.h"
#include "kernels/row_ops/row_ops.h"

namespace glm53::kernels {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    swiglu_kernel(const uint4* gate_up, int64_t vectors, int row_vectors, float limit, uint4* h) {
  start_after_previous();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= vectors) return;
  const int64_t gate_at = at / row_vectors * (2 * row_vectors) + at % row_vectors;
  float gate[8];
  float up[8];
  unpack8(gate_up[gate_at], gate);
  unpack8(gate_up[gate_at + row_vectors], up);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float g = gate[e] > limit ? limit : gate[e];
    float u = up[e] > limit ? limit : up[e];
    u = u < -limit ? -limit : u;
    gate[e] = g / (1.0F + expf(-g)) * u;
  }
  h[at] = pack8(gate);
}

}  // namespace

void swiglu(const __nv_bfloat16* gate_up, int rows, int width, float limit, __nv_bfloat16* h, cudaStream_t stream) {
  if (width < 8 || width % 8 != 0) throw std::invalid_argument("swiglu: width is not a multiple of 8");
  if (rows < 1) return;
  const int64_t vectors = static_cast<int64_t>(rows) * (width / 8);
  const auto blocks = static_cast<unsigned>((vectors + kThreads - 1) / kThreads);
  launch_overlapped("swiglu launch", swiglu_kernel, blocks, kThreads, 0, stream,
                    reinterpret_cast<const uint4*>(gate_up), vectors, width / 8, limit, reinterpret_cast<uint4*>(h));
}

}  // namespace glm53::kernels
