// mHC hyper-connections: four residual streams a token, collapsed before every sub-block and mixed after it (spec 10
// §3.3, Mode S).
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

namespace glm53::kernels {

inline constexpr int kMhcStreams = 4;
inline constexpr int kMhcMix = kMhcStreams + kMhcStreams * kMhcStreams;  ///< post[4] | C[4][4], C[source][target]

/// Device memory that nothing writes while serving: it is read before the kernel ahead on the stream has ended. fn
/// 16-byte aligned.
struct MhcSiteWeights {
  const void* fn = nullptr;  ///< [24, 4·hidden] bf16, or fp32 if fn_is_fp32
  bool fn_is_fp32 = false;
  const float* base = nullptr;   ///< [24], 16-byte aligned
  const float* scale = nullptr;  ///< [3] pre, post, comb
  const float* norm = nullptr;   ///< [hidden] RMSNorm of the sub-block's input
};

struct MhcShape {
  int hidden = 0;  ///< multiple of 256, at most 8,192
  float rms_norm_eps = 1e-5F;
  float hc_eps = 1e-6F;
  int sinkhorn_iterations = 20;
};

/// Rows that are worked on at a time: their streams stay in L2 between the two kernels of a site. Results do not depend
/// on it.
inline constexpr int kMhcPassRows = 1024;

/// Workspace of mhc_pre and mhc_post_pre, for any number of rows up to `rows`.
size_t mhc_workspace_bytes(int rows, int hidden);

/// Steps 1–8 and the RMSNorm:
///   normed [rows, hidden] bf16 = RMSNorm(bf(Σ_h pre_h · streams_h)), mix [rows, 20] fp32 for mhc_post.
/// streams [rows, 4, hidden] bf16. A row's bits depend on that row alone. Throws std::invalid_argument, CudaError.
void mhc_pre(const MhcSiteWeights& site, const MhcShape& shape, const __nv_bfloat16* streams, int rows, void* workspace,
             float* mix, __nv_bfloat16* normed, cudaStream_t stream);

/// Step 9, in place: streams_j = bf(post_j · y + Σ_i C[i][j] · streams_i); y [rows, hidden] bf16.
void mhc_post(const float* mix, const __nv_bfloat16* y, int rows, int hidden, __nv_bfloat16* streams,
              cudaStream_t stream);

/// mhc_post with the `mix` of the site before, then mhc_pre of `site`, which overwrites `mix`: the same bits as both
/// calls.
void mhc_post_pre(const MhcSiteWeights& site, const MhcShape& shape, const __nv_bfloat16* y, int rows, void* workspace,
                  __nv_bfloat16* streams, float* mix, __nv_bfloat16* normed, cudaStream_t stream);

}  // namespace glm53::kernels
