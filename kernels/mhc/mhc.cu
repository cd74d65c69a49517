// mHC site: post update of one sub-block, coefficients, collapse and RMSNorm for the next.
//
// Operation   X'_j = bf(post_j·y + Σ_i C[i][j]·X_i); z = rms(X')·(fn · X'); pre, post, C from z (Sinkhorn);
//             normed = bf(RMSNorm(bf(Σ_h pre_h·X'_h)))
// Shapes      streams X [rows, 4, D] bf16, y and normed [rows, D] bf16, fn [24, 4D] bf16 or fp32, mix [rows, 20] fp32
// Rounding    X' once, the collapse once, normed once; all else fp32. Products of fn are exact in the tensor core (an
//             fp32 fn enters as three bf16 parts); 32 columns of all streams are summed there, then four such slices of
//             a block in order, then the blocks' sums in an order fixed by D. Sinkhorn with the hardware's 1/x.
// Bound       memory. Kernel 1 reads X and y, writes X'; kernel 2 finds X' in L2. Few rows: latency of two kernels
//             (fn, 786 KB a site, is 0.2 µs of bandwidth on H200 and 3.5 µs on GB10).
#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/common/cuda_check.h"
#include "kernels/common/mma.h"
#include "kernels/common/overlap.h"
#include "kernels/common/reciprocal_approx.h"
#include "kernels/common/sum.h"
#include "kernels/common/vector8.h"
#include "kernels/mhc/mhc.h"

namespace glm53::kernels {
namespace {

constexpr int kZ = 2 * kMhcStreams + kMhcStreams * kMhcStreams;  // z_pre[4] | z_post[4] | Z_comb[4][4]
constexpr int kSquares = kZ;                                     // Σ X'² follows them
constexpr int kPartial = 28;                                     // kZ + 1, padded to 16 bytes
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFU;

constexpr int kSliceWarps = 4;
constexpr int kWarpColumns = 32;  // of each stream
constexpr int kSliceColumns = kSliceWarps * kWarpColumns;
constexpr int kGroupRows = 8;  // the mma's N
constexpr int kPostThreads = 128;
constexpr int kMixRows = 16;  // rows of one block of coefficients

__device__ uint32_t word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

struct MixRow {
  float post[kMhcStreams];
  float comb[kMhcStreams][kMhcStreams];
};
static_assert(sizeof(MixRow) == kMhcMix * sizeof(float));

__device__ MixRow load_mix(const float* mix) {
  MixRow row;
  const auto* from = reinterpret_cast<const float4*>(mix);
  auto* to = reinterpret_cast<float4*>(&row);
#pragma unroll
  for (int i = 0; i < kMhcMix / 4; ++i) to[i] = from[i];
  return row;
}

/// Step 9 for eight columns.
__device__ void post_update(const MixRow& mix, const uint4& y, uint4 (&x)[kMhcStreams]) {
  float update[8];
  float old[kMhcStreams][8];
  unpack8(y, update);
#pragma unroll
  for (int i = 0; i < kMhcStreams; ++i) unpack8(x[i], old[i]);
#pragma unroll
  for (int j = 0; j < kMhcStreams; ++j) {
    float now[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      float mixed = mix.comb[0][j] * old[0][e];
#pragma unroll
      for (int i = 1; i < kMhcStreams; ++i) mixed = fmaf(mix.comb[i][j], old[i][e], mixed);
      now[e] = fmaf(mix.post[j], update[e], mixed);
    }
    x[j] = pack8(now);
  }
}

/// Eight columns of one row of fn as kParts bf16 vectors whose sum is the row exactly.
template <typename Element>
struct FnParts;

template <>
struct FnParts<__nv_bfloat16> {
  static constexpr int kParts = 1;
  __device__ static void load(const __nv_bfloat16* fn, uint4 (&parts)[1]) {
    parts[0] = __ldg(reinterpret_cast<const uint4*>(fn));
  }
};

template <>
struct FnParts<float> {
  static constexpr int kParts = 3;
  __device__ static void load(const float* fn, uint4 (&parts)[3]) {
    float rest[8];
    const float4 low = __ldg(reinterpret_cast<const float4*>(fn));
    const float4 high = __ldg(reinterpret_cast<const float4*>(fn) + 1);
    rest[0] = low.x, rest[1] = low.y, rest[2] = low.z, rest[3] = low.w;
    rest[4] = high.x, rest[5] = high.y, rest[6] = high.z, rest[7] = high.w;
#pragma unroll
    for (uint4& part : parts) {
      part = pack8(rest);
      float taken[8];
      unpack8(part, taken);
#pragma unroll
      for (int e = 0; e < 8; ++e) rest[e] -= taken[e];
    }
  }
};

/// What a lane holds of the A operand: rows g, g + 8 and g + 16 of fn, its eight columns of every stream.
template <typename Element>
struct FnSlice {
  static constexpr int kParts = FnParts<Element>::kParts;
  uint4 rows[3][kMhcStreams][kParts];

