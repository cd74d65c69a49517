// Dense product for prompt rows.
//
// Operation   y[m][r] = x[m][r] · W[m]ᵀ; packed weights (linear_layout.h), x bf16, y bf16 or fp32
// Shapes      in any multiple of 16, out >= 1, any rows, m matrices (heads)
// Work        a block of four warps takes a 128×128 tile of y (64×64 where those are too few to fill a device); x and
//             the packed codes come through a cp.async pipeline of 32 columns a stage; rows are the mma's A operand.
//             Blocks that run together share 16 row tiles, so that x and W are read from memory about once.
// Order       every element is one fp32 chain over K in column order, whatever the tile: bits do not depend on the rows
// Rounding    codes are widened to bf16 exactly, fp32 accumulation, fp8 scales on the fp32 sum, one rounding to y
// Bound       the mma.sync rate; for fp8 and q4 also the integer operations that widen codes
#include <stdexcept>
#include <string>

#include "kernels/common/cp_async.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/dynamic_shared.h"
#include "kernels/common/ldmatrix.h"
#include "kernels/common/mma.h"
#include "kernels/linear/linear_layout.h"

namespace glm53::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kRowGroup = 16;     // row tiles that stay in L2 while W streams by
constexpr int kFullDevice = 132;  // blocks under which smaller tiles are worth their lower intensity

/// Tile of a block and of a warp, in rows × channels.
template <WeightFormat kFormatArg, int kTileRowsArg, int kTileChannelsArg, int kWarpRowsArg>
struct Shape {
  static constexpr WeightFormat kFormat = kFormatArg;
  static constexpr int kTileRows = kTileRowsArg;
  static constexpr int kTileChannels = kTileChannelsArg;
  static constexpr int kTileStrips = kTileChannels / kStripChannels;
  static constexpr int kWarpRows = kWarpRowsArg;
  static constexpr int kWarpsDown = kTileRows / kWarpRows;
  static constexpr int kWarpStrips = kTileStrips / (4 / kWarpsDown);
  static constexpr int kRowTiles = kWarpRows / 16;
  static constexpr int kXBytes = kTileRows * 64;
  static constexpr int kXChunks = kXBytes / 16 / kThreads;
  static constexpr int kCodes = kTileStrips * block_bytes(kFormat);
  static constexpr int kScales = kFormat == WeightFormat::q4 ? kTileStrips * kQ4ScaleBytes : 0;
  static constexpr int kStageBytes = kXBytes + kCodes + kScales;
  static constexpr int kStages = 48 * 1024 / kStageBytes > 8 ? 8 : 48 * 1024 / kStageBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static_assert(2 * (kSharedBytes + 1024) <= 100 * 1024, "two blocks must fit a GB10 multiprocessor");
};

