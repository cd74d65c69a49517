// Every stateless operation of backend.h on the backends of this program, against the CPU (operation_pair.h). The
// operations with sequence state are in backend_attention_test.cpp, the sampler in sampling_test.cpp.
#include <set>

#include <gtest/gtest.h>

#include "operation_pair.h"

namespace glm53::test {
namespace {

// Limits of ‖error‖ / ‖row‖ unless said otherwise, against fp32 and against serving mode. Spec 70 §10 gives 1e-5 for
// the logits of the mHC coefficients, one bf16 ulp for streams and 3e-3 for a product rounded to bf16, all from equal
// inputs. That is what the second figures hold to. Against fp32 every rounding of a sub-block counts, up to 2^-8 of an
// element each.
constexpr double kBf16Ulp = 0x1p-7;                               // of a value just above a power of two
constexpr Tolerance kMix = {4e-5, 4e-5};                          // of an element: logits up to 4 enter exponentials
constexpr Tolerance kStreams = {0.51 * kBf16Ulp, kBf16Ulp};       // of an element: one rounding
constexpr Tolerance kNormed = {1.02 * kBf16Ulp, 2.0 * kBf16Ulp};  // of an element: two, of the collapse and the norm
constexpr Tolerance kMlp = {7e-3, 3e-3};
constexpr Tolerance kMoe = {6e-3, 3e-3};
constexpr Tolerance kHidden = {4e-3, 3e-3};
constexpr Tolerance kLogits = {5e-3, 3e-3};

/// A router choice closer than this may turn with the order of a sum.
constexpr float kRouterMargin = 1e-5F;

class BackendRows : public OperationTest {};
class BackendProjections : public OperationTest {};

INSTANTIATE_TEST_SUITE_P(Backends, BackendRows, testing::ValuesIn(operation_cases(&OperationCase::rows)), case_name);
INSTANTIATE_TEST_SUITE_P(Backends, BackendProjections, testing::ValuesIn(operation_cases(&OperationCase::projections)),
                         case_name);

TEST_P(BackendRows, embed) {
  for (const bool recorded : {false, true}) {
    Geometry g = operation_geometry();
    g.vocab = 1004;
    g.hidden = recorded ? 256 : 1280;
    const std::vector<float> table = random_bf16(random_, int64_t{g.vocab} * g.hidden, 1.0F);
    OperationPair pair(
        GetParam(), g,
        [&](Loader& loader) -> std::vector<Operation> {
          const Matrix embedding = loader.matrix(table, g.hidden, Precision::kServing);
          return {[embedding](Backend& device, const Buffers& b) { device.embed(embedding, b.streams); }};
        },
        {.recorded = recorded});
    for (Call call : stateless_calls()) {
      for (int i = 0; i < call.rows(); ++i) call.ids.push_back(static_cast<int32_t>(random_() % 1003));
      call.ids.front() = 0;
      call.ids.back() = g.vocab - 1;
      pair.reset();
      pair.run(call, {&Buffers::streams});
      const Rows streams = pair.read(&Buffers::streams, call.rows());
      ASSERT_EQ(streams.got, streams.want) << call.rows() << " rows";
    }
  }
}

/// Weights of a site. Large bases make rows of C nearly one-hot, where every epsilon counts.
struct SiteValues {
  SiteValues(std::mt19937& random, int64_t hidden, bool fn_in_bf16, float base_scale)
      : fn(random_bf16(random, 24 * 4 * hidden, 0.5F / std::sqrt(static_cast<float>(hidden)))),
        base(random_bf16(random, 24, base_scale)),
        scale(random_bf16(random, 3, 0.2F, 1.0F)),
        norm(random_bf16(random, hidden, 0.2F, 1.0F)) {
    if (fn_in_bf16) return;
    for (float& value : fn) value *= 1.0001F;
  }
  MhcSite load(Loader& loader, int64_t hidden) const {
    MhcSite site;
    site.fn = loader.matrix(fn, 4 * hidden, Precision::kFp32);
    site.base = loader.vector(base);
    site.scale = loader.vector(scale);
    site.norm = loader.vector(norm);
    return site;
  }
  std::vector<float> fn, base, scale, norm;
};

TEST_P(BackendRows, mhc) {
  enum : size_t { kPre, kPost, kPostPre, kPreOfNext };
  struct Shape {
    int hidden;
    bool fn_in_bf16;
    float base_scale;
  };
  for (const Shape& shape : {Shape{256, true, 0.5F}, {768, false, 0.5F}, {1024, true, 6.0F}, {4096, true, 1.0F}}) {
    SCOPED_TRACE("hidden " + std::to_string(shape.hidden));
    Geometry g = operation_geometry();
    g.hidden = shape.hidden;
    const SiteValues first(random_, g.hidden, shape.fn_in_bf16, shape.base_scale);
    const SiteValues second(random_, g.hidden, shape.fn_in_bf16, shape.base_scale);
    OperationPair pair(GetParam(), g, [&](Loader& loader) -> std::vector<Operation> {
      const MhcSite site = first.load(loader, g.hidden);
      const MhcSite next = second.load(loader, g.hidden);
      return {[=](Backend& device, const Buffers& b) { device.mhc_pre(site, b.streams, b.mix, b.x); },
              [=](Backend& device, const Buffers& b) { device.mhc_post(site, b.streams, b.mix, b.y); },
              [=](Backend& device, const Buffers& b) { device.mhc_post_pre(site, next, b.streams, b.mix, b.y, b.x); },
              [=](Backend& device, const Buffers& b) { device.mhc_pre(next, b.streams, b.mix, b.x); }};
    });
    for (const Call& call : stateless_calls()) {
      const int rows = call.rows();
      if (rows > 17 && g.hidden > 1024) continue;
      SCOPED_TRACE(std::to_string(rows) + " rows");
      const std::vector<float> streams = adversarial_rows(random_, 4 * rows, g.hidden);
      const std::vector<float> update = adversarial_rows(random_, rows, g.hidden);
      const auto expect_pre = [&] {
        const Rows mix = pair.read(&Buffers::mix, rows);
        EXPECT_LE(worst_element(mix.got, mix.want, mix.width, 1e-6), limit(kMix));
        for (int i = 0; i < rows * 20; i += 20) {
          const float* c = mix.got.data() + i + 4;  // columns are normalised last, rows meet 1 in the limit alone
          for (int j = 0; j < 4; ++j) EXPECT_NEAR(c[j] + c[4 + j] + c[8 + j] + c[12 + j], 1.0F, 1e-3F);
        }
        const Rows normed = pair.read(&Buffers::x, rows);
        EXPECT_LE(worst_element(normed.got, normed.want, normed.width, 1e-4), limit(kNormed));
      };
      const auto expect_streams = [&] {
        const Rows after = pair.read(&Buffers::streams, rows);
        EXPECT_LE(worst_element(after.got, after.want, after.width, 1e-4), limit(kStreams));
      };

      pair.reset();
      pair.write(&Buffers::streams, streams);
      pair.run(call, {&Buffers::mix, &Buffers::x}, kPre);
      expect_pre();

      pair.reset();
      pair.give_to_oracle(&Buffers::mix, rows);
      pair.write(&Buffers::y, update);
      pair.run(call, {}, kPost);
      expect_streams();

      // Both in one, judged as one after the other.
      pair.write(&Buffers::streams, streams);
      pair.run_oracle(call, {}, kPost);
      pair.run_tested(call, {&Buffers::x}, kPostPre);
      expect_streams();
      pair.give_to_oracle(&Buffers::streams, rows);
      pair.run_oracle(call, {&Buffers::mix, &Buffers::x}, kPreOfNext);
      expect_pre();
    }
  }
}

TEST_P(BackendProjections, dense_mlp) {
  struct Shape {
    int hidden, width;
    bool recorded;
  };
  for (const Shape& shape : {Shape{256, 128, true}, {512, 208, false}, {768, 1536, false}}) {
    SCOPED_TRACE("hidden " + std::to_string(shape.hidden) + ", width " + std::to_string(shape.width));
    Geometry g = operation_geometry();
    g.hidden = shape.hidden;
    g.dense_intermediate = shape.width;
    const float scale = 1.0F / std::sqrt(static_cast<float>(shape.hidden));
    const std::vector<float> gate_up = random_projection(random_, 2LL * shape.width, shape.hidden, scale);
    const std::vector<float> down = random_projection(random_, shape.hidden, shape.width, scale);
    OperationPair pair(
        GetParam(), g,
        [&](Loader& loader) -> std::vector<Operation> {
          MlpWeights weights;
          weights.width = shape.width;
          weights.gate_up = loader.linear(LinearGroup::kMlp, gate_up, shape.hidden, {shape.width, shape.width});
          weights.down = loader.linear(LinearGroup::kMlp, down, shape.width);
          return {[weights](Backend& device, const Buffers& b) { device.dense_mlp(weights, b.x, b.y); }};
        },
        {.recorded = shape.recorded});
    for (const Call& call : stateless_calls()) {
      pair.reset();
      pair.write(&Buffers::x, adversarial_rows(random_, call.rows(), g.hidden));
      pair.run(call, {&Buffers::y});
      const Rows y = pair.read(&Buffers::y, call.rows());
      EXPECT_LE(worst_row(y.got, y.want, y.width), limit(kMlp)) << call.rows() << " rows";
    }
  }
}

// ---------------------------------------------------------------------------------------------------------- moe

struct TrellisForm {
  int bits = 4;
  Exl3Codebook codebook = Exl3Codebook::kMcg;
  Exl3TileOrder order = Exl3TileOrder::kStandard;
};

/// A matrix of random trellis bits, with a standard deviation of about 1/√in.
class RandomTrellis {
 public:
  /// With the input scales of `suh_of`, if there is one.
  RandomTrellis(std::mt19937& random, int64_t in, int64_t out, const TrellisForm& form, const RandomTrellis* suh_of)
      : words_(static_cast<size_t>(in * out * form.bits / 32)) {
    for (uint32_t& word : words_) word = static_cast<uint32_t>(random());
    std::uniform_real_distribution<float> size(0.5F, 1.2F);
    const auto draw = [&](float scale) { return float_to_fp16((random() % 2 == 0 ? scale : -scale) * size(random)); };
    for (int64_t i = 0; i < in; ++i) suh_.push_back(draw(1.0F));
    for (int64_t i = 0; i < out; ++i) svh_.push_back(draw(1.0F / std::sqrt(static_cast<float>(in))));
    if (suh_of != nullptr) suh_ = suh_of->suh_;
    trellis_tensor_ = view(DType::kI16, {in / 16, out / 16, 16 * form.bits}, std::as_bytes(std::span(words_)));
    suh_tensor_ = view(DType::kF16, {in}, std::as_bytes(std::span(suh_)));
    svh_tensor_ = view(DType::kF16, {out}, std::as_bytes(std::span(svh_)));
    stored_.name = "test";
    stored_.in = in;
    stored_.out = out;
    stored_.bits = form.bits;
    stored_.codebook = form.codebook;
    stored_.order = form.order;
    stored_.trellis = &trellis_tensor_;
    stored_.suh = &suh_tensor_;
    stored_.svh = &svh_tensor_;
  }
  RandomTrellis(const RandomTrellis&) = delete;  // it holds views on itself
  RandomTrellis& operator=(const RandomTrellis&) = delete;

