// The backend interface: whole sub-blocks of the model on one device. The forward pass (model/glm53_model.cpp) calls
// these in execution order; a backend may fuse, reorder or capture them as long as the results hold.
//
// Exactness (00-decisions §4, binding on every backend): the bits of a row's results and of a sequence's state depend
// neither on the other rows or sequences of the call, nor on where a prompt is cut, nor on whether window rows come
// in one call or one by one.
//
// Threads: one thread drives a backend; no method may be called while another runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/weights.h"
#include "glm53/core/batch.h"
#include "glm53/core/geometry.h"
#include "glm53/core/limits.h"
#include "glm53/core/sampling.h"
#include "glm53/core/tensor_stream.h"

namespace glm53 {

/// Activations in the serving dtype (fp32 on the CPU, bf16 on a GPU), or coefficients that stay fp32 everywhere.
enum class Precision : uint8_t { kServing, kFp32 };

/// Activation memory of a backend: a view on up to `capacity_rows` rows.
struct Tensor {
  void* data = nullptr;
  Precision precision = Precision::kServing;
  int64_t capacity_rows = 0;
  int64_t width = 0;  ///< elements a row
};

/// What the caches must hold; fixed at start, so that serving never allocates.
struct CachePlan {
  int sequences = 1;       ///< slots for live sequences
  int64_t pages = 0;       ///< physical 64-token pages shared by all sequences
  int64_t context = 0;     ///< most tokens of one sequence; 0: as many as the pages hold
  int max_rows = 0;        ///< most rows of one forward call
  int max_logit_rows = 0;  ///< most rows of one call for which the head runs

  int64_t most_tokens() const { return context > 0 ? context : pages * kPageTokens; }
};

/// Bytes a backend would take for a plan; printed by --check before anything is allocated.
struct MemoryPlan {
  int64_t weights = 0;
  int64_t sequence_state = 0;  ///< KDA states, row logs, conv and indexer rings of all slots
  int64_t pages = 0;           ///< latents and pool keys
  int64_t activations = 0;
  int64_t runtime = 0;  ///< a GPU's code and recorded graphs, and what its allocations are rounded up by
  int64_t total() const { return weights + sequence_state + pages + activations + runtime; }
};

/// Receives intermediate values by golden name ("layer0.attn_hc.in"); tests only, null while serving.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  /// `values` [rows, values.size() / rows] fp32.
  virtual void record(std::string_view name, std::span<const float> values, int rows) = 0;
  /// Selected positions of one query row, in score order then tail.
  virtual void record_selection(int layer, int row, std::span<const int32_t> positions) = 0;
  /// Softmax probabilities of one query row and head over exactly those positions.
  virtual void record_probabilities(int layer, int row, int head, std::span<const int32_t> positions,
                                    std::span<const float> probabilities) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual std::string_view name() const = 0;

  // ---- weights, at load time only. A backend may put the reading off to finish_loading, so that a stream can run
  // ahead of it in the order of these calls: the tensors behind `parts` live until that returns.
  /// While planning, load_* calls read and keep nothing: their results are of no use but to ask plan_memory().weights
  /// what such calls would take. Switching sets that to zero.
  virtual void plan_weights(bool planning) = 0;
  /// Rows of all parts stacked: [Σ rows, in].
  virtual Linear load_linear(std::string_view name, LinearGroup group, std::span<const LinearPart> parts) = 0;
  /// One matrix a part, all of one shape.
  virtual LinearBatch load_linear_batch(std::string_view name, LinearGroup group,
                                        std::span<const LinearPart> matrices) = 0;
  /// kServing: rounded to the serving dtype; kFp32: as exact as stored.
  virtual Matrix load_matrix(std::string_view name, const LinearPart& part, Precision precision) = 0;
  /// Elements of all parts concatenated, kept in fp32.
  virtual Vector load_vector(std::string_view name, std::span<const VectorPart> parts) = 0;
  /// One MoE layer's routed experts of this rank.
  virtual ExpertBank load_experts(std::string_view name, std::span<const ExpertParts> experts) = 0;
  /// Bytes of stored tensors that the calls so far have put off.
  virtual int64_t bytes_to_load() const { return 0; }
  /// After the last load_* call. Reads what was put off through a stream that `open` makes, in the order of the calls;
  /// `progress`, which may be empty, gets the bytes done, up to bytes_to_load(). Throws Error naming the file and
  /// tensor that cannot be read or holds what it may not.
  virtual void finish_loading(const OpenTensorStream& /*open*/,
                              const std::function<void(int64_t bytes)>& /*progress*/) {}

  // ---- memory, at start only
  virtual MemoryPlan plan_memory(const CachePlan& plan) const = 0;
  virtual void create_caches(const CachePlan& plan) = 0;
  /// Activation buffer of plan.max_rows rows.
  virtual Tensor create_activations(std::string_view name, int64_t width, Precision precision) = 0;
  /// Buffer of plan.max_logit_rows rows.
  virtual Tensor create_logit_rows(std::string_view name, int64_t width, Precision precision) = 0;
  /// The last step before serving. `operations` are those of one forward call; the backend runs them as often as it
  /// wants to, over calls without rows or of padding alone, to size its working memory, load its code and record the
  /// calls that replay() knows. Not recordable: something between the operations runs on the host (a collective of the
  /// CPU).
  virtual void prepare(const std::function<void()>& operations, bool recordable) = 0;

