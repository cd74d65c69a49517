// Protocol abuse that curl cannot do, against a server that listens on 127.0.0.1: the rows of spec 80 §2.1 and the
// items of spec 40 §14 that are about connections. Prints "ok NAME" and "not ok NAME" lines.
//   http_rows PORT PID ITEM
// ITEM is 08 (bodies and pipelines), 09 (clients that leave) or 80 (the other rows).
// The server is expected to run with server.max_body_mib=1, server.header_timeout_s=2 and scheduler.prefill_rows=64;
// PID is its process. Nothing here compares times: a slow machine makes the waits longer, not wrong.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <netinet/tcp.h>
#include <sys/syscall.h>

#include "server/raw_client.h"

namespace {

using glm53::server::get;
using glm53::server::post;
using glm53::server::RawClient;
using glm53::server::RawReply;

constexpr std::chrono::seconds kPatience{120};

int port = 0;
int server_pid = 0;
int failures = 0;

void check(const std::string& name, bool right, const std::string& found = {}) {
  std::printf("%s %s\n", right ? "ok" : "not ok", name.c_str());
  if (!right && !found.empty()) std::printf("    found: %s\n", found.substr(0, 600).c_str());
  std::fflush(stdout);
  failures += right ? 0 : 1;
}

std::string shown(const RawReply& reply) {
  return std::to_string(reply.status) + (reply.complete ? " " : " (cut) ") + reply.body;
}

RawReply ask(const std::string& request) {
  RawClient client(port);
  client.send(request);
  return client.reply();
}

nlohmann::json health() {
  const RawReply reply = ask(get("/health"));
  return reply.status == 200 ? nlohmann::json::parse(reply.body) : nlohmann::json::object();
}

bool runs_and_waits(int running, int waiting) {
  const nlohmann::json now = health();
  return now.value("running", -1) == running && now.value("waiting", -1) == waiting;
}

bool until(const std::function<bool()>& holds) {
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  while (!holds()) {
    if (std::chrono::steady_clock::now() >= give_up) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

bool idle() {
  return until([] { return runs_and_waits(0, 0); });
}

/// Requests that ended since their client had gone.
int aborted() {
  const std::string metrics = ask(get("/metrics")).body;
  const size_t at = metrics.find("finished_reason=\"abort\"}");
  return at == std::string::npos ? -1 : std::atoi(metrics.c_str() + at + std::strlen("finished_reason=\"abort\"}"));
}

/// A completion that runs for many seconds unless it is cancelled.
std::string endless(bool stream) {
  return std::string(R"({"prompt":"Once upon a time,","max_tokens":7000,"temperature":0,"ignore_eos":true,"stream":)") +
         (stream ? "true}" : "false}");
}

const std::string kShort = R"({"prompt":"Once upon a time,","max_tokens":3,"temperature":0,"ignore_eos":true})";
constexpr const char* kCompletions = "/v1/completions";

/// A request whose prompt alone takes seconds: while it runs, it is prefilling.
std::string long_prompt() {
  nlohmann::json ids = nlohmann::json::array();
  for (int i = 0; i < 8000; ++i) ids.push_back(300 + i % 700);
  return nlohmann::json{{"prompt", ids}, {"max_tokens", 1}, {"temperature", 0}}.dump();
}

/// Connections that each stream a reply; the first has begun, all others wait with their headers sent.
std::vector<std::unique_ptr<RawClient>> open_streams(int n) {
  std::vector<std::unique_ptr<RawClient>> streams;
  for (int i = 0; i < n; ++i) {
    streams.push_back(std::make_unique<RawClient>(port));
    streams.back()->send(post(kCompletions, endless(true)));
    if (!streams.back()->wait_for("text/event-stream")) streams.clear();
  }
  return streams;
}

void eight_streams() {
  const auto streams = open_streams(8);
  // All eight are there when /health says so: an answer that came only after they ended would count none.
  check("80-2.1 8 open SSE streams, then /health is answered while they run",
        until([] { return runs_and_waits(1, 7); }), health().dump());
}

void eight_idle() {
  std::vector<std::unique_ptr<RawClient>> clients;
  bool right = true;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<RawClient>(port));
    clients.back()->send(get("/version"));
    right = right && clients.back()->reply().status == 200;
  }
  const RawReply reply = ask(get("/health"));
  check("80-2.1 8 idle keep-alive connections, then /health is answered", right && reply.status == 200, shown(reply));
  for (const auto& client : clients) {
    client->send(get("/version"));
    right = right && client->reply().status == 200;
  }
  check("80-2.1 and the idle connections are still open", right);
}

void old_client() {
  RawClient client(port);
  const std::string body = R"({"prompt":"Once upon a time,","max_tokens":4,"temperature":0,"stream":true})";
  client.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  const RawReply reply = client.reply();
  check("80-2.1 an HTTP/1.0 client streams without chunked framing",
        reply.status == 200 && !reply.has("transfer-encoding") && reply.complete &&
            reply.body.rfind("data: {", 0) == 0 && reply.body.find("\n\ndata: [DONE]\n\n") != std::string::npos,
        shown(reply));
}

/// The queue's own place matters for none of these: each is cancelled, and the next request runs at once.
void disconnects() {
  check("14.9 nothing runs at first", idle(), health().dump());
  const int before = aborted();
  {
    RawClient decoding(port);
    decoding.send(post(kCompletions, endless(true)));
    decoding.wait_for("data: {");
    RawClient queued(port), queued_stream(port);
    queued.send(post(kCompletions, endless(false)));
    queued_stream.send(post(kCompletions, endless(true)));
    check("14.9 one decodes, two are queued", until([] { return runs_and_waits(1, 2); }), health().dump());
    queued.close();
    queued_stream.close();
    check("14.9 disconnect while queued: they leave the queue", until([] { return runs_and_waits(1, 0); }),
          health().dump());
  }
  check("14.9 80-2.1 client gone while a stream decodes: it ends", idle(), health().dump());
  {
    RawClient whole(port);
    whole.send(post(kCompletions, endless(false)));
    check("14.9 a whole reply is computed", until([] { return runs_and_waits(1, 0); }), health().dump());
  }
  check("14.9 80-2.1 client gone during a non-streamed reply: it ends", idle(), health().dump());
  {
    RawClient prefilling(port);
    prefilling.send(post(kCompletions, long_prompt()));
    check("14.9 a long prompt runs", until([] { return runs_and_waits(1, 0); }), health().dump());
  }
  check("14.9 disconnect while prefilling: it ends", idle(), health().dump());
  {
    RawClient half_closed(port);
    half_closed.send(post(kCompletions, endless(false)));
    half_closed.half_close();
    check("80-2.1 a half-closed client is gone", idle(), health().dump());
  }
  const RawReply next = ask(post(kCompletions, kShort));
  check("14.9 the next request is served", next.status == 200 && next.complete, shown(next));
  // A reply that was computed to its end would have counted as "length". The half-closed one may have begun after the
  // look at what runs.
  check("14.9 all six ended as aborted", until([&] { return aborted() == before + 6; }),
        std::to_string(aborted() - before));
}

void body_limits() {
  const std::string body(3 << 20, 'x');
  RawReply reply = ask(post(kCompletions, body));
  check("80-2.1 a body over the limit is answered 413 that arrives", reply.status == 413 && reply.complete,
        shown(reply));
  RawClient chunked(port);
  chunked.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 48; ++i) chunked.send("10000\r\n" + std::string(65536, 'x') + "\r\n");
  chunked.send("0\r\n\r\n");
  reply = chunked.reply();
  check("80-2.1 the limit holds for a chunked body", reply.status == 413 && reply.complete, shown(reply));
  reply = ask("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n");
  check("80-2.1 a chunk size beyond all integers is answered", reply.status == 413 || reply.status == 400,
        shown(reply));
  const std::string padded =
      R"({"prompt":"Once","max_tokens":1,"metadata":{"p":")" + std::string(9 << 10, 'x') + "\"}}";
  reply = ask(post(kCompletions, padded, "Content-Type: application/x-www-form-urlencoded\r\n"));
  check("80-2.1 a 9 KB POST of form type is served", reply.status == 200, shown(reply));
}

