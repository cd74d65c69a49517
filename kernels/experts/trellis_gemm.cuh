// GEMM with EXL3 code matrices, for one K: rows of an expert × its trellis, decoded in registers.
//
// Operation   output[place][c] = Σ_k input[place][k] · W_q[k][c]
// Shapes      input [places, in] fp16, W_q [in, out] packed (exl3_pack), output [places, out] fp32
// Rounding    W_q and input are fp16 exactly; fp32 accumulation in the tensor core, 16 k a step in the k order of
//             exl3_run.h, start to end of `in` in one accumulator: the same for both kernels below and any segment,
//             so a row's bits depend on the row alone
// Bound       thin: decoding (permute and multiply pipes), then memory; tiles: instruction issue, half decoding
//
// Thin (at most 8 rows): a warp owns 16 columns and walks `in`, one packed kilobyte (K = 4) after another, with
// kAhead of them in registers; activations come through L1, and lanes of absent rows load nothing.
// Tiles (at most 64 rows): a warp owns 32 columns, so each activation fragment feeds two mma; activations pass through
// shared memory in three stages of 128 k.
#pragma once

#include "kernels/common/cp_async.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/ldmatrix.h"
#include "kernels/common/mma.h"
#include "kernels/common/overlap.h"
#include "kernels/common/stream_load.h"
#include "kernels/experts/exl3_run.h"
#include "kernels/experts/trellis_gemm.h"

namespace glm53::kernels {
namespace {

constexpr int kMacroRows = 128;  // k of one packed unit: two runs a lane
constexpr int kThinWarps = 8;
constexpr int kTileWarps = 4;
constexpr int kTileStrips = 2;  // 16-column strips of a warp
static_assert(16 * kThinWarps == 128 && 16 * kTileWarps * kTileStrips == 128, "a block: 128 columns");
constexpr int kTileStages = 3;
constexpr int kTileBlocks = 3;  // an SM
constexpr int kRowBlocks = kExpertTileRows / 8;
constexpr int kFetchRows = 2 * kTileWarps;  // rows that the block's threads fetch at once, 16 threads a row
static_assert(kFetchRows % 8 == 0);
constexpr uint32_t kBlockBytes = 2 * 32 * 16;            // of one run of a row block in a stage
constexpr int kStageGranules = 2 * kRowBlocks * 2 * 32;  // [run][row block][half of k][lane], 16 bytes each

/// One packed unit of 16 columns × 128 k: 2·K words a lane.
template <int K>
struct Macro {
  static constexpr int kWords = 64 * K;  // of all lanes
  uint32_t words[2 * K];

  __device__ void load(const uint32_t* from, int lane) {
#pragma unroll
    for (int plane = 0; plane < K / 2; ++plane) {
      const uint4 v = load_streamed(reinterpret_cast<const uint4*>(from) + plane * 32 + lane);
      words[4 * plane] = v.x;
      words[4 * plane + 1] = v.y;
      words[4 * plane + 2] = v.z;
      words[4 * plane + 3] = v.w;
    }
    if constexpr (K % 2 == 1) {
      const uint2 v = load_streamed(reinterpret_cast<const uint2*>(from + K / 2 * 128) + lane);
      words[2 * K - 2] = v.x;
      words[2 * K - 1] = v.y;
    }
  }

  /// Makes half 1 half 0.
  __device__ void next_half() {
#pragma unroll
    for (int j = 0; j < K; ++j) words[j] = words[K + j];
  }

