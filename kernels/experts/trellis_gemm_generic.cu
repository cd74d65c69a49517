// GEMM with EXL3 code matrices of any K, codebook and tile order, all read at run time.
//
// Operation   output[place][c] = Σ_k input[place][k] · W_q[k][c]
// Shapes      as trellis_gemm.cuh, any number of rows a segment up to kExpertTileRows
// Rounding    the same mma in the same order, so the same bits
// Bound       instructions: states are cut out of words in memory one by one and again for every 8 rows. For K = 1, 7
//             and 8, which no known checkpoint of this model has.
#include "kernels/common/cuda_check.h"
#include "kernels/common/mma.h"
#include "kernels/common/overlap.h"
#include "kernels/experts/exl3_run.h"
#include "kernels/experts/trellis_gemm.h"

namespace glm53::kernels {
namespace {

constexpr int kWarps = 8;
constexpr int kMacroRows = 128;

struct RunWords {
  const uint32_t* unit;  // packed unit
  int bits;
  int half;
  int lane;
  /// Word w of the run, −1 ≤ w < bits.
  __device__ uint32_t operator()(int w) const {
    return w < 0 ? unit[packed_word(bits, (lane + 28) % 32, half * bits + bits - 1)]
                 : unit[packed_word(bits, lane, half * bits + w)];
  }
};

__device__ uint32_t hash_of(const RunWords& words, CodeHash hash, int position) {
  const int end = (position + 1) * words.bits;
  const int w = (end + 31) / 32 - 1;
  const uint32_t state = __funnelshift_r(words(w), words(w - 1), 32 * (w + 1) - end) & 0xFFFFU;
  return state * hash.multiplier + hash.addend;
}

__global__ __launch_bounds__(32 * kWarps) void generic_gemm_kernel(TrellisGemm gemm, TrellisKind kind) {
  start_after_previous();
  if (static_cast<int>(blockIdx.y) >= *gemm.segment_count) return;
  const ExpertSegment segment = gemm.segments[blockIdx.y];
  const ExpertRecord& record = gemm.records[segment.expert];
  const int projection = static_cast<int>(blockIdx.z);
  const ExpertMatrix& matrix = projection_matrix(gemm, record, projection);
  if (matrix.kind.bits != kind.bits || matrix.kind.codebook != kind.codebook ||
      matrix.kind.column_major != kind.column_major) {
    return;
  }
  const CodeHash hash = code_hash(kind.codebook);
  const bool column_major = kind.column_major != 0;

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int strip = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int macros = gemm.in / kMacroRows;
  const uint32_t* words = matrix.words + static_cast<int64_t>(strip) * macros * 64 * kind.bits;
  const __half* input = projection_input(gemm, record, projection);
  // First position of the weights of one A register, less what mma i adds.
  const int register_position[4] = {0, column_major ? 16 : 4, column_major ? 8 : 2, column_major ? 24 : 6};
  for (int block = 0; block < segment.rows; block += 8) {
    const int rows = min(8, segment.rows - block);
    const int64_t first_place = segment.first + block;
    float sum[4] = {};
    for (int run = 0; run < 2 * macros; ++run) {
      const RunWords run_words{words + run / 2 * 64 * kind.bits, kind.bits, run % 2, lane};
      RunInput x = {};
      if (g < rows) {
        const auto* from = reinterpret_cast<const uint4*>(input + (first_place + g) * gemm.in + 64 * run + 16 * t);
        x = {from[0], from[1]};
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t a[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int position = register_position[r] + i * (column_major ? 2 : 8);
          const uint32_t x0 = hash_of(run_words, hash, position);
          const uint32_t x1 = hash_of(run_words, hash, position + 1);
          a[r] = kind.codebook == 2 ? value_pair<true>(x0, x1) : value_pair<false>(x0, x1);
        }
        uint32_t operand[2];
        run_operand(x, i, operand);
        mma_m16n8k16_f16(sum, a, operand);
      }
    }
    float* output = gemm.output + projection * gemm.output_stride + first_place * gemm.out + 16 * strip;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 2 * t + i % 2;
      const int a_row = g + 8 * (i / 2);
      const int column = column_major ? run_column<true>(a_row) : run_column<false>(a_row);
      if (row < rows) output[static_cast<int64_t>(row) * gemm.out + column] = sum[i];
    }
  }
}

}  // namespace

void generic_trellis_gemm(const TrellisGemm& gemm, TrellisKind kind, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(gemm.out / 128), static_cast<unsigned>(gemm.segment_capacity),
                  static_cast<unsigned>(gemm.projections));
  launch_overlapped("experts generic gemm launch", generic_gemm_kernel, grid, 32 * kWarps, 0, stream, gemm, kind);
}

}  // namespace glm53::kernels
