// KDA sub-block (spec 10 §3.5): projections, then one launch a layer for convolution, gates, recurrence and gated norm.
#include "backend/cuda/cuda_backend_impl.h"

namespace glm53::cuda {

void CudaBackend::kda(const KdaWeights& weights, Tensor x, Tensor y) {
  const int64_t width = int64_t{weights.heads} * kernels::kKdaHeadDim;
  const kernels::PackedWeight& input = linear(weights.input.handle);
  const int64_t stride = align_part(input.out);
  // Columns of a raw row: q | k | v | b | f_a | g_a, each part at a multiple of 8.
  const int64_t forget_low = 3 * width + align_part(weights.heads);
  const int64_t gate_low = align_part(forget_low + weights.gate_rank);

  scratch_.begin();
  Bf16* raw = scratch_.take<Bf16>(plan_.max_rows * stride);
  Bf16* forget = scratch_.take<Bf16>(plan_.max_rows * width);
  Bf16* gate = scratch_.take<Bf16>(plan_.max_rows * width);
  Bf16* out = scratch_.take<Bf16>(plan_.max_rows * width);
  const kernels::KdaParameters parameters{.conv = vector(weights.conv),
                                          .a_log = vector(weights.a_log),
                                          .dt_bias = vector(weights.dt_bias),
                                          .output_norm = vector(weights.output_norm),
                                          .lower_bound = geometry_.gate_lower_bound,
                                          .norm_eps = geometry_.rms_norm_eps};
  const kernels::KdaLayerState& layer = kda_[static_cast<size_t>(weights.kda_index)].view;

  for (const Run& run : tables_->runs()) {
    multiply(input, run.window(), run.rows, bf16_row(x, run.first_row), x.width, raw, stride);
    multiply(linear(weights.forget_up.handle), run.window(), run.rows, raw + forget_low, stride, forget, width);
    multiply(linear(weights.gate_up.handle), run.window(), run.rows, raw + gate_low, stride, gate, width);
    const kernels::KdaRows rows{
        .projected = raw, .projected_stride = stride, .forget = forget, .gate = gate, .out = out};
    if (run.window()) {
      kernels::kda_window(rows, parameters, layer, run.tables, stream_);
    } else {
      kernels::kda_prompt(rows, parameters, layer, run.tables, stream_);
    }
    multiply(linear(weights.output.handle), run.window(), run.rows, out, width, bf16_row(y, run.first_row), y.width);
  }
}

}  // namespace glm53::cuda
