// Interface between the launcher of the experts and the files that hold the GEMM of one K each.
#pragma once

#include <cstdint>

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "kernels/experts/experts.h"

namespace glm53::kernels {

/// output[place][c] = Σ_k input[place][k] · W_q[k][c]: no suh, svh, or rotation.
struct TrellisGemm {
  const ExpertRecord* records;
  const ExpertSegment* segments;
  const int32_t* segment_count;
  const __half* input;   ///< [projections, places, in] rotated rows; a projection that shares suh reads the first
  float* output;         ///< [projections, places, out]
  int64_t input_stride;  ///< elements between projections
  int64_t output_stride;
  int in;
  int out;
  int projections;  ///< 2: gate and up, 1: down
  int segment_capacity;
};

/// The matrix of one projection of the launch.
__device__ inline const ExpertMatrix& projection_matrix(const TrellisGemm& gemm, const ExpertRecord& record,
                                                        int projection) {
  if (gemm.projections == 1) return record.down;
  return projection == 0 ? record.gate : record.up;
}

__device__ inline const __half* projection_input(const TrellisGemm& gemm, const ExpertRecord& record, int projection) {
  const bool own = projection == 1 && record.gate.suh != record.up.suh;
  return gemm.input + (own ? gemm.input_stride : 0);
}

/// Launches over segments of at most kThinExpertRows rows, and of at most kExpertTileRows rows. A block whose matrix is
/// of another kind leaves. One pair for each file of trellis_gemm_k<K>.cu.
using TrellisGemmLauncher = void (*)(const TrellisGemm&, TrellisKind, cudaStream_t);
void thin_gemm_k2(const TrellisGemm& gemm, TrellisKind kind, cudaStream_t stream);
void thin_gemm_k3(const TrellisGemm& gemm, TrellisKind kind, cudaStream_t stream);
void thin_gemm_k4(const TrellisGemm& gemm, TrellisKind kind, cudaStream_t stream);
void thin_gemm_k5(const TrellisGemm& gemm, TrellisKind kind, cudaStream_t stream);
void thin_gemm_k6(const TrellisGemm& gemm, TrellisKind kind, cudaStream_t stream);
void tile_gemm_k2(const TrellisGemm& gemm, TrellisKind kind, cudaStream_t stream);
void tile_gemm_k3(const TrellisGemm& gemm, TrellisKind kind, cudaStream_t stream);
void tile_gemm_k4(const TrellisGemm& gemm, TrellisKind kind, cudaStream_t stream);
void tile_gemm_k5(const TrellisGemm& gemm, TrellisKind kind, cudaStream_t stream);
void tile_gemm_k6(const TrellisGemm& gemm, TrellisKind kind, cudaStream_t stream);
/// Any K and any number of rows a segment; the others' bits, at a fraction of their speed.
void generic_trellis_gemm(const TrellisGemm& gemm, TrellisKind kind, cudaStream_t stream);

}  // namespace glm53::kernels
