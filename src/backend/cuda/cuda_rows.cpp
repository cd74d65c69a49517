// Embedding, mHC sites and the head: operations on rows, whatever kind of segment they belong to.
#include "backend/cuda/cuda_backend_impl.h"
#include "kernels/row_ops/row_ops.h"

namespace glm53::cuda {

void CudaBackend::embed(const Matrix& embedding, Tensor streams) {
  if (call_rows_ == 0) return;
  kernels::embed(matrix(embedding).data.as<Bf16>(), embedding.rows, tables_->token_ids(), call_rows_, geometry_.hidden,
                 bf16_row(streams, 0), stream_);
}

MhcLaunch CudaBackend::mhc_launch(const MhcSite& site) {
  const DeviceMatrix& fn = matrix(site.fn);
  MhcLaunch launch;
  launch.weights = {.fn = fn.data.as<void>(),
                    .fn_is_fp32 = fn.is_fp32,
                    .base = vector(site.base),
                    .scale = vector(site.scale),
                    .norm = vector(site.norm)};
  launch.shape = {.hidden = geometry_.hidden,
                  .rms_norm_eps = geometry_.rms_norm_eps,
                  .hc_eps = geometry_.hc_eps,
                  .sinkhorn_iterations = geometry_.hc_sinkhorn_iters};
  scratch_.begin();
  launch.workspace =
      scratch_.take<uint8_t>(static_cast<int64_t>(kernels::mhc_workspace_bytes(plan_.max_rows, geometry_.hidden)));
  return launch;
}

void CudaBackend::mhc_pre(const MhcSite& site, Tensor streams, Tensor mix, Tensor normed) {
  const MhcLaunch launch = mhc_launch(site);
  if (call_rows_ == 0) return;
  kernels::mhc_pre(launch.weights, launch.shape, bf16_row(streams, 0), call_rows_, launch.workspace, fp32_row(mix, 0),
                   bf16_row(normed, 0), stream_);
}

void CudaBackend::mhc_post(const MhcSite&, Tensor streams, Tensor mix, Tensor y) {
  if (call_rows_ == 0) return;
  kernels::mhc_post(fp32_row(mix, 0), bf16_row(y, 0), call_rows_, geometry_.hidden, bf16_row(streams, 0), stream_);
}

void CudaBackend::mhc_post_pre(const MhcSite&, const MhcSite& next, Tensor streams, Tensor mix, Tensor y,
                               Tensor normed) {
  const MhcLaunch launch = mhc_launch(next);
  if (call_rows_ == 0) return;
  kernels::mhc_post_pre(launch.weights, launch.shape, bf16_row(y, 0), call_rows_, launch.workspace,
                        bf16_row(streams, 0), fp32_row(mix, 0), bf16_row(normed, 0), stream_);
}

void CudaBackend::head(const HeadWeights& weights, Tensor streams, Tensor hidden, Tensor logits) {
  for (const Run& run : tables_->runs()) {
    if (run.logits == 0) continue;
    kernels::collapse_streams(bf16_row(streams, 0), tables_->logit_rows() + run.first_logit, run.logits,
                              geometry_.hidden, vector(weights.norm), geometry_.rms_norm_eps,
                              bf16_row(hidden, run.first_logit), stream_);
    multiply(linear(weights.lm_head.handle), run.window(), run.logits, bf16_row(hidden, run.first_logit), hidden.width,
             fp32_row(logits, run.first_logit), logits.width);
  }
}

}  // namespace glm53::cuda
