// Dense product for windows of 1..64 rows.
//
// Operation   y[m][r] = x[m][r] · W[m]ᵀ; packed weights (linear_layout.h), x bf16, y bf16 or fp32
// Shapes      in any multiple of 16, out >= 1, m matrices (heads)
// Work        a block takes 64 or 128 channels (one or two strips a warp) and one slice of K; x goes through shared
//             memory once a block. Weights are the mma's A operand, rows its N, so 1..8 rows cost the same. Wider tiles
//             for more rows keep the traffic of x from L2 below that of the weights.
// Order       a slice is summed in column order; slices are summed in order by the last block to finish. The number of
//             slices depends on the shape alone, so a row's bits do not depend on the launch.
// Rounding    codes are widened to bf16 exactly, fp32 accumulation, fp8 scales on the fp32 sum, one rounding to y
// Bound       memory: the weight bytes, once
#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/common/cp_async.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/dynamic_shared.h"
#include "kernels/common/ldmatrix.h"
#include "kernels/common/mma.h"
#include "kernels/common/overlap.h"
#include "kernels/linear/linear_layout.h"

namespace glm53::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kSplitTile = 64;  // channels of the smallest tile, by which K is split
constexpr int kMaxSlices = 32;
constexpr int kMaxCounters = 256;
constexpr int kNarrowSlices = 8;  // from here on the sum over slices outweighs the traffic of x
// Blocks that keep every memory channel of either device busy; a constant, as no device property may enter the bits.
constexpr int kWantedBlocks = 396;

/// Slices of K for a shape: a power of two, each at least two panels.
int slice_count(int64_t out, int64_t in, int matrices) {
  const int64_t tiles = ceil_div(out, kSplitTile) * matrices;
  const int64_t panels = ceil_div(in, kPanelColumns);
  int slices = 1;
  while (2 * slices * tiles <= kWantedBlocks && 4 * slices <= panels && slices < kMaxSlices) slices *= 2;
  return slices;
}

/// Tile of a block and its pipeline stage in shared memory: codes [strip][block], q4 scales, x [block][row].
template <WeightFormat kFormatArg, int kRowTilesArg, int kWarpStripsArg>
struct Shape {
  static constexpr WeightFormat kFormat = kFormatArg;
  static constexpr int kRowTiles = kRowTilesArg;
  static constexpr int kRows = 8 * kRowTiles;
  static constexpr int kWarpStrips = kWarpStripsArg;
  static constexpr int kTileStrips = kWarps * kWarpStrips;
  static constexpr int kTileChannels = kTileStrips * kStripChannels;
  static constexpr int kBlocks = kFormat == WeightFormat::bf16 && kRowTiles >= 4 ? 2 : kPanelBlocks;
  static constexpr int kStripBytes = kBlocks * block_bytes(kFormat);
  static constexpr int kScales = kTileStrips * kStripBytes;
  static constexpr int kStripScaleBytes = kFormat == WeightFormat::q4 ? kPanelGroups * kQ4ScaleBytes : 0;
  static constexpr int kX = kScales + kTileStrips * kStripScaleBytes;
  static constexpr int kStageBytes = kX + kBlocks * kRows * 64;
  static constexpr int kBudget = kRowTiles >= 8 ? 98 * 1024 : kRowTiles >= 4 ? 80 * 1024 : 72 * 1024;
  // Small stages leave room for more blocks, and more warps to widen codes, before they need more depth.
  static constexpr int kMaxStages = kFormat == WeightFormat::bf16 ? 6 : 5;
  static constexpr int kStages = kBudget / kStageBytes > kMaxStages ? kMaxStages : kBudget / kStageBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static_assert(kStages >= 3 && kSharedBytes + 128 <= kMaxSharedBytes);
};

struct Split {
  int slices;
  float* partials;  ///< [tile of the launch, slice, warp strip · row tile, thread, 4]
  uint32_t* counters;
};

