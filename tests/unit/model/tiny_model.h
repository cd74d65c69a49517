// The tiny checkpoint on the CPU backend, driven segment by segment. Every slot has its own run of pages.
#pragma once

#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "checkpoint/config_json.h"
#include "comm/local_communicator.h"
#include "glm53/core/limits.h"
#include "golden_file.h"
#include "model/glm53_model.h"

namespace glm53::test {

/// Makes the backend that a test runs on.
using BackendFactory = std::function<std::unique_ptr<Backend>(const Geometry&)>;

class TinyModel {
 public:
  explicit TinyModel(int threads = 1, int sequences = 1, int64_t context = 1024, int max_rows = 1024)
      : TinyModel(CpuBackendOptions{.threads = threads}, sequences, context, max_rows) {}

  explicit TinyModel(const CpuBackendOptions& options, int sequences = 1, int64_t context = 1024, int max_rows = 1024)
      : TinyModel([&](const Geometry& geometry) { return make_cpu_backend(geometry, options); }, sequences, context,
                  max_rows) {}

  explicit TinyModel(const BackendFactory& factory, int sequences = 1, int64_t context = 1024, int max_rows = 1024)
      : geometry_(load_geometry(data_path("models/glm53-tiny"))) {
    checkpoint_ = Checkpoint::open(data_path("models/glm53-tiny"));
    start(factory, CheckpointInventory(*checkpoint_, geometry_), sequences, context, max_rows);
  }

  /// Its geometry, or another one, with dummy weights.
  TinyModel(const BackendFactory& factory, const DummyOptions& dummy)
      : TinyModel(factory, load_geometry(data_path("models/glm53-tiny")), dummy, 1024, 1024) {}
  TinyModel(const BackendFactory& factory, Geometry geometry, const DummyOptions& dummy, int64_t context, int max_rows)
      : geometry_(std::move(geometry)) {
    start(factory, CheckpointInventory(geometry_, dummy), 1, context, max_rows);
  }

  /// One segment of a call: `ids` of a slot.
  struct Piece {
    int slot = 0;
    std::vector<int32_t> ids;
    SegmentKind kind = SegmentKind::kPrompt;
  };

  /// Runs the pieces in one call; logits of every row (or the last alone), [rows][vocab]. Windows stay uncommitted.
  std::vector<std::vector<float>> run(const std::vector<Piece>& pieces, bool last_row_only = false) {
    std::vector<int32_t> ids;
    std::vector<Segment> segments;
    for (const Piece& piece : pieces) {
      Segment segment;
      segment.slot = piece.slot;
      segment.first_position = positions_[static_cast<size_t>(piece.slot)];
      segment.first_row = static_cast<int>(ids.size());
      segment.rows = static_cast<int>(piece.ids.size());
      segment.kind = piece.kind;
      segment.pages = pages_[static_cast<size_t>(piece.slot)];
      segments.push_back(segment);
      ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
      if (piece.kind == SegmentKind::kPrompt) positions_[static_cast<size_t>(piece.slot)] += segment.rows;
    }
    const auto rows = static_cast<int32_t>(ids.size());
    std::vector<int32_t> logit_rows(last_row_only ? 1 : ids.size());
    std::iota(logit_rows.begin(), logit_rows.end(), last_row_only ? rows - 1 : 0);
    model_->forward({ids, segments, logit_rows});
    std::vector<std::vector<float>> logits(logit_rows.size());
    for (size_t i = 0; i < logits.size(); ++i) {
      logits[i].resize(static_cast<size_t>(geometry_.vocab));
      model_->backend().read_rows(model_->logits(), static_cast<int>(i), 1, logits[i]);
    }
    return logits;
  }

  std::vector<std::vector<float>> prompt(std::vector<int32_t> ids, int slot = 0) {
    return run({{slot, std::move(ids), SegmentKind::kPrompt}});
  }

  /// Logits of the prompt's last row.
  std::vector<float> prompt_last(std::vector<int32_t> ids, int slot = 0) {
    return run({{slot, std::move(ids), SegmentKind::kPrompt}}, true).front();
  }

  std::vector<std::vector<float>> window(std::vector<int32_t> ids, int slot = 0) {
    return run({{slot, std::move(ids), SegmentKind::kWindow}});
  }

