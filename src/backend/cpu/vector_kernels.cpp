#include "backend/cpu/vector_kernels.h"

#include <vector>

#include "backend/cpu/vector_kernels_variants.h"
#include "glm53/core/float_convert.h"

namespace glm53::cpu {
namespace {

/// Best first.
std::vector<const VectorKernels*> find_variants() {
  std::vector<const VectorKernels*> variants;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512) variants.push_back(&kAvx512Kernels);
  if (avx2) variants.push_back(&kAvx2Kernels);
#endif
  variants.push_back(&kGenericKernels);
  return variants;
}

template <typename Weight, typename Convert>
void pack(const float* rows, int64_t row_stride, int64_t out_begin, int64_t out_count, int64_t in, Weight* panels,
          Convert convert) {
  for (int64_t r = 0; r < out_count; ++r) {
    const int64_t output = out_begin + r;
    Weight* const lane = panels + output / kPanelOutputs * in * kPanelOutputs + output % kPanelOutputs;
    for (int64_t i = 0; i < in; ++i) lane[i * kPanelOutputs] = convert(rows[r * row_stride + i]);
  }
}

}  // namespace

std::span<const VectorKernels* const> available_vector_kernels() {
  static const std::vector<const VectorKernels*> variants = find_variants();
  return variants;
}

const VectorKernels& vector_kernels() { return *available_vector_kernels().front(); }

int64_t panel_bytes(PanelFormat format, int64_t in, int64_t out) {
  const int64_t panels = (out + kPanelOutputs - 1) / kPanelOutputs;
  return panels * in * kPanelOutputs * (format == PanelFormat::kBF16 ? 2 : 4);
}

void pack_panels(const float* rows, int64_t row_stride, int64_t out_begin, int64_t out_count, int64_t in,
                 PanelFormat format, void* panels) {
  if (format == PanelFormat::kBF16) {
    pack(rows, row_stride, out_begin, out_count, in, static_cast<uint16_t*>(panels), float_to_bf16);
  } else {
    pack(rows, row_stride, out_begin, out_count, in, static_cast<float*>(panels), [](float value) { return value; });
  }
}

}  // namespace glm53::cpu
