// Dense product for windows of 1..64 rows.
//
// Operation   y[m][r] = x[m][r] · W[m]ᵀ; packed weights (linear_layout.h), x bf16, y bf16 or fp32
// Shapes      in any multiple of 16, out >= 1, m matrices (heads)
// Work        a block takes 128 channels and one slice of K: four warps of two strips; x goes through shared memory
//             once a block. Weights are the mma's A operand, rows its N, so 1..8 rows cost the same.
// Order       a slice is summed in column order; slices are summed in order by the last block to finish. The number of
//             slices depends on the shape alone, so a row's bits do not depend on the launch.
// Rounding    codes are widened to bf16 exactly, fp32 accumulation, fp8 scales on the fp32 sum, one rounding to y
// Bound       memory: the weight bytes, once
#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/common/cp_async.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/ldmatrix.h"
#include "kernels/common/mma.h"
#include "kernels/linear/linear_layout.h"

namespace glm53::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kWarpStrips = 2;
constexpr int kTileStrips = kWarps * kWarpStrips;
constexpr int kTileChannels = kTileStrips * kStripChannels;
constexpr int kMaxSlices = 32;
constexpr int kMaxCounters = 256;
// Enough blocks to keep every channel of memory busy on either device; not the SM count, which must not enter the bits.
constexpr int kWantedBlocks = 256;
constexpr int kUnsplitBlocks = 128;

/// Slices of K for a shape; each keeps at least four groups.
int slice_count(int64_t out, int64_t in, int matrices) {
  const int64_t blocks = ceil_div(out, kTileChannels) * matrices;
  if (blocks >= kUnsplitBlocks) return 1;
  const int64_t groups = ceil_div(in, kGroupColumns);
  return static_cast<int>(
      std::clamp<int64_t>(kWantedBlocks / blocks, 1, std::clamp<int64_t>(groups / 4, 1, kMaxSlices)));
}

/// Shared memory of one pipeline stage.
template <WeightFormat kFormat, int kRowTiles>
struct Stage {
  static constexpr int kGroups = kFormat == WeightFormat::bf16 ? 1 : 2;
  static constexpr int kStripBytes = kGroups * 2 * block_bytes(kFormat);
  static constexpr int kScales = kTileStrips * kStripBytes;
  static constexpr int kStripScaleBytes = kFormat == WeightFormat::q4 ? kGroups * kQ4ScaleBytes : 0;
  static constexpr int kX = kScales + kTileStrips * kStripScaleBytes;
  static constexpr int kRows = 8 * kRowTiles;
  static constexpr int kBytes = kX + kGroups * 2 * kRows * 64;
  static constexpr int kBudget = kRowTiles >= 8 ? 99 * 1024 : 72 * 1024;
  static constexpr int kCount = kBudget / kBytes > 6 ? 6 : kBudget / kBytes;
  static constexpr int kSharedBytes = kCount * kBytes;
  static_assert(kCount >= 2 && kSharedBytes <= 99 * 1024);
};

struct Split {
  int slices;
  float* partials;  ///< [tile of the launch, slice, strip of the warp · row tile, thread, 4]
  uint32_t* counters;
};