  /// Call once after a window, or again with fewer rows before the next call: `before` is the position the window began
  /// at.
  void commit(int kept, int slot = 0) {
    model_->backend().commit(slot, kept);
    window_begin_ = positions_[static_cast<size_t>(slot)];
    positions_[static_cast<size_t>(slot)] += kept;
  }
  void commit_again(int kept, int slot = 0) {
    model_->backend().commit(slot, kept);
    positions_[static_cast<size_t>(slot)] = window_begin_ + kept;
  }

  void reset(int slot = 0) {
    model_->backend().reset_sequence(slot);
    positions_[static_cast<size_t>(slot)] = 0;
  }

  /// Everything a slot's future depends on: KDA and conv states, latents, pool keys.
  std::vector<float> state(int slot = 0) {
    std::vector<float> all;
    const auto append = [&](const std::vector<float>& values) { all.insert(all.end(), values.begin(), values.end()); };
    Backend& backend = model_->backend();
    for (int i = 0; i < geometry_.kda_layer_count(); ++i) {
      append(backend.read_kda_state(slot, i));
      append(backend.read_conv_state(slot, i));
    }
    const std::vector<int32_t>& pages = pages_[static_cast<size_t>(slot)];
    const int64_t position = positions_[static_cast<size_t>(slot)];
    for (int i = 0; i < geometry_.sparse_layer_count(); ++i) {
      for (int64_t p = 0; p < position; ++p) append(backend.read_latent(i, pages, p));
      for (int64_t p = 0; p < position / geometry_.index_kpool; ++p) append(backend.read_pool_key(i, pages, p));
    }
    return all;
  }

  int64_t position(int slot = 0) const { return positions_[static_cast<size_t>(slot)]; }
  const Geometry& geometry() const { return geometry_; }
  Glm53Model& model() { return *model_; }
  Backend& backend() { return model_->backend(); }

 private:
  void start(const BackendFactory& factory, const CheckpointInventory& inventory, int sequences, int64_t context,
             int max_rows) {
    auto backend = factory(geometry_);
    ModelWeights weights = load_weights(inventory, geometry_, {}, *backend, {});
    pages_per_slot_ = (context + kPageTokens - 1) / kPageTokens;
    const CachePlan plan{.sequences = sequences,
                         .pages = pages_per_slot_ * sequences,
                         .max_rows = max_rows,
                         .max_logit_rows = std::min(max_rows, 1024)};
    model_ = std::make_unique<Glm53Model>(geometry_, std::move(backend), std::make_unique<LocalCommunicator>(),
                                          std::move(weights), plan);
    for (int slot = 0; slot < sequences; ++slot) {
      // Pages in descending order: nothing may rely on physical neighbours.
      std::vector<int32_t> pages(static_cast<size_t>(pages_per_slot_));
      for (int64_t i = 0; i < pages_per_slot_; ++i) {
        pages[static_cast<size_t>(i)] = static_cast<int32_t>((slot + 1) * pages_per_slot_ - 1 - i);
      }
      pages_.push_back(std::move(pages));
      model_->backend().reset_sequence(slot);
    }
    positions_.resize(static_cast<size_t>(sequences));
  }

  std::optional<Checkpoint> checkpoint_;
  Geometry geometry_;
  std::unique_ptr<Glm53Model> model_;
  int64_t pages_per_slot_ = 0;
  std::vector<std::vector<int32_t>> pages_;
  std::vector<int64_t> positions_;
  int64_t window_begin_ = 0;
};

inline int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
}

/// Best minus second best logit.
inline float top_margin(std::span<const float> logits) {
  float best = -INFINITY;
  float second = -INFINITY;
  for (float value : logits) {
    if (value > best) {
      second = best;
      best = value;
    } else {
      second = std::max(second, value);
    }
  }
  return best - second;
}

/// A prompt of golden/text.json by name.
inline std::vector<int32_t> golden_ids(const std::string& name) {
  for (const auto& prompt : golden_json("text.json")) {
    if (prompt.at("name") == name) return prompt.at("ids").get<std::vector<int32_t>>();
  }
  throw Error("no golden prompt " + name);
}

}  // namespace glm53::test
