#define GLM53_VECTOR_BYTES 64
#define GLM53_VECTOR_REGISTERS 32
#define GLM53_TILE_ROWS 12
#define GLM53_KERNELS_NAME "avx512"
#define GLM53_KERNELS kAvx512Kernels
#include "backend/cpu/vector_kernels_body.inc"
