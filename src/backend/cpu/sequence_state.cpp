#include "backend/cpu/sequence_state.h"

#include <algorithm>

namespace glm53::cpu {
namespace {

int index_ring_rows(const Geometry& g) {
  const int least = std::max(32, kMaxWindowRows + g.index_kpool - 1);
  return (least + g.index_kpool - 1) / g.index_kpool * g.index_kpool;
}

}  // namespace

SequenceState make_sequence_state(const Geometry& g, int heads) {
  const size_t width = static_cast<size_t>(heads) * static_cast<size_t>(g.kda_head_dim);
  SequenceState sequence;
  sequence.kda.resize(static_cast<size_t>(g.kda_layer_count()));
  for (KdaState& layer : sequence.kda) {
    layer.state.resize(width * static_cast<size_t>(g.kda_head_dim));
    layer.log.key.resize(kMaxWindowRows * width);
    layer.log.value.resize(kMaxWindowRows * width);
    layer.log.decay.resize(kMaxWindowRows * width);
    layer.log.beta.resize(kMaxWindowRows * static_cast<size_t>(heads));
    layer.conv_rows.resize(kConvRing * 3 * width);
  }
  sequence.rings.resize(static_cast<size_t>(g.sparse_layer_count()));
  for (IndexRing& ring : sequence.rings) {
    ring.ring = index_ring_rows(g);
    ring.key.resize(static_cast<size_t>(ring.ring) * static_cast<size_t>(g.index_dim));
    ring.gate.resize(ring.key.size());
  }
  return sequence;
}

int64_t sequence_state_bytes(const Geometry& g, int heads) {
  const int64_t width = static_cast<int64_t>(heads) * g.kda_head_dim;
  const int64_t kda = width * g.kda_head_dim + kMaxWindowRows * (3 * width + heads) + kConvRing * 3 * width;
  const int64_t ring = 2LL * index_ring_rows(g) * g.index_dim;
  return static_cast<int64_t>(sizeof(float)) * (kda * g.kda_layer_count() + ring * g.sparse_layer_count());
}

void SequenceState::reset() {
  position = 0;
  state_position = 0;
  log_kind = LogKind::kNone;
  window_rows = 0;
  commit_pending = false;
  for (KdaState& layer : kda) {
    std::ranges::fill(layer.state, 0.0F);
    // Rows of negative positions are zeros: the conv of the first three tokens reads them.
    std::ranges::fill(layer.conv_rows, 0.0F);
  }
}

}  // namespace glm53::cpu
