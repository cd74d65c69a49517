// Clamped SwiGLU, dense and as a mixture of experts (spec 10 §3.8).
#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/cpu/cpu_backend_impl.h"

namespace glm53::cpu {

/// One (row, expert) pair of the router's choice.
struct CpuBackend::RoutedRow {
  int row = 0;
  int slot = 0;  ///< place among the row's experts, best first
};

/// y [rows, hidden] = down(silu(min(gate, 10)) · clamp(up, ±10)), on the calling thread. Serving mode rounds the shared
/// expert's intermediates to bf16; a routed expert takes x in fp16 (the caller's) and rounds the activation to fp16
/// alone. The result is rounded with the sum of all experts.
void CpuBackend::swiglu_rows(const PackedLinear& gate_up, const PackedLinear& down, MlpPrecision precision,
                             const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride) const {
  const int64_t width = gate_up.out / 2;
  std::vector<float> gate_and_up(static_cast<size_t>(rows * gate_up.out));
  multiply_here(gate_up, x, x_stride, rows, gate_and_up.data(), gate_up.out);
  for (int r = 0; r < rows; ++r) {
    float* gate = gate_and_up.data() + r * gate_up.out;
    if (precision == MlpPrecision::kBf16) round_bf16(gate, gate_up.out);
    kernels_.swiglu(gate, gate + width, geometry_.swiglu_limit, gate, width);
    if (precision == MlpPrecision::kBf16) {
      round_bf16(gate, width);
    } else {
      round_fp16(gate, width);
    }
  }
  multiply_here(down, gate_and_up.data(), gate_up.out, rows, y, y_stride);
}

void CpuBackend::dense_mlp(const MlpWeights& weights, Tensor x, Tensor y) {
  const int rows = batch_.rows();
  const PackedLinear& gate_up = linear(weights.gate_up);
  const int64_t width = weights.width;
  float* gate_and_up = scratch("mlp.gate_up", rows * gate_up.out);
  multiply(gate_up, row_of(x, 0), x.width, rows, gate_and_up, gate_up.out);
  pool_.parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* gate = gate_and_up + r * gate_up.out;
      kernels_.swiglu(gate, gate + width, geometry_.swiglu_limit, gate, width);
      round_bf16(gate, width);
    }
  });
  multiply(linear(weights.down), gate_and_up, gate_up.out, rows, row_of(y, 0), y.width);
}