template <typename S>
__global__ void __launch_bounds__(kThreads) window_kernel(const LinearProblem problem, const Split split) {
  constexpr WeightFormat kFormat = S::kFormat;
  constexpr int kBlock = block_bytes(kFormat);
  extern __shared__ __align__(128) uint8_t shared[];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int tile = static_cast<int>(blockIdx.x);
  const int slice = static_cast<int>(blockIdx.y);
  const int matrix = static_cast<int>(blockIdx.z);
  const int begin = problem.panels * slice / split.slices * kPanelBlocks;
  const int end = problem.panels * (slice + 1) / split.slices * kPanelBlocks;
  const int strips = static_cast<int>(ceil_div(problem.out, kStripChannels));
  const int first_strip = tile * S::kTileStrips + warp * S::kWarpStrips;
  const int64_t blocks = int64_t{problem.panels} * kPanelBlocks;
  const uint8_t* weights = problem.weights + matrix * problem.weight_bytes;

  // What a lane copies each stage: 16 bytes of each 512 of its warp's strips. Strips that do not exist repeat the first
  // one; their results are never stored.
  const uint8_t* codes_from[S::kWarpStrips];
  const uint8_t* scales_from[S::kWarpStrips];
#pragma unroll
  for (int s = 0; s < S::kWarpStrips; ++s) {
    const int64_t strip = first_strip + s < strips ? first_strip + s : 0;
    codes_from[s] = weights + (strip * blocks) * kBlock + lane * 16;
    scales_from[s] = weights + problem.scale_offset + strip * (blocks / 2) * kQ4ScaleBytes + lane * 16;
  }
  constexpr int kRowChunks = S::kBlocks * 4;
  constexpr int kXCopies = S::kRows * kRowChunks / kThreads;
  static_assert(S::kRows * kRowChunks % kThreads == 0 && kThreads % kRowChunks == 0);
  const int x_row = thread / kRowChunks;
  const int x_chunk = thread % kRowChunks;
  const __nv_bfloat16* x_from = problem.x + matrix * problem.x_matrix_stride + x_chunk * 8;

  const auto stage_address = [&](int buffer) {
    return shared_address(shared) + static_cast<uint32_t>(buffer * S::kStageBytes);
  };
  const auto load_weights = [&](int buffer, int block) {
    const uint32_t stage = stage_address(buffer);
#pragma unroll
    for (int s = 0; s < S::kWarpStrips; ++s) {
      const int local = warp * S::kWarpStrips + s;
#pragma unroll
      for (int i = 0; i < S::kStripBytes / 512; ++i) {
        cp_async_16(stage + static_cast<uint32_t>(local * S::kStripBytes + i * 512 + lane * 16),
                    codes_from[s] + int64_t{block} * kBlock + i * 512);
      }
      if constexpr (kFormat == WeightFormat::q4) {
        if (lane < S::kStripScaleBytes / 16) {
          cp_async_16(stage + static_cast<uint32_t>(S::kScales + local * S::kStripScaleBytes + lane * 16),
                      scales_from[s] + int64_t{block} * (kQ4ScaleBytes / 2));
        }
      }
    }
  };
  const auto load_rows = [&](int buffer, int block) {
    const uint32_t stage = stage_address(buffer);
    const int column = block * kBlockColumns;
    const bool in_x = column + x_chunk * 8 < problem.in;
#pragma unroll
    for (int i = 0; i < kXCopies; ++i) {
      const int row = i * (kThreads / kRowChunks) + x_row;
      const bool wanted = in_x && row < problem.rows;
      cp_async_16(stage + static_cast<uint32_t>(S::kX + x_chunk / 4 * (S::kRows * 64) + x_offset(row, x_chunk % 4)),
                  wanted ? x_from + (row * problem.x_stride + column) : problem.x, wanted);
    }
  };

  float sums[S::kWarpStrips][S::kRowTiles][4] = {};
  // Weights are constant: a pipeline of them is under way when the kernel before this one ends.
  let_next_kernel_start();
  for (int i = 0; i < S::kStages - 1; ++i) {
    if (begin + i * S::kBlocks < end) load_weights(i, begin + i * S::kBlocks);
  }
  wait_for_previous_kernel();
  for (int i = 0; i < S::kStages - 1; ++i) {
    if (begin + i * S::kBlocks < end) load_rows(i, begin + i * S::kBlocks);
    cp_async_commit();
  }
  int buffer = 0;
  for (int first = begin; first < end; first += S::kBlocks) {
    cp_async_wait<S::kStages - 2>();
    __syncthreads();  // this stage is there for all, and the buffer of the last one is free
    const int ahead = first + (S::kStages - 1) * S::kBlocks;
    if (ahead < end) {
      const int into = buffer == 0 ? S::kStages - 1 : buffer - 1;
      load_weights(into, ahead);
      load_rows(into, ahead);
    }
    cp_async_commit();
    const uint8_t* stage = shared + buffer * S::kStageBytes;
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) {
      uint32_t b[S::kRowTiles][4];
#pragma unroll
      for (int t = 0; t < S::kRowTiles; ++t) {
        ldmatrix_x4(b[t], shared_address(stage) + static_cast<uint32_t>(S::kX + block * (S::kRows * 64) + t * 512 +
                                                                        x_offset(lane % 8, lane / 8)));
      }
#pragma unroll
      for (int s = 0; s < S::kWarpStrips; ++s) {
        const int local = warp * S::kWarpStrips + s;
        uint32_t a[2][4];
        load_fragments<kFormat>(stage + local * S::kStripBytes + block * kBlock,
                                stage + S::kScales + local * S::kStripScaleBytes + block / 2 * kQ4ScaleBytes, lane, a);
#pragma unroll
        for (int t = 0; t < S::kRowTiles; ++t) {
          const uint32_t first_step[2] = {b[t][0], b[t][1]};
          const uint32_t second_step[2] = {b[t][2], b[t][3]};
          mma_m16n8k16_bf16(sums[s][t], a[0], first_step);
          mma_m16n8k16_bf16(sums[s][t], a[1], second_step);
        }
      }
    }
    buffer = buffer + 1 == S::kStages ? 0 : buffer + 1;
  }

  constexpr int kVectors = S::kWarpStrips * S::kRowTiles;
  if (split.slices > 1) {
    constexpr int kSliceVectors = kVectors * kThreads;
    const bool present = first_strip < strips;
    const int64_t launch_tile = int64_t{matrix} * gridDim.x + tile;
    float4* partials = reinterpret_cast<float4*>(split.partials) + launch_tile * split.slices * kSliceVectors + thread;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float(&v)[4] = sums[i / S::kRowTiles][i % S::kRowTiles];
      if (present) partials[(slice * kVectors + i) * kThreads] = make_float4(v[0], v[1], v[2], v[3]);
    }
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (thread == 0) {
      last = atomicAdd(&split.counters[launch_tile], 1U) == static_cast<uint32_t>(split.slices) - 1;
      if (last) split.counters[launch_tile] = 0;
    }
    __syncthreads();
    if (!last || !present) return;
    __threadfence();
    // All vectors of a slice, and several slices where those are few, are in flight together; sums stay in slice order.
    float4 total[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) total[i] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll(kVectors >= 8 ? 2 : 8 / kVectors)
    for (int other = 0; other < split.slices; ++other) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const float4 p = __ldcg(partials + (other * kVectors + i) * kThreads);
        total[i] = make_float4(total[i].x + p.x, total[i].y + p.y, total[i].z + p.z, total[i].w + p.w);
      }
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float(&v)[4] = sums[i / S::kRowTiles][i % S::kRowTiles];
      v[0] = total[i].x;
      v[1] = total[i].y;
      v[2] = total[i].z;
      v[3] = total[i].w;
    }
  }

  const float* scales =
      kFormat == WeightFormat::fp8 ? reinterpret_cast<const float*>(weights + problem.scale_offset) : nullptr;
  const bool odd = (lane & 4) != 0;
