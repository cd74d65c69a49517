// Safetensors files: one file, or a sharded directory with model.safetensors.index.json. Headers are validated in full
// before any tensor is handed out (offsets, overlaps, dtype × shape, duplicate names, header size).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "glm53/core/host_tensor.h"

namespace glm53 {

/// Header of one file: where each tensor lies. Offsets are absolute in the file.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Parses the first bytes of a safetensors file: `prefix` holds at least the 8-byte length and the JSON header;
/// `file_size` is the size of the whole file. Throws Error naming `file` and the tensor at fault.
std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view prefix, uint64_t file_size,
                                                       const std::string& file);

/// All tensors of a checkpoint directory, memory-mapped read-only. Views stay valid while the object lives.
class Checkpoint {
 public:
  /// Opens `model.safetensors.index.json` and its shards, or every *.safetensors file of the directory when there is no
  /// index. Reads headers only. Throws Error: missing shard, a tensor in two files, an index entry without a tensor.
  static Checkpoint open(const std::string& directory);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const HostTensor* find(std::string_view name) const;
  const std::map<std::string, HostTensor, std::less<>>& tensors() const;
  const std::string& directory() const;
  size_t file_count() const;
  uint64_t total_bytes() const;  ///< of tensor data

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace glm53
