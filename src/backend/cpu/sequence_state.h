// What the CPU backend keeps for sequences: KDA states with their row logs, conv rows, the indexer's raw ring, and the
// page pools of latents and pool keys.
#pragma once

#include <cstdint>
#include <vector>

#include "glm53/core/geometry.h"
#include "glm53/core/limits.h"

namespace glm53::cpu {

/// Rows that the KDA state does not hold yet.
///  - after prompt rows: the rows since the last sub-chunk boundary; the next prompt row recomputes their sub-chunk, so
///    that a prompt may be cut anywhere without changing bits;
///  - after a window: its rows; commit() says how many of them count (spec 30 §7.1).
struct KdaLog {
  std::vector<float> key;    ///< [16, H·128] fp32, conv'd and L2-normalised
  std::vector<float> value;  ///< [16, H·128] fp32
  std::vector<float> decay;  ///< [16, H·128] fp32, g
  std::vector<float> beta;   ///< [16, H] fp32
};

/// One KDA layer of one sequence.
struct KdaState {
  std::vector<float> state;  ///< [H, 128 (k), 128 (v)] fp32 after SequenceState::state_position rows
  KdaLog log;
  std::vector<float> conv_rows;  ///< [kConvRing, 3·H·128] fp32 raw q|k|v, row of position p at p mod kConvRing
};

/// A window row reads 3 rows before itself, and rejected rows must not have overwritten them.
inline constexpr int kConvRing = kMaxWindowRows + 3;

/// One sparse layer of one sequence: raw index keys and gates, at position mod `ring`. Long enough that rejected rows
/// of a window never overwrite a row of the open pool (spec 30 §7.4).
struct IndexRing {
  int ring = 0;
  std::vector<float> key;   ///< [ring, index_dim] fp32, after the LayerNorm
  std::vector<float> gate;  ///< [ring, index_dim] fp32
};

enum class LogKind : uint8_t { kNone, kPrompt, kWindow };

/// One slot.
struct SequenceState {
  int64_t position = 0;        ///< rows that belong to the sequence
  int64_t state_position = 0;  ///< rows that the KDA states hold
  LogKind log_kind = LogKind::kNone;
  int window_rows = 0;           ///< rows of the last window (log_kind kWindow)
  bool commit_pending = false;   ///< a window ran and commit() has not been called
  std::vector<KdaState> kda;     ///< [KDA layers]
  std::vector<IndexRing> rings;  ///< [sparse layers]

  int log_rows() const { return static_cast<int>(position - state_position); }
  void reset();
};

/// End of the sub-chunk that a state at `state_position` begins: the next multiple of 16.
inline int64_t chunk_end(int64_t state_position) { return (state_position / kKdaChunk + 1) * kKdaChunk; }

/// A zeroed slot for `heads` KDA heads of this rank.
SequenceState make_sequence_state(const Geometry& geometry, int heads);
int64_t sequence_state_bytes(const Geometry& geometry, int heads);

/// Latents and pool keys of one sparse layer, in pages of 64 positions.
struct LatentPages {
  std::vector<float> latents;    ///< [pages, 64, latent] fp32
  std::vector<float> pool_keys;  ///< [pages, 64 / kpool, index_dim] fp32
};

}  // namespace glm53::cpu
