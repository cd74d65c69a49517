// 200 connections to a server on 127.0.0.1, most of them a nuisance, for some seconds, while /health is asked 40 times
// a second on connections of its own. Prints the answers' latencies and what each kind of client got.
//   load_clients PORT SECONDS
// Exit code 1: a client was answered what it should not have been, or a stream was cut.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

int port = 0;

sockaddr_in loopback() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

std::string request(const std::string& method, const std::string& path, const std::string& body = {}) {
  return method + ' ' + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

constexpr size_t kSlowBytes = 100'000;
const std::string kStreamed =
    request("POST", "/v1/completions",
            R"({"prompt":"Once upon a time,","max_tokens":64,"temperature":0.7,"ignore_eos":true,"stream":true})");
const std::string kWhole = request(
    "POST", "/v1/completions", R"({"prompt":"Once upon a time,","max_tokens":4000,"temperature":0,"ignore_eos":true})");
const std::string kVersion = request("GET", "/version");
const std::string kChunkedHead = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
const std::string kChunk = "10000\r\n" + std::string(65536, 'x') + "\r\n";
const std::string kEndlessHead = "POST /v1/completions HTTP/1.1\r\nX-Slow: " + std::string(8000, 'a');
const std::string kBodyAhead = request("POST", "/v1/completions", std::string(kSlowBytes, ' '));

enum class Kind { kStreaming, kIdle, kSlowHead, kSlowBody, kHalfClosed, kOversized };
constexpr int kKinds = 6;
constexpr const char* kNames[kKinds] = {"streaming",        "idle keep-alive", "header at 1 byte/s",
                                        "body at 1 byte/s", "half-closed",     "oversized chunked body"};
constexpr int kNumbers[kKinds] = {64, 64, 16, 16, 20, 20};

struct Totals {
  int connections = 0;  ///< opened
  int right = 0;        ///< answers that this kind should get
  int wrong = 0;
  std::string first_wrong;
};

/// One client: a socket that never blocks, driven by the loop in main().
class Client {
 public:
  Client(Kind kind, Totals& totals) : kind_(kind), totals_(totals) {}
  ~Client() { drop(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  pollfd wish(Clock::time_point now) const {
    const bool writes = now >= next_ && (!out_.empty() || kind_ == Kind::kOversized);
    return {fd_, static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0};
  }

  void step(short events, Clock::time_point now) {
    if (fd_ < 0) {
      if (now >= next_) open(now);
      return;
    }
    if ((events & POLLOUT) != 0) write(now);
    if (fd_ >= 0 && (events & (POLLIN | POLLHUP | POLLERR)) != 0) read(now);
  }

 private:
  void open(Clock::time_point now) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = loopback();
    if (fd_ < 0 || ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      return end(now, false, "cannot connect");
    }
    ::fcntl(fd_, F_SETFL, O_NONBLOCK);
    ++totals_.connections;
    in_.clear();
    switch (kind_) {
      case Kind::kStreaming:
        out_ = kStreamed;
        break;
      case Kind::kIdle:
        out_ = kVersion;
        break;
      case Kind::kSlowHead:
        out_ = kEndlessHead;
        break;
      case Kind::kSlowBody:
        out_ = kBodyAhead;
        break;
      case Kind::kHalfClosed:
        out_ = kWhole;
        break;
      case Kind::kOversized:
        out_ = kChunkedHead;
        break;
    }
  }

  bool is_slow() const { return kind_ == Kind::kSlowHead || kind_ == Kind::kSlowBody; }

  void write(Clock::time_point now) {
    if (out_.empty()) out_ = kChunk;  // of a body without end
    // A slow body still has its header in one piece.
    size_t n = out_.size();
    if (kind_ == Kind::kSlowHead) n = 1;
    if (kind_ == Kind::kSlowBody && out_.size() <= kSlowBytes) n = 1;
    if (kind_ == Kind::kSlowBody && out_.size() > kSlowBytes) n = out_.size() - kSlowBytes;
    const ssize_t sent = ::send(fd_, out_.data(), n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      out_.remove_prefix(static_cast<size_t>(sent));
      if (is_slow()) next_ = now + milliseconds(1000);
      if (kind_ == Kind::kHalfClosed && out_.empty()) ::shutdown(fd_, SHUT_WR);
    } else if (errno != EAGAIN) {
      out_ = {};  // what the server said before is still to be read
    }
  }

  void read(Clock::time_point now) {
    char piece[65536];
    const ssize_t got = ::recv(fd_, piece, sizeof piece, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got > 0) {
      in_.append(piece, static_cast<size_t>(got));
      if (kind_ == Kind::kStreaming) took_stream(now);
      return;
    }
    const std::string_view status = std::string_view(in_).substr(0, 12);
    switch (kind_) {
      case Kind::kStreaming:
      case Kind::kIdle:
        return end(now, false, "closed after: " + in_.substr(0, 200));
      case Kind::kSlowHead:
      case Kind::kSlowBody:
        return end(now, status == "HTTP/1.1 408", in_.substr(0, 200));
      case Kind::kHalfClosed:
        return end(now, in_.empty(), in_.substr(0, 200));  // taken for gone: no answer
      case Kind::kOversized:
        return end(now, status == "HTTP/1.1 413", in_.substr(0, 200));
    }
  }

  void took_stream(Clock::time_point now) {
    if (in_.size() >= 12 && in_.compare(0, 12, "HTTP/1.1 200") != 0 && in_.compare(0, 5, "HTTP/") == 0) {
      return end(now, false, in_.substr(0, 200));
    }
    if (in_.find("\"error\"") != std::string::npos) return end(now, false, in_);
    if (in_.size() >= 7 && in_.compare(in_.size() - 7, 7, "\r\n0\r\n\r\n") == 0) {  // the last chunk
      ++totals_.right;
      if (in_.find("data: [DONE]") == std::string::npos) ++totals_.wrong;
      in_.clear();
      out_ = kStreamed;
    } else if (in_.size() > 4096) {
      in_.erase(0, in_.size() - 1024);
    }
  }

  void end(Clock::time_point now, bool right, const std::string& found) {
    ++(right ? totals_.right : totals_.wrong);
    if (!right && totals_.first_wrong.empty()) totals_.first_wrong = found;
    drop();
    next_ = now + milliseconds(100);
  }

  void drop() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
    out_ = {};
  }

  Kind kind_;
  Totals& totals_;
  int fd_ = -1;
  std::string_view out_;      ///< still to be sent
  std::string in_;            ///< the answer so far; of a stream the end of it
  Clock::time_point next_{};  ///< no connection and no byte before this
};

/// Asks /health on a fresh connection; milliseconds until the whole answer is there, or −1.
double ask_health() {
  const Clock::time_point begin = Clock::now();
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback();
  std::string answer;
  if (fd >= 0 && ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    static constexpr std::string_view kHealth = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    ::send(fd, kHealth.data(), kHealth.size(), MSG_NOSIGNAL);
    // The reply's length is known from its header; the connection's end may come a second later.
    while (answer.find("}") == std::string::npos) {
      char piece[4096];
      const ssize_t got = ::recv(fd, piece, sizeof piece, 0);
      if (got <= 0) break;
      answer.append(piece, static_cast<size_t>(got));
    }
  }
  const std::chrono::duration<double, std::milli> spent = Clock::now() - begin;
  if (fd >= 0) ::close(fd);
  return answer.compare(0, 12, "HTTP/1.1 200") == 0 ? spent.count() : -1;
}

double quantile(const std::vector<double>& sorted, double q) {
  return sorted.empty() ? 0 : sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1))];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: load_clients PORT SECONDS\n");
    return 2;
  }
  port = std::atoi(argv[1]);
  const Clock::time_point end = Clock::now() + std::chrono::seconds(std::atoi(argv[2]));

  std::atomic<bool> over{false};
  std::vector<double> latencies;
  int unanswered = 0;
  std::thread health([&] {
    while (!over) {
      const double ms = ask_health();
      if (ms < 0) {
        ++unanswered;
      } else {
        latencies.push_back(ms);
      }
      std::this_thread::sleep_for(milliseconds(25));
    }
  });

  Totals totals[kKinds];
  std::vector<std::unique_ptr<Client>> clients;
  for (int kind = 0; kind < kKinds; ++kind) {
    for (int i = 0; i < kNumbers[kind]; ++i) {
      clients.push_back(std::make_unique<Client>(static_cast<Kind>(kind), totals[kind]));
    }
  }
  std::vector<pollfd> polled(clients.size());
  for (Clock::time_point now = Clock::now(); now < end; now = Clock::now()) {
    for (size_t i = 0; i < clients.size(); ++i) polled[i] = clients[i]->wish(now);
    ::poll(polled.data(), polled.size(), 20);
    for (size_t i = 0; i < clients.size(); ++i) clients[i]->step(polled[i].revents, now);
  }
  over = true;
  health.join();
  clients.clear();

  std::sort(latencies.begin(), latencies.end());
  std::printf("/health: %zu answers, %d failures, p50 %.1f ms, p99 %.1f ms, longest %.1f ms\n", latencies.size(),
              unanswered, quantile(latencies, 0.5), quantile(latencies, 0.99), quantile(latencies, 1));
  bool right = unanswered == 0 && !latencies.empty();
  for (int kind = 0; kind < kKinds; ++kind) {
    const Totals& total = totals[kind];
    std::printf("%s: %d clients, %d connections, %d right ends, %d wrong\n", kNames[kind], kNumbers[kind],
                total.connections, total.right, total.wrong);
    if (total.wrong > 0) std::printf("    %s\n", total.first_wrong.c_str());
    right = right && total.wrong == 0;
  }
  return right ? 0 : 1;
}
