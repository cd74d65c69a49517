#include "kernels/linear/linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include "kernels/common/cuda_check.h"

namespace glm53::kernels {
namespace {

using bf16 = __nv_bfloat16;

struct DeviceFree {
  void operator()(void* memory) const { cudaFree(memory); }
};
template <typename T>
using DeviceArray = std::unique_ptr<T, DeviceFree>;

// Filled with a NaN pattern: what a kernel forgets to write, or reads without right, shows.
template <typename T>
DeviceArray<T> device_array(int64_t count) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, static_cast<size_t>(count) * sizeof(T)), "cudaMalloc");
  DeviceArray<T> array(static_cast<T*>(memory));
  check_cuda(cudaMemset(memory, 0xFF, static_cast<size_t>(count) * sizeof(T)), "cudaMemset");
  return array;
}

template <typename T>
DeviceArray<T> upload(const std::vector<T>& values) {
  auto array = device_array<T>(static_cast<int64_t>(values.size()));
  check_cuda(cudaMemcpy(array.get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  return array;
}

template <typename T>
std::vector<T> download(const T* device, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  check_cuda(cudaMemcpy(values.data(), device, values.size() * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return values;
}

/// Uniform in (−1, 1) with now and then a value eight times larger; fast enough for full-size matrices.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 1) {}
  uint32_t bits() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<uint32_t>(state_ >> 32);
  }
  float value() {
    const uint32_t word = bits();
    const float uniform = static_cast<float>(static_cast<int32_t>(word)) * 0x1p-31F;
    return word % 61 == 0 ? 8.0F * uniform : uniform;
  }

 private:
  uint64_t state_;
};

std::vector<bf16> random_bf16(int64_t count, uint64_t seed, float scale = 1.0F) {
  Random random(seed);
  std::vector<bf16> values(static_cast<size_t>(count));
  for (bf16& value : values) value = __float2bfloat16(scale * random.value());
  return values;
}

const char* name_of(WeightFormat format) {
  return format == WeightFormat::bf16 ? "bf16" : format == WeightFormat::fp8 ? "fp8" : "q4";
}
constexpr WeightFormat kFormats[] = {WeightFormat::bf16, WeightFormat::fp8, WeightFormat::q4};

struct Weight {
  PackedWeight packed;
  DeviceArray<uint8_t> data;
  DeviceArray<float> dequantised;  // [out, in]

  std::vector<float> channel(int64_t index) const { return download(dequantised.get() + index * packed.in, packed.in); }
};

Weight pack(const bf16* source, WeightFormat format, int64_t out, int64_t in) {
  Weight weight;
  weight.data = device_array<uint8_t>(packed_bytes(format, out, in));
  pack_linear({source, SourceType::bf16, out, in, in, 1}, format, out, 0, weight.data.get(), nullptr);
  weight.packed = {format, out, in, weight.data.get(), 1};
  weight.dequantised = device_array<float>(out * in);
  unpack_linear(weight.packed, weight.dequantised.get(), nullptr);
  return weight;
}

enum class Family { window, prompt };

DeviceArray<uint8_t> workspace_for(int64_t out, int64_t in, int matrices) {
  const auto bytes = static_cast<int64_t>(linear_window_workspace(out, in, matrices));
  if (bytes == 0) return nullptr;
  auto workspace = device_array<uint8_t>(bytes);
  check_cuda(cudaMemset(workspace.get(), 0, 1024), "cudaMemset");  // counters; the sums stay poisoned
  return workspace;
}

/// y [rows, stride] over a poisoned buffer, as raw values; padding columns must stay as they were.
template <typename T>
std::vector<T> run(Family family, const PackedWeight& weight, const bf16* x, int64_t x_stride, int rows,
                   int64_t y_stride, void* workspace) {
  const auto y = device_array<T>(rows * y_stride);
  const LinearRows<T> problem{x, x_stride, y.get(), y_stride, rows};
  if (family == Family::window) {
    linear_window(weight, problem, workspace, nullptr);
  } else {
    linear_prompt(weight, problem, nullptr);
  }
  return download(y.get(), rows * y_stride);
}

template <typename T>
bool same_bits(const T* a, const T* b, int64_t count) {
  return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(T)) == 0;
}

uint8_t to_e4m3(float value) { return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3); }
float from_e4m3(uint8_t code) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3))); }