#pragma unroll
  for (int s = 0; s < S::kWarpStrips; ++s) {
#pragma unroll
    for (int t = 0; t < S::kRowTiles; ++t) {
      // A lane holds two channels of two rows, its neighbour in the column direction the two beside them: swap so that
      // the even one gets four channels of the first row, the odd one of the second.
      const float(&d)[4] = sums[s][t];
      const float near = __shfl_xor_sync(0xFFFFFFFFU, odd ? d[0] : d[1], 4);
      const float far = __shfl_xor_sync(0xFFFFFFFFU, odd ? d[2] : d[3], 4);
      float v[4] = {odd ? near : d[0], odd ? d[1] : near, odd ? far : d[2], odd ? d[3] : far};
      const int row = t * 8 + 2 * (lane % 4) + (odd ? 1 : 0);
      const int channel = (first_strip + s) * kStripChannels + 4 * (lane / 8);
      if (row < problem.rows) store_channels(problem.output, matrix, row, channel, problem.out, scales, v);
    }
  }
}

template <WeightFormat kFormat, int kRowTiles, int kWarpStrips>
void launch(const LinearProblem& problem, int matrices, const Split& split, cudaStream_t stream) {
  using S = Shape<kFormat, kRowTiles, kWarpStrips>;
  allow_dynamic_shared<window_kernel<S>, S::kSharedBytes>("linear_window shared memory");
  const dim3 grid(static_cast<unsigned>(ceil_div(problem.out, S::kTileChannels)), static_cast<unsigned>(split.slices),
                  static_cast<unsigned>(matrices));
  launch_overlapped("linear_window launch", window_kernel<S>, grid, kThreads, S::kSharedBytes, stream, problem, split);
}

