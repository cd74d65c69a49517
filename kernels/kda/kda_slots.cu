// The KDA slot table and the emptying of slots.
//
// Operation   what a forward call, a commit, a settling or a reset makes of KdaSlot; zeroing of a layer's S and ring
// Shapes      one thread a segment or slot; reset: one block a (slot, 16 KiB)
// Rounding    none
// Bound       launch latency; reset: memory
#include "kernels/common/cuda_check.h"
#include "kernels/kda/kda_rows.h"

namespace glm53::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kResetBytes = 16 * 1024;

unsigned blocks_for(int count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

__global__ void advance_kernel(KdaSlot* slots, BatchTables tables, bool windows) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= tables.segment_capacity) return;
  const DeviceSegment segment = tables.segments[i];
  if (segment.rows <= 0) return;
  KdaSlot slot = slots[segment.slot];
  if (windows) {
    slot.log_kind = kKdaLogWindow;
    slot.state_position = segment.first_position;
    slot.logged = min(segment.rows, kKdaRows);
  } else {
    // Any log but a prompt's was replayed into S before the segment's rows.
    if (slot.log_kind != kKdaLogPrompt) slot.state_position = segment.first_position;
    const int64_t end = segment.first_position + segment.rows;
    const int64_t chunk_end = (slot.state_position / kKdaRows + 1) * kKdaRows;
    if (end >= chunk_end) slot.state_position = end / kKdaRows * kKdaRows;
    slot.log_kind = kKdaLogPrompt;
    slot.logged = static_cast<int32_t>(end - slot.state_position);
  }
  slot.kept = slot.logged;
  slots[segment.slot] = slot;
}

__global__ void commit_kernel(KdaSlot* slots, const int32_t* ids, const int32_t* kept, int count) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= count) return;
  KdaSlot& slot = slots[ids[i]];
  if (slot.log_kind == kKdaLogWindow) slot.kept = max(0, min(kept[i], slot.logged));
}

__global__ void mark_settled_kernel(KdaSlot* slots, const int32_t* ids, int count) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= count) return;
  KdaSlot slot;
  slot.state_position = slots[ids[i]].state_position + kda_kept_rows(slots[ids[i]]);
  slots[ids[i]] = slot;
}

__global__ void reset_slots_kernel(KdaSlot* slots, const int32_t* ids, int count) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < count) slots[ids[i]] = KdaSlot{};
}

/// One slot of an array of equal slots of `bytes`, a multiple of 16, each.
__global__ void zero_kernel(void* array, int64_t bytes, const int32_t* ids) {
  char* const slot = static_cast<char*>(array) + ids[blockIdx.y] * bytes;
  const int64_t begin = int64_t{blockIdx.x} * kResetBytes;
  const int64_t end = min(begin + kResetBytes, bytes);
  for (int64_t at = begin + threadIdx.x * int64_t{sizeof(uint4)}; at < end; at += int64_t{kThreads} * sizeof(uint4)) {
    *reinterpret_cast<uint4*>(slot + at) = {0, 0, 0, 0};
  }
}

void zero_slots(void* array, int64_t bytes, const int32_t* ids, int count, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((bytes + kResetBytes - 1) / kResetBytes), static_cast<unsigned>(count));
  zero_kernel<<<grid, kThreads, 0, stream>>>(array, bytes, ids);
  check_cuda(cudaGetLastError(), "kda_reset launch");
}

}  // namespace

void kda_advance(KdaSlot* slots, const BatchTables& tables, bool windows, cudaStream_t stream) {
  if (tables.segment_capacity == 0) return;
  advance_kernel<<<blocks_for(tables.segment_capacity), kThreads, 0, stream>>>(slots, tables, windows);
  check_cuda(cudaGetLastError(), "kda_advance launch");
}

void kda_commit(KdaSlot* slots, const int32_t* ids, const int32_t* kept, int count, cudaStream_t stream) {
  if (count == 0) return;
  commit_kernel<<<blocks_for(count), kThreads, 0, stream>>>(slots, ids, kept, count);
  check_cuda(cudaGetLastError(), "kda_commit launch");
}

void kda_mark_settled(KdaSlot* slots, const int32_t* ids, int count, cudaStream_t stream) {
  if (count == 0) return;
  mark_settled_kernel<<<blocks_for(count), kThreads, 0, stream>>>(slots, ids, count);
  check_cuda(cudaGetLastError(), "kda_mark_settled launch");
}

void kda_reset(const KdaLayerState& layer, const int32_t* ids, int count, cudaStream_t stream) {
  if (count == 0) return;
  const int64_t width = int64_t{layer.heads} * kKdaHeadDim;
  zero_slots(layer.state, width * kKdaHeadDim * int64_t{sizeof(float)}, ids, count, stream);
  zero_slots(layer.conv_ring, kKdaConvRing * 3 * width * int64_t{sizeof(__nv_bfloat16)}, ids, count, stream);
}

void kda_reset_slots(KdaSlot* slots, const int32_t* ids, int count, cudaStream_t stream) {
  if (count == 0) return;
  reset_slots_kernel<<<blocks_for(count), kThreads, 0, stream>>>(slots, ids, count);
  check_cuda(cudaGetLastError(), "kda_reset_slots launch");
}

}  // namespace glm53::kernels
