#include "main/unblocking_sink.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

namespace glm53 {
namespace {

/// Writes what there is room for and returns how many bytes that was. Room is asked for PIPE_BUF bytes at a time, which
/// is what a pipe that polls as writable takes without waiting.
size_t write_what_fits(int descriptor, std::string_view text) {
  size_t done = 0;
  while (done < text.size()) {
    pollfd room{descriptor, POLLOUT, 0};
    if (::poll(&room, 1, 0) != 1 || (room.revents & POLLOUT) == 0) break;
    const ssize_t written = ::write(descriptor, text.data() + done, std::min<size_t>(text.size() - done, PIPE_BUF));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    done += static_cast<size_t>(written);
  }
  return done;
}

class UnblockingSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit UnblockingSink(int descriptor) : descriptor_(descriptor) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (lost_ > 0) {
      const std::string text = fmt::format("{} lines of this log were lost: its reader was too slow", lost_);
      if (!write_line({message.logger_name, spdlog::level::warn, text})) {
        ++lost_;
        return;
      }
      lost_ = 0;
    }
    if (!write_line(message)) ++lost_;
  }

  void flush_() override {}

 private:
  /// False when it did not go through whole.
  bool write_line(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t line;
    if (within_line_) line.push_back('\n');
    formatter_->format(message, line);
    const size_t written = write_what_fits(descriptor_, {line.data(), line.size()});
    if (written > 0) within_line_ = written < line.size();
    return written == line.size();
  }

  const int descriptor_;
  int64_t lost_ = 0;          ///< lines, since the last that got through
  bool within_line_ = false;  ///< what was written last was the beginning of a line
};

}  // namespace

std::shared_ptr<spdlog::sinks::sink> make_unblocking_sink(int descriptor) {
  return std::make_shared<UnblockingSink>(descriptor);
}

}  // namespace glm53