  template <bool kMul1, bool kColumnMajor>
  __device__ void decode(int half, CodeHash hash, int lane, uint32_t (&a)[4][4]) const {
    uint32_t run[K + 1];
    run[0] = __shfl_sync(0xFFFFFFFFU, words[half * K + K - 1], lane + 28);
#pragma unroll
    for (int j = 0; j < K; ++j) run[j + 1] = words[half * K + j];
    decode_run<K, kMul1, kColumnMajor>(run, hash, a);
  }
};

template <int K, bool kMul1, bool kColumnMajor>
__device__ bool is_kind(const TrellisKind& kind) {
  return kind.bits == K && (kind.codebook == 2) == kMul1 && (kind.column_major != 0) == kColumnMajor;
}

/// Columns first, first + 8 (or their column-major places) × rows 2t, 2t+1 of one accumulator.
template <bool kColumnMajor>
__device__ void store_rows(const float (&d)[4], float* output, int64_t out, int rows, int lane) {
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = 2 * t + i % 2;
    if (row < rows) output[row * out + run_column<kColumnMajor>(g + 8 * (i / 2))] = d[i];
  }
}

/// Packed units in flight a warp of the thin kernel, and blocks an SM: more warps do better than more units.
template <int K, bool kColumnMajor>
constexpr int kAhead = K <= 3 && !kColumnMajor ? 2 : 1;
template <int K>
constexpr int kThinBlocks = K <= 4 ? 4 : 3;

template <int K, bool kMul1, bool kColumnMajor>
__global__ __launch_bounds__(32 * kThinWarps, kThinBlocks<K>) void thin_gemm_kernel(TrellisGemm gemm) {
  start_after_previous();
  constexpr int kBuffers = kAhead<K, kColumnMajor>;
  if (static_cast<int>(blockIdx.y) >= *gemm.segment_count) return;
  const ExpertSegment segment = gemm.segments[blockIdx.y];
  const ExpertRecord& record = gemm.records[segment.expert];
  const int projection = static_cast<int>(blockIdx.z);
  const ExpertMatrix& matrix = projection_matrix(gemm, record, projection);
  if (!is_kind<K, kMul1, kColumnMajor>(matrix.kind)) return;
  const CodeHash hash = code_hash(matrix.kind.codebook);

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int strip = static_cast<int>(blockIdx.x) * kThinWarps + static_cast<int>(threadIdx.x) / 32;
  const int macros = gemm.in / kMacroRows;
  const uint32_t* words = matrix.words + static_cast<int64_t>(strip) * macros * Macro<K>::kWords;
  const int row = lane / 4;
  const bool row_exists = row < segment.rows;
  const __half* input = projection_input(gemm, record, projection) +
                        static_cast<int64_t>(segment.first + (row_exists ? row : 0)) * gemm.in + 16 * (lane % 4);

  Macro<K> buffers[kBuffers];
#pragma unroll
  for (int b = 0; b < kBuffers; ++b) {
    if (b < macros) buffers[b].load(words + b * Macro<K>::kWords, lane);
  }
  const auto load_input = [&](int run) {
    RunInput x = {};
    if (row_exists && run < 2 * macros) {
      const auto* from = reinterpret_cast<const uint4*>(input + 64 * run);
      x.low = *from;
      x.high = from[1];
    }
    return x;
  };
  RunInput x = load_input(0);
  float sum[4] = {};
  for (int first = 0; first < macros; first += kBuffers) {
#pragma unroll
    for (int b = 0; b < kBuffers; ++b) {
      const int macro = first + b;
      if (macro >= macros) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const RunInput next = load_input(2 * macro + half + 1);
        uint32_t a[4][4];
        buffers[b].template decode<kMul1, kColumnMajor>(half, hash, lane, a);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t operand[2];
          run_operand(x, i, operand);
          mma_m16n8k16_f16(sum, a[i], operand);
        }
        x = next;
      }
      if (macro + kBuffers < macros) buffers[b].load(words + (macro + kBuffers) * Macro<K>::kWords, lane);
    }
  }
  float* output =
      gemm.output + projection * gemm.output_stride + static_cast<int64_t>(segment.first) * gemm.out + 16 * strip;
  store_rows<kColumnMajor>(sum, output, gemm.out, segment.rows, lane);
}

/// Copies of 128 k of the segment's rows to a stage: thread i takes granule i % 16 (16 bytes) of rows i / 16, then
/// every kFetchRows rows. Absent rows keep what was there, which reaches no stored result.
struct StageFetch {
  const __half* from;  // this thread's granule of its first row
  int64_t stride;
  uint32_t offset;  // of the granule's place in a stage, bytes
  int count;        // of this thread's rows that exist

  __device__ StageFetch(const __half* input, int64_t in, int rows) {
    const int granule = static_cast<int>(threadIdx.x) % 16;  // [run][lane % 4][half of k]
    const int row = static_cast<int>(threadIdx.x) / 16;
    const int g = row % 8;
    const int run = granule / 8;
    const int t = granule % 8 / 2;
    const int half = granule % 2;
    from = input + row * in + 8 * granule;
    stride = kFetchRows * in;
    // The exchange of lane bit 2 keeps the two halves of k, 512 bytes apart, out of each other's banks.
    offset = static_cast<uint32_t>(((run * kRowBlocks + row / 8) * 2 + half) * 32 + ((4 * g + t) ^ (4 * half))) * 16;
    count = (rows - row + kFetchRows - 1) / kFetchRows;
  }
  /// The next 128 k.
  __device__ void operator()(uint32_t stage) {
    const __half* row = from;
    for (int i = 0; i < count; ++i) {
      cp_async_16(stage + offset + static_cast<uint32_t>(i * kFetchRows / 8) * kBlockBytes, row);
      row += stride;
    }
    from += kMacroRows;
  }
};