template <WeightFormat kFormat, int kRowTiles>
__global__ void __launch_bounds__(kThreads) window_kernel(const LinearProblem problem, const Split split) {
  using S = Stage<kFormat, kRowTiles>;
  extern __shared__ __align__(128) uint8_t shared[];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int tile = static_cast<int>(blockIdx.x);
  const int slice = static_cast<int>(blockIdx.y);
  const int matrix = static_cast<int>(blockIdx.z);
  const int begin = static_cast<int>(int64_t{problem.groups} * slice / split.slices);
  const int end = static_cast<int>(int64_t{problem.groups} * (slice + 1) / split.slices);
  const int strips = static_cast<int>(ceil_div(problem.out, kStripChannels));
  const uint8_t* weights = problem.weights + matrix * problem.weight_bytes;
  const __nv_bfloat16* x = problem.x + matrix * problem.x_matrix_stride;

  const auto load_stage = [&](int buffer, int first) {
    uint8_t* stage = shared + buffer * S::kBytes;
    // Each warp fetches its own strips: 16 bytes a lane, 512 contiguous bytes a load.
    for (int s = 0; s < kWarpStrips; ++s) {
      const int local = warp * kWarpStrips + s;
      const int strip = tile * kTileStrips + local;
      const bool present = strip < strips;
      const int64_t at = (int64_t{present ? strip : 0} * problem.groups + first) * (2 * block_bytes(kFormat));
      const uint32_t target = shared_address(stage + local * S::kStripBytes);
#pragma unroll
      for (int i = 0; i < S::kStripBytes / 512; ++i) {
        const int offset = i * 512 + lane * 16;
        const bool wanted = present && first + offset / (2 * block_bytes(kFormat)) < end;
        cp_async_16(target + static_cast<uint32_t>(offset), weights + (wanted ? at + offset : 0), wanted);
      }
      if constexpr (kFormat == WeightFormat::q4) {
        if (lane < S::kStripScaleBytes / 16) {
          const bool wanted = present && first + lane / 2 < end;
          const int64_t scale_at = (int64_t{strip} * problem.groups + first) * kQ4ScaleBytes + lane * 16;
          cp_async_16(shared_address(stage + S::kScales + local * S::kStripScaleBytes + lane * 16),
                      weights + problem.scale_offset + (wanted ? scale_at : 0), wanted);
        }
      }
    }
    // x as [block][row][32 columns].
    constexpr int kChunks = S::kGroups * 8 * S::kRows;
#pragma unroll
    for (int i = 0; i < (kChunks + kThreads - 1) / kThreads; ++i) {
      const int chunk = i * kThreads + thread;
      if (kChunks % kThreads != 0 && chunk >= kChunks) break;
      const int row = chunk / (S::kGroups * 8);
      const int piece = chunk % (S::kGroups * 8);
      const int column = first * kGroupColumns + piece * 8;
      const bool wanted = row < problem.rows && column < problem.in;
      cp_async_16(shared_address(stage + S::kX + ((piece / 4) * S::kRows + row) * 64 + (piece % 4) * 16),
                  x + (wanted ? row * problem.x_stride + column : 0), wanted);
    }
  };

  float sums[kWarpStrips][kRowTiles][4] = {};
  for (int i = 0; i < S::kCount - 1; ++i) {
    if (begin + i * S::kGroups < end) load_stage(i, begin + i * S::kGroups);
    cp_async_commit();
  }
  int buffer = 0;
  for (int first = begin; first < end; first += S::kGroups) {
    cp_async_wait<S::kCount - 2>();
    __syncthreads();  // this stage is there for all, and the buffer of the last one is free
    const int ahead = first + (S::kCount - 1) * S::kGroups;
    if (ahead < end) load_stage(buffer == 0 ? S::kCount - 1 : buffer - 1, ahead);
    cp_async_commit();
    const uint8_t* stage = shared + buffer * S::kBytes;
#pragma unroll
    for (int group = 0; group < S::kGroups; ++group) {
      if (group > 0 && first + group >= end) break;
#pragma unroll
      for (int block = 2 * group; block < 2 * group + 2; ++block) {
        uint4 b[kRowTiles];
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          b[t] = *reinterpret_cast<const uint4*>(stage + S::kX + (block * S::kRows + t * 8) * 64 + lane * 16);
        }
#pragma unroll
        for (int s = 0; s < kWarpStrips; ++s) {
          const int local = warp * kWarpStrips + s;
          uint32_t a[2][4];
          load_fragments<kFormat>(stage + local * S::kStripBytes + block * block_bytes(kFormat),
                                  stage + S::kScales + local * S::kStripScaleBytes + group * kQ4ScaleBytes, lane, a);
#pragma unroll
          for (int t = 0; t < kRowTiles; ++t) {
            const uint32_t first_step[2] = {b[t].x, b[t].y};
            const uint32_t second_step[2] = {b[t].z, b[t].w};
            mma_m16n8k16_bf16(sums[s][t], a[0], first_step);
            mma_m16n8k16_bf16(sums[s][t], a[1], second_step);
          }
        }
      }
    }
    buffer = buffer + 1 == S::kCount ? 0 : buffer + 1;
  }

  if (split.slices > 1) {
    constexpr int kSliceVectors = kWarpStrips * kRowTiles * kThreads;
    const int64_t launch_tile = int64_t{matrix} * gridDim.x + tile;
    float4* partials = reinterpret_cast<float4*>(split.partials) + launch_tile * split.slices * kSliceVectors + thread;
#pragma unroll
    for (int i = 0; i < kWarpStrips * kRowTiles; ++i) {
      const float(&v)[4] = sums[i / kRowTiles][i % kRowTiles];
      partials[(slice * kWarpStrips * kRowTiles + i) * kThreads] = make_float4(v[0], v[1], v[2], v[3]);
    }
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (thread == 0) {
      last = atomicAdd(&split.counters[launch_tile], 1U) == static_cast<uint32_t>(split.slices) - 1;
      if (last) split.counters[launch_tile] = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
#pragma unroll
    for (int i = 0; i < kWarpStrips * kRowTiles; ++i) {
      float(&v)[4] = sums[i / kRowTiles][i % kRowTiles];
      const float4* partial = partials + i * kThreads;
      for (int j = 0; j < 4; ++j) v[j] = 0.0F;
#pragma unroll 4
      for (int other = 0; other < split.slices; ++other) {
        const float4 p = __ldcg(partial + int64_t{other} * kSliceVectors);
        v[0] += p.x;
        v[1] += p.y;
        v[2] += p.z;
        v[3] += p.w;
      }
    }
  }

  const float* scales =
      kFormat == WeightFormat::fp8 ? reinterpret_cast<const float*>(weights + problem.scale_offset) : nullptr;
  const bool odd = (lane & 4) != 0;
#pragma unroll
  for (int s = 0; s < kWarpStrips; ++s) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      // A lane holds two channels of two rows, its neighbour in the column direction the two beside them: swap so that
      // the even one gets four channels of the first row, the odd one of the second.
      const float(&d)[4] = sums[s][t];
      const float near = __shfl_xor_sync(0xFFFFFFFFU, odd ? d[0] : d[1], 4);
      const float far = __shfl_xor_sync(0xFFFFFFFFU, odd ? d[2] : d[3], 4);
      float v[4] = {odd ? near : d[0], odd ? d[1] : near, odd ? far : d[2], odd ? d[3] : far};
      const int row = t * 8 + 2 * (lane % 4) + (odd ? 1 : 0);
      const int channel = (tile * kTileStrips + warp * kWarpStrips + s) * kStripChannels + 4 * (lane / 8);
      if (row < problem.rows) store_channels(problem.output, matrix, row, channel, problem.out, scales, v);
    }
  }
}