  __device__ void load(const Element* fn, int hidden, int column, int g, int stream_begin, int stream_end) {
#pragma unroll
    for (int r = 0; r < 3; ++r) {
#pragma unroll
      for (int h = 0; h < kMhcStreams; ++h) {
        if (h < stream_begin || h >= stream_end) continue;
        FnParts<Element>::load(fn + (static_cast<int64_t>(g + 8 * r) * kMhcStreams + h) * hidden + column, rows[r][h]);
      }
    }
  }
};

/// Columns are permuted inside a slice so that what a lane loads in 16 bytes is what it feeds: step (i, h) of the mma
/// takes word i of streams h and h + 1 as its two halves of K. A and B are permuted alike.
template <typename Element>
__device__ void multiply_streams(const FnSlice<Element>& fn, const uint4 (&x)[kMhcStreams], int h, float (&low)[4],
                                 float (&high)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t b[2] = {word(x[h], i), word(x[h + 1], i)};
#pragma unroll
    for (int part = 0; part < FnSlice<Element>::kParts; ++part) {
      const uint32_t first[4] = {word(fn.rows[0][h][part], i), word(fn.rows[1][h][part], i),
                                 word(fn.rows[0][h + 1][part], i), word(fn.rows[1][h + 1][part], i)};
      const uint32_t second[4] = {word(fn.rows[2][h][part], i), 0, word(fn.rows[2][h + 1][part], i), 0};
      mma_m16n8k16_bf16(low, first, b);
      mma_m16n8k16_bf16(high, second, b);
    }
  }
}

__device__ float sum_squares(const uint4 (&x)[kMhcStreams]) {
  float sum = 0.0F;
#pragma unroll
  for (const uint4& vector : x) {
    float values[8];
    unpack8(vector, values);
#pragma unroll
    for (float v : values) sum = fmaf(v, v, sum);
  }
  return sum;
}

/// Kernel 1. Block (s, b): columns [128·s, …+128) of all streams of rows [b·block_rows, …).
/// partials [rows, hidden / 128, kPartial].
template <bool kPost, typename Element>
__global__ void __launch_bounds__(kSliceWarps* kWarp)
    slice_kernel(const Element* fn, const float* mix, const __nv_bfloat16* y, __nv_bfloat16* streams, int rows,
                 int hidden, int block_rows, float* partials) {
  // fp32 parts of all streams would not fit the registers: they are made again for every group.
  constexpr bool kKeepFn = FnParts<Element>::kParts == 1;
  __shared__ float warp_sums[2][kSliceWarps][kGroupRows][kPartial];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int g = lane / 4;
  const int column = static_cast<int>(blockIdx.x) * kSliceColumns + warp * kWarpColumns + 8 * (lane % 4);

  FnSlice<Element> fn_slice;
  let_next_kernel_start();
  if constexpr (kKeepFn) fn_slice.load(fn, hidden, column, g, 0, kMhcStreams);
  wait_for_previous_kernel();

  const int begin = static_cast<int>(blockIdx.y) * block_rows;
  const int end = min(rows, begin + block_rows);
  uint4 next[kMhcStreams];
  uint4 next_y = {};
  const auto fetch = [&](int row) {
    const bool present = row < end;
    const auto* from =
        reinterpret_cast<const uint4*>(streams + static_cast<int64_t>(row) * kMhcStreams * hidden + column);
#pragma unroll
    for (int h = 0; h < kMhcStreams; ++h) next[h] = present ? from[h * (hidden / 8)] : uint4{};
    if constexpr (kPost) {
      next_y = present ? *reinterpret_cast<const uint4*>(y + static_cast<int64_t>(row) * hidden + column) : uint4{};
    }
  };
  fetch(begin + g);
  int buffer = 0;
  for (int first = begin; first < end; first += kGroupRows, buffer ^= 1) {
    const int row = first + g;
    uint4 x[kMhcStreams];
#pragma unroll
    for (int h = 0; h < kMhcStreams; ++h) x[h] = next[h];
    const uint4 y_now = next_y;
    fetch(row + kGroupRows);
    if constexpr (kPost) {
      if (row < end) {
        post_update(load_mix(mix + static_cast<int64_t>(row) * kMhcMix), y_now, x);
        auto* to = reinterpret_cast<uint4*>(streams + static_cast<int64_t>(row) * kMhcStreams * hidden + column);
#pragma unroll
        for (int h = 0; h < kMhcStreams; ++h) to[h * (hidden / 8)] = x[h];
      }
    }
    float low[4] = {};   // z rows g and g + 8 of tokens 2·(l % 4) and + 1
    float high[4] = {};  // z row g + 16
#pragma unroll
    for (int h = 0; h < kMhcStreams; h += 2) {
      if constexpr (!kKeepFn) fn_slice.load(fn, hidden, column, g, h, h + 2);
      multiply_streams(fn_slice, x, h, low, high);
    }
    float squares = sum_squares(x);
    squares += __shfl_xor_sync(kAllLanes, squares, 1);
    squares += __shfl_xor_sync(kAllLanes, squares, 2);

    auto& mine = warp_sums[buffer][warp];
    const int token = 2 * (lane % 4);
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      mine[token + t][g] = low[t];
      mine[token + t][g + 8] = low[2 + t];
      mine[token + t][g + 16] = high[t];
    }
    if (lane % 4 == 0) mine[g][kSquares] = squares;
    // Two buffers: the next group's writes cannot meet this group's reads.
    __syncthreads();
    for (int at = static_cast<int>(threadIdx.x); at < kGroupRows * kPartial; at += kSliceWarps * kWarp) {
      const int t = at / kPartial;
      const int value = at % kPartial;
      if (first + t >= end || value > kSquares) continue;
      float sum = 0.0F;
#pragma unroll
      for (int w = 0; w < kSliceWarps; ++w) sum += warp_sums[buffer][w][t][value];
      partials[(static_cast<int64_t>(first + t) * gridDim.x + blockIdx.x) * kPartial + value] = sum;
    }
  }
}

