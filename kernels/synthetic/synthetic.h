// Tensors that no file holds (core/synthetic.h), made where they are used.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace glm53::kernels {

/// What the bits of an element become.
enum class SyntheticForm : int32_t {
  bits,  ///< 16-bit elements of random bits
  f32,
  f16,
  bf16,
};

/// A tensor's rule, as SyntheticRule of core/synthetic.h.
struct SyntheticTensor {
  uint32_t key[2] = {0, 0};
  SyntheticForm form = SyntheticForm::bf16;
  bool signs = false;  ///< ±scale instead of centre + scale · n
  double centre = 0.0;
  double scale = 0.0;
};

/// target [count] = elements [first, first + count) of the tensor; the bits of core/synthetic.h. Asynchronous on
/// `stream`; throws std::invalid_argument for an empty range, CudaError for a failed launch.
void fill_synthetic(const SyntheticTensor& tensor, int64_t first, int64_t count, void* target, cudaStream_t stream);

}  // namespace glm53::kernels
