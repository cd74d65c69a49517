#include "server/http_server.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <httplib.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "glm53/core/error.h"
#include "glm53/core/printable.h"
#include "server/api_error.h"
#include "server/body_memory.h"
#include "server/request_gate.h"
#include "server/socket.h"

namespace glm53::server {
namespace {

using Clock = Socket::Clock;

const char* reason(int status) {
  switch (status) {
    case 400:
      return "Bad Request";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Error";
  }
}

/// A reply in one piece that ends the connection, for requests that never reach the library.
std::string plain_reply(const HttpResponse& response) {
  std::string reply = "HTTP/1.1 " + std::to_string(response.status) + ' ' + reason(response.status) + "\r\n";
  reply += "Content-Type: " + response.content_type + "\r\n";
  for (const HttpHeader& header : response.headers) reply += header.name + ": " + header.value + "\r\n";
  return reply + "Content-Length: " + std::to_string(response.body.size()) + "\r\nConnection: close\r\n\r\n" +
         response.body;
}

/// As handlers see it, before its body has come.
HttpRequest request_of(const RequestHead& head) {
  HttpRequest request;
  request.method = head.method;
  request.path = head.path;
  request.headers = head.headers;
  return request;
}

/// What the log says of a request and the reply to it, before that is sent.
ServedRequest record_of(const Socket& socket, const RequestHead& head, const HttpResponse& response) {
  ServedRequest record;
  record.client = socket.peer();
  record.method = head.method;
  record.path = path_of(head.target);
  record.decoded_path = head.path;
  for (const HttpHeader& header : response.headers) {
    if (header.name == kRequestId) record.request_id = header.value;
  }
  record.status = response.status;
  return record;
}

/// Answers what never reaches the library; the connection ends with it. False when the client takes no reply.
bool send_refusal(Socket& socket, HttpHandler& handler, const RequestHead& head, const ApiError& error,
                  Clock::time_point started, std::chrono::milliseconds stall_limit) {
  const HttpResponse response = handler.refuse(request_of(head), error);
  const std::string reply = plain_reply(response);
  ServedRequest record = record_of(socket, head, response);
  record.complete = socket.write_all(reply, stall_limit);
  record.bytes = record.complete ? reply.size() : 0;
  record.time = Clock::now() - started;
  handler.served(record);
  return record.complete;
}

/// Requests between the end of their header block and the end of their reply; what a drain waits for.
class RunningRequests {
 public:
  class Entry {
   public:
    explicit Entry(RunningRequests& all) : all_(all) { all_.add(1); }
    ~Entry() { all_.add(-1); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    RunningRequests& all_;
  };

  /// How many are left.
  int wait_until_none(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [this] { return count_ == 0; });
    return count_;
  }

