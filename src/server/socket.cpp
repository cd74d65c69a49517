#include "server/socket.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <thread>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace glm53::server {
namespace {

constexpr size_t kReadPiece = 64 * 1024;
constexpr std::chrono::seconds kLinger{1};
// More than a client's system sends ahead; beyond it the client is not about to stop.
constexpr size_t kLingerBytes = 8 << 20;
constexpr size_t kLingerBurst = 1 << 20;  // dropped at once; what follows is taken slowly
constexpr std::chrono::milliseconds kLingerPause{5};

/// False on timeout. Errors and hang-ups count as ready: the call that follows reports them.
bool wait_ready(int descriptor, short events, Socket::Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Socket::Clock::now()).count();
    const int timeout = static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX));
    pollfd entry{descriptor, events, 0};
    const int ready = ::poll(&entry, 1, timeout);
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) return true;
  }
}

}  // namespace

Descriptor::Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    value_ = std::exchange(other.value_, -1);
  }
  return *this;
}

void Descriptor::close() {
  if (value_ >= 0) ::close(std::exchange(value_, -1));
}

Socket::Socket(int descriptor, std::string peer) : descriptor_(descriptor), peer_(std::move(peer)) {
  const int on = 1;
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

std::optional<Socket> accept_connection(int listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const int descriptor = ::accept4(listener, generic, &size, SOCK_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  char text[NI_MAXHOST] = "unknown";
  ::getnameinfo(generic, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  // IPv4 clients of a socket that takes both.
  static constexpr std::string_view kMapped = "::ffff:";
  const bool mapped = std::string_view(text).starts_with(kMapped);
  return Socket(descriptor, text + (mapped ? kMapped.size() : 0));
}

Socket::ReadResult Socket::read_some(std::string& buffer, Clock::time_point deadline) {
  const size_t before = buffer.size();
  while (true) {
    if (!wait_ready(descriptor(), POLLIN, deadline)) return ReadResult::kTimeout;
    buffer.resize(before + kReadPiece);
    const ssize_t got = ::recv(descriptor(), buffer.data() + before, kReadPiece, MSG_DONTWAIT);
    const int error = errno;
    buffer.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got > 0) return ReadResult::kData;
    if (got < 0 && (error == EINTR || error == EAGAIN)) continue;
    return ReadResult::kClosed;
  }
}

bool Socket::write_all(std::string_view bytes, std::chrono::milliseconds stall_limit) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (sent < 0 && errno == EAGAIN) {
      if (!wait_ready(descriptor(), POLLOUT, Clock::now() + stall_limit)) return false;
    } else if (sent == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool Socket::peer_gone() const {
  pollfd entry{descriptor(), POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

void Socket::shut_down() {
  if (descriptor() >= 0) ::shutdown(descriptor(), SHUT_RDWR);
}

void Socket::linger() {
  ::shutdown(descriptor(), SHUT_WR);
  const Clock::time_point deadline = Clock::now() + kLinger;
  for (size_t total = 0; total < kLingerBytes && wait_ready(descriptor(), POLLIN, deadline);) {
    const ssize_t dropped = ::recv(descriptor(), nullptr, kReadPiece, MSG_TRUNC | MSG_DONTWAIT);  // without copying
    if (dropped == 0 || (dropped < 0 && errno != EINTR && errno != EAGAIN)) return;
    total += static_cast<size_t>(std::max<ssize_t>(dropped, 0));
    // Clients that pour bodies without end must not take the processors from those that are served.
    if (total > kLingerBurst) std::this_thread::sleep_for(kLingerPause);
  }
}

}  // namespace glm53::server
