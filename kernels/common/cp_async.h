// Asynchronous copies global → shared memory, 16 bytes each, past L1.
#pragma once

#include <cstdint>

namespace glm53::kernels {

/// Copies 16 bytes, or writes 16 zero bytes without reading `global` when `copy` is false. Both addresses 16-byte
/// aligned; `shared` as from shared_address().
__device__ inline void cp_async_16(uint32_t shared, const void* global, bool copy = true) {
  const int bytes = copy ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

/// Closes the group of this thread's copies since the last call; a group may be empty.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most kPending of this thread's newest groups are in flight. Other threads' copies need a barrier
/// after it.
template <int kPending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace glm53::kernels
