// What the CUDA backend's kernels are not made for is refused at start, by the name of the key in config.json.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "glm53/core/error.h"
#include "model/backends_under_test.h"
#include "model/operation_pair.h"

namespace glm53::test {
namespace {

TEST(GeometryLimits, unsupported_values_are_refused_by_name) {
  const std::string problem = cuda_device_problem(0);
  if (!problem.empty()) GTEST_SKIP() << "no CUDA device: " << problem;
  EXPECT_NO_THROW(make_cuda_backend(operation_geometry(), {}));
  struct Case {
    const char* key;
    std::function<void(Geometry&)> change;
  };
  for (const Case& c : {Case{"vocab_size", [](Geometry& g) { g.vocab = 1003; }},
                        {"vocab_size", [](Geometry& g) { g.vocab = 262148; }},
                        {"hidden_size", [](Geometry& g) { g.hidden = 384; }},
                        {"kv_lora_rank", [](Geometry& g) { g.latent = 256; }},
                        {"index_head_dim", [](Geometry& g) { g.index_dim = 64; }},
                        {"index_kpool", [](Geometry& g) { g.index_kpool = 8; }},
                        {"hc_mult", [](Geometry& g) { g.hc_streams = 2; }},
                        {"short_conv_kernel_size", [](Geometry& g) { g.conv_kernel = 3; }},
                        {"linear_attn_config.head_dim", [](Geometry& g) { g.kda_head_dim = 64; }}}) {
    Geometry geometry = operation_geometry();
    c.change(geometry);
    try {
      make_cuda_backend(geometry, {});
      ADD_FAILURE() << c.key << " is not refused";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::StartsWith(std::string(c.key) + ": "));
    }
  }
}

}  // namespace
}  // namespace glm53::test