float widen(float value) { return value; }
float widen(bf16 value) { return __bfloat162float(value); }

/// ‖y − exact‖ / ‖exact‖ over all rows and up to `channels` sampled channels, exact in fp64.
template <typename T>
double relative_error(const std::vector<T>& y, int64_t y_stride, const Weight& weight, const std::vector<bf16>& x,
                      int64_t x_stride, const std::vector<int>& rows, int channels) {
  double error = 0.0;
  double norm = 0.0;
  const int64_t step = std::max<int64_t>(1, weight.packed.out / channels);
  for (int64_t i = 0; i < weight.packed.out; i += step) {
    const int64_t channel = i + step > weight.packed.out - 1 ? weight.packed.out - 1 : i;
    const std::vector<float> w = weight.channel(channel);
    for (const int row : rows) {
      double exact = 0.0;
      for (int64_t k = 0; k < weight.packed.in; ++k) {
        exact += double{w[static_cast<size_t>(k)]} * double{widen(x[static_cast<size_t>(row * x_stride + k)])};
      }
      const double got = double{widen(y[static_cast<size_t>(row * y_stride + channel)])};
      error += (got - exact) * (got - exact);
      norm += exact * exact;
    }
  }
  return std::sqrt(error / norm);
}

struct ShapeCase {
  int64_t out;
  int64_t in;
};

/// Results of `whole_rows` rows against fp64; then each count of `counts`, taken from the end, against their bits.
void check_shape(Family family, WeightFormat format, const ShapeCase& shape, int whole_rows,
                 const std::vector<int>& counts) {
  SCOPED_TRACE(std::string(name_of(format)) + " [" + std::to_string(shape.out) + ", " + std::to_string(shape.in) + "]");
  const auto source = upload(random_bf16(shape.out * shape.in, 7, 0.05F));
  const Weight weight = pack(source.get(), format, shape.out, shape.in);
  const int64_t x_stride = shape.in + 24;
  const int64_t y_stride = shape.out + 5;
  auto x = random_bf16(whole_rows * x_stride, 11);
  const bf16 nan = __float2bfloat16(NAN);
  for (int row = 0; row < whole_rows; ++row) {
    std::fill_n(x.begin() + row * x_stride + shape.in, x_stride - shape.in, nan);
  }
  const auto device_x = upload(x);
  const auto workspace = workspace_for(shape.out, shape.in, 1);

  const auto whole = run<bf16>(family, weight.packed, device_x.get(), x_stride, whole_rows, y_stride, workspace.get());
  const auto exact = run<float>(family, weight.packed, device_x.get(), x_stride, whole_rows, y_stride, workspace.get());
  std::vector<int> sampled(static_cast<size_t>(std::min(whole_rows, 16)));
  for (size_t i = 0; i < sampled.size(); ++i) {
    sampled[i] = static_cast<int>(i * static_cast<size_t>(whole_rows - 1) / std::max<size_t>(1, sampled.size() - 1));
  }
  EXPECT_LE(relative_error(whole, y_stride, weight, x, x_stride, sampled, 48), 3e-3);
  EXPECT_LE(relative_error(exact, y_stride, weight, x, x_stride, sampled, 48),
            1e-6 + 2e-9 * static_cast<double>(shape.in));  // tensor cores truncate: the error grows with the chain
  int wrong_roundings = 0;
  int overwritten = 0;
  for (int row = 0; row < whole_rows; ++row) {
    for (int64_t channel = 0; channel < y_stride; ++channel) {
      const auto at = static_cast<size_t>(row * y_stride + channel);
      if (channel < shape.out) {
        const bf16 rounded = __float2bfloat16(exact[at]);
        wrong_roundings += same_bits(&rounded, &whole[at], 1) ? 0 : 1;
      } else {
        uint32_t bits = 0;
        std::memcpy(&bits, &exact[at], sizeof bits);
        overwritten += bits == 0xFFFFFFFFU ? 0 : 1;
      }
    }
  }
  EXPECT_EQ(wrong_roundings, 0) << "bf16 results are not the rounded fp32 results";
  EXPECT_EQ(overwritten, 0) << "columns beyond `out` were written";

  for (const int count : counts) {
    const int first = whole_rows - count;
    const auto part =
        run<bf16>(family, weight.packed, device_x.get() + first * x_stride, x_stride, count, y_stride, workspace.get());
    EXPECT_TRUE(same_bits(part.data(), whole.data() + first * y_stride, count * y_stride)) << count << " rows";
  }
}

