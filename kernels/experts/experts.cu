// Routed experts: everything around the two GEMMs with code matrices.
//
// Operation   y[r] = Σ_c w[r][c] · E_{e[r][c]}(x[r]) + shared[r],
//             E(x) = down(silu(min(gate(x), limit)) · clamp(up(x), ±limit)), each matrix suh ∘ H W_q H ∘ svh
// Shapes      x, y [rows, hidden]; workspace: rotated rows [2, places, hidden] fp16, gate and up sums
//             [2, places, width] fp32, activations [places, width] fp16, down sums [places, hidden] fp32 in the rotated
//             rows' memory
// Rounding    spec 20 §3.3 (d): fp16 for x, x∘suh, rotated x, act, act∘suh, rotated act; fp32 for sums, output
//             rotations, svh, clamps, SiLU and the weighted sum, which runs in order of choice; one bf16 at the end
// Bound       the GEMMs; the kernels here move 2–4 bytes a value once
#include <algorithm>
#include <stdexcept>

#include "kernels/common/cuda_check.h"
#include "kernels/common/hadamard.h"
#include "kernels/common/overlap.h"
#include "kernels/experts/trellis_gemm.h"

namespace glm53::kernels {
namespace {

constexpr int kChunk = 128;  // Hadamard block; one warp's work
constexpr int kWarps = 8;

struct Half4 {
  __half2 low, high;
};

__device__ Half4 load_half4(const __half* from) {
  const uint2 raw = *reinterpret_cast<const uint2*>(from);
  return {*reinterpret_cast<const __half2*>(&raw.x), *reinterpret_cast<const __half2*>(&raw.y)};
}

__device__ void unpack(const Half4& h, float (&v)[4]) {
  const float2 low = __half22float2(h.low);
  const float2 high = __half22float2(h.high);
  v[0] = low.x;
  v[1] = low.y;
  v[2] = high.x;
  v[3] = high.y;
}

__device__ Half4 pack(const float (&v)[4]) { return {__floats2half2_rn(v[0], v[1]), __floats2half2_rn(v[2], v[3])}; }

__device__ void store_half4(__half* to, const Half4& h) {
  uint2 raw;
  raw.x = *reinterpret_cast<const uint32_t*>(&h.low);
  raw.y = *reinterpret_cast<const uint32_t*>(&h.high);
  *reinterpret_cast<uint2*>(to) = raw;
}

/// rn16(H (values ∘ suh)): a GEMM's input from fp16 values.
__device__ Half4 rotate_input(const Half4& values, const __half* suh, int lane) {
  const Half4 scale = load_half4(suh);
  float v[4];
  unpack({__hmul2(values.low, scale.low), __hmul2(values.high, scale.high)}, v);
  hadamard_128(v, lane);
  return pack(v);
}

/// (H sums) ∘ svh in fp32.
__device__ void rotate_output(const float* sums, const __half* svh, int lane, float (&v)[4]) {
  const float4 raw = *reinterpret_cast<const float4*>(sums);
  v[0] = raw.x;
  v[1] = raw.y;
  v[2] = raw.z;
  v[3] = raw.w;
  hadamard_128(v, lane);
  float scale[4];
  unpack(load_half4(svh), scale);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] *= scale[i];
}

/// Rows of x, gathered by place, as inputs of gate (blockIdx.z 0) and up (1; absent where it shares gate's suh).
__global__ __launch_bounds__(32 * kWarps) void rotate_rows_kernel(const ExpertRecord* records, RouteTables tables,
                                                                  const __nv_bfloat16* x, int hidden,
                                                                  int64_t projection_stride, __half* rotated) {
  start_after_previous();
  const int place = static_cast<int>(blockIdx.x);
  if (place >= tables.first_place[tables.experts]) return;
  const int chunk = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (chunk * kChunk >= hidden) return;
  const int slot = tables.slot_of_place[place];
  const ExpertRecord& record = records[tables.expert_of_slot[slot]];
  const __half* gate_suh = record.gate.suh;
  const __half* up_suh = record.up.suh;
  const bool is_up = blockIdx.z == 1;
  if (is_up && gate_suh == up_suh) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = chunk * kChunk + 4 * lane;
  const uint2 raw = *reinterpret_cast<const uint2*>(x + static_cast<int64_t>(slot / tables.topk) * hidden + column);
  const float v[4] = {__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xFFFF0000U), __uint_as_float(raw.y << 16),
                      __uint_as_float(raw.y & 0xFFFF0000U)};
  const Half4 result = rotate_input(pack(v), (is_up ? up_suh : gate_suh) + column, lane);
  store_half4(rotated + (is_up ? projection_stride : 0) + static_cast<int64_t>(place) * hidden + column, result);
}

