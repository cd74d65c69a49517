// A checkpoint directory of the real size that takes no room: shards with true headers whose data are holes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <unistd.h>

#include "checkpoint/checkpoint_files.h"
#include "glm53/core/host_tensor.h"
#include "model/dummy_weights.h"
#include "model/tensor_table.h"

namespace glm53::test {

struct SparseTensor {
  std::string name;
  DType dtype = DType::kBF16;
  std::vector<int64_t> shape;

  uint64_t bytes() const {
    uint64_t count = dtype_bytes(dtype);
    for (const int64_t extent : shape) count *= static_cast<uint64_t>(extent);
    return count;
  }
};

/// All tensors of `geometry` in the routed-only layout (spec 10 §2.4), markers included, in the order of the table.
inline std::vector<SparseTensor> routed_only_tensors(const Geometry& geometry, int experts_k) {
  DummyOptions options;
  options.experts_k = experts_k;
  DummyTensors tensors(geometry, options);
  std::vector<SparseTensor> all;
  const auto add = [&all](const HostTensor& tensor) { all.push_back({tensor.name, tensor.dtype, tensor.shape}); };
  for (const TensorSpec& spec : tensor_table(geometry)) {
    if (spec.group == TensorGroup::kExtra) continue;
    if (!DummyTensors::is_exl3(spec)) {
      add(tensors.native(spec));
      continue;
    }
    const Exl3Stored stored = tensors.exl3(spec);
    for (const HostTensor* tensor : {stored.trellis, stored.suh, stored.svh}) add(*tensor);
    all.push_back({stored.name + ".mcg", DType::kI32, {}});
  }
  return all;
}

inline std::string shard_name(int shard, int shards) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", shard + 1, shards);
  return name;
}

struct SparseCheckpoint {
  uint64_t header_bytes = 0;  ///< of all shards
  uint64_t data_bytes = 0;
};

/// Writes the index and `shards` files of about one size to `directory`. config.json is the caller's.
inline SparseCheckpoint write_sparse_checkpoint(const std::string& directory, const std::vector<SparseTensor>& tensors,
                                                int shards) {
  SparseCheckpoint written;
  uint64_t total = 0;
  for (const SparseTensor& tensor : tensors) total += tensor.bytes();
  nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", nlohmann::json::object()}};
  size_t next = 0;
  for (int shard = 0; shard < shards; ++shard) {
    const std::string name = shard_name(shard, shards);
    nlohmann::json header = nlohmann::json::object();
    uint64_t size = 0;
    const uint64_t end = total / static_cast<uint64_t>(shards) * (static_cast<uint64_t>(shard) + 1);
    for (; next < tensors.size() && (shard + 1 == shards || written.data_bytes + size < end); ++next) {
      const SparseTensor& tensor = tensors[next];
      header[tensor.name] = {{"dtype", dtype_name(tensor.dtype)},
                             {"shape", tensor.shape},
                             {"data_offsets", {size, size + tensor.bytes()}}};
      index["weight_map"][tensor.name] = name;
      size += tensor.bytes();
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    std::string begin(sizeof length, '\0');
    std::memcpy(begin.data(), &length, sizeof length);
    begin += text;
    const std::string path = directory + "/" + name;
    std::ofstream(path, std::ios::binary).write(begin.data(), static_cast<std::streamsize>(begin.size()));
    if (::truncate(path.c_str(), static_cast<off_t>(begin.size() + size)) != 0) {
      throw std::runtime_error(path + ": cannot make a sparse file");
    }
    written.header_bytes += begin.size();
    written.data_bytes += size;
  }
  const std::string text = index.dump();
  std::ofstream(directory + "/model.safetensors.index.json", std::ios::binary)
      .write(text.data(), static_cast<std::streamsize>(text.size()));
  return written;
}

}  // namespace glm53::test