const std::vector<int> kWindowCounts = {1, 2, 4, 7, 8, 16, 33, 64};

// Tiny model, odd corners, mHC fn and routers.
constexpr ShapeCase kSmallShapes[] = {{1, 16},    {8, 256},   {17, 48},    {24, 1024}, {24, 16384}, {130, 144},
                                      {256, 512}, {259, 208}, {4096, 256}, {512, 128}, {288, 4096}};
// Spec 70 §9 at TP2.
constexpr ShapeCase kLargeShapes[] = {{12576, 4096}, {4096, 4096},  {4096, 128},  {2048, 4096}, {8192, 1536},
                                      {4096, 8192},  {12288, 4096}, {4096, 6144}, {4096, 1024}, {77440, 4096}};

TEST(Linear, SmallWindowsMatchFp64AndRowsKeepTheirBits) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const WeightFormat format : kFormats) {
    for (const ShapeCase& shape : kSmallShapes) check_shape(Family::window, format, shape, 64, kWindowCounts);
  }
}

TEST(Linear, LargeWindowsMatchFp64AndRowsKeepTheirBits) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const WeightFormat format : kFormats) {
    for (const ShapeCase& shape : kLargeShapes) check_shape(Family::window, format, shape, 64, kWindowCounts);
  }
}

TEST(Linear, SmallPromptsMatchFp64AndRowsKeepTheirBits) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const WeightFormat format : kFormats) {
    for (const ShapeCase& shape : kSmallShapes) check_shape(Family::prompt, format, shape, 129, {1, 15, 64});
  }
}

TEST(Linear, LargePromptsMatchFp64AndRowsKeepTheirBits) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const WeightFormat format : kFormats) {
    for (const ShapeCase& shape : {ShapeCase{4096, 4096}, ShapeCase{8192, 1536}, ShapeCase{4096, 128}}) {
      check_shape(Family::prompt, format, shape, 2048, {1, 15, 64, 129});
    }
  }
}

// One-hot rows read W out element by element: any slip in the layout or in the widening of a code shows.
TEST(Linear, OneHotRowsReturnTheWeightsExactly) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const int64_t in = 64;
  const int64_t out = 275;
  std::vector<bf16> one_hot(static_cast<size_t>(in * in), __float2bfloat16(0.0F));
  for (int64_t i = 0; i < in; ++i) one_hot[static_cast<size_t>(i * in + i)] = __float2bfloat16(1.0F);
  const auto x = upload(one_hot);
  // Every finite e4m3 value, subnormal ones included, in rows whose scale is 1.
  std::vector<bf16> codes(static_cast<size_t>(out * in));
  for (size_t i = 0; i < codes.size(); ++i) {
    const auto code = static_cast<uint8_t>(i % 255);
    codes[i] = __float2bfloat16(i % 64 == 5 || (code & 0x7F) == 0x7F ? 448.0F : from_e4m3(code));
  }
  const auto random = random_bf16(out * in, 3);
  for (const WeightFormat format : kFormats) {
    for (const auto& values : {codes, random}) {
      const auto source = upload(values);
      const Weight weight = pack(source.get(), format, out, in);
      const auto expected = download(weight.dequantised.get(), out * in);
      const auto workspace = workspace_for(out, in, 1);
      for (const Family family : {Family::window, Family::prompt}) {
        const auto y = run<float>(family, weight.packed, x.get(), in, static_cast<int>(in), out, workspace.get());
        int wrong = 0;
        for (int64_t c = 0; c < out; ++c) {
          for (int64_t k = 0; k < in; ++k) {
            wrong += y[static_cast<size_t>(k * out + c)] == expected[static_cast<size_t>(c * in + k)] ? 0 : 1;
          }
        }
        EXPECT_EQ(wrong, 0) << name_of(format) << (family == Family::window ? " window" : " prompt");
      }
    }
  }
}