void headers() {
  {
    // One byte at a time for as long as the server takes them.
    RawClient slow(port);
    const std::string head = "POST /v1/completions HTTP/1.1\r\nX-Slow: " + std::string(4000, 'a');
    bool open = true;
    std::thread writer([&] {
      for (size_t i = 0; open && i < head.size(); ++i) {
        open = slow.send(head.substr(i, 1));
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
    });
    const RawReply reply = slow.reply();
    open = false;
    writer.join();
    check("80-2.1 a client that writes its header byte by byte is ended by one deadline", reply.status == 408,
          shown(reply));
  }
  std::string many = "GET /health HTTP/1.1\r\n";
  for (int i = 0; i < 2000; ++i) many += "X-" + std::to_string(i) + ": " + std::string(500, 'a') + "\r\n";
  RawReply reply = ask(many + "\r\n");
  check("80-2.1 2,000 headers of 500 bytes are refused", reply.status == 431 && reply.complete, shown(reply));
}

void framing() {
  const auto refused_and_closed = [](const std::string& name, const std::string& head) {
    RawClient client(port);
    client.send(head + get("/health"));
    const RawReply reply = client.reply();
    check(name + " is refused", reply.status == 400, shown(reply));
    check(name + " ends the connection", client.closed());
  };
  const std::string begin = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n";
  refused_and_closed("14.8 80-2.1 Content-Length with Transfer-Encoding",
                     begin + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
  refused_and_closed("14.8 80-2.1 Transfer-Encoding with Content-Length",
                     begin + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n");
  refused_and_closed("80-2.1 two different Content-Lengths",
                     begin + "Content-Length: 3\r\nContent-Length: 5\r\n\r\nabc");
  refused_and_closed("14.8 another transfer coding", begin + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n");

  RawReply reply = ask(get(kCompletions));
  check("80-2.1 a wrong method is answered 405", reply.status == 405, shown(reply));
  check("80-2.1 with Allow", reply.header("allow") == "POST, OPTIONS", reply.header("allow"));
  reply = ask("DELETE /health HTTP/1.1\r\nHost: x\r\n\r\n");
  check("80-2.1 Allow names GET too", reply.status == 405 && reply.header("allow") == "GET, HEAD, OPTIONS",
        reply.header("allow"));

  // Chunked bodies on every POST route, the next request behind each in the same bytes.
  RawClient client(port);
  const char* routes[] = {
      kCompletions,  "/v1/chat/completions", "/v1/responses",  "/v1/messages",   "/tokenize",
      "/detokenize", "/v1/tokenize",         "/v1/detokenize", "/no/such/route", "/v1/messages/count_tokens"};
  for (const char* route : routes) {
    client.send("POST " + std::string(route) + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" +
                "3;name=value\r\n{\"a\r\n3\r\n\":1\r\n1\r\n}\r\n0\r\nTrailer: x\r\n\r\n" + get("/version"));
    reply = client.reply();
    const int expected = std::strcmp(route, "/no/such/route") == 0 ? 404 : 400;
    const RawReply following = client.reply();
    check("14.8 a chunked body is read to its end: " + std::string(route),
          reply.status == expected && following.status == 200 && following.body.find("version") != std::string::npos,
          shown(reply) + " | " + shown(following));
  }
  const std::string split = R"({"prompt":"Once","max_tokens":1})";
  std::string chunks;
  for (const char c : split) chunks += std::string("1\r\n") + c + "\r\n";
  client.send(std::string("POST ") + kCompletions + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" +
              chunks + "0\r\n\r\n");
  reply = client.reply();
  check("14.8 a body in chunks of one byte is served", reply.status == 200, shown(reply));
  client.send(post("/no/such/route", std::string(5000, 'x')) + get("/version"));
  reply = client.reply();
  const RawReply following = client.reply();
  check("14.8 a 404 with a body, then the next request", reply.status == 404 && following.status == 200,
        shown(reply) + " | " + shown(following));
  client.send(post(kCompletions, kShort) + get("/health") + post(kCompletions, "{}") + get("/version"));
  std::string codes;
  for (int i = 0; i < 4; ++i) codes += std::to_string(client.reply().status) + ' ';
  check("14.8 pipelined requests are answered in order", codes == "200 200 400 200 ", codes);
  client.send(post(kCompletions, R"({"prompt":"Once","max_tokens":2,"temperature":0,"stream":true})") +
              get("/version"));
  reply = client.reply();
  check("14.8 a request behind a stream is answered",
        reply.complete && reply.body.find("[DONE]") != std::string::npos && client.reply().status == 200, shown(reply));
}

void many_connections() {
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 300; ++i) clients.push_back(std::make_unique<RawClient>(port));
  for (const auto& client : clients) client->send(get("/health"));
  int answered = 0;
  for (const auto& client : clients) answered += client->reply().status == 200 ? 1 : 0;
  check("80-2.1 300 simultaneous connections are all answered", answered == 300, std::to_string(answered));
}

/// Looks at the server's own end of a connection, where the system lets one process do that to another.
void no_delay() {
  RawClient client(port);
  client.send(get("/version"));
  client.reply();
  const int process = static_cast<int>(::syscall(SYS_pidfd_open, server_pid, 0));
  int sockets = 0;
  int delayed = 0;
  int refused = 0;
  for (int number = 3; process >= 0 && number < 200; ++number) {
    const int copy = static_cast<int>(::syscall(SYS_pidfd_getfd, process, number, 0));
    if (copy < 0) {
      refused += errno == EPERM || errno == ENOSYS ? 1 : 0;
      continue;
    }
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    int on = 0;
    socklen_t on_size = sizeof on;
    if (::getpeername(copy, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && peer.sin_family == AF_INET &&
        ::getsockopt(copy, IPPROTO_TCP, TCP_NODELAY, &on, &on_size) == 0) {
      ++sockets;
      delayed += on == 0 ? 1 : 0;
    }
    ::close(copy);
  }
  if (process >= 0) ::close(process);
  if (process < 0 || refused > 0) {
    std::printf("skipped 80-2.1 TCP_NODELAY: the system does not show another process's sockets\n");
    return;
  }
  check("80-2.1 TCP_NODELAY is on", sockets > 0 && delayed == 0,
        std::to_string(delayed) + " of " + std::to_string(sockets) + " without");
}

}  // namespace

int main(int argc, char** argv) {
  using Tests = std::vector<void (*)()>;
  const std::map<std::string, Tests> items = {
      {"08", {framing}},
      {"09", {disconnects}},
      {"80", {eight_streams, eight_idle, old_client, body_limits, headers, many_connections, no_delay}}};
  const auto item = argc == 4 ? items.find(argv[3]) : items.end();
  if (item == items.end()) {
    std::fprintf(stderr, "usage: http_rows PORT PID 08|09|80\n");
    return 2;
  }
  port = std::atoi(argv[1]);
  server_pid = std::atoi(argv[2]);
  for (const auto test : item->second) {
    try {
      test();
    } catch (const std::exception& error) {
      check(std::string("the server is there: ") + error.what(), false);
    }
    if (!idle()) check("the server is idle again", false, health().dump());
  }
  return failures > 0 ? 1 : 0;
}
