// The forward pass, in execution order. T = rows of the call, H = 4 residual streams, D = hidden size.
#include "model/glm53_model.h"

#include <utility>

namespace glm53 {

Glm53Model::Glm53Model(Geometry geometry, std::unique_ptr<Backend> backend, std::unique_ptr<Communicator> communicator,
                       ModelWeights weights, const CachePlan& plan)
    : geometry_(std::move(geometry)),
      backend_(std::move(backend)),
      communicator_(std::move(communicator)),
      weights_(std::move(weights)),
      plan_(plan) {
  const int64_t streams = geometry_.hc_streams;
  backend_->create_caches(plan);
  streams_ = backend_->create_activations("streams", streams * geometry_.hidden, Precision::kServing);
  mix_ = backend_->create_activations("mix", streams + streams * streams, Precision::kFp32);
  x_ = backend_->create_activations("x", geometry_.hidden, Precision::kServing);
  y_ = backend_->create_activations("y", geometry_.hidden, Precision::kServing);
  hidden_ = backend_->create_logit_rows("hidden", geometry_.hidden, Precision::kServing);
  logits_ = backend_->create_logit_rows("logits", weights_.head.lm_head.out, Precision::kFp32);
  backend_->prepare([this] { run_operations(0); }, communicator_->world() == 1);
}

void Glm53Model::forward(const Batch& batch) {
  was_replayed_ = backend_->replay(batch);
  if (was_replayed_) return;
  backend_->begin_forward(batch);
  run_operations(batch.rows());
  backend_->end_forward();
}

void Glm53Model::run_operations(int rows) {
  Backend& device = *backend_;

  // Each stream starts as the token's embedding.                                   streams [T, H, D]
  device.embed(weights_.embedding, streams_);
  device.mhc_pre(weights_.layers.front().attention_site, streams_, mix_, x_);  //   x [T, D], mix [T, 4 + 16]

  for (int i = 0; i < geometry_.layers; ++i) {
    const LayerWeights& layer = weights_.layers[i];

    if (geometry_.attention[i] == AttentionKind::kLinear) {
      device.kda(layer.kda, x_, y_);  //                                              y [T, D], this rank's heads
    } else {
      device.sparse_attention(layer.sparse_attention, x_, y_);
    }
    reduce(y_, rows);
    device.mhc_post_pre(layer.attention_site, layer.ffn_site, streams_, mix_, y_, x_);

    if (geometry_.mlp[i] == MlpKind::kDense) {
      device.dense_mlp(layer.mlp, x_, y_);
    } else {
      device.moe(layer.moe, x_, y_);
    }
    reduce(y_, rows);
    if (i + 1 < geometry_.layers) {
      device.mhc_post_pre(layer.ffn_site, weights_.layers[i + 1].attention_site, streams_, mix_, y_, x_);
    } else {
      device.mhc_post(layer.ffn_site, streams_, mix_, y_);
    }
  }

  // Mean of the streams, final norm, head: only for the rows that were asked for.   hidden [L, D], logits [L, vocab]
  device.head(weights_.head, streams_, hidden_, logits_);
}

void Glm53Model::reduce(Tensor y, int rows) {
  if (communicator_->world() == 1 || rows == 0) return;
  reduce_buffer_.resize(static_cast<size_t>(rows) * static_cast<size_t>(y.width));
  backend_->read_rows(y, 0, rows, reduce_buffer_);
  communicator_->all_reduce(reduce_buffer_);
  backend_->write_rows(y, 0, rows, reduce_buffer_);
}

}  // namespace glm53