 private:
  void add(int n) {
    const std::lock_guard lock(mutex_);
    count_ += n;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

/// One connection. It is its own httplib::Server, so that the callbacks of the library belong to this connection; the
/// library's listening, thread pool and request reading are not used.
class Connection final : private httplib::Server {
 public:
  struct Shared {
    HttpLimits limits;
    HttpHandler& handler;
    BodyMemory bodies{limits.all_bodies_bytes, limits.turn_patience};
    RunningRequests running = {};
    std::atomic<bool> draining{false};
  };

  Connection(Socket& socket, Shared& shared) : socket_(socket), shared_(shared), limits_(shared.limits) {
    // The library streams a body only while this names a descriptor: it takes -1 for "the server was stopped".
    svr_sock_ = socket_.descriptor();
    set_pre_routing_handler([this](const httplib::Request&, httplib::Response& response) {
      answer(response);
      return HandlerResponse::Handled;
    });
    set_post_routing_handler([this](const httplib::Request&, httplib::Response& response) {
      // Bytes of a body that was not read to its end would be taken for the next request.
      if (body_unread_) keep_open_ = false;
      response.headers.erase("Keep-Alive");
      if (!keep_open_) {
        response.headers.erase("Connection");
        response.set_header("Connection", "close");
      }
    });
  }

  /// Serves requests until the connection ends.
  void run() {
    while (keep_open_ && wait_for_request() && read_head()) {
      {
        // Entered before the look at `draining`: stop() either sees this request or has it refused.
        const RunningRequests::Entry entry(shared_.running);
        if (!shared_.draining) {
          serve();
          continue;
        }
      }
      // Not an entry: clients that keep asking do not hold the drain up.
      refuse(head_, unavailable("the server is shutting down"));
    }
  }

 private:
  /// What the library reads and writes. It is given the request line only, without its query: headers have been read by
  /// the gate, and the library would act on some of them (Range, Accept-Encoding: SSE would be compressed) and decode
  /// %XX in all; a query is not used here, and the library refuses some that are well-formed.
  class Exchange final : public httplib::Stream {
   public:
    Exchange(Socket& socket, std::string request, std::chrono::milliseconds write_timeout)
        : socket_(socket), request_(std::move(request)), write_timeout_(write_timeout) {}

    bool is_readable() const override { return read_ < request_.size(); }
    bool is_writable() const override { return !failed_; }
    ssize_t read(char* data, size_t size) override {
      const size_t n = std::min(size, request_.size() - read_);
      std::memcpy(data, request_.data() + read_, n);
      read_ += n;
      return static_cast<ssize_t>(n);
    }
    ssize_t write(const char* data, size_t size) override {
      if (!failed_) failed_ = !socket_.write_all({data, size}, write_timeout_);
      if (!failed_) sent_ += size;
      return failed_ ? -1 : static_cast<ssize_t>(size);
    }
    void get_remote_ip_and_port(std::string&, int&) const override {}
    void get_local_ip_and_port(std::string&, int&) const override {}
    // Never the descriptor: the library answers 500 to any above 1,023, for fear of select().
    socket_t socket() const override { return -1; }
    bool failed() const { return failed_; }
    uint64_t sent() const { return sent_; }

   private:
    Socket& socket_;
    std::string request_;
    size_t read_ = 0;
    std::chrono::milliseconds write_timeout_;
    bool failed_ = false;
    uint64_t sent_ = 0;
  };

  class Writer final : public BodyWriter {
   public:
    Writer(httplib::DataSink& sink, const Socket& socket) : sink_(sink), socket_(socket) {}
    bool write(std::string_view bytes) override { return sink_.write(bytes.data(), bytes.size()); }
    bool client_gone() override { return socket_.peer_gone(); }

   private:
    httplib::DataSink& sink_;
    const Socket& socket_;
  };

  enum class BodyResult { kRead, kTooLarge, kNoMemory, kMalformed, kTimeout, kClosed };

  bool wait_for_request() {
    return !input_.empty() ||
           socket_.read_some(input_, Clock::now() + limits_.idle_timeout) == Socket::ReadResult::kData;
  }

  /// Reads and checks a header block into head_. False: the connection is over, a refusal has been sent if one was due.
  bool read_head() {
    started_ = Clock::now();
    const Clock::time_point deadline = started_ + limits_.header_timeout;
    while (true) {
      const auto end = find_head_end(input_, limits_.header_bytes);
      if (const auto* refusal = std::get_if<GateRefusal>(&end)) return refuse(*refusal);
      if (const size_t length = std::get<size_t>(end); length > 0) {
        auto parsed = parse_head(std::string_view(input_).substr(0, length), limits_.body_bytes);
        if (const auto* refusal = std::get_if<GateRefusal>(&parsed)) return refuse(*refusal);
        head_ = std::move(std::get<RequestHead>(parsed));
        input_.erase(0, length);
        return true;
      }
      switch (socket_.read_some(input_, deadline)) {
        case Socket::ReadResult::kData:
          break;
        case Socket::ReadResult::kTimeout:
          // Stray line ends after a body are no request.
          if (input_.find_first_not_of("\r\n") == std::string::npos) return false;
          return refuse({408, "the header block did not arrive in time"});
        case Socket::ReadResult::kClosed:
          return false;
      }
    }
  }

  /// Answers a header block that is not served.
  bool refuse(const GateRefusal& refusal) {
    return refuse(readable_part(input_), ApiError(refusal.status, refusal.message, {}, refusal.code));
  }
  bool refuse(const RequestHead& head, const ApiError& error) {
    keep_open_ = false;
    if (send_refusal(socket_, shared_.handler, head, error, started_, limits_.write_timeout)) socket_.linger();
    return false;
  }

  void serve() {
    keep_open_ = head_.keep_alive;
    body_unread_ = head_.framing != BodyFraming::kNone;
    abandoned_ = false;
    Exchange exchange(socket_, head_.method + ' ' + std::string(path_of(head_.target)) + " HTTP/1.1\r\n\r\n",
                      limits_.write_timeout);
    bool closed = false;
    const bool sent = process_request(exchange, !keep_open_, closed, nullptr) && !exchange.failed() && !abandoned_;
    if (record_.status == 0) {  // refused by the library, which has not asked for the body either
      HttpResponse refusal;
      refusal.status = 400;
      record_ = record_of(socket_, head_, refusal);
      keep_open_ = false;
    }
    report(exchange.sent(), sent);
    if (!sent) {
      keep_open_ = false;
    } else if (!keep_open_) {
      socket_.linger();
    }
  }

  void report(uint64_t bytes, bool complete) {
    ServedRequest record = std::exchange(record_, {});
    record.bytes = bytes;
    record.time = Clock::now() - started_;
    if (const auto tokens = std::exchange(tokens_, {})) record.tokens = tokens();
    record.complete = complete;
    shared_.handler.served(record);
  }

  /// Fills the library's reply: refuses, or reads the body and asks the handler.
  void answer(httplib::Response& out) {
    HttpRequest request = request_of(head_);
    request.client_gone = [this] { return socket_.peer_gone(); };
    const auto memory = std::make_shared<BodyMemory::Part>(shared_.bodies);
    request.body_done = [&request, &memory](uint64_t kept) {
      std::string().swap(request.body);
      memory->release(kept);
    };
    request.body_paused = [&memory] { memory->pause_work(); };
    HttpResponse response;
    try {
      if (auto refusal = shared_.handler.check(request)) {
        response = std::move(*refusal);
        drop_body();
      } else if (const BodyResult result = read_body(&request.body, memory.get()); result != BodyResult::kRead) {
        response = shared_.handler.refuse(request, body_error(result));
      } else {
        memory->begin_work(request.body.size(), request.client_gone);
        response = shared_.handler.handle(request);
      }
    } catch (const ClientGone&) {
      abandon();
      response.status = kClientClosedRequest;
    } catch (const ApiError& error) {
      response = shared_.handler.refuse(request, error);
    } catch (const std::exception& error) {
      spdlog::error("{} {}: {}", request.method, printable(request.path), error.what());
      response = shared_.handler.refuse(request, ApiError(500, "internal error", {}, "server_error"));
    }
    record_ = record_of(socket_, head_, response);
    tokens_ = std::move(response.tokens);
    fill(out, std::move(response), memory);
  }

  /// What the reply keeps of its body counts in `memory` as long as it is streamed.
  void fill(httplib::Response& out, HttpResponse response, const std::shared_ptr<BodyMemory::Part>& memory) {
    out.status = response.status;
    for (const HttpHeader& header : response.headers) out.set_header(header.name, header.value);
    if (!response.stream) {
      out.set_content(response.body, response.content_type);
      return;
    }
    const auto provide = [this, memory, stream = std::move(response.stream)](size_t, httplib::DataSink& sink) {
      try {
        Writer writer(sink, socket_);
        stream(writer);
      } catch (const ClientGone&) {
        return false;
      } catch (const std::exception& error) {
        spdlog::error("streamed reply ended early: {}", error.what());
        return false;
      }
      sink.done();
      return true;
    };
    if (head_.minor_version >= 1) {
      out.set_chunked_content_provider(response.content_type, provide);
    } else {
      out.set_content_provider(response.content_type, provide);  // HTTP/1.0: the body ends with the connection
    }
  }

  /// Nobody waits for the reply: what the library still writes goes nowhere.
  void abandon() {
    abandoned_ = true;
    keep_open_ = false;
    socket_.shut_down();
  }

  /// After a refusal, so that the next request can follow. A client that waits for 100-continue has sent nothing, and
  /// may or may not send it now: such a connection ends.
  void drop_body() {
    if (!(head_.expect_continue && input_.empty())) read_body(nullptr, nullptr);
  }

  /// Reads the whole body into `out`, which counts in `memory`; both null drop it.
  BodyResult read_body(std::string* out, BodyMemory::Part* memory) {
    if (!body_unread_) return BodyResult::kRead;
    if (head_.expect_continue && input_.empty() &&
        !socket_.write_all("HTTP/1.1 100 Continue\r\n\r\n", limits_.write_timeout)) {
      return BodyResult::kClosed;
    }
    ChunkDecoder chunks(limits_.body_bytes);
    uint64_t left = head_.content_length;
    while (true) {
      size_t used = 0;
      if (head_.framing == BodyFraming::kChunked) {
        used = chunks.feed(input_, out);
        if (chunks.status() == ChunkDecoder::Status::kTooLarge) return BodyResult::kTooLarge;
        if (chunks.status() == ChunkDecoder::Status::kMalformed) return BodyResult::kMalformed;
      } else {
        used = static_cast<size_t>(std::min<uint64_t>(left, input_.size()));
        if (out != nullptr) out->append(input_, 0, used);
        left -= used;
      }
      if (out != nullptr && !memory->grow_to(out->size())) return BodyResult::kNoMemory;
      input_.erase(0, used);
      if (head_.framing == BodyFraming::kChunked ? chunks.status() == ChunkDecoder::Status::kDone : left == 0) {
        body_unread_ = false;
        return BodyResult::kRead;
      }
      switch (socket_.read_some(input_, Clock::now() + limits_.body_timeout)) {
        case Socket::ReadResult::kData:
          break;
        case Socket::ReadResult::kTimeout:
          return BodyResult::kTimeout;
        case Socket::ReadResult::kClosed:
          return BodyResult::kClosed;
      }
    }
  }

  ApiError body_error(BodyResult result) const {
    switch (result) {
      case BodyResult::kTooLarge: {
        const GateRefusal refusal = body_too_large(limits_.body_bytes);
        return {refusal.status, refusal.message, {}, refusal.code};
      }
      case BodyResult::kNoMemory:
        return unavailable("the bodies of all requests together are too large at the moment");
      case BodyResult::kTimeout:
        return {408, "the request body did not arrive in time"};
      case BodyResult::kMalformed:
        return {400, "malformed chunked request body"};
      default:
        return {400, "the request body ended early"};
    }
  }

  Socket& socket_;
  Shared& shared_;
  const HttpLimits& limits_;
  std::string input_;  ///< received and not used yet: pipelined requests wait here
  RequestHead head_;   ///< of the request being served
  bool body_unread_ = false;
  bool keep_open_ = true;
  bool abandoned_ = false;
  Clock::time_point started_;            ///< the header block's first byte was there
  ServedRequest record_;                 ///< of the request being served, once its reply is known
  std::function<TokenCounts()> tokens_;  ///< idem; keeps alive what counts them
};

int bind_listener(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string where = host + ":" + std::to_string(port);
  const int failure = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failure != 0) throw Error("server.host: cannot listen on " + where + ": " + ::gai_strerror(failure));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);

