// The CPU backend's hot loops, compiled once for each instruction set and chosen at run time.
//
// Rules for every function here: summation order is fixed by the shapes of one row alone — never by the number of rows,
// their place in the call or the thread count — so that a row has the same bits however it is batched. A variant may
// differ from another variant in the last bits; one process uses one variant throughout.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace glm53::cpu {

/// Weights packed for `linear`: panels of 16 outputs, [ceil(out / 16)][in][16], outputs past `out` zero.
enum class PanelFormat : uint8_t { kF32, kBF16 };
inline constexpr int kPanelOutputs = 16;

/// Bytes of the panels of an [out, in] matrix.
int64_t panel_bytes(PanelFormat format, int64_t in, int64_t out);

/// Packs rows [out_begin, out_begin + out_count) of an [out, in] fp32 matrix (`rows` points at row out_begin,
/// `row_stride` floats apart) into its panels. kBF16 rounds to nearest even, so values that are bf16 already stay
/// exact. Lanes of other outputs are not touched: the caller zeroes the panels first. Disjoint panels may be packed by
/// different threads.
void pack_panels(const float* rows, int64_t row_stride, int64_t out_begin, int64_t out_count, int64_t in,
                 PanelFormat format, void* panels);

struct VectorKernels {
  std::string_view name;  ///< "avx512", "avx2", "generic", "neon"

  /// y[r][o] = Σ_i x[r][i] · W[o][i] for panels [panel_begin, panel_end), all rows; sum over i ascending in one fused
  /// chain a lane. x rows at stride x_stride, y rows at y_stride (floats). Only outputs < out are stored.
  void (*linear)(const float* x, int64_t x_stride, int rows, const void* panels, PanelFormat format, int64_t in,
                 int64_t out, int64_t panel_begin, int64_t panel_end, float* y, int64_t y_stride);

  float (*dot)(const float* a, const float* b, int64_t n);
  float (*sum_squares)(const float* a, int64_t n);
  void (*axpy)(float scale, const float* x, float* y, int64_t n);  ///< y += scale · x

  // Elementwise; in and out may be the same array. exp is within 2 ulp over the normal range, 0 below it, inf above.
  void (*exp)(const float* x, float* y, int64_t n);
  void (*sigmoid)(const float* x, float* y, int64_t n);
  void (*silu)(const float* x, float* y, int64_t n);
  /// y[i] = silu(min(gate[i], limit)) · clamp(up[i], −limit, limit)
  void (*swiglu)(const float* gate, const float* up, float limit, float* y, int64_t n);

  /// KDA over one 16-row sub-chunk of one head (spec 10 §3.5.1, head dim 128). Rows [0, rows), 1 <= rows <= 16, of
  /// q, k, v [rows][128] at `stride` floats (k and q already normalised, q scaled), g [rows][128] at g_stride (g <= 0,
  /// log decay), beta [rows] at beta_stride. `state` [128 (k)][128 (v)] is S at the sub-chunk's start. Rows before
  /// first_output (0 .. rows) were computed by an earlier call: their outputs are not written, their q is not read.
  /// out [rows][128] at out_stride. Output row i's bits depend on the state and on rows <= i only, never on `rows` or
  /// first_output. Decay factors are exp(g_{j+1} + … + g_i), summed from j up.
  /// state_out [128][128], when not null, receives S after all `rows` rows; it may be `state` itself. Its bits do not
  /// depend on first_output.
  void (*kda_chunk)(const float* q, const float* k, const float* v, int64_t stride, const float* g, int64_t g_stride,
                    const float* beta, int64_t beta_stride, int rows, int first_output, const float* state,
                    float* state_out, float* out, int64_t out_stride);
  /// One recurrent step (§3.5 step 7), state in place; out [128] = Sᵀq, or not written when q is null (replay).
  void (*kda_step)(const float* q, const float* k, const float* v, const float* g, float beta, float* state,
                   float* out);
};

/// The best variant this processor runs.
const VectorKernels& vector_kernels();
/// All variants compiled in that this processor can run; tests compare them with each other.
std::span<const VectorKernels* const> available_vector_kernels();

}  // namespace glm53::cpu