template <int K, bool kMul1, bool kColumnMajor>
__global__ __launch_bounds__(32 * kTileWarps, kTileBlocks) void tile_gemm_kernel(TrellisGemm gemm) {
  start_after_previous();
  __shared__ uint4 stages[kTileStages][kStageGranules];
  static_assert(sizeof(stages) <= 48 * 1024);
  if (static_cast<int>(blockIdx.y) >= *gemm.segment_count) return;
  const ExpertSegment segment = gemm.segments[blockIdx.y];
  const ExpertRecord& record = gemm.records[segment.expert];
  const int projection = static_cast<int>(blockIdx.z);
  const ExpertMatrix& matrix = projection_matrix(gemm, record, projection);
  if (!is_kind<K, kMul1, kColumnMajor>(matrix.kind)) return;
  const CodeHash hash = code_hash(matrix.kind.codebook);

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first_strip = (static_cast<int>(blockIdx.x) * kTileWarps + warp) * kTileStrips;
  const int macros = gemm.in / kMacroRows;
  const int strip_words = macros * Macro<K>::kWords;
  const uint32_t* words = matrix.words + static_cast<int64_t>(first_strip) * strip_words;
  const __half* input = projection_input(gemm, record, projection) + static_cast<int64_t>(segment.first) * gemm.in;
  const int row_blocks = (segment.rows + 7) / 8;

  Macro<K> buffers[kTileStrips];
#pragma unroll
  for (int s = 0; s < kTileStrips; ++s) buffers[s].load(words + s * strip_words, lane);
  words += Macro<K>::kWords;
  StageFetch fetch(input, gemm.in, segment.rows);
#pragma unroll
  for (int stage = 0; stage < kTileStages - 1; ++stage) {
    if (stage < macros) fetch(shared_address(stages[stage]));
    cp_async_commit();
  }
  float sums[kRowBlocks][kTileStrips][4] = {};
  for (int macro = 0; macro < macros; ++macro) {
    cp_async_wait<kTileStages - 2>();
    __syncthreads();
    const int ahead = macro + kTileStages - 1;
    if (ahead < macros) fetch(shared_address(stages[ahead % kTileStages]));
    cp_async_commit();
    const uint4* stage = stages[macro % kTileStages];
    // Not unrolled: the loop must fit the instruction caches, or warps at different places starve each other.
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      uint32_t a[kTileStrips][4][4];
#pragma unroll
      for (int s = 0; s < kTileStrips; ++s) {
        buffers[s].template decode<kMul1, kColumnMajor>(0, hash, lane, a[s]);
        buffers[s].next_half();
      }
      if (half == 1 && macro + 1 < macros) {
#pragma unroll
        for (int s = 0; s < kTileStrips; ++s) {
          buffers[s].load(words + s * strip_words, lane);
        }
        words += Macro<K>::kWords;
      }
      // Two row blocks at a time: four independent chains of mma hide each other's latency. An absent second block
      // multiplies what lies in its place; that is not stored.
#pragma unroll
      for (int first = 0; first < kRowBlocks; first += 2) {
        if (first >= row_blocks) break;
        const uint4* granules = stage + (half * kRowBlocks + first) * 64;
        const RunInput x[2] = {{granules[lane], granules[32 + (lane ^ 4)]},
                               {granules[64 + lane], granules[96 + (lane ^ 4)]}};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int block = 0; block < 2; ++block) {
            uint32_t operand[2];
            run_operand(x[block], i, operand);
#pragma unroll
            for (int s = 0; s < kTileStrips; ++s) mma_m16n8k16_f16(sums[first + block][s], a[s][i], operand);
          }
        }
      }
    }
  }
  float* output =
      gemm.output + projection * gemm.output_stride + static_cast<int64_t>(segment.first) * gemm.out + 16 * first_strip;
#pragma unroll
  for (int block = 0; block < kRowBlocks; ++block) {
    if (block >= row_blocks) break;
#pragma unroll
    for (int s = 0; s < kTileStrips; ++s) {
      store_rows<kColumnMajor>(sums[block][s], output + static_cast<int64_t>(8 * block) * gemm.out + 16 * s, gemm.out,
                               segment.rows - 8 * block, lane);
    }
  }
}

template <int K, bool kMul1, bool kColumnMajor>
void launch_gemm(bool thin, const TrellisGemm& gemm, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(gemm.out / 128), static_cast<unsigned>(gemm.segment_capacity),
                  static_cast<unsigned>(gemm.projections));
  if (thin) {
    // Not overlapped: for one row the blocks are fewer than the card holds at once, and started early they crowd on the
    // SMs that the kernel before leaves first (K = 4, 8 experts on an H200: 54 us for gate and up instead of 40).
    thin_gemm_kernel<K, kMul1, kColumnMajor><<<grid, 32 * kThinWarps, 0, stream>>>(gemm);
    check_cuda(cudaGetLastError(), "experts trellis gemm launch");
  } else {
    launch_overlapped("experts trellis gemm launch", tile_gemm_kernel<K, kMul1, kColumnMajor>, grid, 32 * kTileWarps, 0,
                      stream, gemm);
  }
}

template <int K>
void launch_gemm(bool thin, const TrellisGemm& gemm, TrellisKind kind, cudaStream_t stream) {
  if (kind.codebook == 2) {
    if (kind.column_major != 0) {
      launch_gemm<K, true, true>(thin, gemm, stream);
    } else {
      launch_gemm<K, true, false>(thin, gemm, stream);
    }
  } else if (kind.column_major != 0) {
    launch_gemm<K, false, true>(thin, gemm, stream);
  } else {
    launch_gemm<K, false, false>(thin, gemm, stream);
  }
}

}  // namespace
}  // namespace glm53::kernels