  int error = 0;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    const int descriptor = ::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0) {
      error = errno;
      continue;
    }
    // REUSEADDR allows a restart while old connections linger. REUSEPORT, the library's default, would let a second
    // server share the port and take half of the requests.
    const int on = 1;
    ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(descriptor, address->ai_addr, address->ai_addrlen) == 0 && ::listen(descriptor, SOMAXCONN) == 0) {
      return descriptor;
    }
    error = errno;
    ::close(descriptor);
  }
  throw Error("server.port: cannot listen on " + where + ": " + std::strerror(error));
}

int bound_port(int listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

}  // namespace

struct HttpServer::Impl {
  static constexpr size_t kMostRefused = 256;
  /// Pause of the accept loop while descriptors or memory are short: connections wait in the backlog until some end.
  static constexpr std::chrono::milliseconds kShortOf{20};

  Impl(HttpLimits limits, HttpHandler& handler) : shared{limits, handler} {}

  /// A connection's thread and socket. The socket is closed under `mutex`, so that shut_down() of a drain never meets
  /// a descriptor that has become another file.
  struct Worker {
    Socket socket;
    bool finished = false;
    std::thread thread;
  };

  /// A connection beyond the limit: its 503 has been sent, its request is being dropped.
  struct Refused {
    Socket socket;
    Clock::time_point deadline;
  };

