// Instances of trellis_gemm.cuh for K = 2.
#include "kernels/experts/trellis_gemm.cuh"

namespace glm53::kernels {

void thin_gemm_k2(const TrellisGemm& gemm, TrellisKind kind, cudaStream_t stream) {
  launch_gemm<2>(true, gemm, kind, stream);
}

void tile_gemm_k2(const TrellisGemm& gemm, TrellisKind kind, cudaStream_t stream) {
  launch_gemm<2>(false, gemm, kind, stream);
}

}  // namespace glm53::kernels