  // ---- sequences
  /// Empties a slot: position 0, KDA state, conv rows and logs zero.
  virtual void reset_sequence(int slot) = 0;
  /// Keeps the first `kept_rows` of the slot's last window; the others never happened (spec 30 §7). Required after
  /// every window before the slot's next segment; may be repeated with a smaller count until then.
  virtual void commit(int slot, int kept_rows) = 0;

  // ---- a whole forward call from a recording
  /// Checks, uploads and runs the call as begin_forward, the operations and end_forward would, to the bit, if a call of
  /// its form was recorded. False: nothing happened.
  virtual bool replay(const Batch& batch) = 0;

  // ---- one forward call; between begin_forward and end_forward the operations below run in model order
  /// Checks the segments against the sequences' positions (std::logic_error on a caller's mistake) and uploads the
  /// tables.
  virtual void begin_forward(const Batch& batch) = 0;
  virtual void end_forward() = 0;

  /// All four streams of a row = its embedding. streams [rows, 4, hidden].
  virtual void embed(const Matrix& embedding, Tensor streams) = 0;

  /// mHC site, steps 1–8 of spec 10 §3.3, and the site's RMSNorm. streams [rows, 4, hidden] → normed [rows, hidden],
  /// mix [rows, 20] fp32 = post[4] | C[4][4] for mhc_post.
  virtual void mhc_pre(const MhcSite& site, Tensor streams, Tensor mix, Tensor normed) = 0;
  /// Step 9: streams'_j = post_j · y + Σ_i C[i][j] · streams_i, in place.
  virtual void mhc_post(const MhcSite& site, Tensor streams, Tensor mix, Tensor y) = 0;
  /// Step 9 of one site and steps 1–8 of the next; a GPU does both in one kernel.
  virtual void mhc_post_pre(const MhcSite& done, const MhcSite& next, Tensor streams, Tensor mix, Tensor y,
                            Tensor normed) {
    mhc_post(done, streams, mix, y);
    mhc_pre(next, streams, mix, normed);
  }

  /// KDA sub-block (spec 10 §3.5) with the sequences' states. x [rows, hidden] → y [rows, hidden], this rank's heads
  /// only.
  virtual void kda(const KdaWeights& weights, Tensor x, Tensor y) = 0;
  /// Sparse MLA sub-block with the pooled indexer (§3.6, §3.7). Same shapes.
  virtual void sparse_attention(const SparseAttentionWeights& weights, Tensor x, Tensor y) = 0;
  /// Clamped SwiGLU (§3.8).
  virtual void dense_mlp(const MlpWeights& weights, Tensor x, Tensor y) = 0;
  /// Router, routed experts and shared expert (§3.8).
  virtual void moe(const MoeWeights& weights, Tensor x, Tensor y) = 0;

  /// Final collapse and norm of every row in Batch::logit_rows, then the head (§3.9):
  /// streams [rows, 4, hidden] → hidden [logit rows, hidden], logits [logit rows, vocab shard] fp32.
  virtual void head(const HeadWeights& weights, Tensor streams, Tensor hidden, Tensor logits) = 0;

  // ---- after a forward call
  /// Picks one id a row: out[i] by rows[i] (spec 40 §10.2; the steps are those of backend/cpu/sampler.h on every
  /// backend, and so are the ids). logits [·, vocab] fp32. Throws std::logic_error on a caller's mistake
  /// (check_sample_rows).
  virtual void sample(Tensor logits, std::span<const SampleRow> rows, std::span<SampledToken> out) = 0;

  // ---- host access: tests, logprobs, collectives of the CPU
  /// Rows [first_row, first_row + rows) as fp32 into `out` [rows, tensor.width].
  virtual void read_rows(Tensor tensor, int first_row, int rows, std::span<float> out) = 0;
  virtual void write_rows(Tensor tensor, int first_row, int rows, std::span<const float> values) = 0;
  /// KDA state of a slot at its current position [heads, 128 (k), 128 (v)] fp32. Does not change the sequence.
  virtual std::vector<float> read_kda_state(int slot, int kda_index) = 0;
  /// Last conv_kernel − 1 raw rows before the current position, oldest first [conv_kernel − 1, 3·heads·128] fp32.
  virtual std::vector<float> read_conv_state(int slot, int kda_index) = 0;
  /// Latent row of one position of a slot's sequence, through the given page table [latent] fp32.
  virtual std::vector<float> read_latent(int sparse_index, std::span<const int32_t> pages, int64_t position) = 0;
  /// Key of one complete pool [index_dim] fp32.
  virtual std::vector<float> read_pool_key(int sparse_index, std::span<const int32_t> pages, int64_t pool) = 0;

  virtual void set_trace(TraceSink* sink) = 0;
};

}  // namespace glm53