__device__ float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

/// Steps 5–7 on one thread: sixteen values in registers have shorter chains than a value a lane with shuffles.
__device__ void sinkhorn(float eps, int iterations, float (&c)[kMhcStreams][kMhcStreams]) {
  const auto scale_rows = [&](float before, float after) {
#pragma unroll
    for (int i = 0; i < kMhcStreams; ++i) {
      const float r = reciprocal_approx((c[i][0] + c[i][1]) + (c[i][2] + c[i][3]) + before);
#pragma unroll
      for (int j = 0; j < kMhcStreams; ++j) c[i][j] = fmaf(c[i][j], r, after);
    }
  };
  const auto scale_columns = [&] {
#pragma unroll
    for (int j = 0; j < kMhcStreams; ++j) {
      const float r = reciprocal_approx((c[0][j] + c[1][j]) + (c[2][j] + c[3][j]) + eps);
#pragma unroll
      for (int i = 0; i < kMhcStreams; ++i) c[i][j] *= r;
    }
  };
#pragma unroll
  for (int i = 0; i < kMhcStreams; ++i) {
    const float largest = fmaxf(fmaxf(c[i][0], c[i][1]), fmaxf(c[i][2], c[i][3]));
#pragma unroll
    for (int j = 0; j < kMhcStreams; ++j) c[i][j] = expf(c[i][j] - largest);
  }
  scale_rows(0.0F, eps);  // the softmax
  scale_columns();
  // The first column normalisation counts as one of the iterations.
#pragma unroll 1
  for (int iteration = 1; iteration < iterations; ++iteration) {
    scale_rows(eps, 0.0F);
    scale_columns();
  }
}

