#include "main/unblocking_sink.h"

#include <algorithm>
#include <cerrno>
#include <climits>

#include <fmt/format.h>
#include <poll.h>
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

}  // namespace

void UnblockingSink::sink_it_(const spdlog::details::log_msg& message) {
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

bool UnblockingSink::write_line(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t line;
  if (within_line_) line.push_back('\n');
  formatter_->format(message, line);
  const size_t written = write_what_fits(descriptor_, {line.data(), line.size()});
  if (written > 0) within_line_ = written < line.size();
  return written == line.size();
}

}  // namespace glm53
