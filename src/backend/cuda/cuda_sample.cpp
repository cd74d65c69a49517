// Picks ids on the device; the ids of a step are the one thing that the host waits for (spec 40 §10).
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "backend/batch_check.h"
#include "backend/cuda/cuda_backend_impl.h"
#include "glm53/core/philox.h"
#include "glm53/core/token_mask.h"

namespace glm53::cuda {
namespace {

using kernels::SamplerRow;

// The kernel's types are declared apart, since kernels know nothing of the model; lists are copied as bytes.
static_assert(sizeof(LogitBias) == sizeof(kernels::LogitBias) &&
              offsetof(LogitBias, value) == offsetof(kernels::LogitBias, value));
static_assert(sizeof(TokenCount) == sizeof(kernels::LogitPenalty) &&
              offsetof(TokenCount, output) == offsetof(kernels::LogitPenalty, output_count));
static_assert(kMaxTopLogprobs <= kernels::kMaxTopLogprobs);

constexpr size_t kListEntryBytes = sizeof(int32_t) + sizeof(LogitBias) + sizeof(TokenCount);
constexpr size_t kPickWords = 2;                                   // id and status
constexpr size_t kResultWords = 3 + 2 * kernels::kMaxTopLogprobs;  // and logprobs
static_assert(sizeof(kernels::SamplerStatus) == sizeof(int32_t));

size_t upload_bytes(const CachePlan& plan, int vocab) {
  return static_cast<size_t>(plan.max_logit_rows) * sizeof(SamplerRow) +
         static_cast<size_t>(sample_list_capacity(plan, vocab)) * kListEntryBytes + 3 * sizeof(uint64_t);
}

size_t mask_bytes(const CachePlan& plan, int vocab) {
  return static_cast<size_t>(plan.max_logit_rows) * mask_words(vocab) * sizeof(uint32_t);
}

size_t result_bytes(const CachePlan& plan) {
  return static_cast<size_t>(plan.max_logit_rows) * kResultWords * sizeof(int32_t);
}

size_t workspace_bytes(const CachePlan& plan, int vocab) {
  return kernels::sampler_workspace_bytes(plan.max_logit_rows, plan.max_logit_rows, vocab);
}

SamplerRow sampler_row(const SampleRow& row) {
  const SamplingParams& params = *row.params;
  const auto key = noise_key(params.seed, params.choice);
  SamplerRow entry;
  entry.logits_row = row.logits_row;
  entry.logprobs = row.logprobs;
  entry.position = row.position;
  entry.key[0] = key[0];
  entry.key[1] = key[1];
  entry.temperature = params.temperature;
  entry.top_p = params.top_p;
  entry.top_k = params.top_k;
  entry.repetition = params.repetition;
  entry.frequency = params.frequency;
  entry.presence = params.presence;
  entry.lowest = kernels::sampler_lowest(params.min_p);
  return entry;
}

SampleStatus status_of(int32_t status) {
  switch (static_cast<kernels::SamplerStatus>(status)) {
    case kernels::SamplerStatus::kPicked:
      return SampleStatus::kPicked;
    case kernels::SamplerStatus::kNotFinite:
      return SampleStatus::kNotFinite;
    case kernels::SamplerStatus::kNothingAllowed:
      break;
  }
  return SampleStatus::kNothingAllowed;
}

void copy_async(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, const char* what, cudaStream_t stream) {
  if (bytes > 0) kernels::check_cuda(cudaMemcpyAsync(to, from, bytes, kind, stream), what);
}

}  // namespace

SampleBuffers::SampleBuffers(const CachePlan& plan, int vocab)
    : capacity_(plan.max_logit_rows),
      vocab_(vocab),
      mask_words_(static_cast<int>(mask_words(vocab))),
      upload_bytes_(upload_bytes(plan, vocab)),
      pinned_upload_(upload_bytes_),
      pinned_masks_(mask_bytes(plan, vocab)),
      pinned_results_(result_bytes(plan)),
      device_upload_(upload_bytes_),
      device_masks_(mask_bytes(plan, vocab)),
      device_results_(result_bytes(plan)),
      workspace_(workspace_bytes(plan, vocab)) {
  std::memset(pinned_masks_.as<void>(), 0, device_masks_.bytes());
  device_masks_.zero();
}

int64_t SampleBuffers::device_bytes(const CachePlan& plan, int vocab) {
  return static_cast<int64_t>(upload_bytes(plan, vocab) + mask_bytes(plan, vocab) + result_bytes(plan) +
                              workspace_bytes(plan, vocab));
}

/// Equal masks of neighbouring rows share a place.
void SampleBuffers::stage_masks(std::span<const SampleRow> rows, SamplerRow* entries, cudaStream_t stream) {
  const auto words = static_cast<size_t>(mask_words_);
  const size_t bytes = words * sizeof(uint32_t);
  std::span<const uint32_t> previous;
  int32_t used = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::span<const uint32_t> mask = rows[i].mask;
    if (mask.empty()) continue;
    if (!same_memory(mask, previous)) {
      previous = mask;
      const size_t at = static_cast<size_t>(used++) * words;
      uint32_t* mirror = pinned_masks_.as<uint32_t>() + at;
      if (std::memcmp(mirror, mask.data(), bytes) != 0) {
        std::memcpy(mirror, mask.data(), bytes);
        copy_async(device_masks_.as<uint32_t>() + at, mirror, bytes, cudaMemcpyHostToDevice, "upload of a token mask",
                   stream);
      }
    }
    entries[i].mask = used - 1;
  }
}