__device__ float inverse_rms(float squares, const MhcShape& shape) {
  return 1.0F / sqrtf(squares / static_cast<float>(kMhcStreams * shape.hidden) + shape.rms_norm_eps);
}

/// mix of rows [kMixRows · block, …): a warp adds up one row's partial sums, then a thread makes one row's matrix.
__device__ void write_mix(const float* partials, int slices, const float* base, const float* scale,
                          const MhcShape& shape, int block, int rows, float* mix) {
  __shared__ float logits[kMixRows][kMhcMix + 1];  // odd: a thread a row meets no bank twice
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int first = kMixRows * block;
  const int group = lane < kMhcStreams ? 0 : lane < 2 * kMhcStreams ? 1 : 2;
  const float logit_scale = __ldg(scale + group);
  const float logit_base = __ldg(base + min(lane, kZ - 1));
  wait_for_previous_kernel();
  for (int r = thread / kWarp; r < kMixRows && first + r < rows; r += static_cast<int>(blockDim.x) / kWarp) {
    const float* mine = partials + static_cast<int64_t>(first + r) * slices * kPartial + min(lane, kSquares);
    float sum = 0.0F;
#pragma unroll 16
    for (int slice = 0; slice < slices; ++slice) sum += mine[slice * kPartial];
    const float rms = inverse_rms(__shfl_sync(kAllLanes, sum, kSquares), shape);
    const float logit = fmaf(sum * rms, logit_scale, logit_base);
    if (lane >= kMhcStreams && lane < kZ) logits[r][lane - kMhcStreams] = logit;
  }
  __syncthreads();
  if (thread >= kMixRows || first + thread >= rows) return;
  const float* row = logits[thread];
  auto* out = reinterpret_cast<float4*>(mix + static_cast<int64_t>(first + thread) * kMhcMix);
  out[0] = {2.0F * sigmoid(row[0]), 2.0F * sigmoid(row[1]), 2.0F * sigmoid(row[2]), 2.0F * sigmoid(row[3])};
  float comb[kMhcStreams][kMhcStreams];
#pragma unroll
  for (int i = 0; i < kMhcStreams; ++i) {
#pragma unroll
    for (int j = 0; j < kMhcStreams; ++j) comb[i][j] = row[kMhcStreams + kMhcStreams * i + j];
  }
  sinkhorn(shape.hc_eps, shape.sinkhorn_iterations, comb);
#pragma unroll
  for (int i = 0; i < kMhcStreams; ++i) out[1 + i] = {comb[i][0], comb[i][1], comb[i][2], comb[i][3]};
}

