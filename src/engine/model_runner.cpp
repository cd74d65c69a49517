#include "engine/model_runner.h"

#include "model/glm53_model.h"

namespace glm53::engine {
namespace {

class Glm53Runner final : public ModelRunner {
 public:
  explicit Glm53Runner(std::unique_ptr<Glm53Model> model) : model_(std::move(model)) {}

  Capacity capacity() const override {
    const CachePlan& plan = model_->plan();
    return {.vocab = model_->geometry().vocab,
            .sequences = plan.sequences,
            .pages = plan.pages,
            .rows = plan.max_rows,
            .logit_rows = plan.max_logit_rows};
  }
  void reset_sequence(int slot) override { model_->backend().reset_sequence(slot); }
  void forward(const Batch& batch) override { model_->forward(batch); }
  void sample(std::span<const SampleRow> rows, std::span<SampledToken> out) override {
    model_->backend().sample(model_->logits(), rows, out);
  }
  void commit(int slot, int kept_rows) override { model_->backend().commit(slot, kept_rows); }

 private:
  std::unique_ptr<Glm53Model> model_;
};

}  // namespace

std::unique_ptr<ModelRunner> make_model_runner(std::unique_ptr<Glm53Model> model) {
  return std::make_unique<Glm53Runner>(std::move(model));
}

}  // namespace glm53::engine
