#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include <sys/mman.h>

#include "checkpoint/json_file.h"
#include "glm53/core/error.h"
#include "glm53/core/printable.h"
#include "glm53/core/read_file.h"

namespace glm53 {
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kMtpFileName = "mtp.safetensors";
constexpr int64_t kMaxIndexBytes = 100'000'000;  // the real checkpoint's 150,000 tensors take some 20 MB
constexpr int kMaxIndexDepth = 16;

/// A whole file, mapped read-only. Pages are read when they are touched, so that opening a large shard is cheap.
class MappedFile {
 public:
  explicit MappedFile(std::string path) : path_(std::move(path)) {
    const RegularFile file(path_);  // the mapping outlives it
    if (file.size() == 0) throw Error(path_ + ": is empty");
    size_ = static_cast<size_t>(file.size());
    void* mapping = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
    if (mapping == MAP_FAILED) throw Error(path_ + ": " + std::generic_category().message(errno));
    data_ = static_cast<const std::byte*>(mapping);
  }

  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  }

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Tensor name → file name, from the index of a sharded checkpoint.
std::map<std::string, std::string> read_index(const std::string& path) {
  const nlohmann::json index = parse_json_object(read_file(path, kMaxIndexBytes), path, kMaxIndexDepth);
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end()) throw Error(path + ": key \"weight_map\" is missing");
  if (!weight_map->is_object()) throw Error(path + ": key \"weight_map\" is not an object");
  std::map<std::string, std::string> file_of;
  for (const auto& [name, value] : weight_map->items()) {
    const std::string where = path + ": tensor " + printable(name);
    if (!value.is_string()) throw Error(where + ": its file name is not a string");
    const auto& file = value.get_ref<const std::string&>();
    // The index may only name files beside it.
    if (file.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos || !file.ends_with(".safetensors")) {
      throw Error(where + ": " + in_quotes(file) + " is not the name of a safetensors file in the same directory");
    }
    file_of.emplace(name, file);
  }
  return file_of;
}

std::vector<std::string> list_safetensors(const std::string& directory) {
  std::vector<std::string> names;
  try {
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (entry.path().extension() == ".safetensors") names.push_back(entry.path().filename().string());
    }
  } catch (const std::filesystem::filesystem_error& error) {
    throw Error(directory + ": " + error.code().message());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

struct Checkpoint::Impl {
  std::string directory;
  std::vector<MappedFile> files;
  std::map<std::string, HostTensor, std::less<>> tensors;
  uint64_t total_bytes = 0;

  /// Maps one file and adds its tensors. `file_of` is the index, or null where every tensor is welcome.
  void add_file(const std::string& name, const std::map<std::string, std::string>* file_of);
};

void Checkpoint::Impl::add_file(const std::string& name, const std::map<std::string, std::string>* file_of) {
  const MappedFile& file = files.emplace_back((std::filesystem::path(directory) / name).string());
  const std::span<const std::byte> bytes = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (SafetensorsEntry& entry : parse_safetensors_header(text, bytes.size(), file.path())) {
    if (const auto other = tensors.find(entry.name); other != tensors.end()) {
      throw Error(file.path() + ": tensor " + printable(entry.name) + " is also in " + other->second.file);
    }
    if (file_of != nullptr) {
      const auto indexed = file_of->find(entry.name);
      if (indexed == file_of->end() || indexed->second != name) {
        throw Error(file.path() + ": tensor " + printable(entry.name) +
                    (indexed == file_of->end() ? std::string(" is not in ") + kIndexName
                                               : " belongs in " + indexed->second + " according to " + kIndexName));
      }
    }
    HostTensor tensor;
    tensor.name = entry.name;
    tensor.file = file.path();
    tensor.dtype = entry.dtype;
    tensor.shape = std::move(entry.shape);
    tensor.bytes = bytes.subspan(entry.begin, entry.end - entry.begin);
    tensor.file_offset = entry.begin;
    total_bytes += tensor.bytes.size();
    tensors.emplace(std::move(entry.name), std::move(tensor));
  }
}

Checkpoint Checkpoint::open(const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code ignored;  // an unreadable path is no directory
  if (!fs::is_directory(directory, ignored)) throw Error(directory + ": no such directory");
  auto impl = std::make_unique<Impl>();
  impl->directory = directory;
  const fs::path index_path = fs::path(directory) / kIndexName;
  if (!fs::exists(index_path, ignored)) {
    const std::vector<std::string> names = list_safetensors(directory);
    if (names.empty()) throw Error(directory + ": holds no safetensors file");
    for (const std::string& name : names) impl->add_file(name, nullptr);
    return Checkpoint(std::move(impl));
  }

  const std::map<std::string, std::string> file_of = read_index(index_path.string());
  std::map<std::string, std::string> first_tensor_of;  // file → a tensor that needs it, for the message
  for (const auto& [tensor, file] : file_of) first_tensor_of.emplace(file, tensor);
  for (const auto& [file, tensor] : first_tensor_of) {
    const fs::path path = fs::path(directory) / file;
    if (!fs::exists(path, ignored)) {
      throw Error(path.string() + ": shard is missing; " + kIndexName + " places tensor " + printable(tensor) +
                  " there");
    }
    impl->add_file(file, &file_of);
  }
  for (const auto& [tensor, file] : file_of) {
    if (!impl->tensors.contains(tensor)) {
      throw Error((fs::path(directory) / file).string() + ": tensor " + printable(tensor) + " is missing; " +
                  kIndexName + " places it there");
    }
  }
  // Stock exllamav3 conversions keep the MTP layer in a file of its own, which their index need not list.
  if (!first_tensor_of.contains(kMtpFileName) && fs::exists(fs::path(directory) / kMtpFileName, ignored)) {
    impl->add_file(kMtpFileName, nullptr);
  }
  return Checkpoint(std::move(impl));
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

const HostTensor* Checkpoint::find(std::string_view name) const {
  const auto found = impl_->tensors.find(name);
  return found == impl_->tensors.end() ? nullptr : &found->second;
}

const std::map<std::string, HostTensor, std::less<>>& Checkpoint::tensors() const { return impl_->tensors; }
const std::string& Checkpoint::directory() const { return impl_->directory; }
size_t Checkpoint::file_count() const { return impl_->files.size(); }
uint64_t Checkpoint::total_bytes() const { return impl_->total_bytes; }

}  // namespace glm53
