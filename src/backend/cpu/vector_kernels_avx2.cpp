#define GLM53_VECTOR_BYTES 32
#define GLM53_VECTOR_REGISTERS 16
#define GLM53_TILE_ROWS 6
#define GLM53_KERNELS_NAME "avx2"
#define GLM53_KERNELS kAvx2Kernels
#include "backend/cpu/vector_kernels_body.inc"
