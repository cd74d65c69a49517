// mHC hyper-connections: four residual streams, mixed before and after every sub-block (spec 10 §3.3).
#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_backend_impl.h"

namespace glm53::cpu {
namespace {

constexpr int kStreams = 4;
constexpr int kMixes = 2 * kStreams + kStreams * kStreams;  // z_pre[4] | z_post[4] | Z_comb[4][4]
constexpr int64_t kRowGrain = 16;

float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }

/// Steps 5–7: softmax over each row of the logits, then alternating column and row normalisation. In place.
void sinkhorn(float (&comb)[kStreams][kStreams], float eps, int iterations) {
  for (auto& row : comb) {
    const float largest = *std::ranges::max_element(row);
    float sum = 0.0F;
    for (float& value : row) sum += value = std::exp(value - largest);
    for (float& value : row) value = value / sum + eps;
  }
  const auto normalise_columns = [&] {
    for (int j = 0; j < kStreams; ++j) {
      float sum = eps;
      for (int i = 0; i < kStreams; ++i) sum += comb[i][j];
      for (int i = 0; i < kStreams; ++i) comb[i][j] /= sum;
    }
  };
  normalise_columns();
  // The first column normalisation counts as one of the iterations.
  for (int iteration = 1; iteration < iterations; ++iteration) {
    for (auto& row : comb) {
      float sum = eps;
      for (float value : row) sum += value;
      for (float& value : row) value /= sum;
    }
    normalise_columns();
  }
}

}  // namespace

void CpuBackend::mhc_pre(const MhcSite& site, Tensor streams, Tensor mix, Tensor normed) {
  const int rows = batch_.rows();
  const int64_t hidden = geometry_.hidden;
  float* z = scratch("mhc.z", int64_t{rows} * kMixes);
  float* collapsed = trace_ == nullptr ? nullptr : scratch("mhc.x", rows * hidden);
  // Step 2 on the raw streams; step 1's scale is applied to the 24 results.
  multiply(linear(site.fn), row_of(streams, 0), streams.width, rows, z, kMixes, Rounding::kNone);

  const float* base = vector(site.base);
  const float* scale = vector(site.scale);
  const float* norm = vector(site.norm);
  pool_.parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = row_of(streams, r);
      float* zr = z + r * kMixes;
      const float mean_square = kernels_.sum_squares(x, streams.width) / static_cast<float>(streams.width);
      const float rms = 1.0F / std::sqrt(mean_square + geometry_.rms_norm_eps);

      float pre[kStreams];
      float* post = row_of(mix, r);
      for (int h = 0; h < kStreams; ++h) {
        pre[h] = sigmoid(zr[h] * rms * scale[0] + base[h]) + geometry_.hc_eps;
        post[h] = 2.0F * sigmoid(zr[kStreams + h] * rms * scale[1] + base[kStreams + h]);
      }
      float comb[kStreams][kStreams];
      for (int i = 0; i < kStreams; ++i) {
        for (int j = 0; j < kStreams; ++j) {
          const int at = 2 * kStreams + kStreams * i + j;
          comb[i][j] = zr[at] * rms * scale[2] + base[at];
        }
      }
      sinkhorn(comb, geometry_.hc_eps, geometry_.hc_sinkhorn_iters);
      std::copy_n(&comb[0][0], kStreams * kStreams, post + kStreams);

      // Step 8.
      float* out = row_of(normed, r);
      for (int64_t d = 0; d < hidden; ++d) {
        out[d] = pre[0] * x[d] + pre[1] * x[hidden + d] + pre[2] * x[2 * hidden + d] + pre[3] * x[3 * hidden + d];
      }
      round_bf16(out, hidden);
      if (collapsed != nullptr) std::copy_n(out, hidden, collapsed + r * hidden);
      rms_norm(out, norm, hidden, out);
    }
  });

  if (trace_ == nullptr) return;
  const std::string hc = site.is_ffn ? "ffn_hc." : "attn_hc.";
  std::vector<float> post(static_cast<size_t>(rows) * kStreams);
  std::vector<float> comb(static_cast<size_t>(rows) * kStreams * kStreams);
  for (int r = 0; r < rows; ++r) {
    std::copy_n(row_of(mix, r), kStreams, post.begin() + r * kStreams);
    std::copy_n(row_of(mix, r) + kStreams, kStreams * kStreams, comb.begin() + r * kStreams * kStreams);
  }
  trace(site.layer, hc + "in", row_of(streams, 0), streams.width);
  trace(site.layer, hc + "out0", post.data(), kStreams);
  trace(site.layer, hc + "out1", comb.data(), kStreams * kStreams);
  trace(site.layer, hc + "out2", collapsed, hidden);
  if (site.is_ffn) {
    trace(site.layer, "mlp.in", row_of(normed, 0), hidden);
  } else {
    trace(site.layer, "input_layernorm.in", collapsed, hidden);
    trace(site.layer, "input_layernorm.out0", row_of(normed, 0), hidden);
    trace(site.layer, "self_attn.in", row_of(normed, 0), hidden);
  }
}

void CpuBackend::mhc_post(const MhcSite& site, Tensor streams, Tensor mix, Tensor y) {
  const int64_t hidden = geometry_.hidden;
  trace(site.layer, site.is_ffn ? "mlp.out0" : "self_attn.out0", row_of(y, 0), hidden);
  pool_.parallel_for(batch_.rows(), kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* post = row_of(mix, r);
      const float* comb = post + kStreams;  // [i][j]: source stream i, target stream j
      const float* update = row_of(y, r);
      float* x = row_of(streams, r);
      for (int64_t d = 0; d < hidden; ++d) {
        const float old[kStreams] = {x[d], x[hidden + d], x[2 * hidden + d], x[3 * hidden + d]};
        for (int j = 0; j < kStreams; ++j) {
          const float mixed = comb[j] * old[0] + comb[kStreams + j] * old[1] + comb[2 * kStreams + j] * old[2] +
                              comb[3 * kStreams + j] * old[3];
          x[j * hidden + d] = post[j] * update[d] + mixed;
        }
      }
      round_bf16(x, streams.width);
    }
  });
  if (site.is_ffn) trace(site.layer, "out0", row_of(streams, 0), streams.width);
}

}  // namespace glm53::cpu