TEST(Linear, PackingRoundsAndQuantisesAsDefined) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const int64_t out = 37;
  const int64_t in = 208;
  Random random(5);
  std::vector<float> values(static_cast<size_t>(out * in));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = random.value() * std::exp2(static_cast<float>(i / 208) - 18.0F);
  std::fill_n(values.begin() + 4 * in, in, 0.0F);
  const auto source = upload(values);
  const auto unpacked = [&](WeightFormat format) {
    const auto data = device_array<uint8_t>(packed_bytes(format, out, in));
    // In two parts, the second not at a strip's start.
    pack_linear({source.get(), SourceType::f32, 21, in, in, 1}, format, out, 0, data.get(), nullptr);
    pack_linear({source.get() + 21 * in, SourceType::f32, out - 21, in, in, 1}, format, out, 21, data.get(), nullptr);
    const auto result = device_array<float>(out * in);
    unpack_linear({format, out, in, data.get(), 1}, result.get(), nullptr);
    return download(result.get(), out * in);
  };
  const auto as_bf16 = unpacked(WeightFormat::bf16);
  const auto as_fp8 = unpacked(WeightFormat::fp8);
  const auto as_q4 = unpacked(WeightFormat::q4);
  for (int64_t row = 0; row < out; ++row) {
    const float* w = values.data() + row * in;
    float largest = 0.0F;
    for (int64_t k = 0; k < in; ++k) largest = std::max(largest, std::abs(w[k]));
    const float scale = largest / 448.0F;
    for (int64_t k = 0; k < in; ++k) {
      const auto at = static_cast<size_t>(row * in + k);
      EXPECT_EQ(as_bf16[at], widen(__float2bfloat16(w[k])));
      EXPECT_EQ(as_fp8[at], scale > 0.0F ? from_e4m3(to_e4m3(w[k] / scale)) * scale : 0.0F);
    }
    for (int64_t group = 0; group < in; group += 64) {
      const int64_t end = std::min(in, group + 64);
      float amax = 0.0F;
      for (int64_t k = group; k < end; ++k) amax = std::max(amax, std::abs(w[k]));
      double searched = 0.0;
      double plain = 0.0;
      const float simple = widen(__float2bfloat16(amax / 7.0F));
      for (int64_t k = group; k < end; ++k) {
        const float got = as_q4[static_cast<size_t>(row * in + k)];
        EXPECT_EQ(got, widen(__float2bfloat16(got))) << "code · scale must be exact in bf16";
        searched += std::pow(double{got} - w[k], 2.0);
        if (amax > 0.0F) plain += std::pow(double{simple} * std::rint(w[k] / simple) - w[k], 2.0);
      }
      // Five-bit scales cost at most 6 % of step where the search finds nothing better.
      EXPECT_LE(searched, 1.14 * plain) << "row " << row << " group " << group;
      if (amax == 0.0F) {
        EXPECT_EQ(searched, 0.0);
      }
    }
  }
}

