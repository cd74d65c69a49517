#include "synthetic_shards.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <random>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <unistd.h>

#include "glm53/core/error.h"
#include "model/tensor_table.h"

namespace glm53::bench {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kBufferBytes = size_t{16} << 20;
constexpr int64_t kShardBytes = int64_t{1} << 30;
constexpr int kWriters = 8;
constexpr int64_t kGateRank = 128;  // of f_a_proj and g_a_proj, which config.json does not state

struct StoredTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
};

/// Contents that every check of the loader passes: 0.5 in bf16 and fp16 with changing low bits, random tile words.
class Contents {
 public:
  Contents() : random_(kBufferBytes / 8), halves_(kBufferBytes / 2), bf16_(kBufferBytes / 2) {
    std::mt19937_64 random(1);
    for (uint64_t& word : random_) word = random();
    for (size_t i = 0; i < halves_.size(); ++i)
      halves_[i] = static_cast<uint16_t>(0x3800U | (random_[i % 4096] & 0x80FFU));
    for (size_t i = 0; i < bf16_.size(); ++i) bf16_[i] = static_cast<uint16_t>(0x3F00U | (random_[i % 4096] & 0x807FU));
  }

  void fill(const StoredTensor& tensor, int64_t from, std::byte* target, size_t size) const {
    if (tensor.dtype == "I32") {
      constexpr uint32_t kMcg = 0xCBAC1FEDU;
      std::memcpy(target, reinterpret_cast<const std::byte*>(&kMcg) + from, size);
      return;
    }
    const void* source = tensor.dtype == "I16"   ? static_cast<const void*>(random_.data())
                         : tensor.dtype == "F16" ? static_cast<const void*>(halves_.data())
                                                 : static_cast<const void*>(bf16_.data());
    for (size_t done = 0; done < size;) {
      const size_t at = (static_cast<size_t>(from) + done) % kBufferBytes;
      const size_t count = std::min(size - done, kBufferBytes - at);
      std::memcpy(target + done, static_cast<const std::byte*>(source) + at, count);
      done += count;
    }
  }

 private:
  std::vector<uint64_t> random_;
  std::vector<uint16_t> halves_, bf16_;
};

[[noreturn]] void fail(const std::string& path) { throw Error(path + ": " + std::generic_category().message(errno)); }

/// A file written in large aligned pieces, directly where the file system takes that.
class ShardWriter {
 public:
  explicit ShardWriter(const std::string& path)
      : path_(path), buffer_(static_cast<std::byte*>(std::aligned_alloc(kPage, kBufferBytes)), std::free) {
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_DIRECT, 0644);
    if (descriptor_ < 0) descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (descriptor_ < 0) fail(path);
  }
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;
  ~ShardWriter() { ::close(descriptor_); }

  /// `fill(from, target, size)` makes bytes [from, from + size) of `total`.
  template <typename Fill>
  void append(int64_t total, const Fill& fill) {
    for (int64_t done = 0; done < total;) {
      const auto count = std::min<int64_t>(total - done, static_cast<int64_t>(kBufferBytes - used_));
      fill(done, buffer_.get() + used_, static_cast<size_t>(count));
      used_ += static_cast<size_t>(count);
      done += count;
      if (used_ == kBufferBytes) flush();
    }
  }

  void finish() {
    const int64_t size = written_ + static_cast<int64_t>(used_);
    const size_t padded = (used_ + kPage - 1) / kPage * kPage;
    std::memset(buffer_.get() + used_, 0, padded - used_);
    used_ = padded;
    flush();
    if (::ftruncate(descriptor_, size) != 0 || ::fdatasync(descriptor_) != 0) fail(path_);
    ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
  }

 private:
  void flush() {
    for (size_t done = 0; done < used_;) {
      const ssize_t count = ::pwrite(descriptor_, buffer_.get() + done, used_ - done, written_);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail(path_);
      done += static_cast<size_t>(count);
      written_ += count;
    }
    used_ = 0;
  }

  std::string path_;
  std::unique_ptr<std::byte, decltype(&std::free)> buffer_;
  int descriptor_ = -1;
  size_t used_ = 0;
  int64_t written_ = 0;
};

int64_t elements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

std::vector<StoredTensor> stored_tensors(const Geometry& geometry, int bits) {
  std::vector<StoredTensor> tensors;
  const auto add = [&tensors](std::string name, const char* dtype, std::vector<int64_t> shape, int64_t element) {
    const int64_t bytes = elements(shape) * element;
    tensors.push_back({std::move(name), dtype, std::move(shape), bytes});
  };
  for (const TensorSpec& spec : tensor_table(geometry)) {
    const std::string name = checkpoint_names(spec.name).front();
    std::vector<int64_t> shape = spec.shape;
    std::ranges::replace(shape, kAnyExtent, kGateRank);
    if (spec.name.find(".mlp.experts.") != std::string::npos) {
      add(name + ".mcg", "I32", {}, 4);
      add(name + ".suh", "F16", {shape[1]}, 2);
      add(name + ".svh", "F16", {shape[0]}, 2);
      add(name + ".trellis", "I16", {shape[1] / 16, shape[0] / 16, 16 * bits}, 2);
    } else {
      add(spec.form == TensorForm::kLinear ? name + ".weight" : name, "BF16", std::move(shape), 2);
    }
  }
  std::ranges::sort(tensors, {}, &StoredTensor::name);
  return tensors;
}