template <WeightFormat kFormat, int kRowTiles>
void launch(const LinearProblem& problem, int matrices, const Split& split, cudaStream_t stream) {
  constexpr int kShared = Stage<kFormat, kRowTiles>::kSharedBytes;
  const auto kernel = window_kernel<kFormat, kRowTiles>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
             "linear_window shared memory");
  const dim3 grid(static_cast<unsigned>(ceil_div(problem.out, kTileChannels)), static_cast<unsigned>(split.slices),
                  static_cast<unsigned>(matrices));
  kernel<<<grid, kThreads, kShared, stream>>>(problem, split);
  check_cuda(cudaGetLastError(), "linear_window launch");
}

template <WeightFormat kFormat>
void launch_rows(const LinearProblem& problem, int matrices, const Split& split, cudaStream_t stream) {
  if (problem.rows <= 8) {
    launch<kFormat, 1>(problem, matrices, split, stream);
  } else if (problem.rows <= 16) {
    launch<kFormat, 2>(problem, matrices, split, stream);
  } else if (problem.rows <= 32) {
    launch<kFormat, 4>(problem, matrices, split, stream);
  } else {
    launch<kFormat, 8>(problem, matrices, split, stream);
  }
}

}  // namespace

size_t linear_window_workspace(int64_t out, int64_t in, int matrices) {
  const int slices = slice_count(out, in, matrices);
  if (slices == 1) return 0;
  const auto tiles = static_cast<size_t>(ceil_div(out, kTileChannels) * matrices);
  return kMaxCounters * sizeof(uint32_t) +
         tiles * static_cast<size_t>(slices) * kTileChannels * kWindowRows * sizeof(float);
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