// The absorbed projections of MLA: per head a_h = Wk_hᵀ q_h, then o_h = Wv_h z_h, from one kv_b tensor.
TEST(Linear, HeadsMultiplyTheirOwnMatrices) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const int heads = 6;
  const int64_t latent = 512;
  const int64_t head_dim = 256;
  const auto kv_b = random_bf16(heads * 2 * head_dim * latent, 21, 0.05F);
  const auto source = upload(kv_b);
  for (const bool key : {true, false}) {
    const int64_t out = key ? latent : head_dim;
    const int64_t in = key ? head_dim : latent;
    const int64_t bytes = packed_bytes(WeightFormat::bf16, out, in);
    const auto data = device_array<uint8_t>(heads * bytes);
    for (int head = 0; head < heads; ++head) {
      const bf16* rows = source.get() + (head * 2 + (key ? 0 : 1)) * head_dim * latent;
      const SourceMatrix part = key ? SourceMatrix{rows, SourceType::bf16, out, in, 1, latent}
                                    : SourceMatrix{rows, SourceType::bf16, out, in, latent, 1};
      pack_linear(part, WeightFormat::bf16, out, 0, data.get() + head * bytes, nullptr);
    }
    const PackedWeight weight{WeightFormat::bf16, out, in, data.get(), heads};
    const auto workspace = workspace_for(out, in, heads);
    const int whole_rows = 80;
    const int64_t x_stride = heads * in;
    const int64_t y_stride = heads * out;
    const auto x = random_bf16(whole_rows * x_stride, 22);
    const auto device_x = upload(x);
    for (const Family family : {Family::window, Family::prompt}) {
      std::vector<bf16> first_run;
      for (const int rows : family == Family::window ? std::vector<int>{64, 9, 1} : std::vector<int>{80, 9, 1}) {
        const auto device_y = device_array<bf16>(rows * y_stride);
        const LinearRows<bf16> problem{device_x.get(), x_stride, device_y.get(), y_stride, rows, in, out};
        if (family == Family::window) {
          linear_window(weight, problem, workspace.get(), nullptr);
        } else {
          linear_prompt(weight, problem, nullptr);
        }
        const auto y = download(device_y.get(), rows * y_stride);
        if (first_run.empty()) first_run = y;
        EXPECT_TRUE(same_bits(y.data(), first_run.data(), rows * y_stride)) << rows << " rows";
      }
      double error = 0.0;
      double norm = 0.0;
      for (const int row : {0, 5, 63}) {
        for (int head = 0; head < heads; ++head) {
          for (int64_t o = 0; o < out; ++o) {
            double exact = 0.0;
            for (int64_t k = 0; k < in; ++k) {
              const int64_t at =
                  (head * 2 + (key ? 0 : 1)) * head_dim * latent + (key ? k * latent + o : o * latent + k);
              exact += double{widen(kv_b[static_cast<size_t>(at)])} *
                       double{widen(x[static_cast<size_t>(row * x_stride + head * in + k)])};
            }
            const double got = widen(first_run[static_cast<size_t>(row * y_stride + head * out + o)]);
            error += (got - exact) * (got - exact);
            norm += exact * exact;
          }
        }
      }
      EXPECT_LE(std::sqrt(error / norm), 3e-3) << (key ? "key" : "value");
    }
  }
}

// A neighbour full of NaN must not reach the others, nor stop a split-K reduction.
TEST(Linear, NanRowsStayAlone) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const int64_t out = 288;
  const int64_t in = 4096;
  const int rows = 20;
  const auto source = upload(random_bf16(out * in, 31));
  const Weight weight = pack(source.get(), WeightFormat::bf16, out, in);
  const auto workspace = workspace_for(out, in, 1);
  auto x = random_bf16(rows * in, 32);
  const auto clean_x = upload(x);
  std::fill_n(x.begin() + 3 * in, in, __float2bfloat16(NAN));
  const auto dirty_x = upload(x);
  for (const Family family : {Family::window, Family::prompt}) {
    const auto clean = run<bf16>(family, weight.packed, clean_x.get(), in, rows, out, workspace.get());
    const auto dirty = run<bf16>(family, weight.packed, dirty_x.get(), in, rows, out, workspace.get());
    EXPECT_TRUE(same_bits(clean.data(), dirty.data(), 3 * out));
    EXPECT_TRUE(same_bits(clean.data() + 4 * out, dirty.data() + 4 * out, (rows - 4) * out));
    EXPECT_TRUE(std::isnan(widen(dirty[3 * 288])));
  }
}

