// A client that sends exactly the bytes it is told to: for what no well-behaved HTTP client would do.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace glm53::server {

struct RawReply {
  int status = 0;                              ///< 0: the connection ended without a reply
  std::map<std::string, std::string> headers;  ///< lower-case names
  std::string body;                            ///< chunks decoded
  bool complete = false;                       ///< ended as its framing says

  bool has(const std::string& name) const { return headers.count(name) > 0; }
  std::string header(const std::string& name) const { return has(name) ? headers.at(name) : std::string(); }
};

class RawClient {
 public:
  explicit RawClient(int port, std::chrono::milliseconds patience = std::chrono::seconds(10))
      : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), patience_(patience) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      throw std::runtime_error("cannot connect");
    }
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void close() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
  }
  void half_close() { ::shutdown(descriptor_, SHUT_WR); }

  /// False when the server no longer takes bytes.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  /// Reads until `text` has arrived; false when the connection ended before, or nothing came for `patience`.
  bool wait_for(std::string_view text) {
    while (input_.find(text) == std::string::npos) {
      if (!fill()) return false;
    }
    return true;
  }

  /// True when the server has closed the connection (and sent nothing more).
  bool closed() { return input_.empty() && !fill() && ended_; }

  /// Reads and drops what comes; true when the server has closed the connection.
  bool drained() {
    while (fill()) input_.clear();
    return ended_;
  }

  /// The next reply; interim 100s are counted and skipped.
  RawReply reply(bool head_only = false) {
    RawReply reply;
    while (true) {
      if (!wait_for("\r\n\r\n")) return reply;
      const size_t end = input_.find("\r\n\r\n");
      const std::string head = input_.substr(0, end + 2);
      input_.erase(0, end + 4);
      reply = parse_head(head);
      if (reply.status != 100) break;
      ++continues;
    }
    if (head_only) {
      reply.complete = true;
    } else if (reply.header("transfer-encoding") == "chunked") {
      reply.complete = read_chunks(reply.body);
    } else if (reply.has("content-length")) {
      const size_t length = std::strtoul(reply.header("content-length").c_str(), nullptr, 10);
      while (input_.size() < length && fill()) {
      }
      reply.complete = input_.size() >= length;
      reply.body = input_.substr(0, length);
      input_.erase(0, length);
    } else {
      while (fill()) {
      }
      reply.complete = ended_;
      reply.body = std::move(input_);
      input_.clear();
    }
    return reply;
  }

  int continues = 0;

 private:
  static RawReply parse_head(const std::string& head) {
    RawReply reply;
    reply.status = std::atoi(head.c_str() + std::min<size_t>(9, head.size()));
    size_t at = head.find("\r\n") + 2;
    while (at < head.size()) {
      const size_t eol = head.find("\r\n", at);
      const std::string line = head.substr(at, eol - at);
      const size_t colon = line.find(':');
      std::string name = line.substr(0, colon);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      reply.headers[name] = line.substr(line.find_first_not_of(' ', colon + 1));
      at = eol + 2;
    }
    return reply;
  }

  bool read_chunks(std::string& body) {
    while (true) {
      if (!wait_for("\r\n")) return false;
      const size_t size = std::strtoul(input_.c_str(), nullptr, 16);
      input_.erase(0, input_.find("\r\n") + 2);
      while (input_.size() < size + 2) {
        if (!fill()) return false;
      }
      body += input_.substr(0, size);
      input_.erase(0, size + 2);
      if (size == 0) return true;
    }
  }

  bool fill() {
    pollfd entry{descriptor_, POLLIN, 0};
    if (::poll(&entry, 1, static_cast<int>(patience_.count())) <= 0) return false;
    char piece[65536];
    const ssize_t got = ::recv(descriptor_, piece, sizeof piece, 0);
    if (got <= 0) {
      ended_ = true;
      return false;
    }
    input_.append(piece, static_cast<size_t>(got));
    return true;
  }

  int descriptor_;
  std::chrono::milliseconds patience_;
  bool ended_ = false;
  std::string input_;
};

inline std::string post(const std::string& path, const std::string& body, const std::string& headers = {}) {
  return "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + headers +
         "\r\n" + body;
}

inline std::string get(const std::string& path, const std::string& headers = {}) {
  return "GET " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n";
}

}  // namespace glm53::server