  void accept_loop();
  void accept_one();
  void admit(Socket socket);
  void turn_away(Socket socket);
  void drop_refused(const std::vector<pollfd>& polled, size_t first);
  void join_finished();

  Connection::Shared shared;
  Descriptor listener;
  Descriptor wake;                   ///< eventfd that wakes the accept loop
  std::atomic<bool> closing{false};  ///< ends the accept loop
  int port = 0;
  std::thread acceptor;
  std::list<Refused> refused;  ///< accept loop only
  std::mutex mutex;
  std::list<Worker> workers;  ///< guarded by mutex
  int open = 0;               ///< unfinished workers; guarded by mutex
};

void HttpServer::Impl::accept_loop() {
  while (!closing) {
    try {
      accept_one();
    } catch (const std::exception& error) {
      spdlog::error("server: a connection was not accepted: {}", error.what());
      std::this_thread::sleep_for(kShortOf);
    }
  }
}

/// Waits for a connection, or for what refused ones send.
void HttpServer::Impl::accept_one() {
  std::vector<pollfd> polled = {{wake.get(), POLLIN, 0}, {listener.get(), POLLIN, 0}};
  for (const Refused& entry : refused) polled.push_back({entry.socket.descriptor(), POLLIN, 0});
  const int ready = ::poll(polled.data(), polled.size(), refused.empty() ? -1 : 100);
  if (ready < 0 && errno != EINTR) spdlog::error("server: poll: {}", std::strerror(errno));
  if (ready < 0) return;
  drop_refused(polled, 2);
  join_finished();
  if ((polled[1].revents & POLLIN) == 0) return;
  if (std::optional<Socket> socket = accept_connection(listener.get())) {
    admit(std::move(*socket));
  } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    std::this_thread::sleep_for(kShortOf);
  }
  // Every other error belongs to the connection that was about to be accepted.
}