/// Kernel 2. The first ceil(rows / kMixRows) blocks make `mix`; every other one collapses and normalises a row, eight
/// columns a thread, and does not wait for Sinkhorn. Its warps all add up the five sums that they need.
__global__ void __launch_bounds__(1024) collapse_kernel(const float* partials, int slices, const __nv_bfloat16* streams,
                                                        const float* base, const float* scale, const float* norm,
                                                        MhcShape shape, int rows, float* mix, __nv_bfloat16* normed) {
  __shared__ float warp_squares[32];
  let_next_kernel_start();
  const int mix_blocks = (rows + kMixRows - 1) / kMixRows;
  if (static_cast<int>(blockIdx.x) < mix_blocks) {
    write_mix(partials, slices, base, scale, shape, static_cast<int>(blockIdx.x), rows, mix);
    return;
  }
  const int64_t row = static_cast<int>(blockIdx.x) - mix_blocks;
  const int hidden = shape.hidden;
  const int collapsing = hidden / 8;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const float pre_scale = __ldg(scale);
  const float4 pre_base = __ldg(reinterpret_cast<const float4*>(base));
  wait_for_previous_kernel();
  const auto* from = reinterpret_cast<const uint4*>(streams + row * kMhcStreams * hidden) + thread;
  uint4 x[kMhcStreams];
#pragma unroll
  for (int h = 0; h < kMhcStreams; ++h) x[h] = from[h * collapsing];

  float pre[kMhcStreams] = {};
  float stream_squares = 0.0F;
  for (int slice = lane; slice < slices; slice += kWarp) {
    const float* mine = partials + (row * slices + slice) * kPartial;
    const float4 z = *reinterpret_cast<const float4*>(mine);
    pre[0] += z.x;
    pre[1] += z.y;
    pre[2] += z.z;
    pre[3] += z.w;
    stream_squares += mine[kSquares];
  }
  const float rms = inverse_rms(warp_sum(stream_squares), shape);
  const float bases[kMhcStreams] = {pre_base.x, pre_base.y, pre_base.z, pre_base.w};
#pragma unroll
  for (int h = 0; h < kMhcStreams; ++h) {
    pre[h] = sigmoid(fmaf(warp_sum(pre[h]) * rms, pre_scale, bases[h])) + shape.hc_eps;
  }

  float u[8] = {};
#pragma unroll
  for (int h = 0; h < kMhcStreams; ++h) {
    float values[8];
    unpack8(x[h], values);
#pragma unroll
    for (int e = 0; e < 8; ++e) u[e] = fmaf(pre[h], values[e], u[e]);
  }
  unpack8(pack8(u), u);
  const float4 weights[2] = {__ldg(reinterpret_cast<const float4*>(norm) + 2 * thread),
                             __ldg(reinterpret_cast<const float4*>(norm) + 2 * thread + 1)};
  float squares = 0.0F;
#pragma unroll
  for (float v : u) squares = fmaf(v, v, squares);
  squares = warp_sum(squares);
  if (lane == 0) warp_squares[thread / kWarp] = squares;
  __syncthreads();
  float total = 0.0F;
  for (int warp = 0; warp < collapsing / kWarp; ++warp) total += warp_squares[warp];
  const float r = 1.0F / sqrtf(total / static_cast<float>(hidden) + shape.rms_norm_eps);
  const auto* w = reinterpret_cast<const float*>(weights);
#pragma unroll
  for (int e = 0; e < 8; ++e) u[e] = u[e] * r * w[e];
  reinterpret_cast<uint4*>(normed + row * hidden)[thread] = pack8(u);
}

__global__ void __launch_bounds__(kPostThreads)
    post_kernel(const float* mix, const __nv_bfloat16* y, int64_t vectors, int row_vectors, __nv_bfloat16* streams) {
  start_after_previous();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kPostThreads + threadIdx.x;
  if (at >= vectors) return;
  const int64_t row = at / row_vectors;
  auto* x_at = reinterpret_cast<uint4*>(streams) + row * kMhcStreams * row_vectors + at % row_vectors;
  uint4 x[kMhcStreams];
#pragma unroll
  for (int h = 0; h < kMhcStreams; ++h) x[h] = x_at[h * row_vectors];
  post_update(load_mix(mix + row * kMhcMix), reinterpret_cast<const uint4*>(y)[at], x);
#pragma unroll
  for (int h = 0; h < kMhcStreams; ++h) x_at[h * row_vectors] = x[h];
}

void check_hidden(int hidden) {
  if (hidden < 256 || hidden % 256 != 0 || hidden > 8192) {
    throw std::invalid_argument("mhc: hidden size " + std::to_string(hidden) + " is not a multiple of 256 up to 8192");
  }
}

/// Few rows: one group a block, to spread over the card. Many: one even wave of blocks, each with fn in its registers.
int rows_of_block(int rows, int slices) {
  int device = 0;
  int processors = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  constexpr int kResident = 3;  // blocks an SM, by registers
  const int groups = (rows + kGroupRows - 1) / kGroupRows;
  const int resident = std::max(1, kResident * processors / slices);
  return kGroupRows * ((groups + resident - 1) / resident);
}