void CpuBackend::moe(const MoeWeights& weights, Tensor x, Tensor y) {
  constexpr int kRowsPerTask = 64;
  const int rows = batch_.rows();
  const int64_t hidden = geometry_.hidden;
  const int experts = weights.experts.experts;
  const int chosen = geometry_.experts_per_token;

  // Router: scores select with the bias and weigh without it.
  float* logits = scratch("moe.logits", int64_t{rows} * experts);
  multiply(linear(weights.router), row_of(x, 0), x.width, rows, logits, experts, Rounding::kNone);
  float* routing = scratch("moe.routing", int64_t{rows} * chosen);  // [rows, chosen] w_e
  std::vector<std::vector<RoutedRow>> rows_of_expert(static_cast<size_t>(experts));
  std::vector<float> chosen_ids(trace_ == nullptr ? 0 : static_cast<size_t>(rows * chosen));
  std::vector<float> margins(trace_ == nullptr ? 0 : static_cast<size_t>(rows));  // last chosen − best not chosen
  const float* bias = vector(weights.router_bias);
  std::vector<float> scores(static_cast<size_t>(experts));
  std::vector<int> order(static_cast<size_t>(experts));
  for (int r = 0; r < rows; ++r) {
    for (int e = 0; e < experts; ++e) scores[e] = 1.0F / (1.0F + std::exp(-logits[int64_t{r} * experts + e]));
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + chosen, order.end(), [&](int a, int b) {
      const float score_a = nan_lowest(scores[a] + bias[a]);
      const float score_b = nan_lowest(scores[b] + bias[b]);
      return score_a != score_b ? score_a > score_b : a < b;
    });
    if (trace_ != nullptr) {
      float rest = -INFINITY;
      for (int i = chosen; i < experts; ++i) rest = std::max(rest, scores[order[i]] + bias[order[i]]);
      margins[static_cast<size_t>(r)] = scores[order[chosen - 1]] + bias[order[chosen - 1]] - rest;
    }
    float sum = 1e-20F;
    for (int slot = 0; slot < chosen; ++slot) sum += scores[order[slot]];
    if (!geometry_.norm_topk_prob) sum = 1.0F;
    for (int slot = 0; slot < chosen; ++slot) {
      const int e = order[slot];
      routing[int64_t{r} * chosen + slot] = scores[e] / sum * geometry_.routed_scaling;
      rows_of_expert[e].push_back({r, slot});
      if (trace_ != nullptr) chosen_ids[static_cast<size_t>(r * chosen + slot)] = static_cast<float>(e);
    }
  }

  // Every task runs one expert over up to 64 of its rows; expert index `experts` is the shared one, over all rows.
  struct Task {
    int expert;
    int first;
    int count;
  };
  std::vector<Task> tasks;
  const auto add_tasks = [&](int expert, int count) {
    for (int first = 0; first < count; first += kRowsPerTask) {
      tasks.push_back({expert, first, std::min(kRowsPerTask, count - first)});
    }
  };
  add_tasks(experts, rows);
  for (int e = 0; e < experts; ++e) add_tasks(e, static_cast<int>(rows_of_expert[e].size()));

  float* expert_rows = scratch("moe.expert_rows", int64_t{rows} * chosen * hidden);  // [rows, chosen, hidden] E_e(x)
  float* shared_rows = scratch("moe.shared_rows", rows * hidden);
  const std::vector<PackedExpert>& bank = expert_banks_.at(static_cast<size_t>(weights.experts.handle));
  const PackedLinear& shared_gate_up = linear(weights.shared.gate_up);
  const PackedLinear& shared_down = linear(weights.shared.down);
  pool_.parallel_for(static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> gathered(static_cast<size_t>(kRowsPerTask * hidden));
    std::vector<float> result(gathered.size());
    for (int64_t t = begin; t < end; ++t) {
      const Task& task = tasks[static_cast<size_t>(t)];
      if (task.expert == experts) {
        swiglu_rows(shared_gate_up, shared_down, MlpPrecision::kBf16, row_of(x, task.first), x.width, task.count,
                    shared_rows + task.first * hidden, hidden);
        continue;
      }
      const RoutedRow* routed = rows_of_expert[task.expert].data() + task.first;
      for (int i = 0; i < task.count; ++i) std::copy_n(row_of(x, routed[i].row), hidden, gathered.begin() + i * hidden);
      round_fp16(gathered.data(), task.count * hidden);
      const PackedExpert& expert = bank[task.expert];
      swiglu_rows(expert.gate_up, expert.down, MlpPrecision::kExpert, gathered.data(), hidden, task.count,
                  result.data(), hidden);
      for (int i = 0; i < task.count; ++i) {
        const int64_t place = int64_t{routed[i].row} * chosen + routed[i].slot;
        std::copy_n(result.begin() + i * hidden, hidden, expert_rows + place * hidden);
      }
    }
  });

  // The sum runs in slot order, so it depends on the row alone.
  pool_.parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* out = row_of(y, r);
      std::fill_n(out, hidden, 0.0F);
      for (int slot = 0; slot < chosen; ++slot) {
        kernels_.axpy(routing[r * chosen + slot], expert_rows + (r * chosen + slot) * hidden, out, hidden);
      }
      kernels_.axpy(1.0F, shared_rows + r * hidden, out, hidden);
      round_bf16(out, hidden);
    }
  });

  if (trace_ == nullptr) return;
  trace(weights.layer, "router.in", row_of(x, 0), hidden);
  trace(weights.layer, "router.out0", logits, experts);
  trace(weights.layer, "router.out1", routing, chosen);
  trace(weights.layer, "router.out2", chosen_ids.data(), chosen);
  trace(weights.layer, "router.margin", margins.data(), 1);
  trace(weights.layer, "shared_experts.in", row_of(x, 0), hidden);
  trace(weights.layer, "shared_experts.out0", shared_rows, hidden);
}

}  // namespace glm53::cpu
