// Synthetic tensors on the device hold the bits of core/synthetic.h.
#include "kernels/synthetic/synthetic.h"

#include <gtest/gtest.h>

#include "device_buffer.h"
#include "glm53/core/synthetic.h"

namespace glm53::kernels {
namespace {

struct Form {
  SyntheticRule::Kind kind;
  DType dtype;
  SyntheticForm form;
  double centre;
  double scale;
};

TEST(Synthetic, DeviceAndHostMakeTheSameBits) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  using Kind = SyntheticRule::Kind;
  const Form forms[] = {{Kind::kBits, DType::kI16, SyntheticForm::bits, 0.0, 0.0},
                        {Kind::kSigns, DType::kF16, SyntheticForm::f16, 0.0, 0.0125627},
                        {Kind::kValues, DType::kF32, SyntheticForm::f32, -4.0, 1.0 / kSyntheticDeviation},
                        {Kind::kValues, DType::kBF16, SyntheticForm::bf16, 0.0, 1.0 / 64 / kSyntheticDeviation},
                        {Kind::kValues, DType::kBF16, SyntheticForm::bf16, 0.5, 0.1 / kSyntheticDeviation},
                        {Kind::kValues, DType::kF16, SyntheticForm::f16, 1.0, 0.0}};
  struct Range {
    int64_t first, count;
  };
  const Range ranges[] = {{0, 1}, {0, 100003}, {3, 17}, {1021, 4096}, {(int64_t{1} << 35) + 5, 1000}};
  for (const Form& form : forms) {
    const SyntheticRule rule{form.kind, synthetic_key(9, "layers.1.x"), form.centre, form.scale};
    const SyntheticTensor tensor{.key = {rule.key[0], rule.key[1]},
                                 .form = form.form,
                                 .signs = form.kind == Kind::kSigns,
                                 .centre = form.centre,
                                 .scale = form.scale};
    for (const Range& range : ranges) {
      const size_t bytes = static_cast<size_t>(range.count) * dtype_bytes(form.dtype);
      constexpr size_t kGuard = 64;
      const DeviceBuffer<uint8_t> device(bytes + kGuard);
      fill_synthetic(tensor, range.first, range.count, device.get(), nullptr);
      std::vector<uint8_t> expected(bytes + kGuard, 0xFF);
      synthesise(rule, form.dtype, range.first, range.count, reinterpret_cast<std::byte*>(expected.data()));
      EXPECT_EQ(device.read(), expected) << dtype_name(form.dtype) << " from " << range.first;
    }
  }
}

TEST(Synthetic, RefusesEmptyRanges) {
  EXPECT_THROW(fill_synthetic({}, 0, 0, nullptr, nullptr), std::invalid_argument);
  EXPECT_THROW(fill_synthetic({}, -1, 4, nullptr, nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace glm53::kernels
