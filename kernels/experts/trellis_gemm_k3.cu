// Instances of trellis_gemm.cuh for K = 3.
#include "kernels/experts/trellis_gemm.cuh"

namespace glm53::kernels {

void thin_gemm_k3(const TrellisGemm& gemm, TrellisKind kind, cudaStream_t stream) {
  launch_gemm<3>(true, gemm, kind, stream);
}

void tile_gemm_k3(const TrellisGemm& gemm, TrellisKind kind, cudaStream_t stream) {
  launch_gemm<3>(false, gemm, kind, stream);
}

}  // namespace glm53::kernels
