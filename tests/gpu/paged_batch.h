// What the tests of the attention side share: device arrays, and ragged batches over scattered pages.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/common/cuda_check.h"
#include "kernels/common/segment_table.h"

namespace glm53::kernels::test {

/// Device memory; starts as NaN patterns, so that what a kernel forgets to write or must not read shows.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, (count == 0 ? 1 : count) * sizeof(T)), "cudaMalloc");
    memory_.reset(static_cast<T*>(memory));
    poison();
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { upload(values); }

  void poison() { check_cuda(cudaMemset(memory_.get(), 0xFF, count_ * sizeof(T)), "cudaMemset"); }
  void upload(const std::vector<T>& values) {
    check_cuda(cudaMemcpy(memory_.get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
               "cudaMemcpy");
  }
  std::vector<T> download() const {
    std::vector<T> values(count_);
    check_cuda(cudaMemcpy(values.data(), memory_.get(), count_ * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }
  T* get() const { return memory_.get(); }
  size_t size() const { return count_; }

 private:
  struct Free {
    void operator()(T* memory) const { cudaFree(memory); }
  };
  size_t count_;
  std::unique_ptr<T, Free> memory_;
};

/// Page tables of several sequences over one set of physical pages, handed out in random order.
class PageTables {
 public:
  PageTables(int sequences, int pages_each, uint32_t seed) : pages_each_(pages_each) {
    table_.resize(static_cast<size_t>(sequences) * pages_each);
    std::iota(table_.begin(), table_.end(), 0);
    std::mt19937 random(seed);
    std::shuffle(table_.begin(), table_.end(), random);
  }
  int pages() const { return static_cast<int>(table_.size()); }
  int begin(int sequence) const { return sequence * pages_each_; }
  const int32_t* of(int sequence) const { return table_.data() + begin(sequence); }
  const std::vector<int32_t>& table() const { return table_; }
  int64_t row(int sequence, int64_t position) const {
    return int64_t{of(sequence)[position / kPagePositions]} * kPagePositions + position % kPagePositions;
  }

 private:
  int pages_each_;
  std::vector<int32_t> table_;
};

struct Piece {
  int sequence;
  int64_t first_position;
  int rows;
};

/// The device tables of one launch. Row order is that of the pieces; `padding` rows without a segment follow.
class DeviceBatch {
 public:
  DeviceBatch(const PageTables& pages, const std::vector<Piece>& pieces, int padding = 0) {
    std::vector<DeviceSegment> segments;
    std::vector<int32_t> row_segment;
    for (const Piece& piece : pieces) {
      segments.push_back({piece.sequence, rows_, piece.rows, pages.begin(piece.sequence), piece.first_position});
      for (int i = 0; i < piece.rows; ++i) {
        row_segment.push_back(static_cast<int32_t>(segments.size()) - 1);
        positions_.push_back(piece.first_position + i);
        sequences_.push_back(piece.sequence);
      }
      rows_ += piece.rows;
    }
    segments.emplace_back();  // an absent one
    for (int i = 0; i < padding; ++i) {
      row_segment.push_back(-1);
      positions_.push_back(-1);
      sequences_.push_back(-1);
    }
    rows_ += padding;
    segments_ = std::make_unique<DeviceArray<DeviceSegment>>(segments);
    row_segment_ = std::make_unique<DeviceArray<int32_t>>(row_segment);
    row_position_ = std::make_unique<DeviceArray<int64_t>>(positions_);
    page_table_ = std::make_unique<DeviceArray<int32_t>>(pages.table());
  }

  BatchTables tables() const {
    return {segments_->get(), static_cast<int32_t>(segments_->size()), row_segment_->get(), row_position_->get(),
            page_table_->get()};
  }
  int rows() const { return rows_; }
  int64_t position(int row) const { return positions_[row]; }
  int sequence(int row) const { return sequences_[row]; }

 private:
  int rows_ = 0;
  std::vector<int64_t> positions_;
  std::vector<int> sequences_;
  std::unique_ptr<DeviceArray<DeviceSegment>> segments_;
  std::unique_ptr<DeviceArray<int32_t>> row_segment_;
  std::unique_ptr<DeviceArray<int64_t>> row_position_;
  std::unique_ptr<DeviceArray<int32_t>> page_table_;
};

inline std::vector<float> random_floats(size_t count, float deviation, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

inline std::vector<__nv_bfloat16> to_bf16(const std::vector<float>& values) {
  std::vector<__nv_bfloat16> out;
  out.reserve(values.size());
  for (float v : values) out.push_back(__float2bfloat16(v));
  return out;
}

inline uint16_t bits(__nv_bfloat16 value) {
  uint16_t out = 0;
  std::memcpy(&out, &value, sizeof out);
  return out;
}

/// One step of bf16 at this magnitude.
inline double bf16_step(double value) {
  const double magnitude = std::max(std::abs(value), 0x1p-126);
  return std::ldexp(1.0, std::ilogb(magnitude) - 7);
}

/// Value of an E4M3 code, from the format's definition.
inline double e4m3_value(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

/// The nearest E4M3 code by search over all of them; ties to the even code, ±448 at most.
inline uint8_t e4m3_nearest(double value) {
  uint8_t best = 0;
  for (int code = 0; code < 0x7F; ++code) {
    const double distance = std::abs(e4m3_value(static_cast<uint8_t>(code)) - std::abs(value));
    const double best_distance = std::abs(e4m3_value(best) - std::abs(value));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = static_cast<uint8_t>(code);
  }
  return std::signbit(value) ? best | 0x80 : best;
}

/// 2^ceil(log2(max(largest, 1e-4) / 448)), from the formula in double.
inline double power_of_two_scale(double largest) {
  int exponent = 0;
  const double fraction =
      std::frexp(static_cast<double>(std::max(static_cast<float>(largest), 1e-4F) / 448.0F), &exponent);
  return std::ldexp(1.0, fraction == 0.5 ? exponent - 1 : exponent);
}

}  // namespace glm53::kernels::test
