// Baseline of every architecture: SSE2 (no fused multiply-add) on x86-64, NEON on aarch64.
#define GLM53_VECTOR_BYTES 16
#if defined(__aarch64__)
#define GLM53_VECTOR_REGISTERS 32
#define GLM53_TILE_ROWS 5
#define GLM53_KERNELS_NAME "neon"
#else
#define GLM53_VECTOR_REGISTERS 16
#define GLM53_TILE_ROWS 2
#define GLM53_KERNELS_NAME "generic"
#endif
#define GLM53_KERNELS kGenericKernels
#include "backend/cpu/vector_kernels_body.inc"
