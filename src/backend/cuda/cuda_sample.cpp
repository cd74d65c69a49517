// Picks ids on the device; the ids of a step are the one thing that the host waits for (spec 40 §10).
#include <algorithm>
#include <stdexcept>

#include "backend/cuda/cuda_backend_impl.h"
#include "glm53/core/philox.h"
#include "kernels/sampler/sampler.h"

namespace glm53::cuda {
namespace {

kernels::SamplerRow sampler_row(const SampleRow& row) {
  const SamplingParams& params = *row.params;
  const auto key = noise_key(params.seed, params.choice);
  kernels::SamplerRow entry;
  entry.logits_row = row.logits_row;
  entry.position = row.position;
  entry.key[0] = key[0];
  entry.key[1] = key[1];
  entry.temperature = params.temperature;
  entry.top_p = params.top_p;
  entry.top_k = params.top_k;
  entry.lowest = kernels::sampler_lowest(params.min_p);
  return entry;
}

}  // namespace

SampleBuffers::SampleBuffers(int rows_capacity, int vocab_size)
    : rows(rows_capacity),
      banned(rows_capacity * 64 + 2 * vocab_size),
      pinned_rows(static_cast<size_t>(rows) * sizeof(kernels::SamplerRow)),
      pinned_banned(static_cast<size_t>(banned) * sizeof(int32_t)),
      pinned_results(static_cast<size_t>(rows) * 2 * sizeof(int32_t)),
      device_rows(static_cast<size_t>(rows) * sizeof(kernels::SamplerRow)),
      device_banned(static_cast<size_t>(banned) * sizeof(int32_t)),
      device_results(static_cast<size_t>(rows) * 2 * sizeof(int32_t)),
      workspace(kernels::sampler_workspace_bytes(rows, rows, vocab_size)) {}

void CudaBackend::sample(Tensor logits, std::span<const SampleRow> rows, std::span<int32_t> ids) {
  SampleBuffers& buffers = *sample_buffers_;
  const auto count = static_cast<int>(rows.size());
  if (count > buffers.rows) throw std::logic_error("cuda backend: more rows to sample than CachePlan::max_logit_rows");

  // The call before waited for its results, so nothing reads the pinned side any more.
  auto* entries = buffers.pinned_rows.as<kernels::SamplerRow>();
  auto* banned = buffers.pinned_banned.as<int32_t>();
  int used = 0;
  for (int i = 0; i < count; ++i) {
    const SampleRow& row = rows[static_cast<size_t>(i)];
    entries[i] = sampler_row(row);
    if (row.banned.empty()) continue;
    entries[i].patch_slot = i;
    if (i > 0 && row.banned.data() == rows[static_cast<size_t>(i) - 1].banned.data() &&
        row.banned.size() == rows[static_cast<size_t>(i) - 1].banned.size()) {
      entries[i].banned = entries[i - 1].banned;
      continue;
    }
    const auto size = static_cast<int>(row.banned.size());
    if (used + size > buffers.banned) throw std::logic_error("cuda backend: too many banned ids in one call");
    std::ranges::copy(row.banned, banned + used);
    entries[i].banned = {used, size};
    used += size;
  }
  upload(buffers.device_rows.as<void>(), entries, static_cast<size_t>(count) * sizeof(kernels::SamplerRow));
  upload(buffers.device_banned.as<void>(), banned, static_cast<size_t>(used) * sizeof(int32_t));

  kernels::SamplerTables tables;
  tables.rows = buffers.device_rows.as<kernels::SamplerRow>();
  tables.banned = buffers.device_banned.as<int32_t>();
  kernels::SamplerOutputs outputs;
  outputs.ids = buffers.device_results.as<int32_t>();
  outputs.status = reinterpret_cast<kernels::SamplerStatus*>(outputs.ids + buffers.rows);
  kernels::sample(fp32_row(logits, 0), logits.width, static_cast<int>(logits.width), tables, count,
                  buffers.workspace.as<void>(), outputs, stream_);
  kernels::check_cuda(cudaMemcpyAsync(buffers.pinned_results.as<void>(), buffers.device_results.as<void>(),
                                      buffers.device_results.bytes(), cudaMemcpyDeviceToHost, stream_),
                      "download of sampled ids");
  sampled_.record(stream_);
  sampled_.wait();

  const auto* picked = buffers.pinned_results.as<int32_t>();
  for (int i = 0; i < count; ++i) {
    const auto status = static_cast<kernels::SamplerStatus>(picked[buffers.rows + i]);
    if (status == kernels::SamplerStatus::kNotFinite) throw SamplingError("a logit is not finite");
    if (status == kernels::SamplerStatus::kNothingAllowed) throw SamplingError("no token is allowed");
    ids[static_cast<size_t>(i)] = picked[i];
  }
}

}  // namespace glm53::cuda