template <typename S>
__global__ void __launch_bounds__(kThreads, 2) prompt_kernel(const LinearProblem problem, int row_tiles) {
  constexpr WeightFormat kFormat = S::kFormat;
  constexpr int kBlock = block_bytes(kFormat);
  extern __shared__ __align__(128) uint8_t shared[];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int matrix = static_cast<int>(blockIdx.z);
  const int channel_tiles = static_cast<int>(ceil_div(problem.out, S::kTileChannels));
  const int64_t index = blockIdx.x;
  const int64_t group_size = int64_t{kRowGroup} * channel_tiles;
  const int first_row_tile = static_cast<int>(index / group_size) * kRowGroup;
  const int tiles_here = min(kRowGroup, row_tiles - first_row_tile);
  const int within = static_cast<int>(index % group_size);
  const int first_row = (first_row_tile + within % tiles_here) * S::kTileRows;
  const int first_strip = within / tiles_here * S::kTileStrips;
  const int strips = static_cast<int>(ceil_div(problem.out, kStripChannels));
  const int blocks = problem.panels * kPanelBlocks;
  const uint8_t* weights = problem.weights + matrix * problem.weight_bytes;
  const int64_t strip_bytes = int64_t{blocks} * kBlock;

  // What a thread copies each stage: fixed rows of x and chunks of strips, one block further on every time. Rows and
  // strips that do not exist repeat the first one; their results are never stored.
  const int x_chunk = thread % 4;
  const __nv_bfloat16* x_from[S::kXChunks];
#pragma unroll
  for (int i = 0; i < S::kXChunks; ++i) {
    const int row = first_row + i * (kThreads / 4) + thread / 4;
    x_from[i] = problem.x + matrix * problem.x_matrix_stride +
                (row < problem.rows ? row : first_row) * problem.x_stride + x_chunk * 8;
  }
  constexpr int kStripChunks = kBlock / 16;
  constexpr int kCopies = (S::kCodes / 16 + kThreads - 1) / kThreads;
  const bool copies_codes = S::kCodes / 16 >= kThreads || thread < S::kCodes / 16;
  const uint8_t* codes_from[kCopies];
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int chunk = i * kThreads + thread;
    const int strip = first_strip + chunk / kStripChunks;
    codes_from[i] = weights + (strip < strips ? strip : first_strip) * strip_bytes + chunk % kStripChunks * 16;
  }

  const auto load_stage = [&](int buffer, int block) {
    const uint32_t stage = shared_address(shared) + static_cast<uint32_t>(buffer * S::kStageBytes);
    const bool in_x = block * kBlockColumns + x_chunk * 8 < problem.in;
#pragma unroll
    for (int i = 0; i < S::kXChunks; ++i) {
      cp_async_16(stage + static_cast<uint32_t>(i * kThreads * 16 + x_offset(thread / 4, x_chunk)),
                  x_from[i] + (in_x ? block * kBlockColumns : 0), in_x);
    }
#pragma unroll
    for (int i = 0; i < kCopies && copies_codes; ++i) {
      cp_async_16(stage + static_cast<uint32_t>(S::kXBytes + (i * kThreads + thread) * 16),
                  codes_from[i] + int64_t{block} * kBlock);
    }
    if constexpr (kFormat == WeightFormat::q4) {
      if (thread < S::kScales / 16) {
        const int strip = first_strip + thread / 2;
        const int64_t at = (int64_t{strip < strips ? strip : first_strip} * (blocks / 2) + block / 2) * kQ4ScaleBytes +
                           thread % 2 * 16;
        cp_async_16(stage + static_cast<uint32_t>(S::kXBytes + S::kCodes + thread * 16),
                    weights + problem.scale_offset + at);
      }
    }
  };

  const int warp_row = warp % S::kWarpsDown * S::kWarpRows;
  const int warp_strip = warp / S::kWarpsDown * S::kWarpStrips;
  float sums[S::kRowTiles][2 * S::kWarpStrips][4] = {};
  for (int i = 0; i < S::kStages - 1; ++i) {
    if (i < blocks) load_stage(i, i);
    cp_async_commit();
  }
  int buffer = 0;
  for (int block = 0; block < blocks; ++block) {
    cp_async_wait<S::kStages - 2>();
    __syncthreads();  // this stage is there for all, and the buffer of the last one is free
    const uint8_t* stage = shared + buffer * S::kStageBytes;
    uint32_t a[2][S::kRowTiles][4];
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int t = 0; t < S::kRowTiles; ++t) {
        ldmatrix_x4(a[step][t],
                    shared_address(stage) +
                        static_cast<uint32_t>((warp_row + t * 16) * 64 + x_offset(lane % 16, 2 * step + lane / 16)));
      }
    }
    const int ahead = block + S::kStages - 1;
    if (ahead < blocks) load_stage(buffer == 0 ? S::kStages - 1 : buffer - 1, ahead);
    cp_async_commit();