template <WeightFormat kFormat>
void launch_rows(const LinearProblem& problem, int matrices, const Split& split, cudaStream_t stream) {
  const bool narrow = split.slices >= kNarrowSlices;
  if (problem.rows <= 8) {
    launch<kFormat, 1, 1>(problem, matrices, split, stream);
  } else if (problem.rows <= 16) {
    launch<kFormat, 2, 1>(problem, matrices, split, stream);
  } else if (problem.rows <= 32) {
    narrow ? launch<kFormat, 4, 1>(problem, matrices, split, stream)
           : launch<kFormat, 4, 2>(problem, matrices, split, stream);
  } else if constexpr (kFormat == WeightFormat::q4) {
    launch<kFormat, 8, 2>(problem, matrices, split, stream);  // the narrow form spills registers on sm_121a
  } else {
    narrow ? launch<kFormat, 8, 1>(problem, matrices, split, stream)
           : launch<kFormat, 8, 2>(problem, matrices, split, stream);
  }
}

}  // namespace

size_t linear_window_workspace(int64_t out, int64_t in, int matrices) {
  const int slices = slice_count(out, in, matrices);
  if (slices == 1) return 0;
  constexpr int kWidestTile = 2 * kSplitTile;
  const auto tiles = static_cast<size_t>(ceil_div(out, kWidestTile) * matrices);
  return kMaxCounters * sizeof(uint32_t) +
         tiles * static_cast<size_t>(slices) * kWidestTile * kWindowRows * sizeof(float);
}

template <typename T>
void linear_window(const PackedWeight& weight, const LinearRows<T>& rows, void* workspace, cudaStream_t stream) {
  const LinearProblem problem = make_problem(weight, rows, "linear_window");
  if (rows.rows > kWindowRows) {
    throw std::invalid_argument("linear_window: " + std::to_string(rows.rows) + " rows, at most 64");
  }
  Split split{slice_count(weight.out, weight.in, weight.matrices), nullptr, nullptr};
  if (split.slices > 1) {
    if (workspace == nullptr) throw std::invalid_argument("linear_window: no workspace");
    split.counters = static_cast<uint32_t*>(workspace);
    split.partials = reinterpret_cast<float*>(split.counters + kMaxCounters);
  }
  switch (weight.format) {
    case WeightFormat::bf16:
      return launch_rows<WeightFormat::bf16>(problem, weight.matrices, split, stream);
    case WeightFormat::fp8:
      return launch_rows<WeightFormat::fp8>(problem, weight.matrices, split, stream);
    case WeightFormat::q4:
      return launch_rows<WeightFormat::q4>(problem, weight.matrices, split, stream);
  }
}

template void linear_window(const PackedWeight&, const LinearRows<__nv_bfloat16>&, void*, cudaStream_t);
template void linear_window(const PackedWeight&, const LinearRows<float>&, void*, cudaStream_t);

}  // namespace glm53::kernels
