// A connected TCP socket, owned: reads and writes with deadlines, hang-up detection, closing without losing the last
// reply. One thread reads and writes; shut_down() may be called by another while the object lives.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace glm53::server {

/// An owned file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }

  int get() const { return value_; }
  void close();

 private:
  int value_ = -1;
};

class Socket {
 public:
  using Clock = std::chrono::steady_clock;
  enum class ReadResult { kData, kClosed, kTimeout };

  Socket() = default;
  /// Takes over a descriptor of a connection with `peer`; sets TCP_NODELAY, so that small events leave at once.
  Socket(int descriptor, std::string peer);

  /// Appends what has arrived, at most 64 KiB; waits for it until `deadline`. An error counts as closed.
  ReadResult read_some(std::string& buffer, Clock::time_point deadline);
  /// Sends everything; false when the peer is gone or took nothing for `stall_limit`.
  bool write_all(std::string_view bytes, std::chrono::milliseconds stall_limit);
  /// True once the peer has closed or half-closed the connection. Never blocks.
  bool peer_gone() const;
  /// Ends both directions: every wait of the owning thread returns.
  void shut_down();
  /// Says that nothing more comes, then reads and drops what the peer still sends, for a second at most. Closing with
  /// unread bytes would send a reset, which can destroy the reply on its way.
  void linger();
  void close() { descriptor_.close(); }

  int descriptor() const { return descriptor_.get(); }
  /// Numeric address of the other side.
  const std::string& peer() const { return peer_; }

 private:
  Descriptor descriptor_;
  std::string peer_;
};

/// The next connection that waits at `listener`; without one, errno says why.
std::optional<Socket> accept_connection(int listener);

}  // namespace glm53::server
