// The start of serving: working memory is sized, kernels are loaded, and calls of windows alone are recorded, one graph
// for a number of rows. A replayed call has its tables at the addresses that were recorded; its numbers come from them.
#include <algorithm>

#include "backend/cuda/cuda_backend_impl.h"

namespace glm53::cuda {
namespace {

constexpr int kGraphSegments = 8;  // most sequences of a recorded call

/// Rows of the recorded calls: exact up to 16, padded beyond.
constexpr int kGraphRows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 32, 40, 48, 56, 64};

}  // namespace

void CudaBackend::prepare(const std::function<void()>& operations, bool recordable) {
  tables_->clear();
  call_rows_ = 0;
  operations();
  scratch_.allocate();

  // The smallest prompt and the largest, which selects among pools: between them they use every prompt kernel.
  for (const int rows : {1, plan_.max_rows}) {
    const PaddedForm prompt{.kind = SegmentKind::kPrompt,
                            .rows = rows,
                            .logits = std::min(rows, plan_.max_logit_rows),
                            .segments = 1,
                            .most_tokens = rows == 1 ? 0 : plan_.most_tokens()};
    record(prompt, operations, false);
  }
  const int most_rows = std::min(plan_.max_rows, plan_.max_logit_rows);
  for (const int rows : kGraphRows) {
    if (rows > most_rows) break;
    for (const bool selects : {false, true}) {
      // Selection takes a launch's capacity from the largest context, not from the call's.
      const PaddedForm form{.kind = SegmentKind::kWindow,
                            .rows = rows,
                            .logits = rows,
                            .segments = std::min(rows, kGraphSegments),
                            .most_tokens = selects ? plan_.most_tokens() : 0};
      const bool keep = recordable && options_.graphs;
      Graph graph = record(form, operations, keep);
      if (keep) graphs_.emplace(std::pair(rows, selects), std::move(graph));
    }
  }
  stream_.wait();
}

Graph CudaBackend::record(const PaddedForm& form, const std::function<void()>& operations, bool keep) {
  tables_->upload_padded({}, form, stream_);
  call_rows_ = form.rows;
  const auto launches = [&] {
    operations();
    advance_slots();
  };
  // Eagerly first: a kernel's code may only be loaded outside of a recording.
  launches();
  return keep ? Graph(stream_, launches) : Graph();
}

bool CudaBackend::replay(const Batch& batch) {
  const bool windows =
      std::ranges::all_of(batch.segments, [](const Segment& segment) { return segment.kind == SegmentKind::kWindow; });
  if (in_forward_ || !windows || batch.segments.size() > kGraphSegments) return false;
  int64_t most_tokens = 0;
  for (const Segment& segment : batch.segments) {
    most_tokens = std::max(most_tokens, segment.first_position + segment.rows);
  }
  const bool selects = most_tokens / geometry_.index_kpool > geometry_.pools_per_query();
  const auto* const rows = std::ranges::lower_bound(kGraphRows, batch.rows());
  if (rows == std::end(kGraphRows)) return false;
  const auto graph = graphs_.find({*rows, selects});
  if (graph == graphs_.end()) return false;

  check(batch);
  const PaddedForm form{.kind = SegmentKind::kWindow,
                        .rows = *rows,
                        .logits = *rows,
                        .segments = std::min(*rows, kGraphSegments),
                        .most_tokens = most_tokens};
  tables_->upload_padded(batch, form, stream_);
  graph->second.launch(stream_);
  finish_call(batch.segments);
  return true;
}

}  // namespace glm53::cuda