int64_t total_bytes(const Geometry& geometry, int bits) {
  int64_t bytes = 0;
  for (const StoredTensor& tensor : stored_tensors(geometry, bits)) bytes += tensor.bytes;
  return bytes;
}

std::string header_of(const std::vector<StoredTensor>& tensors) {
  std::string json = "{";
  int64_t at = 0;
  for (const StoredTensor& tensor : tensors) {
    std::string shape;
    for (const int64_t extent : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(extent);
    json += (json.size() > 1 ? ",\"" : "\"") + tensor.name + R"(":{"dtype":")" + tensor.dtype + R"(","shape":[)" +
            shape + R"(],"data_offsets":[)" + std::to_string(at) + "," + std::to_string(at + tensor.bytes) + "]}";
    at += tensor.bytes;
  }
  json += "}";
  json.append((8 - json.size() % 8) % 8, ' ');
  const uint64_t length = json.size();
  std::string header(sizeof length, '\0');
  std::memcpy(header.data(), &length, sizeof length);
  return header + json;
}

}  // namespace

Geometry geometry_of_size(int64_t bytes, int bits) {
  Geometry g;
  g.hidden = 4096;
  g.vocab = bytes >= (int64_t{8} << 30) ? 154'880 : 8192;
  g.kda_heads = 64;
  g.mla_heads = 64;
  g.q_lora = 1536;
  g.latent = 512;
  g.qk_dim = 256;
  g.v_dim = 256;
  g.index_heads = 32;
  g.index_dim = 128;
  g.index_topk = 2048;
  g.dense_intermediate = 12'288;
  g.moe_intermediate = 2048;
  g.experts_per_token = 8;
  g.max_positions = 8192;
  const auto add_layer = [&g](AttentionKind attention, MlpKind mlp) {
    g.attention.push_back(attention);
    g.mlp.push_back(mlp);
    ++g.layers;
  };
  add_layer(AttentionKind::kLinear, MlpKind::kDense);
  add_layer(AttentionKind::kSparse, MlpKind::kMoe);
  g.experts = 288;
  while (total_bytes(g, bits) < bytes) add_layer(AttentionKind::kLinear, MlpKind::kMoe);
  while (g.experts > 8 && total_bytes(g, bits) > bytes) g.experts -= 8;
  return g;
}

std::vector<std::string> write_shards(const std::string& directory, const Geometry& geometry, int bits) {
  std::vector<std::vector<StoredTensor>> shards(1);
  int64_t shard_bytes = 0;
  for (StoredTensor& tensor : stored_tensors(geometry, bits)) {
    if (shard_bytes > 0 && shard_bytes + tensor.bytes > kShardBytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shard_bytes += tensor.bytes;
    shards.back().push_back(std::move(tensor));
  }
  std::vector<std::string> paths;
  std::string index = R"({"weight_map":{)";
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = "model-" + std::to_string(i + 1) + ".safetensors";
    paths.push_back(directory + "/" + name);
    for (const StoredTensor& tensor : shards[i]) {
      index += (index.back() == '{' ? "\"" : ",\"") + tensor.name + "\":\"" + name + "\"";
    }
  }
  index += "}}";

  const Contents contents;
  std::atomic<size_t> next{0};
  std::vector<std::exception_ptr> errors(kWriters);
  {
    std::vector<std::jthread> writers;
    for (std::exception_ptr& error : errors) {
      writers.emplace_back([&] {
        try {
          for (size_t i = next++; i < shards.size(); i = next++) {
            ShardWriter writer(paths[i]);
            const std::string header = header_of(shards[i]);
            writer.append(static_cast<int64_t>(header.size()), [&](int64_t from, std::byte* target, size_t size) {
              std::memcpy(target, header.data() + from, size);
            });
            for (const StoredTensor& tensor : shards[i]) {
              writer.append(tensor.bytes, [&](int64_t from, std::byte* target, size_t size) {
                contents.fill(tensor, from, target, size);
              });
            }
            writer.finish();
          }
        } catch (...) {
          error = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
  ShardWriter writer(directory + "/model.safetensors.index.json");
  writer.append(static_cast<int64_t>(index.size()),
                [&](int64_t from, std::byte* target, size_t size) { std::memcpy(target, index.data() + from, size); });
  writer.finish();
  return paths;
}

}  // namespace glm53::bench
