#include "glm53/core/read_file.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "glm53/core/error.h"

namespace glm53 {
namespace {

class ReadFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "glm53-read-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string path(const char* name) const { return directory_ + "/" + name; }

  /// The message of the Error, without the path that it must begin with.
  std::string error_of(const char* name, int64_t limit) const {
    try {
      read_file(path(name), limit);
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with(path(name) + ": ")) << message;
      return message.substr(path(name).size() + 2);
    }
    return "no error";
  }

 private:
  std::string directory_;
};

TEST_F(ReadFile, GivesEveryByte) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4096}, size_t{100'000}}) {
    std::string bytes(size, 'x');
    if (size > 1) bytes[1] = '\0';
    std::ofstream(path("file"), std::ios::binary) << bytes;
    EXPECT_EQ(read_file(path("file"), static_cast<int64_t>(size)), bytes);
  }
}

TEST_F(ReadFile, RefusesWhatIsTooLarge) {
  std::ofstream(path("file")) << "12345";
  EXPECT_EQ(error_of("file", 4), "5 bytes, more than the limit of 4 bytes");
  // Its size says 0.
  EXPECT_FALSE(read_file("/proc/self/status", 1 << 20).empty());
  EXPECT_THROW(read_file("/proc/self/status", 10), Error);
}

TEST_F(ReadFile, RefusesWhatIsNoRegularFile) {
  EXPECT_EQ(error_of("none", 10), "No such file or directory");
  std::filesystem::create_directory(path("directory"));
  EXPECT_EQ(error_of("directory", 10), "is a directory");
  // Nobody writes it: a reader that waits would hang here.
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(error_of("fifo", 10), "not a regular file");
  std::filesystem::create_symlink("/dev/zero", path("device"));
  EXPECT_EQ(error_of("device", 10), "not a regular file");
}

}  // namespace
}  // namespace glm53
