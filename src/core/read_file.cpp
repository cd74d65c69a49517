#include "glm53/core/read_file.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "glm53/core/error.h"
#include "glm53/core/printable.h"

namespace glm53 {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw Error(printable(path, std::string::npos) + ": " + what);
}

[[noreturn]] void fail_errno(const std::string& path, int error) { fail(path, std::generic_category().message(error)); }

}  // namespace

RegularFile::RegularFile(const std::string& path) {
  // O_NONBLOCK: opening a FIFO that nobody writes would wait for ever.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail_errno(path, errno);
  struct stat status {};
  const int error = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (error == 0 && S_ISREG(status.st_mode)) {
    size_ = status.st_size;
    return;
  }
  ::close(descriptor_);
  if (error != 0) fail_errno(path, error);
  fail(path, S_ISDIR(status.st_mode) ? "is a directory" : "not a regular file");
}

RegularFile::~RegularFile() { ::close(descriptor_); }

std::string read_file(const std::string& path, int64_t limit) {
  const RegularFile file(path);
  const std::string allowed = "more than the limit of " + std::to_string(limit) + " bytes";
  if (file.size() > limit) fail(path, std::to_string(file.size()) + " bytes, " + allowed);
  std::string bytes(static_cast<size_t>(file.size()) + 1, '\0');  // one more, so that the last read sees the end
  size_t done = 0;
  while (true) {
    // A file may grow meanwhile, and those of /proc say 0.
    if (done == bytes.size()) bytes.resize(done + 4096);
    const ssize_t count = ::read(file.descriptor(), bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_errno(path, errno);
    done += static_cast<size_t>(count);
    if (static_cast<int64_t>(done) > limit) fail(path, allowed);
    if (count == 0) break;
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace glm53
