// Reading tests/data/golden/*.safetensors and *.json.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_files.h"
#include "checkpoint/safetensors.h"
#include "glm53/core/error.h"

namespace glm53::test {

inline std::string data_path(const std::string& name) { return std::string(GLM53_TEST_DATA) + "/" + name; }

inline nlohmann::json golden_json(const std::string& name) {
  return nlohmann::json::parse(read_file(data_path("golden/" + name)));
}

/// One golden safetensors file, whole in memory.
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& name) : bytes_(read_file(data_path("golden/" + name))) {
    for (SafetensorsEntry& entry : parse_safetensors_header(bytes_, bytes_.size(), name)) {
      entries_.emplace(entry.name, entry);
    }
  }

  bool has(const std::string& name) const { return entries_.contains(name); }
  const std::vector<int64_t>& shape(const std::string& name) const { return entries_.at(name).shape; }
  std::vector<float> floats(const std::string& name) const { return values<float>(name, DType::kF32); }
  std::vector<int32_t> ints(const std::string& name) const { return values<int32_t>(name, DType::kI32); }

 private:
  template <typename T>
  std::vector<T> values(const std::string& name, DType dtype) const {
    const SafetensorsEntry& entry = entries_.at(name);
    if (entry.dtype != dtype) throw Error(name + " has another dtype");
    std::vector<T> result((entry.end - entry.begin) / sizeof(T));
    std::memcpy(result.data(), bytes_.data() + entry.begin, entry.end - entry.begin);
    return result;
  }

  std::string bytes_;
  std::map<std::string, SafetensorsEntry> entries_;
};

/// {max |a − b|, max |b|}
struct Difference {
  double largest = 0.0;
  double scale = 0.0;
  double relative() const { return scale == 0.0 ? largest : largest / scale; }
};

inline Difference difference(std::span<const float> actual, std::span<const float> expected) {
  Difference d;
  if (actual.size() != expected.size()) {
    d.largest = INFINITY;
    return d;
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(static_cast<double>(actual[i]) - static_cast<double>(expected[i]));
    // A NaN must not compare as "no difference".
    d.largest = std::isnan(error) ? INFINITY : std::max(d.largest, error);
    d.scale = std::max(d.scale, std::abs(static_cast<double>(expected[i])));
  }
  return d;
}

}  // namespace glm53::test