/// Gate and up sums of a place → input of down.
__global__ __launch_bounds__(32 * kWarps) void activate_kernel(const ExpertRecord* records, RouteTables tables,
                                                               const float* sums, int64_t projection_stride, int width,
                                                               float limit, __half* activated) {
  start_after_previous();
  const int place = static_cast<int>(blockIdx.x);
  if (place >= tables.first_place[tables.experts]) return;
  const int chunk = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (chunk * kChunk >= width) return;
  const ExpertRecord& record = records[tables.expert_of_slot[tables.slot_of_place[place]]];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = chunk * kChunk + 4 * lane;
  const int64_t at = static_cast<int64_t>(place) * width + column;
  float gate[4];
  float up[4];
  rotate_output(sums + at, record.gate.svh + column, lane, gate);
  rotate_output(sums + projection_stride + at, record.up.svh + column, lane, up);
  float act[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Comparisons, not fminf: a NaN must stay one.
    const float g = gate[i] > limit ? limit : gate[i];
    const float u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
    act[i] = (1.0F / (1.0F + expf(-g))) * g * u;
  }
  store_half4(activated + at, rotate_input(pack(act), record.down.suh + column, lane));
}

/// One block: 128 columns of one row. Its warps rotate the chosen experts' sums, then each thread adds one column.
template <typename Output>
__global__ __launch_bounds__(32 * kWarps) void combine_kernel(const ExpertRecord* records, RouteTables tables,
                                                              const float* sums, const __nv_bfloat16* shared_bf16,
                                                              const float* shared_fp32, int hidden, Output* y) {
  start_after_previous();
  __shared__ float results[kMaxExpertsPerToken][kChunk];
  const int row = static_cast<int>(blockIdx.y);
  const int topk = tables.topk;
  if (tables.place_of_slot[row * topk] < 0) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int choice = static_cast<int>(threadIdx.x) / 32; choice < topk; choice += kWarps) {
    const int slot = row * topk + choice;
    const int column = static_cast<int>(blockIdx.x) * kChunk + 4 * lane;
    float v[4];
    rotate_output(sums + static_cast<int64_t>(tables.place_of_slot[slot]) * hidden + column,
                  records[tables.expert_of_slot[slot]].down.svh + column, lane, v);
    *reinterpret_cast<float4*>(&results[choice][4 * lane]) = make_float4(v[0], v[1], v[2], v[3]);
  }
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kChunk) return;
  float sum = 0.0F;
  for (int choice = 0; choice < topk; ++choice) {
    sum = fmaf(tables.weight_of_slot[row * topk + choice], results[choice][i], sum);
  }
  const int64_t at = static_cast<int64_t>(row) * hidden + static_cast<int64_t>(blockIdx.x) * kChunk + i;
  if (shared_bf16 != nullptr) sum += __bfloat162float(shared_bf16[at]);
  if (shared_fp32 != nullptr) sum += shared_fp32[at];
  if constexpr (sizeof(Output) == 2) {
    y[at] = __float2bfloat16(sum);
  } else {
    y[at] = sum;
  }
}

/// The launchers treat 3INST and MCG as one, and no pair of launches may cover the same matrix.
bool same_launch(TrellisKind a, TrellisKind b, bool generic) {
  const bool codebook = generic ? a.codebook == b.codebook : (a.codebook == 2) == (b.codebook == 2);
  return a.bits == b.bits && codebook && (a.column_major != 0) == (b.column_major != 0);
}

void launch_gemm(const TrellisGemm& gemm, bool thin, const std::vector<TrellisKind>& kinds, cudaStream_t stream) {
  static constexpr TrellisGemmLauncher kThin[] = {thin_gemm_k2, thin_gemm_k3, thin_gemm_k4, thin_gemm_k5, thin_gemm_k6};
  static constexpr TrellisGemmLauncher kTile[] = {tile_gemm_k2, tile_gemm_k3, tile_gemm_k4, tile_gemm_k5, tile_gemm_k6};
  if (gemm.segment_capacity == 0) return;
  for (size_t i = 0; i < kinds.size(); ++i) {
    const TrellisKind kind = kinds[i];
    if (kind.bits < 1 || kind.bits > 8 || kind.codebook < 0 || kind.codebook > 2) {
      throw std::invalid_argument("experts_forward: a trellis kind has bits outside 1..8 or an unknown codebook");
    }
    const bool generic = kind.bits < 2 || kind.bits > 6;
    const auto covered = [&](TrellisKind earlier) { return same_launch(earlier, kind, generic); };
    if (std::any_of(kinds.begin(), kinds.begin() + static_cast<std::ptrdiff_t>(i), covered)) continue;
    if (generic) {
      generic_trellis_gemm(gemm, kind, stream);
    } else {
      (thin ? kThin : kTile)[kind.bits - 2](gemm, kind, stream);
    }
  }
}

struct Workspace {
  __half* rotated;    // [2, places, hidden]
  float* down_sums;   // [places, hidden], the same memory
  float* sums;        // [2, places, width]
  __half* activated;  // [places, width]
};