/// Appends the lists of one kind to the upload, once where neighbouring rows share one. Returns the device's address of
/// the first entry.
template <typename Entry, typename Item>
const Entry* SampleBuffers::stage_lists(std::span<const SampleRow> rows, std::span<const Item> SampleRow::*list,
                                        SamplerRow* entries, kernels::SamplerList SamplerRow::*range) {
  static_assert(sizeof(Entry) == sizeof(Item));
  upload_used_ = (upload_used_ + 7) / 8 * 8;
  const auto* first = reinterpret_cast<const Entry*>(device_upload_.as<char>() + upload_used_);
  std::span<const Item> previous;
  kernels::SamplerList shared;
  int32_t next = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::span<const Item> items = rows[i].*list;
    if (items.empty()) continue;
    if (!same_memory(items, previous)) {
      previous = items;
      std::memcpy(pinned_upload_.as<char>() + upload_used_, items.data(), items.size_bytes());
      upload_used_ += items.size_bytes();
      shared = {next, static_cast<int32_t>(items.size())};
      next += shared.count;
    }
    entries[i].*range = shared;
    entries[i].patch_slot = static_cast<int32_t>(i);
  }
  return first;
}

void SampleBuffers::run(const float* logits, int64_t stride, std::span<const SampleRow> rows, cudaStream_t stream) {
  auto* entries = pinned_upload_.as<SamplerRow>();
  std::ranges::transform(rows, entries, sampler_row);
  upload_used_ = rows.size() * sizeof(SamplerRow);
  stage_masks(rows, entries, stream);

  kernels::SamplerTables tables;
  tables.rows = device_upload_.as<SamplerRow>();
  tables.masks = device_masks_.as<uint32_t>();
  tables.banned = stage_lists<int32_t>(rows, &SampleRow::banned, entries, &SamplerRow::banned);
  tables.biases = stage_lists<kernels::LogitBias>(rows, &SampleRow::biases, entries, &SamplerRow::biases);
  tables.penalties = stage_lists<kernels::LogitPenalty>(rows, &SampleRow::counts, entries, &SamplerRow::penalties);
  copy_async(device_upload_.as<void>(), entries, upload_used_, cudaMemcpyHostToDevice, "upload of rows to sample",
             stream);

  kernels::SamplerOutputs outputs;
  outputs.ids = device_results_.as<int32_t>();
  outputs.status = reinterpret_cast<kernels::SamplerStatus*>(outputs.ids + capacity_);
  outputs.logprobs = reinterpret_cast<float*>(outputs.ids + 2 * capacity_);
  outputs.top_ids = outputs.ids + 3 * capacity_;
  outputs.top_logprobs = reinterpret_cast<float*>(outputs.top_ids + capacity_ * kernels::kMaxTopLogprobs);
  kernels::sample(logits, stride, vocab_, tables, static_cast<int>(rows.size()), workspace_.as<void>(), outputs,
                  stream);

  const bool logprobs = std::ranges::any_of(rows, [](const SampleRow& row) { return row.logprobs >= 0; });
  const size_t words = static_cast<size_t>(capacity_) * (logprobs ? kResultWords : kPickWords);
  copy_async(pinned_results_.as<void>(), device_results_.as<void>(), words * sizeof(int32_t), cudaMemcpyDeviceToHost,
             "download of sampled ids", stream);
}

void SampleBuffers::read(std::span<const SampleRow> rows, std::span<SampledToken> out) const {
  const auto capacity = static_cast<size_t>(capacity_);
  const auto* ids = pinned_results_.as<int32_t>();
  const auto* logprobs = pinned_results_.as<float>() + 2 * capacity;
  const int32_t* top_ids = ids + 3 * capacity;
  const float* top_logprobs = pinned_results_.as<float>() + (3 + kernels::kMaxTopLogprobs) * capacity;
  for (size_t i = 0; i < rows.size(); ++i) {
    SampledToken& token = out[i];
    token = {};
    token.status = status_of(ids[capacity + i]);
    if (token.status != SampleStatus::kPicked) continue;
    token.id = ids[i];
    if (rows[i].logprobs < 0) continue;
    token.logprob = logprobs[i];
    const size_t at = i * kernels::kMaxTopLogprobs;
    for (int k = 0; k < rows[i].logprobs && top_ids[at + static_cast<size_t>(k)] >= 0; ++k) {
      const size_t entry = at + static_cast<size_t>(k);
      token.top[static_cast<size_t>(token.top_count++)] = {top_ids[entry], top_logprobs[entry]};
    }
  }
}

void CudaBackend::sample(Tensor logits, std::span<const SampleRow> rows, std::span<SampledToken> out) {
  check_sample_rows(rows, out, plan_, static_cast<int>(logits.width));
  if (rows.empty()) return;
  sample_buffers_->run(fp32_row(logits, 0), logits.width, rows, stream_);
  sampled_.record(stream_);
  sampled_.wait();
  sample_buffers_->read(rows, out);
}

}  // namespace glm53::cuda
