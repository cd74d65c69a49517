#include "backend/cuda/step_tables.h"

#include <algorithm>

namespace glm53::cuda {
namespace {

size_t align(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

StepTables::StepTables(int rows, int logit_rows, int sequences, int64_t pages) {
  // A padded call has entries for more segments than there may be sequences.
  const auto row_count = static_cast<size_t>(std::max(rows, kernels::kWindowRows));
  const auto logit_count = static_cast<size_t>(std::max(logit_rows, kernels::kWindowRows));
  const auto segments = static_cast<size_t>(std::max(sequences, kernels::kWindowRows));
  const auto table_entries = static_cast<size_t>(sequences) * static_cast<size_t>(pages);
  positions_at_ = align(segments * sizeof(kernels::DeviceSegment));
  ids_at_ = positions_at_ + align(row_count * sizeof(int64_t));
  row_segment_at_ = ids_at_ + align(row_count * sizeof(int32_t));
  logits_at_ = row_segment_at_ + align(row_count * sizeof(int32_t));
  pages_at_ = logits_at_ + align(logit_count * sizeof(int32_t));
  const size_t bytes = pages_at_ + align(table_entries * sizeof(int32_t));
  for (Staging& staging : staging_) staging.memory = PinnedBuffer(bytes);
  device_ = DeviceBuffer(bytes);
}

void StepTables::upload(const Batch& batch, cudaStream_t stream) {
  begin_upload(batch);
  int first_logit = 0;
  for (size_t first = 0; first < batch.segments.size();) {
    const Segment& head = batch.segments[first];
    int rows = head.rows;
    size_t end = first + 1;
    while (end < batch.segments.size() && batch.segments[end].kind == head.kind &&
           (head.kind == SegmentKind::kPrompt || rows + batch.segments[end].rows <= kernels::kWindowRows)) {
      rows += batch.segments[end].rows;
      ++end;
    }
    add_run(batch, first, end, first_logit);
    first_logit += runs_.back().logits;
    first = end;
  }
  end_upload(stream);
}

void StepTables::upload_padded(const Batch& batch, const PaddedForm& form, cudaStream_t stream) {
  begin_upload(batch);
  add_run(batch, 0, batch.segments.size(), 0);
  Run& run = runs_.back();
  const int rows = run.rows;
  const int logits = run.logits;
  std::fill_n(staged<int32_t>(row_segment_at_) + rows, form.rows - rows, -1);
  std::fill_n(staged<int64_t>(positions_at_) + rows, form.rows - rows, int64_t{0});
  std::fill_n(staged<int32_t>(ids_at_) + rows, form.rows - rows, 0);
  std::fill_n(staged<int32_t>(logits_at_) + logits, form.logits - logits, 0);
  const auto used = static_cast<int>(batch.segments.size());
  std::fill_n(staged<kernels::DeviceSegment>(segments_at_) + used, form.segments - used, kernels::DeviceSegment{});
  run.kind = form.kind;
  run.rows = form.rows;
  run.logits = form.logits;
  run.most_tokens = form.most_tokens;
  run.tables.segment_capacity = form.segments;
  end_upload(stream);
}

void StepTables::begin_upload(const Batch& batch) {
  current_ = (current_ + 1) % kUploads;
  staging_[current_].uploaded.wait();
  runs_.clear();
  pages_used_ = 0;
  std::ranges::copy(batch.token_ids, staged<int32_t>(ids_at_));
  std::ranges::copy(batch.logit_rows, staged<int32_t>(logits_at_));
}

void StepTables::end_upload(cudaStream_t stream) {
  const size_t bytes = pages_at_ + static_cast<size_t>(pages_used_) * sizeof(int32_t);
  kernels::check_cuda(
      cudaMemcpyAsync(device_.as<void>(), staging_[current_].memory.as<void>(), bytes, cudaMemcpyHostToDevice, stream),
      "upload of the step tables");
  staging_[current_].uploaded.record(stream);
}

void StepTables::add_run(const Batch& batch, size_t first_segment, size_t end_segment, int first_logit) {
  auto* segments = staged<kernels::DeviceSegment>(segments_at_);
  auto* positions = staged<int64_t>(positions_at_);
  auto* row_segment = staged<int32_t>(row_segment_at_);
  auto* page_table = staged<int32_t>(pages_at_);

  Run run;
  if (first_segment < end_segment) {
    run.kind = batch.segments[first_segment].kind;
    run.first_row = batch.segments[first_segment].first_row;
  }
  for (size_t i = first_segment; i < end_segment; ++i) {
    const Segment& segment = batch.segments[i];
    segments[i] = {.slot = segment.slot,
                   .first_row = segment.first_row - run.first_row,
                   .rows = segment.rows,
                   .pages_begin = static_cast<int32_t>(pages_used_),
                   .first_position = segment.first_position};
    for (int r = 0; r < segment.rows; ++r) {
      row_segment[segment.first_row + r] = static_cast<int32_t>(i - first_segment);
      positions[segment.first_row + r] = segment.first_position + r;
    }
    std::ranges::copy(segment.pages, page_table + pages_used_);
    pages_used_ += static_cast<int64_t>(segment.pages.size());
    run.rows += segment.rows;
    run.most_tokens = std::max(run.most_tokens, segment.first_position + segment.rows);
  }
  run.first_logit = first_logit;
  for (size_t i = static_cast<size_t>(first_logit);
       i < batch.logit_rows.size() && batch.logit_rows[i] < run.first_row + run.rows; ++i) {
    ++run.logits;
  }
  const auto* bytes = device_.as<std::byte>();
  run.tables.segments = device_.as<kernels::DeviceSegment>() + first_segment;
  run.tables.segment_capacity = static_cast<int32_t>(end_segment - first_segment);
  run.tables.row_segment = reinterpret_cast<const int32_t*>(bytes + row_segment_at_) + run.first_row;
  run.tables.row_position = reinterpret_cast<const int64_t*>(bytes + positions_at_) + run.first_row;
  run.tables.page_table = reinterpret_cast<const int32_t*>(bytes + pages_at_);
  runs_.push_back(run);
}

}  // namespace glm53::cuda