size_t carve(void* memory, int64_t places, int64_t hidden, int64_t width, Workspace& parts) {
  auto* base = static_cast<char*>(memory);
  const auto rotated_bytes = static_cast<size_t>(2 * places * hidden) * sizeof(__half);
  const auto sums_bytes = static_cast<size_t>(2 * places * width) * sizeof(float);
  if (base != nullptr) {
    parts.rotated = reinterpret_cast<__half*>(base);
    parts.down_sums = reinterpret_cast<float*>(base);
    parts.sums = reinterpret_cast<float*>(base + rotated_bytes);
    parts.activated = reinterpret_cast<__half*>(base + rotated_bytes + sums_bytes);
  }
  return rotated_bytes + sums_bytes + static_cast<size_t>(places * width) * sizeof(__half);
}

unsigned blocks_of(int values) { return static_cast<unsigned>((values / kChunk + kWarps - 1) / kWarps); }

}  // namespace

size_t experts_workspace_bytes(const ExpertBankView& bank, int rows, int topk) {
  Workspace parts{};
  return carve(nullptr, int64_t{rows} * topk, bank.hidden, bank.width, parts);
}

void experts_forward(const ExpertBankView& bank, const RouteTables& tables, const ExpertsCall& call, void* workspace,
                     cudaStream_t stream) {
  if (bank.hidden % kChunk != 0 || bank.width % kChunk != 0 || bank.hidden < kChunk || bank.width < kChunk) {
    throw std::invalid_argument("experts_forward: hidden and width must be multiples of 128");
  }
  if (bank.experts != tables.experts || call.rows < 0 || call.rows > tables.rows ||
      (call.window && call.rows > kWindowRows)) {
    throw std::invalid_argument("experts_forward: the tables do not fit the bank or the rows");
  }
  if ((call.y_bf16 == nullptr) == (call.y_fp32 == nullptr) ||
      (call.shared_bf16 != nullptr && call.shared_fp32 != nullptr)) {
    throw std::invalid_argument("experts_forward: exactly one output and at most one shared input");
  }
  if (call.rows == 0) return;
  const int places = call.rows * tables.topk;
  Workspace parts{};
  carve(workspace, places, bank.hidden, bank.width, parts);

  const dim3 rotate_grid(static_cast<unsigned>(places), blocks_of(bank.hidden), 2);
  launch_overlapped("experts rotate launch", rotate_rows_kernel, rotate_grid, 32 * kWarps, 0, stream, bank.records,
                    tables, call.x, bank.hidden, int64_t{places} * bank.hidden, parts.rotated);

  const auto multiply = [&](TrellisGemm gemm, const std::vector<TrellisKind>& kinds) {
    gemm.records = bank.records;
    if (call.window) {
      gemm.segments = tables.thin;
      gemm.segment_count = tables.counts;
      gemm.segment_capacity = std::min(places, tables.experts);
      launch_gemm(gemm, true, kinds, stream);
    }
    gemm.segments = tables.tiles;
    gemm.segment_count = tables.counts + 1;
    // Windows: only experts with more rows than the thin kernel takes, and a row chooses an expert once.
    const int fat = call.rows > kThinExpertRows ? places / (kThinExpertRows + 1) : 0;
    gemm.segment_capacity = call.window ? fat : places / kExpertTileRows + std::min(places, tables.experts);
    launch_gemm(gemm, false, kinds, stream);
  };
  TrellisGemm gate_up{};
  gate_up.input = parts.rotated;
  gate_up.output = parts.sums;
  gate_up.input_stride = int64_t{places} * bank.hidden;
  gate_up.output_stride = int64_t{places} * bank.width;
  gate_up.in = bank.hidden;
  gate_up.out = bank.width;
  gate_up.projections = 2;
  multiply(gate_up, bank.gate_up_kinds);

  const dim3 activate_grid(static_cast<unsigned>(places), blocks_of(bank.width));
  launch_overlapped("experts activate launch", activate_kernel, activate_grid, 32 * kWarps, 0, stream, bank.records,
                    tables, parts.sums, int64_t{places} * bank.width, bank.width, bank.limit, parts.activated);

  TrellisGemm down{};
  down.input = parts.activated;
  down.output = parts.down_sums;
  down.in = bank.width;
  down.out = bank.hidden;
  down.projections = 1;
  multiply(down, bank.down_kinds);

  const dim3 combine_grid(static_cast<unsigned>(bank.hidden / kChunk), static_cast<unsigned>(call.rows));
  if (call.y_bf16 != nullptr) {
    launch_overlapped("experts combine launch", combine_kernel<__nv_bfloat16>, combine_grid, 32 * kWarps, 0, stream,
                      bank.records, tables, parts.down_sums, call.shared_bf16, call.shared_fp32, bank.hidden,
                      call.y_bf16);
  } else {
    launch_overlapped("experts combine launch", combine_kernel<float>, combine_grid, 32 * kWarps, 0, stream,
                      bank.records, tables, parts.down_sums, call.shared_bf16, call.shared_fp32, bank.hidden,
                      call.y_fp32);
  }
}

}  // namespace glm53::kernels