/// The mutex is not held while a connection is refused: that may wait for the log, and connections end under it.
void HttpServer::Impl::admit(Socket socket) {
  Worker* place = nullptr;
  {
    const std::lock_guard lock(mutex);
    if (open < shared.limits.max_connections) {
      place = &workers.emplace_back();
      place->socket = std::move(socket);
      ++open;
    }
  }
  if (place == nullptr) {
    turn_away(std::move(socket));
    return;
  }
  Worker& worker = *place;
  try {
    worker.thread = std::thread([this, &worker] {
      try {
        Connection(worker.socket, shared).run();
      } catch (const std::exception& error) {
        spdlog::error("server: a connection failed: {}", error.what());
      }
      const std::lock_guard done(mutex);
      worker.socket.close();
      worker.finished = true;
      --open;
    });
  } catch (const std::exception& error) {
    spdlog::error("server: no thread for a connection: {}", error.what());
    {
      const std::lock_guard lock(mutex);
      socket = std::move(worker.socket);
      workers.pop_back();
      --open;
    }
    turn_away(std::move(socket));
  }
}

void HttpServer::Impl::turn_away(Socket socket) {
  // Nothing has been read, so the reply can follow no header of the request.
  // A fresh socket has room for it; the write cannot wait.
  send_refusal(socket, shared.handler, {}, unavailable("too many connections"), Clock::now(),
               std::chrono::milliseconds(0));
  if (refused.size() >= kMostRefused) return;
  ::shutdown(socket.descriptor(), SHUT_WR);
  refused.push_back({std::move(socket), Clock::now() + std::chrono::seconds(1)});
}

void HttpServer::Impl::drop_refused(const std::vector<pollfd>& polled, size_t first) {
  const Clock::time_point now = Clock::now();
  std::string dropped;
  size_t i = first;
  for (auto entry = refused.begin(); entry != refused.end(); ++i) {
    dropped.clear();
    const bool over = now >= entry->deadline ||
                      (polled[i].revents != 0 && entry->socket.read_some(dropped, now) != Socket::ReadResult::kData);
    entry = over ? refused.erase(entry) : std::next(entry);
  }
}

void HttpServer::Impl::join_finished() {
  std::list<Worker> over;
  {
    const std::lock_guard lock(mutex);
    for (auto worker = workers.begin(); worker != workers.end();) {
      const auto next = std::next(worker);
      if (worker->finished) over.splice(over.end(), workers, worker);
      worker = next;
    }
  }
  for (Worker& worker : over) worker.thread.join();
}

HttpServer::HttpServer(HttpLimits limits, HttpHandler& handler) : impl_(std::make_unique<Impl>(limits, handler)) {}

HttpServer::~HttpServer() { stop(std::chrono::milliseconds(0)); }

void HttpServer::start(const std::string& host, int port) {
  impl_->listener = Descriptor(bind_listener(host, port));
  impl_->port = bound_port(impl_->listener.get());
  impl_->wake = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (impl_->wake.get() < 0) throw Error(std::string("server: eventfd: ") + std::strerror(errno));
  impl_->acceptor = std::thread([this] { impl_->accept_loop(); });
}

int HttpServer::port() const { return impl_->port; }

void HttpServer::stop(std::chrono::milliseconds patience, const std::function<void()>& cancel) {
  if (!impl_->acceptor.joinable()) return;
  impl_->shared.draining = true;
  if (const int left = impl_->shared.running.wait_until_none(patience); left > 0 && cancel) {
    spdlog::warn("server: {} requests outlasted the drain of {} ms and are cancelled", left, patience.count());
    cancel();
    impl_->shared.running.wait_until_none(kCancelGrace);
  }
  impl_->closing = true;
  const uint64_t one = 1;
  if (::write(impl_->wake.get(), &one, sizeof one) < 0) spdlog::error("server: eventfd: {}", std::strerror(errno));
  impl_->acceptor.join();
  impl_->listener.close();
  impl_->refused.clear();
  {
    const std::lock_guard lock(impl_->mutex);
    for (Impl::Worker& worker : impl_->workers) {
      if (!worker.finished) worker.socket.shut_down();
    }
  }
  // The acceptor is gone, so the list itself no longer changes; its threads still take the mutex once.
  for (Impl::Worker& worker : impl_->workers) worker.thread.join();
  impl_->workers.clear();
}

}  // namespace glm53::server