  LinearPart part() const { return {nullptr, &stored_, {0, stored_.out}, {0, stored_.in}, false}; }

 private:
  static HostTensor view(DType dtype, std::vector<int64_t> shape, std::span<const std::byte> bytes) {
    HostTensor tensor;
    tensor.name = "test";
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    tensor.bytes = bytes;
    return tensor;
  }

  std::vector<uint32_t> words_;
  std::vector<uint16_t> suh_, svh_;
  HostTensor trellis_tensor_, suh_tensor_, svh_tensor_;
  Exl3Stored stored_;
};

/// The smallest difference that decides a row's experts: infinite where all are chosen, 0 at a tie.
class RouterMargins final : public TraceSink {
 public:
  void record(std::string_view name, std::span<const float> values, int) override {
    if (name == "layer0.router.margin") margins.assign(values.begin(), values.end());
    if (name == "layer0.router.out2") {
      for (const float expert : values) chosen.insert(static_cast<int>(expert));
    }
  }
  void record_selection(int, int, std::span<const int32_t>) override {}
  void record_probabilities(int, int, int, std::span<const int32_t>, std::span<const float>) override {}
  std::vector<float> margins;
  std::set<int> chosen;
};

struct MoeShape {
  int hidden, width, experts, chosen;
  bool router_in_bf16 = true;
  bool recorded = false;
  bool share_input_scales = false;  ///< gate and up of an expert have one suh
};

/// `form` of matrix m (gate, up, down) of expert e.
void expect_moe(const OperationCase& test_case, std::mt19937& random, const MoeShape& shape,
                const std::function<TrellisForm(int e, int m)>& form) {
  SCOPED_TRACE("hidden " + std::to_string(shape.hidden) + ", width " + std::to_string(shape.width) + ", " +
               std::to_string(shape.experts) + " experts, " + std::to_string(shape.chosen) + " chosen");
  Geometry g = operation_geometry();
  g.hidden = shape.hidden;
  g.moe_intermediate = shape.width;
  g.experts = shape.experts;
  g.experts_per_token = shape.chosen;
  const float scale = 1.0F / std::sqrt(static_cast<float>(shape.hidden));
  std::vector<float> router = random_bf16(random, int64_t{shape.experts} * shape.hidden, scale);
  std::vector<float> bias = random_bf16(random, shape.experts, 0.03F);
  if (!shape.router_in_bf16) {
    for (float& value : router) value *= 1.0001F;
  }
  // Twins, whose scores tie to the bit: the lower one goes first, also where the choice ends between them.
  for (int e = 1; e < shape.experts; e += 8) {
    std::copy_n(router.begin() + int64_t{e - 1} * shape.hidden, shape.hidden,
                router.begin() + int64_t{e} * shape.hidden);
    bias[static_cast<size_t>(e)] = bias[static_cast<size_t>(e) - 1];
  }
  const std::vector<float> shared_gate_up = random_projection(random, 2LL * shape.width, shape.hidden, scale);
  const std::vector<float> shared_down = random_projection(random, shape.hidden, shape.width, scale);
  std::vector<std::unique_ptr<RandomTrellis>> matrices;
  std::vector<ExpertParts> parts;
  for (int e = 0; e < shape.experts; ++e) {
    const auto add = [&](int m, int64_t in, int64_t out, const RandomTrellis* suh_of) {
      matrices.push_back(std::make_unique<RandomTrellis>(random, in, out, form(e, m), suh_of));
      return matrices.back().get();
    };
    const RandomTrellis* gate = add(0, shape.hidden, shape.width, nullptr);
    const RandomTrellis* up = add(1, shape.hidden, shape.width, shape.share_input_scales ? gate : nullptr);
    const RandomTrellis* down = add(2, shape.width, shape.hidden, nullptr);
    parts.push_back({gate->part(), up->part(), down->part()});
  }
  OperationPair pair(test_case, g,
                     [&](Loader& loader) -> std::vector<Operation> {
                       MoeWeights weights;
                       weights.router = loader.matrix(router, shape.hidden, Precision::kFp32);
                       weights.router_bias = loader.vector(bias);
                       weights.experts = loader.experts(parts);
                       weights.shared.width = shape.width;
                       weights.shared.gate_up = loader.linear(LinearGroup::kShared, shared_gate_up, shape.hidden,
                                                              {shape.width, shape.width});
                       weights.shared.down = loader.linear(LinearGroup::kShared, shared_down, shape.width);
                       return {[weights](Backend& device, const Buffers& b) { device.moe(weights, b.x, b.y); }};
                     },
                     {.recorded = shape.recorded});
  int rows_run = 0;
  int rows_left_out = 0;
  std::set<int> chosen;
  for (const Call& call : stateless_calls()) {
    RouterMargins routes;
    pair.reset();
    pair.write(&Buffers::x, adversarial_rows(random, call.rows(), g.hidden));
    pair.oracle().set_trace(&routes);
    pair.run(call, {&Buffers::y});
    pair.oracle().set_trace(nullptr);
    std::vector<bool> skip;
    for (const float margin : routes.margins) skip.push_back(margin > 0.0F && margin < kRouterMargin);
    rows_run += call.rows();
    rows_left_out += static_cast<int>(std::ranges::count(skip, true));
    chosen.merge(routes.chosen);
    const Rows y = pair.read(&Buffers::y, call.rows());
    EXPECT_LE(worst_row(y.got, y.want, y.width, 1e-6, skip), kMoe.of(test_case)) << call.rows() << " rows";
  }
  EXPECT_LE(rows_left_out, rows_run / 100) << "of " << rows_run;
  EXPECT_GE(static_cast<int>(chosen.size()), shape.experts * 3 / 4) << "experts that no row chose are not tested";
}

TEST_P(BackendProjections, moe_of_every_trellis_form) {
  // 16 experts of 3 matrices: K = 1..8, three codebooks, both tile orders.
  const auto form = [](int e, int m) {
    const int index = 3 * e + m;
    return TrellisForm{index % 8 + 1, static_cast<Exl3Codebook>(index / 8 % 3),
                       index / 24 == 0 ? Exl3TileOrder::kStandard : Exl3TileOrder::kColumnMajor};
  };
  expect_moe(GetParam(), random_, {.hidden = 256, .width = 256, .experts = 16, .chosen = 4}, form);
}

TEST_P(BackendProjections, moe_of_one_form) {
  for (int bits = 1; bits <= 8; ++bits) {
    const TrellisForm form{bits, static_cast<Exl3Codebook>(bits % 3),
                           bits % 2 == 0 ? Exl3TileOrder::kStandard : Exl3TileOrder::kColumnMajor};
    expect_moe(GetParam(), random_,
               {.hidden = bits % 2 == 0 ? 256 : 512,
                .width = 128 + 128 * (bits % 3),
                .experts = 5,
                .chosen = 1 + bits % 3,
                .router_in_bf16 = bits % 2 == 0,
                .recorded = bits == 4,
                .share_input_scales = bits > 4},
               [&](int, int) { return form; });
  }
}

TEST_P(BackendProjections, moe_of_many_experts) {
  expect_moe(GetParam(), random_, {.hidden = 256, .width = 128, .experts = 288, .chosen = 8},
             [](int e, int) { return TrellisForm{e % 2 == 0 ? 4 : 3}; });
}

// --------------------------------------------------------------------------------------------------------- head

TEST_P(BackendProjections, head) {
  struct Shape {
    int hidden, vocab;
    bool recorded;
  };
  for (const Shape& shape : {Shape{256, 1004, false}, {1024, 512, true}, {512, 40, false}}) {
    SCOPED_TRACE("hidden " + std::to_string(shape.hidden) + ", vocabulary " + std::to_string(shape.vocab));
    Geometry g = operation_geometry();
    g.hidden = shape.hidden;
    g.vocab = shape.vocab;
    const std::vector<float> norm = random_bf16(random_, g.hidden, 0.3F, 1.0F);
    const std::vector<float> lm_head =
        random_projection(random_, g.vocab, g.hidden, 3.0F / std::sqrt(static_cast<float>(g.hidden)));
    OperationPair pair(
        GetParam(), g,
        [&](Loader& loader) -> std::vector<Operation> {
          const HeadWeights weights{loader.vector(norm), loader.linear(LinearGroup::kHead, lm_head, g.hidden)};
          return {
              [weights](Backend& device, const Buffers& b) { device.head(weights, b.streams, b.hidden, b.logits); }};
        },
        {.recorded = shape.recorded});
    for (Call call : stateless_calls()) {
      const int rows = call.rows();
      for (const int every : {1, 3}) {
        call.logit_rows.clear();
        for (int r = rows - 1; r >= 0; r -= every) call.logit_rows.insert(call.logit_rows.begin(), r);
        const auto logit_rows = static_cast<int>(call.logit_rows.size());
        pair.reset();
        pair.write(&Buffers::streams, adversarial_rows(random_, 4 * rows, g.hidden));
        pair.run(call, {&Buffers::hidden, &Buffers::logits});
        const Rows hidden = pair.read(&Buffers::hidden, logit_rows);
        EXPECT_LE(worst_row(hidden.got, hidden.want, hidden.width), limit(kHidden)) << rows << " rows";
        const Rows logits = pair.read(&Buffers::logits, logit_rows);
        EXPECT_LE(worst_row(logits.got, logits.want, logits.width), limit(kLogits)) << rows << " rows";
      }
    }
  }
}

}  // namespace
}  // namespace glm53::test
