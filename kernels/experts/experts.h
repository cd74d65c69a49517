// EXL3 kernels: routed experts (windows and prompts), load-time packing, dequantisation (spec 20).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "kernels/router/router.h"

namespace glm53::kernels {

/// What decides how a trellis is decoded.
struct TrellisKind {
  int32_t bits = 0;          ///< K, 1..8
  int32_t codebook = 0;      ///< 0 = 3INST, 1 = MCG, 2 = MUL1
  int32_t column_major = 0;  ///< tile order: 0 standard, 1 column-major
};

/// One matrix y = x · W, W [in, out]. In device memory, as are the arrays.
struct ExpertMatrix {
  const uint32_t* words = nullptr;  ///< packed by exl3_pack, [in·out·K/32], 16-byte aligned
  const __half* suh = nullptr;      ///< [in] fp16, 8-byte aligned
  const __half* svh = nullptr;      ///< [out] fp16, 8-byte aligned
  TrellisKind kind;
  int32_t unused = 0;
};

/// gate and up [hidden, width], down [width, hidden]. Where gate.suh == up.suh (the same array) rows are rotated once.
struct ExpertRecord {
  ExpertMatrix gate, up, down;
};

/// One layer's experts on this rank. hidden and width are multiples of 128.
struct ExpertBankView {
  const ExpertRecord* records = nullptr;  ///< [experts], device
  int experts = 0;
  int hidden = 0;
  int width = 0;
  float limit = 0.0F;                      ///< swiglu_limit
  std::vector<TrellisKind> gate_up_kinds;  ///< the distinct kinds among all gate and up matrices, on the host
  std::vector<TrellisKind> down_kinds;
};

/// One call. Rows that the router marked as padding leave their y untouched.
struct ExpertsCall {
  const __nv_bfloat16* x = nullptr;            ///< [rows, hidden]
  const __nv_bfloat16* shared_bf16 = nullptr;  ///< [rows, hidden] shared expert's rows to add, or null
  const float* shared_fp32 = nullptr;          ///< the same in fp32; at most one of the two
  __nv_bfloat16* y_bf16 = nullptr;             ///< [rows, hidden]; exactly one of the two outputs
  float* y_fp32 = nullptr;                     ///< partial sums of a tensor-parallel rank
  int rows = 0;
  bool window = true;  ///< as RouterOptions::window of the tables
};

size_t experts_workspace_bytes(const ExpertBankView& bank, int rows, int topk);

/// y[r] = Σ_c w[r][c] · E_{e[r][c]}(x[r]) (in order of choice) + shared[r], with
///   E(x) = down(silu(min(gate(x), limit)) · clamp(up(x), ±limit)).
/// Rounding points of spec 20 §3.3 (d): x, x∘suh, the rotated rows, the activation and act∘suh in fp16; all sums,
/// output rotations and svh in fp32. A row's bits depend on nothing but the row. `workspace`:
/// experts_workspace_bytes, 256-byte aligned. Throws std::invalid_argument.
void experts_forward(const ExpertBankView& bank, const RouteTables& tables, const ExpertsCall& call, void* workspace,
                     cudaStream_t stream);

/// A block of tiles of a stored trellis [k tiles, n tiles, 16·K] I16, 4-byte aligned, as packed for the kernels above.
struct TrellisSource {
  const uint32_t* tiles = nullptr;  ///< device
  int tile_columns = 0;             ///< n tiles of the stored matrix
  int first_tile_row = 0;
  int first_tile_column = 0;
};

/// Words of `source`'s block of in × out weights (multiples of 128) in the order in which a warp reads them:
/// [out/16][in/128][…]: per 16 columns × 128 rows, lane l's 2·K words f = q·K + j (word j of its run in 64-row half q,
/// spec in exl3_run.h) as K/2 planes of 4 words a lane and, for odd K, one of 2. A permutation of the stored words.
void exl3_pack(const TrellisSource& source, int in, int out, int bits, uint32_t* packed, cudaStream_t stream);

/// Wᵀ [out, in] of a stored EXL3 matrix, or its part: rows [first_out, first_out + rows) × columns [first_in, …).
/// W is computed in fp32 and rounded once. in and out: full sizes, multiples of 128.
struct DequantiseRange {
  int first_out = 0;
  int rows = 0;
  int first_in = 0;
  int columns = 0;
  int64_t stride = 0;  ///< elements between rows of the result
};
void exl3_dequantise(const uint32_t* tiles, const __half* suh, const __half* svh, TrellisKind kind, int in, int out,
                     const DequantiseRange& range, __nv_bfloat16* weight, cudaStream_t stream);
void exl3_dequantise(const uint32_t* tiles, const __half* suh, const __half* svh, TrellisKind kind, int in, int out,
                     const DequantiseRange& range, __half* weight, cudaStream_t stream);

}  // namespace glm53::kernels
