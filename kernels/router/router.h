// Router of a mixture of experts: logits, choice, and the grouping of (row, choice) pairs by expert. Everything is
// built on the device: no host wait, and the same input gives the same tables.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/common/segment_table.h"

namespace glm53::kernels {

inline constexpr int kMaxExperts = 384;
inline constexpr int kMaxExpertsPerToken = 32;
inline constexpr int kThinExpertRows = 8;   ///< an expert with at most this many window rows takes the thin kernel
inline constexpr int kExpertTileRows = 64;  ///< rows of one tile of the other

/// Consecutive places of the sorted order, all of one expert.
struct ExpertSegment {
  int32_t expert;
  int32_t first;  ///< place
  int32_t rows;
  int32_t unused;
};

/// A slot is row · topk + choice; a place is a slot's position when slots are sorted by expert, stable in slot order.
/// Device memory.
struct RouteTables {
  int32_t* expert_of_slot = nullptr;  ///< [rows·topk], −1 for padding rows; by descending biased score within a row
  float* weight_of_slot = nullptr;    ///< [rows·topk]
  int32_t* slot_of_place = nullptr;   ///< [rows·topk]
  int32_t* place_of_slot = nullptr;   ///< [rows·topk], −1 for padding rows
  int32_t* first_place = nullptr;     ///< [experts + 1]
  ExpertSegment* thin = nullptr;      ///< experts with 1..kThinExpertRows rows; windows only
  ExpertSegment* tiles = nullptr;     ///< all other rows in tiles of at most kExpertTileRows
  int32_t* counts = nullptr;          ///< [2] used entries of thin and tiles
  int32_t* chunk_counts = nullptr;    ///< [chunks of 64 rows, experts], scratch of prompts
  int rows = 0;                       ///< capacity
  int topk = 0;
  int experts = 0;
};

struct RouterOptions {
  float scale = 1.0F;                    ///< routed_scaling_factor
  bool normalise = true;                 ///< norm_topk_prob
  bool window = true;                    ///< fill `thin`; at most kWindowRows rows
  const int32_t* row_segment = nullptr;  ///< [rows]; −1 marks padding rows, which are not routed. Null: no padding
};

size_t route_tables_bytes(int rows, int topk, int experts);
/// Tables inside `memory` (route_tables_bytes, 16-byte aligned, device).
RouteTables route_tables_at(void* memory, int rows, int topk, int experts);

/// logits [rows, experts] fp32 = x [rows, hidden] bf16 · weightᵀ [experts, hidden] bf16 or fp32; fp32 products and
/// sums. hidden is a multiple of 8. Throws std::invalid_argument.
void router_logits(const __nv_bfloat16* x, const __nv_bfloat16* weight, int rows, int hidden, int experts,
                   float* logits, cudaStream_t stream);
void router_logits(const __nv_bfloat16* x, const float* weight, int rows, int hidden, int experts, float* logits,
                   cudaStream_t stream);

/// s = sigmoid(logits); the topk largest of s + bias (NaN counts as −∞, ties take the lower id);
/// w = s / (Σ chosen s + 1e-20) · scale, the sum in order of choice. Fills `tables` for `rows` rows.
/// bias [experts] fp32. Throws std::invalid_argument for sizes beyond the limits above or the tables' capacity.
void route(const float* logits, const float* bias, int rows, const RouterOptions& options, const RouteTables& tables,
           cudaStream_t stream);

/// The grouping alone, for choices that are already in tables.expert_of_slot.
void group_slots(int rows, bool window, const RouteTables& tables, cudaStream_t stream);

}  // namespace glm53::kernels
