// Clamped SwiGLU, dense and as a mixture of EXL3 experts (spec 10 §3.8).
#include "backend/cuda/cuda_backend_impl.h"
#include "kernels/router/router.h"
#include "kernels/row_ops/row_ops.h"

namespace glm53::cuda {

void CudaBackend::dense_mlp(const MlpWeights& weights, Tensor x, Tensor y) {
  const kernels::PackedWeight& gate_up = linear(weights.gate_up.handle);
  scratch_.begin();
  Bf16* gate_and_up = scratch_.take<Bf16>(plan_.max_rows * gate_up.out);
  Bf16* activated = scratch_.take<Bf16>(plan_.max_rows * weights.width);
  for (const Run& run : tables_->runs()) {
    multiply(gate_up, run.window(), run.rows, bf16_row(x, run.first_row), x.width, gate_and_up, gate_up.out);
    kernels::swiglu(gate_and_up, run.rows, static_cast<int>(weights.width), geometry_.swiglu_limit, activated, stream_);
    multiply(linear(weights.down.handle), run.window(), run.rows, activated, weights.width, bf16_row(y, run.first_row),
             y.width);
  }
}

void CudaBackend::moe(const MoeWeights& weights, Tensor x, Tensor y) {
  const Geometry& g = geometry_;
  const DeviceMatrix& router = matrix(weights.router);
  const kernels::ExpertBankView& bank = experts_.at(static_cast<size_t>(weights.experts.handle)).view;
  const int topk = g.experts_per_token;
  scratch_.begin();
  float* logits = scratch_.take<float>(int64_t{plan_.max_rows} * g.experts);
  const auto table_bytes = static_cast<int64_t>(kernels::route_tables_bytes(plan_.max_rows, topk, g.experts));
  const kernels::RouteTables routes =
      kernels::route_tables_at(scratch_.take<uint8_t>(table_bytes), plan_.max_rows, topk, g.experts);
  void* workspace =
      scratch_.take<uint8_t>(static_cast<int64_t>(kernels::experts_workspace_bytes(bank, plan_.max_rows, topk)));
  // The shared expert's rows stay fp32 until the one rounding of the sum.
  const MlpWeights& shared = weights.shared;
  const kernels::PackedWeight& shared_gate_up = linear(shared.gate_up.handle);
  Bf16* gate_and_up = scratch_.take<Bf16>(plan_.max_rows * shared_gate_up.out);
  Bf16* activated = scratch_.take<Bf16>(plan_.max_rows * shared.width);
  float* shared_rows = scratch_.take<float>(plan_.max_rows * int64_t{g.hidden});

  for (const Run& run : tables_->runs()) {
    const Bf16* input = bf16_row(x, run.first_row);
    if (router.is_fp32) {
      kernels::router_logits(input, router.data.as<float>(), run.rows, g.hidden, g.experts, logits, stream_);
    } else {
      kernels::router_logits(input, router.data.as<Bf16>(), run.rows, g.hidden, g.experts, logits, stream_);
    }
    kernels::RouterOptions options;
    options.scale = g.routed_scaling;
    options.normalise = g.norm_topk_prob;
    options.window = run.window();
    options.row_segment = run.tables.row_segment;
    kernels::route(logits, vector(weights.router_bias), run.rows, options, routes, stream_);

    multiply(shared_gate_up, run.window(), run.rows, input, x.width, gate_and_up, shared_gate_up.out);
    kernels::swiglu(gate_and_up, run.rows, static_cast<int>(shared.width), g.swiglu_limit, activated, stream_);
    multiply(linear(shared.down.handle), run.window(), run.rows, activated, shared.width, shared_rows,
             int64_t{g.hidden});

    kernels::ExpertsCall call;
    call.x = input;
    call.shared_fp32 = shared_rows;
    call.y_bf16 = bf16_row(y, run.first_row);
    call.rows = run.rows;
    call.window = run.window();
    kernels::experts_forward(bank, routes, call, workspace, stream_);
  }
}

}  // namespace glm53::cuda