template <bool kPost, typename Element>
void run_site(const MhcSiteWeights& site, const MhcShape& shape, const __nv_bfloat16* y, int rows, void* workspace,
              __nv_bfloat16* streams, float* mix, __nv_bfloat16* normed, cudaStream_t stream) {
  const auto slices = static_cast<unsigned>(shape.hidden / kSliceColumns);
  for (int first = 0; first < rows; first += kMhcPassRows) {
    const int count = std::min(kMhcPassRows, rows - first);
    const int block_rows = rows_of_block(count, static_cast<int>(slices));
    const auto blocks = static_cast<unsigned>((count + block_rows - 1) / block_rows);
    __nv_bfloat16* x = streams + static_cast<int64_t>(first) * kMhcStreams * shape.hidden;
    const int64_t at = static_cast<int64_t>(first) * shape.hidden;
    float* mix_at = mix + static_cast<int64_t>(first) * kMhcMix;
    auto* partials = static_cast<float*>(workspace);
    launch_overlapped("mhc slice launch", slice_kernel<kPost, Element>, dim3(slices, blocks), kSliceWarps * kWarp, 0,
                      stream, static_cast<const Element*>(site.fn), mix_at, kPost ? y + at : nullptr, x, count,
                      shape.hidden, block_rows, partials);
    const int mix_blocks = (count + kMixRows - 1) / kMixRows;
    launch_overlapped("mhc collapse launch", collapse_kernel, static_cast<unsigned>(mix_blocks + count),
                      static_cast<unsigned>(shape.hidden / 8), 0, stream, partials, static_cast<int>(slices), x,
                      site.base, site.scale, site.norm, shape, count, mix_at, normed + at);
  }
}

template <bool kPost>
void run(const MhcSiteWeights& site, const MhcShape& shape, const __nv_bfloat16* y, int rows, void* workspace,
         __nv_bfloat16* streams, float* mix, __nv_bfloat16* normed, cudaStream_t stream) {
  check_hidden(shape.hidden);
  const auto site_kernels = site.fn_is_fp32 ? run_site<kPost, float> : run_site<kPost, __nv_bfloat16>;
  site_kernels(site, shape, y, rows, workspace, streams, mix, normed, stream);
}

}  // namespace

size_t mhc_workspace_bytes(int rows, int hidden) {
  check_hidden(hidden);
  return static_cast<size_t>(std::min(rows, kMhcPassRows)) * static_cast<size_t>(hidden / kSliceColumns) * kPartial *
         sizeof(float);
}

void mhc_pre(const MhcSiteWeights& site, const MhcShape& shape, const __nv_bfloat16* streams, int rows, void* workspace,
             float* mix, __nv_bfloat16* normed, cudaStream_t stream) {
  // Without the post update nothing writes the streams.
  run<false>(site, shape, nullptr, rows, workspace, const_cast<__nv_bfloat16*>(streams), mix, normed, stream);
}

void mhc_post(const float* mix, const __nv_bfloat16* y, int rows, int hidden, __nv_bfloat16* streams,
              cudaStream_t stream) {
  check_hidden(hidden);
  if (rows < 1) return;
  const int64_t vectors = static_cast<int64_t>(rows) * (hidden / 8);
  const auto blocks = static_cast<unsigned>((vectors + kPostThreads - 1) / kPostThreads);
  launch_overlapped("mhc post launch", post_kernel, blocks, kPostThreads, 0, stream, mix, y, vectors, hidden / 8,
                    streams);
}

void mhc_post_pre(const MhcSiteWeights& site, const MhcShape& shape, const __nv_bfloat16* y, int rows, void* workspace,
                  __nv_bfloat16* streams, float* mix, __nv_bfloat16* normed, cudaStream_t stream) {
  run<true>(site, shape, y, rows, workspace, streams, mix, normed, stream);
}

}  // namespace glm53::kernels
