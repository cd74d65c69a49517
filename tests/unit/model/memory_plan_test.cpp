// The memory plan, printed by --check and compared with what the machine has, against what a forward call really takes.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend_impl.h"
#include "tiny_model.h"

namespace glm53::test {
namespace {

TEST(CpuMemoryPlan, activations_are_what_forward_calls_take) {
  constexpr int kRows = 128;
  const cpu::CpuBackend* backend = nullptr;
  TinyModel tiny(
      [&backend](const Geometry& geometry) {
        auto made = std::make_unique<cpu::CpuBackend>(geometry, CpuBackendOptions{.threads = 1});
        backend = made.get();
        return made;
      },
      /*sequences=*/1, /*context=*/512, /*max_rows=*/kRows);
  const CachePlan plan{.sequences = 1, .pages = 8, .max_rows = kRows, .max_logit_rows = kRows};
  const int64_t planned = backend->plan_memory(plan).activations;
  // Long enough for the selection of pools, then a window.
  for (int call = 0; call < 3; ++call) tiny.prompt(std::vector<int32_t>(kRows, 300 + call));
  tiny.window(std::vector<int32_t>(kMaxWindowRows, 7));
  const int64_t taken = backend->activation_bytes();

  // Beyond the buffers, the plan holds what the threads and the sampler take for a moment.
  CachePlan no_rows = plan;
  no_rows.max_rows = no_rows.max_logit_rows = 0;
  const int64_t passing = backend->plan_memory(no_rows).activations;
  const int64_t pool_weights = int64_t{tiny.geometry().index_kpool} * tiny.geometry().index_dim * 4;
  EXPECT_EQ(planned - passing + pool_weights, taken);
  EXPECT_GT(passing, 0);
}

}  // namespace
}  // namespace glm53::test
