// The connection layer over loopback: every row of the table in spec 80 §2.1 where cpp-httplib alone goes wrong.
#include "server/http_server.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "glm53/core/error.h"
#include "raw_client.h"
#include "server/api_error.h"
#include "server/body_memory.h"

namespace glm53::server {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

/// A door that handlers wait at until the test opens it.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  bool wait_for(milliseconds patience) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [this] { return open_; });
  }
  void wait() { EXPECT_TRUE(wait_for(std::chrono::seconds(20))); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

class TestHandler final : public HttpHandler {
 public:
  std::optional<HttpResponse> check(const HttpRequest& request) override {
    if (request.path == "/missing") return text(404, "missing");
    return std::nullopt;
  }

  HttpResponse handle(const HttpRequest& request) override {
    ++handled;
    if (request.path == "/throw") throw std::runtime_error("broken handler");
    if (request.path == "/length") return text(200, std::to_string(request.body.size()));
    if (request.path == "/header") return text(200, std::string(request.header("x-test")));
    if (request.path == "/stream") {
      HttpResponse response;
      response.content_type = "text/event-stream; charset=utf-8";
      response.stream = [](BodyWriter& body) {
        for (const char* piece : {"one ", "two ", "three"}) body.write(piece);
      };
      return response;
    }
    if (request.path == "/endless") {
      HttpResponse response;
      response.stream = [this](BodyWriter& body) {
        body.write("start");
        while (!body.client_gone()) std::this_thread::sleep_for(milliseconds(5));
        noticed.open();
        throw ClientGone();
      };
      response.tokens = [] { return TokenCounts{3, 4}; };
      return response;
    }
    if (request.path == "/wait") {
      entered.open();
      release.wait();
      return text(200, "released");
    }
    if (request.path == "/done") {
      request.body_done(kept);
      entered.open();
      release.wait();
      return text(200, std::to_string(request.body.size()));
    }
    if (request.path == "/paused") {
      request.body_paused();
      entered.open();
      release.wait();
      return text(200, std::to_string(request.body.size()));
    }
    if (request.path == "/poll") {
      entered.open();
      while (!request.client_gone()) std::this_thread::sleep_for(milliseconds(5));
      noticed.open();
      throw ClientGone();
    }
    return text(200, request.method + ' ' + request.path + ' ' + request.body);
  }

  HttpResponse refuse(const HttpRequest& request, const ApiError& error) override {
    if (refusing) refusing();
    HttpResponse response = error_response(error, request.path);
    response.headers.push_back({kRequestId, "refused " + std::string(request.header("x-test"))});
    return response;
  }

  void served(const ServedRequest& request) override {
    const std::lock_guard lock(mutex_);
    served_.push_back(request);
  }
  /// Waits for it: the log comes after the reply.
  ServedRequest served_request(size_t index) {
    for (int i = 0; i < 4000; ++i) {
      {
        const std::lock_guard lock(mutex_);
        if (served_.size() > index) return served_[index];
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
    ADD_FAILURE() << "request " << index << " was not reported";
    return {};
  }

  static HttpResponse text(int status, std::string body) {
    HttpResponse response;
    response.status = status;
    response.content_type = "text/plain";
    response.body = std::move(body);
    return response;
  }

  std::atomic<int> handled{0};
  Gate entered, release, noticed;
  uint64_t kept = 0;               ///< bytes of the body; set before requests come
  std::function<void()> refusing;  ///< runs in each refusal; set before requests come

 private:
  std::mutex mutex_;
  std::vector<ServedRequest> served_;
};

class HttpServerTest : public testing::Test {
 protected:
  void serve(HttpLimits limits = {}) {
    server_ = std::make_unique<HttpServer>(limits, handler_);
    server_->start("127.0.0.1", 0);
  }
  int port() const { return server_->port(); }
  RawReply ask(const std::string& request) {
    RawClient client(port());
    client.send(request);
    return client.reply();
  }

  TestHandler handler_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, KeepsAConnectionForSeveralRequests) {
  serve();
  RawClient client(port());
  for (int i = 0; i < 10; ++i) {
    client.send(post("/a", "body" + std::to_string(i)));
    const RawReply reply = client.reply();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "POST /a body" + std::to_string(i));
    EXPECT_FALSE(reply.has("connection"));
  }
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  serve();
  RawClient client(port());
  client.send(get("/1") + post("/2", "two") +
              "POST /3 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nthree\r\n0\r\n\r\n" +
              get("/4", "Connection: close\r\n") + get("/5"));
  for (const char* expected : {"GET /1 ", "POST /2 two", "POST /3 three", "GET /4 "}) {
    EXPECT_EQ(client.reply().body, expected);
  }
  EXPECT_TRUE(client.closed());
}

TEST_F(HttpServerTest, DecodesPathsAndLeavesHeadersAlone) {
  serve();
  EXPECT_EQ(ask(get("/a%20b?x=1")).body, "GET /a b ");
  EXPECT_EQ(ask(get("/a?b?c=%zz&d#e?f")).body, "GET /a ");
  EXPECT_EQ(ask(get("/%41%2f%2F%c3%A4+%")).body, "GET /A//\xC3\xA4+% ");
  EXPECT_EQ(ask(get("/%2541%zz%4")).body, "GET /%41%zz%4 ");
  EXPECT_EQ(ask(get("/header", "X-Test: 100%25\r\n")).body, "100%25");
  EXPECT_EQ(ask(get("/a", "Range: bytes=0-1\r\n")).status, 200);
  EXPECT_EQ(ask(get("/a", "Accept-Encoding: gzip, br\r\n")).header("content-encoding"), "");
}

TEST_F(HttpServerTest, AcceptsLongHeaderLines) {
  serve();
  const std::string key(12000, 'k');
  EXPECT_EQ(ask(get("/header", "X-Test: " + key + "\r\n")).body, key);
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  serve();
  RawClient client(port());
  client.send("HEAD /a HTTP/1.1\r\n\r\n" + get("/b"));
  const RawReply head = client.reply(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("content-length"), std::to_string(std::string("HEAD /a ").size()));
  EXPECT_EQ(client.reply().body, "GET /b ");
}

TEST_F(HttpServerTest, ReadsBodiesOfMethodsThatRarelyHaveOne) {
  serve();
  RawClient client(port());
  client.send("GET /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc" +
              std::string("DELETE /b HTTP/1.1\r\nContent-Length: 3\r\n\r\ndef"));
  EXPECT_EQ(client.reply().body, "GET /a abc");
  EXPECT_EQ(client.reply().body, "DELETE /b def");
}

TEST_F(HttpServerTest, RefusesAmbiguousFramingAndCloses) {
  serve();
  for (const char* headers : {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                              "Content-Length: 5\r\nContent-Length: 6\r\n", "Transfer-Encoding: gzip\r\n"}) {
    RawClient client(port());
    client.send(std::string("POST /a HTTP/1.1\r\n") + headers + "\r\n0\r\n\r\n" + get("/smuggled"));
    const RawReply reply = client.reply();
    EXPECT_EQ(reply.status, 400) << headers;
    EXPECT_EQ(reply.header("connection"), "close");
    EXPECT_THAT(reply.body, HasSubstr("\"error\""));
    EXPECT_TRUE(client.closed());
  }
  EXPECT_EQ(handler_.handled, 0);
}

TEST_F(HttpServerTest, RefusesATooLargeHeaderBlock) {
  HttpLimits limits;
  limits.header_bytes = 1024;
  serve(limits);
  std::string headers;
  for (int i = 0; i < 100; ++i) headers += "X-" + std::to_string(i) + ": " + std::string(50, 'x') + "\r\n";
  EXPECT_EQ(ask(get("/a", headers)).status, 431);
}

TEST_F(HttpServerTest, ASlowHeaderEndsAtOneDeadline) {
  HttpLimits limits;
  limits.header_timeout = milliseconds(200);
  serve(limits);
  RawClient client(port());
  client.send("GET / HTTP/1.1\r\n");
  // A byte every few milliseconds would restart a time-out that counts silence.
  std::thread dripping([&] {
    while (client.send("a")) std::this_thread::sleep_for(milliseconds(5));
  });
  const RawReply reply = client.reply();
  EXPECT_EQ(reply.status, 408);
  client.half_close();
  dripping.join();
}

TEST_F(HttpServerTest, IdleConnectionsEndSilently) {
  HttpLimits limits;
  limits.idle_timeout = milliseconds(100);
  serve(limits);
  RawClient fresh(port());
  EXPECT_TRUE(fresh.closed());
  RawClient used(port());
  used.send(get("/a"));
  EXPECT_EQ(used.reply().status, 200);
  EXPECT_TRUE(used.closed());
}

TEST_F(HttpServerTest, IdleConnectionsDoNotHoldOthersUp) {
  serve();
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 64; ++i) {
    idle.push_back(std::make_unique<RawClient>(port()));
    idle.back()->send(get("/a"));
    EXPECT_EQ(idle.back()->reply().status, 200);
  }
  EXPECT_EQ(ask(get("/b")).status, 200);
}

TEST_F(HttpServerTest, LimitsBodiesInBothFramings) {
  HttpLimits limits;
  limits.body_bytes = 100'000;
  serve(limits);
  EXPECT_EQ(ask(post("/length", std::string(100'000, 'x'))).body, "100000");
  {
    RawClient client(port());
    client.send(post("/length", std::string(100'001, 'x')) + get("/next"));
    EXPECT_EQ(client.reply().status, 413);
    EXPECT_TRUE(client.closed());
  }
  {
    // Far more than socket buffers hold, so the refusal comes while the client still sends.
    RawClient client(port());
    client.send("POST /length HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
    std::thread sending([&] {
      const std::string chunk = "1000\r\n" + std::string(4096, 'x') + "\r\n";
      for (int i = 0; i < 4000 && client.send(chunk); ++i) {
      }
      client.half_close();
    });
    const RawReply reply = client.reply();
    sending.join();
    EXPECT_EQ(reply.status, 413);
    EXPECT_THAT(reply.body, HasSubstr("request_too_large"));
  }
  EXPECT_EQ(handler_.handled, 1);
}

TEST_F(HttpServerTest, FormTypeHasNoLimitOfItsOwn) {
  serve();
  EXPECT_EQ(ask(post("/length", std::string(9000, 'x'), "Content-Type: application/x-www-form-urlencoded\r\n")).body,
            "9000");
  EXPECT_EQ(ask(post("/length", std::string(9000, 'x'), "Content-Type: multipart/form-data; boundary=b\r\n")).body,
            "9000");
}

TEST_F(HttpServerTest, MalformedChunksAreRefused) {
  serve();
  RawClient client(port());
  client.send("POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc" + get("/smuggled"));
  const RawReply reply = client.reply();
  EXPECT_EQ(reply.status, 400);
  EXPECT_TRUE(client.closed());
}

TEST_F(HttpServerTest, ASilentBodyTimesOut) {
  HttpLimits limits;
  limits.body_timeout = milliseconds(100);
  serve(limits);
  EXPECT_EQ(ask("POST /a HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc").status, 408);
}

TEST_F(HttpServerTest, ExpectContinue) {
  serve();
  RawClient client(port());
  client.send("POST /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  ASSERT_TRUE(client.wait_for("HTTP/1.1 100 Continue\r\n\r\n"));
  client.send("abc");
  EXPECT_EQ(client.reply().body, "POST /a abc");
  EXPECT_EQ(client.continues, 1);
  // A refusal takes the place of the 100.
  RawClient refused(port());
  refused.send("POST /missing HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  const RawReply reply = refused.reply();
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(reply.header("connection"), "close");
  EXPECT_EQ(refused.continues, 0);
}

TEST_F(HttpServerTest, ARefusedBodyIsNotTheNextRequest) {
  serve();
  RawClient client(port());
  const std::string body = get("/inside");
  client.send(post("/missing", body) + "POST /missing HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" +
              "5\r\nGET /\r\n0\r\n\r\n" + get("/after"));
  EXPECT_EQ(client.reply().status, 404);
  EXPECT_EQ(client.reply().status, 404);
  EXPECT_EQ(client.reply().body, "GET /after ");
}

TEST_F(HttpServerTest, StreamsInChunksOrToTheEndForOldClients) {
  serve();
  RawClient client(port());
  client.send(get("/stream", "Accept-Encoding: gzip\r\n"));
  RawReply reply = client.reply();
  EXPECT_EQ(reply.header("transfer-encoding"), "chunked");
  EXPECT_EQ(reply.body, "one two three");
  EXPECT_TRUE(reply.complete);
  client.send(get("/a"));  // the connection goes on
  EXPECT_EQ(client.reply().status, 200);

  reply = ask("GET /stream HTTP/1.0\r\n\r\n");
  EXPECT_FALSE(reply.has("transfer-encoding"));
  EXPECT_FALSE(reply.has("content-length"));
  EXPECT_EQ(reply.header("connection"), "close");
  EXPECT_EQ(reply.body, "one two three");
}

TEST_F(HttpServerTest, OldClientsGetPlainReplies) {
  serve();
  RawClient client(port());
  client.send("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const RawReply reply = client.reply();
  EXPECT_EQ(reply.body, "GET /a ");
  EXPECT_EQ(reply.header("content-length"), "7");
  EXPECT_TRUE(client.closed());
}

TEST_F(HttpServerTest, NoticesAClientThatLeavesASilentStream) {
  serve();
  RawClient client(port());
  client.send(get("/endless"));
  ASSERT_TRUE(client.wait_for("start"));
  client.close();
  handler_.noticed.wait();
}

TEST_F(HttpServerTest, NoticesAClientThatLeavesBeforeAWholeReply) {
  serve();
  RawClient client(port());
  client.send(post("/poll", "x"));
  handler_.entered.wait();
  client.close();
  handler_.noticed.wait();
}

TEST_F(HttpServerTest, AHalfClosedClientIsGone) {
  serve();
  RawClient client(port());
  client.send(post("/poll", "x"));
  handler_.entered.wait();
  client.half_close();
  handler_.noticed.wait();
  EXPECT_EQ(client.reply().status, 0);
}

TEST_F(HttpServerTest, APipelinedRequestIsNoHangUp) {
  serve();
  RawClient client(port());
  client.send(get("/endless") + get("/a"));
  ASSERT_TRUE(client.wait_for("start"));
  EXPECT_FALSE(handler_.noticed.wait_for(milliseconds(50)));
  client.close();
  handler_.noticed.wait();
}

TEST_F(HttpServerTest, ThrowingHandlersAnswer500) {
  serve();
  RawClient client(port());
  client.send(get("/throw") + get("/a"));
  const RawReply reply = client.reply();
  EXPECT_EQ(reply.status, 500);
  EXPECT_THAT(reply.body, HasSubstr("server_error"));
  EXPECT_EQ(reply.body.find("broken handler"), std::string::npos);
  EXPECT_EQ(client.reply().status, 200);
}

TEST_F(HttpServerTest, BeyondTheConnectionLimitA503) {
  HttpLimits limits;
  limits.max_connections = 2;
  serve(limits);
  RawClient first(port());
  RawClient second(port());
  for (RawClient* client : {&first, &second}) {
    client->send(get("/a"));
    EXPECT_EQ(client->reply().status, 200);
  }
  for (int i = 0; i < 5; ++i) {
    RawClient third(port());
    third.send(post("/a", std::string(1000, 'x')));
    const RawReply reply = third.reply();
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(reply.header("retry-after"), "5");
    third.half_close();
    EXPECT_TRUE(third.closed());
  }
  first.close();
  // The place is free once the server has seen the close.
  int status = 503;
  for (int i = 0; i < 1000 && status == 503; ++i) {
    status = ask(get("/a", "Connection: close\r\n")).status;
    std::this_thread::sleep_for(milliseconds(2));
  }
  EXPECT_EQ(status, 200);
}

TEST_F(HttpServerTest, ASecondServerOnThePortIsRefused) {
  serve();
  HttpServer second({}, handler_);
  try {
    second.start("127.0.0.1", port());
    FAIL() << "the port was shared";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(":" + std::to_string(port())));
    EXPECT_THAT(error.what(), HasSubstr("Address already in use"));
  }
}

TEST_F(HttpServerTest, ThePortIsFreeAfterAStop) {
  serve();
  const int port_number = port();
  EXPECT_EQ(ask(get("/a")).status, 200);
  server_->stop(milliseconds(0));
  HttpServer second({}, handler_);
  EXPECT_NO_THROW(second.start("127.0.0.1", port_number));
}

TEST_F(HttpServerTest, StopLetsRunningRequestsEndAndRefusesNewOnes) {
  serve();
  RawClient running(port());
  RawClient open(port());
  open.send(get("/a"));
  EXPECT_EQ(open.reply().status, 200);
  running.send(get("/wait"));
  handler_.entered.wait();
  std::thread stopping([&] { server_->stop(std::chrono::seconds(20)); });
  RawReply late = ask(get("/b"));
  for (int i = 0; i < 2000 && late.status == 200; ++i) late = ask(get("/b"));
  EXPECT_EQ(late.status, 503);
  EXPECT_TRUE(late.has("retry-after"));
  open.send(get("/b"));
  EXPECT_EQ(open.reply().status, 503);
  handler_.release.open();
  EXPECT_EQ(running.reply().body, "released");
  stopping.join();
}

TEST_F(HttpServerTest, StopCutsWhatDoesNotEnd) {
  serve();
  RawClient client(port());
  client.send(get("/endless"));
  ASSERT_TRUE(client.wait_for("start"));
  server_->stop(milliseconds(10));
  handler_.noticed.wait();
  EXPECT_FALSE(client.reply().complete);
}

TEST_F(HttpServerTest, StopLetsCancelledRequestsAnswer) {
  serve();
  RawClient client(port());
  client.send(get("/wait"));
  handler_.entered.wait();
  int calls = 0;
  server_->stop(milliseconds(10), [&] {
    ++calls;
    EXPECT_EQ(ask(get("/b")).status, 503);
    handler_.release.open();
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(client.reply().body, "released");
}

TEST_F(HttpServerTest, StopCancelsNothingWhereNothingRuns) {
  serve();
  EXPECT_EQ(ask(get("/a")).status, 200);
  server_->stop(milliseconds(0), [] { ADD_FAILURE() << "cancelled"; });
}

TEST_F(HttpServerTest, ReportsEachRequestAfterItsReply) {
  serve();
  const std::string reply = "HTTP/1.1 200 OK\r\n";
  ask(post("/a%20b?key=secret", "text"));
  ServedRequest served = handler_.served_request(0);
  EXPECT_EQ(served.client, "127.0.0.1");
  EXPECT_EQ(served.method, "POST");
  EXPECT_EQ(served.path, "/a%20b");
  EXPECT_EQ(served.decoded_path, "/a b");
  EXPECT_EQ(served.status, 200);
  EXPECT_GT(served.bytes, reply.size() + std::string("POST /a b text").size());
  EXPECT_TRUE(served.complete);
  EXPECT_FALSE(served.tokens.has_value());

  RawClient leaving(port());
  leaving.send(get("/endless"));
  ASSERT_TRUE(leaving.wait_for("start"));
  leaving.close();
  served = handler_.served_request(1);
  EXPECT_EQ(served.status, 200);
  EXPECT_FALSE(served.complete);
  ASSERT_TRUE(served.tokens.has_value());
  EXPECT_EQ(served.tokens->completion, 4);

  RawClient impatient(port());
  impatient.send(get("/poll"));
  handler_.entered.wait();
  impatient.close();
  served = handler_.served_request(2);
  EXPECT_EQ(served.status, kClientClosedRequest);
  EXPECT_EQ(served.path, "/poll");
  EXPECT_FALSE(served.complete);
}

TEST_F(HttpServerTest, RefusalsFollowWhatCouldBeReadOfTheRequest) {
  HttpLimits limits;
  limits.body_bytes = 1000;
  limits.max_connections = 1;
  serve(limits);
  struct Case {
    std::string request;
    int status;
    const char* method;
    const char* path;
    const char* id;
  };
  const Case cases[] = {
      {"POST /v1/messages?a HTTP/1.1\r\nX-Test: 1\r\nContent-Length: 1001\r\n\r\n", 413, "POST", "/v1/messages",
       "refused 1"},
      {"POST /v1/mess%61ges HTTP/1.1\r\nX-Test: 1\r\nContent-Length: 1001\r\n\r\n", 413, "POST", "/v1/mess%61ges",
       "refused 1"},
      {"POST /a HTTP/1.1\r\nX-Test: 2\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "POST", "/a", "refused 2"},
      {"POST /a HTTP/1.1\r\nX-Test: 3\r\nbroken line\r\n\r\n", 400, "POST", "/a", "refused 3"},
      {"BREW /a HTTP/1.1\r\nX-Test: 4\r\n\r\n", 501, "", "", "refused 4"},
      {"\x16\x03\x01", 400, "", "", "refused "},
  };
  size_t served = 0;
  for (const Case& c : cases) {
    RawReply reply;
    do {  // the one before still holds the only place
      std::this_thread::sleep_for(milliseconds(1));
      reply = ask(c.request);
      const ServedRequest record = handler_.served_request(served++);
      EXPECT_EQ(record.status, reply.status);
      if (reply.status == 503) {
        EXPECT_EQ(record.method, "");
        EXPECT_EQ(reply.header("retry-after"), "5");
        EXPECT_EQ(reply.header("x-request-id"), "refused ");
        continue;
      }
      EXPECT_EQ(record.method, c.method);
      EXPECT_EQ(record.path, c.path);
      EXPECT_EQ(record.request_id, c.id);
    } while (reply.status == 503);
    EXPECT_EQ(reply.status, c.status) << c.request;
    EXPECT_EQ(reply.header("x-request-id"), c.id) << c.request;
    EXPECT_EQ(reply.body.find("\"type\":\"error\"") != std::string::npos, std::string(c.path).starts_with("/v1/"));
  }
}

TEST_F(HttpServerTest, TheBodiesOfAllConnectionsShareOneLimit) {
  HttpLimits limits;
  limits.all_bodies_bytes = 1'000'000;
  serve(limits);
  const std::string large(1'000'000, 'x');
  RawClient holding(port());
  holding.send(post("/wait", large));
  handler_.entered.wait();
  {
    RawClient client(port());
    client.send(post("/length", large));
    const RawReply reply = client.reply();
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(reply.header("retry-after"), "5");
    EXPECT_TRUE(client.drained());
  }
  EXPECT_EQ(ask("POST /length HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + std::string("f4240\r\n") + large +
                "\r\n0\r\n\r\n")
                .status,
            503);
  // What is not large is served all the same, and a body that is not kept does not count.
  EXPECT_EQ(ask(post("/length", large.substr(0, BodyMemory::kUncounted))).status, 200);
  EXPECT_EQ(ask(post("/missing", large)).status, 404);
  handler_.release.open();
  EXPECT_EQ(holding.reply().status, 200);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask(post("/length", large)).body, "1000000");
}

TEST_F(HttpServerTest, OneLargeBodyIsWorkedOnAtATime) {
  serve();
  const std::string large(BodyMemory::kLarge + 1, 'x');
  RawClient working(port());
  working.send(post("/wait", large));
  handler_.entered.wait();
  RawClient next(port());
  next.send(post("/length", large));
  RawClient leaving(port());
  leaving.send(post("/length", large));
  EXPECT_EQ(ask(post("/length", large.substr(1))).status, 200);
  leaving.close();
  EXPECT_EQ(handler_.served_request(1).status, kClientClosedRequest);
  EXPECT_EQ(handler_.handled, 2);
  handler_.release.open();
  EXPECT_EQ(working.reply().status, 200);
  EXPECT_EQ(next.reply().status, 200);
}

TEST_F(HttpServerTest, ABodyThatIsDoneHoldsNobodyUp) {
  HttpLimits limits;
  limits.all_bodies_bytes = BodyMemory::kLarge + 1;
  serve(limits);
  const std::string large(BodyMemory::kLarge + 1, 'x');
  RawClient going_on(port());
  going_on.send(post("/done", large));
  handler_.entered.wait();
  EXPECT_EQ(ask(post("/length", large)).status, 200);
  handler_.release.open();
  EXPECT_EQ(going_on.reply().body, "0");
}

TEST_F(HttpServerTest, WhatAReplyKeepsOfItsBodyCounts) {
  HttpLimits limits;
  limits.all_bodies_bytes = 1'000'000;
  handler_.kept = 1'000'000;
  serve(limits);
  const std::string large(1'000'000, 'x');
  RawClient going_on(port());
  going_on.send(post("/done", large));
  handler_.entered.wait();
  EXPECT_EQ(ask(post("/length", large)).status, 503);
  handler_.release.open();
  EXPECT_EQ(going_on.reply().status, 200);
  RawClient streaming(port());
  streaming.send(post("/endless", large));
  ASSERT_TRUE(streaming.wait_for("start"));
  EXPECT_EQ(ask(post("/length", large)).status, 503);
  streaming.close();
  handler_.noticed.wait();
  int status = 503;  // until the stream's end is seen
  for (int i = 0; i < 1000 && status == 503; ++i) status = ask(post("/length", large)).status;
  EXPECT_EQ(status, 200);
}

TEST_F(HttpServerTest, APausedBodyHoldsNobodyUp) {
  serve();
  const std::string large(BodyMemory::kLarge + 1, 'x');
  RawClient going_on(port());
  going_on.send(post("/paused", large));
  handler_.entered.wait();
  EXPECT_EQ(ask(post("/length", large)).status, 200);
  handler_.release.open();
  EXPECT_EQ(going_on.reply().body, std::to_string(large.size()));
}

TEST_F(HttpServerTest, ABodyWhoseTurnDoesNotComeIsRefused) {
  HttpLimits limits;
  limits.turn_patience = milliseconds(10);
  serve(limits);
  const std::string large(BodyMemory::kLarge + 1, 'x');
  RawClient working(port());
  working.send(post("/wait", large));
  handler_.entered.wait();
  RawClient late(port());
  late.send(post("/length", large));
  const RawReply reply = late.reply();
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.header("retry-after"), "5");
  late.send(get("/a"));  // the body was read, so the connection goes on
  EXPECT_EQ(late.reply().status, 200);
  handler_.release.open();
  EXPECT_EQ(working.reply().status, 200);
}

TEST_F(HttpServerTest, ConnectionsEndWhileAnotherIsBeingRefused) {
  HttpLimits limits;
  limits.max_connections = 1;
  Gate refusing;
  handler_.refusing = [&] {
    refusing.open();
    handler_.release.wait();
  };
  serve(limits);
  RawClient first(port(), std::chrono::seconds(5));
  first.send(get("/a"));
  EXPECT_EQ(first.reply().status, 200);
  RawClient second(port());
  refusing.wait();
  first.half_close();
  EXPECT_TRUE(first.closed());
  handler_.release.open();
  EXPECT_EQ(second.reply().status, 503);
}

TEST_F(HttpServerTest, ARefusalThatFailsEndsNothingElse) {
  HttpLimits limits;
  limits.max_connections = 1;
  handler_.refusing = [] { throw std::bad_alloc(); };
  serve(limits);
  RawClient first(port());
  first.send(get("/a"));
  EXPECT_EQ(first.reply().status, 200);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask(get("/a")).status, 0);
  first.send(get("/b"));
  EXPECT_EQ(first.reply().body, "GET /b ");
}

TEST_F(HttpServerTest, ManyConnectionsAtOnce) {
  serve();
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) good += ask(get("/a")).status == 200 ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 320);
}

}  // namespace
}  // namespace glm53::server