#pragma unroll
    for (int s = 0; s < S::kWarpStrips; ++s) {
      uint32_t w[2][4];
      load_fragments<kFormat>(stage + S::kXBytes + (warp_strip + s) * kBlock,
                              stage + S::kXBytes + S::kCodes + (warp_strip + s) * kQ4ScaleBytes, lane, w);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const uint32_t early[2] = {w[step][0], w[step][2]};
        const uint32_t late[2] = {w[step][1], w[step][3]};
#pragma unroll
        for (int t = 0; t < S::kRowTiles; ++t) {
          mma_m16n8k16_bf16(sums[t][2 * s], a[step][t], early);
          mma_m16n8k16_bf16(sums[t][2 * s + 1], a[step][t], late);
        }
      }
    }
    buffer = buffer + 1 == S::kStages ? 0 : buffer + 1;
  }

  const float* scales =
      kFormat == WeightFormat::fp8 ? reinterpret_cast<const float*>(weights + problem.scale_offset) : nullptr;
#pragma unroll
  for (int t = 0; t < S::kRowTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + warp_row + t * 16 + half * 8 + lane / 4;
      if (row >= problem.rows) continue;
#pragma unroll
      for (int s = 0; s < S::kWarpStrips; ++s) {
        const int channel = (first_strip + warp_strip + s) * kStripChannels + 4 * (lane % 4);
        float v[4] = {sums[t][2 * s][2 * half], sums[t][2 * s][2 * half + 1], sums[t][2 * s + 1][2 * half],
                      sums[t][2 * s + 1][2 * half + 1]};
        store_channels(problem.output, matrix, row, channel, problem.out, scales, v);
      }
    }
  }
}

template <typename S>
void launch(const LinearProblem& problem, int matrices, cudaStream_t stream) {
  allow_dynamic_shared<prompt_kernel<S>, S::kSharedBytes>("linear_prompt shared memory");
  const int64_t row_tiles = ceil_div(problem.rows, S::kTileRows);
  const dim3 grid(static_cast<unsigned>(row_tiles * ceil_div(problem.out, S::kTileChannels)), 1,
                  static_cast<unsigned>(matrices));
  prompt_kernel<S><<<grid, kThreads, S::kSharedBytes, stream>>>(problem, static_cast<int>(row_tiles));
  check_cuda(cudaGetLastError(), "linear_prompt launch");
}

template <WeightFormat kFormat>
void launch_tiles(const LinearProblem& problem, int matrices, cudaStream_t stream) {
  // A warp of a quantised tile takes all 128 rows, so that each code is widened once a block.
  constexpr int kWarpRows = kFormat == WeightFormat::bf16 ? 64 : 128;
  const int64_t large = ceil_div(problem.rows, 128) * ceil_div(problem.out, 128) * matrices;
  if (problem.rows > 64 && large >= kFullDevice) {
    launch<Shape<kFormat, 128, 128, kWarpRows>>(problem, matrices, stream);
  } else {
    launch<Shape<kFormat, 64, 64, kWarpRows / 2>>(problem, matrices, stream);
  }
}

}  // namespace

template <typename T>
void linear_prompt(const PackedWeight& weight, const LinearRows<T>& rows, cudaStream_t stream) {
  const LinearProblem problem = make_problem(weight, rows, "linear_prompt");
  switch (weight.format) {
    case WeightFormat::bf16:
      return launch_tiles<WeightFormat::bf16>(problem, weight.matrices, stream);
    case WeightFormat::fp8:
      return launch_tiles<WeightFormat::fp8>(problem, weight.matrices, stream);
    case WeightFormat::q4:
      return launch_tiles<WeightFormat::q4>(problem, weight.matrices, stream);
  }
}

template void linear_prompt(const PackedWeight&, const LinearRows<__nv_bfloat16>&, cudaStream_t);
template void linear_prompt(const PackedWeight&, const LinearRows<float>&, cudaStream_t);

}  // namespace glm53::kernels