TEST(Linear, GraphReplayEqualsTheEagerLaunch) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const int64_t out = 1024;
  const int64_t in = 2048;
  const int rows = 5;
  ASSERT_GT(linear_window_workspace(out, in, 1), 0U) << "the shape must split K";
  const auto source = upload(random_bf16(out * in, 41));
  const Weight weight = pack(source.get(), WeightFormat::fp8, out, in);
  const auto workspace = workspace_for(out, in, 1);
  const auto x = upload(random_bf16(rows * in, 42));
  const auto eager = run<bf16>(Family::window, weight.packed, x.get(), in, rows, out, workspace.get());
  const auto y = device_array<bf16>(rows * out);
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreate(&stream), "cudaStreamCreate");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  linear_window(weight.packed, LinearRows<bf16>{x.get(), in, y.get(), out, rows}, workspace.get(), stream);
  check_cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  for (int replay = 0; replay < 3; ++replay) {
    check_cuda(cudaMemset(y.get(), 0xFF, static_cast<size_t>(rows * out) * sizeof(bf16)), "cudaMemset");
    check_cuda(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
    check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    const auto replayed = download(y.get(), rows * out);
    EXPECT_TRUE(same_bits(replayed.data(), eager.data(), rows * out));
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(Linear, ConvertsCheckpointTypes) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  std::vector<float> values = {0.0F, -0.0F, 1.0F, 1.00390625F, 1.01171875F, -3.3895314e38F, 1e-40F, 65504.0F};
  std::vector<__half> halves;
  for (const float value : values) halves.push_back(__float2half(value));
  const auto f32 = upload(values);
  const auto f16 = upload(halves);
  const auto to_bf16 = device_array<bf16>(8);
  const auto to_f32 = device_array<float>(8);
  convert_matrix({f32.get(), SourceType::f32, 2, 4, 4, 1}, to_bf16.get(), nullptr);
  convert_matrix({f16.get(), SourceType::f16, 4, 2, 1, 4}, to_f32.get(), nullptr);  // transposed
  const auto rounded = download(to_bf16.get(), 8);
  const auto exact = download(to_f32.get(), 8);
  for (size_t i = 0; i < 8; ++i) {
    const bf16 expected = __float2bfloat16(values[i]);
    EXPECT_TRUE(same_bits(&rounded[i], &expected, 1)) << i;
    const float half = __half2float(halves[(i % 2) * 4 + i / 2]);
    EXPECT_TRUE(same_bits(&exact[i], &half, 1)) << i;
  }
}

TEST(Linear, RefusesBadArguments) {
  const PackedWeight odd{WeightFormat::bf16, 8, 24, nullptr, 1};
  const PackedWeight good{WeightFormat::bf16, 8, 32, nullptr, 1};
  const LinearRows<bf16> rows{nullptr, 32, nullptr, 8, 1};
  EXPECT_THROW(linear_window(odd, rows, nullptr, nullptr), std::invalid_argument);
  EXPECT_THROW(linear_prompt(odd, rows, nullptr), std::invalid_argument);
  EXPECT_THROW(linear_window(good, LinearRows<bf16>{nullptr, 32, nullptr, 8, 65}, nullptr, nullptr),
               std::invalid_argument);
  EXPECT_THROW(linear_window(good, LinearRows<bf16>{nullptr, 33, nullptr, 8, 1}, nullptr, nullptr),
               std::invalid_argument);
  EXPECT_THROW(linear_prompt(good, LinearRows<bf16>{nullptr, 32, nullptr, 8, 0}, nullptr), std::invalid_argument);
  EXPECT_THROW(pack_linear({nullptr, SourceType::bf16, 4, 32, 32, 1}, WeightFormat::q4, 8, 5, nullptr, nullptr),
               std::invalid_argument);
  EXPECT_GT(linear_window_workspace(24, 16384, 1), 0U);
  EXPECT_EQ(linear_window_workspace(24896, 4096, 1), 0U);
}

}  // namespace
}  // namespace glm53::kernels
