// The one way in which files are read whole, and the checks that come before it.
#pragma once

#include <cstdint>
#include <string>

namespace glm53 {

/// A regular file open for reading. Opening never blocks, whatever the path names.
class RegularFile {
 public:
  /// Throws Error naming `path`: it cannot be opened, is a directory, a FIFO, a device.
  explicit RegularFile(const std::string& path);
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  int descriptor() const { return descriptor_; }
  int64_t size() const { return size_; }  ///< when it was opened

 private:
  int descriptor_ = -1;
  int64_t size_ = 0;
};

/// The whole of a regular file. Throws Error naming `path` when it cannot be read or holds more than `limit` bytes.
std::string read_file(const std::string& path, int64_t limit);

}  // namespace glm53
