#include "server/request_gate.h"

#include <gtest/gtest.h>

namespace glm53::server {
namespace {

constexpr uint64_t kBodyLimit = 1000;

/// Status of the refusal, or 0 when the head is accepted.
int status_of(const std::string& block) {
  const auto end = find_head_end(block, 16384);
  if (const auto* refusal = std::get_if<GateRefusal>(&end)) return refusal->status;
  EXPECT_EQ(std::get<size_t>(end), block.size()) << block;
  const auto parsed = parse_head(block, kBodyLimit);
  const auto* refusal = std::get_if<GateRefusal>(&parsed);
  return refusal == nullptr ? 0 : refusal->status;
}

RequestHead accepted(const std::string& block) {
  const auto parsed = parse_head(block, kBodyLimit);
  if (const auto* refusal = std::get_if<GateRefusal>(&parsed)) {
    ADD_FAILURE() << refusal->message;
    return {};
  }
  return std::get<RequestHead>(parsed);
}

std::string with(const std::string& headers) { return "POST /x HTTP/1.1\r\n" + headers + "\r\n"; }

TEST(FindHeadEnd, CountsBytesUpToTheBlankLine) {
  const std::string block = "GET / HTTP/1.1\r\nA: b\r\n\r\n";
  for (size_t n = 0; n < block.size(); ++n) {
    EXPECT_EQ(std::get<size_t>(find_head_end(block.substr(0, n), 100)), 0U) << n;
  }
  EXPECT_EQ(std::get<size_t>(find_head_end(block + "next", 100)), block.size());
}

TEST(FindHeadEnd, RefusesWhatCannotBecomeARequest) {
  EXPECT_EQ(std::get<GateRefusal>(find_head_end("\x16\x03\x01", 100)).status, 400);
  EXPECT_EQ(std::get<GateRefusal>(find_head_end("GET / HTTP/1.1\n", 100)).status, 400);
  EXPECT_EQ(std::get<GateRefusal>(find_head_end("GET / HTTP/1.1\r\nA: b\n\r\n", 100)).status, 400);
  EXPECT_EQ(std::get<GateRefusal>(find_head_end(std::string(101, 'a'), 100)).status, 431);
  EXPECT_EQ(std::get<GateRefusal>(find_head_end("GET / HTTP/1.1\r\n" + std::string(100, 'a') + "\r\n\r\n", 100)).status,
            431);
}

TEST(ReadablePart, IsWhatIsWellFormed) {
  RequestHead head =
      readable_part("\r\nPOST /a?b HTTP/1.1\r\nOrigin: x\r\nbad line\r\nA: \x01\r\nB: c\r\n\r\nD: e\r\n");
  EXPECT_EQ(head.method, "POST");
  EXPECT_EQ(head.target, "/a?b");
  ASSERT_EQ(head.headers.size(), 2U);
  EXPECT_EQ(head.headers[0].value, "x");
  EXPECT_EQ(head.headers[1].name, "B");
  head = readable_part("nonsense\r\nOrigin: x\r\nB: unfinished");
  EXPECT_EQ(head.method, "");
  ASSERT_EQ(head.headers.size(), 1U);
  for (const char* bytes : {"", "\r\n", "\n", "GET"}) EXPECT_EQ(readable_part(bytes).method, "");
}

TEST(ParseHead, ReadsLineAndHeaders) {
  const RequestHead head = accepted("\r\nPOST /v1/x?y=1 HTTP/1.1\r\nHost: a\r\nX-Y:  two words \t\r\nEmpty:\r\n\r\n");
  EXPECT_EQ(head.method, "POST");
  EXPECT_EQ(head.target, "/v1/x?y=1");
  EXPECT_EQ(head.minor_version, 1);
  ASSERT_EQ(head.headers.size(), 3U);
  EXPECT_EQ(head.headers[1].value, "two words");
  EXPECT_EQ(head.headers[2].value, "");
  EXPECT_EQ(head.framing, BodyFraming::kNone);
  EXPECT_TRUE(head.keep_alive);
}

TEST(ParseHead, RequestLines) {
  for (const char* line :
       {"GET /", "GET  / HTTP/1.1", "GET / HTTP/1.1 x", " GET / HTTP/1.1", "GET / http/1.1", "G@T / HTTP/1.1",
        "GET x HTTP/1.1", "GET * HTTP/1.1", "GET /\x01 HTTP/1.1", "GET ftp://a/ HTTP/1.1", "GET / XTTP/1.1"}) {
    EXPECT_EQ(status_of(std::string(line) + "\r\n\r\n"), 400) << line;
  }
  EXPECT_EQ(status_of("GET / HTTP/2.0\r\n\r\n"), 505);
  EXPECT_EQ(status_of("BREW / HTTP/1.1\r\n\r\n"), 501);
  EXPECT_EQ(status_of("CONNECT a:1 HTTP/1.1\r\n\r\n"), 501);
  EXPECT_EQ(status_of("GET /" + std::string(9000, 'a') + " HTTP/1.1\r\n\r\n"), 414);
  EXPECT_EQ(accepted("GET http://host:8888/p?q HTTP/1.1\r\n\r\n").target, "/p?q");
  EXPECT_EQ(accepted("GET http://host?q HTTP/1.1\r\n\r\n").target, "/?q");
  EXPECT_EQ(accepted("GET http://host HTTP/1.1\r\n\r\n").target, "/");
  EXPECT_EQ(accepted("OPTIONS * HTTP/1.1\r\n\r\n").target, "*");
}

TEST(ParseHead, HeaderLines) {
  EXPECT_EQ(status_of(with("no colon\r\n")), 400);
  EXPECT_EQ(status_of(with("Name : x\r\n")), 400);
  EXPECT_EQ(status_of(with("A: b\r\n folded\r\n")), 400);
  EXPECT_EQ(status_of(with(": x\r\n")), 400);
  EXPECT_EQ(status_of(with("A: b\rc\r\n")), 400);
  EXPECT_EQ(status_of(with(std::string("A: b\0c\r\n", 8))), 400);
  EXPECT_EQ(status_of(with("A: caf\xC3\xA9\r\n")), 0);
}

TEST(ParseHead, FramingThatTwoProgramsCouldReadDifferently) {
  EXPECT_EQ(status_of(with("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n")), 400);
  EXPECT_EQ(status_of(with("transfer-encoding: chunked\r\ncontent-length: 0\r\n")), 400);
  EXPECT_EQ(status_of(with("Content-Length: 5\r\nContent-Length: 6\r\n")), 400);
  EXPECT_EQ(status_of(with("Content-Length: 5\r\nContent-Length: 5\r\n")), 0);
  for (const char* length : {"", "-1", "+5", "5 5", "5,5", "0x5", "5a", "99999999999999999999"}) {
    EXPECT_EQ(status_of(with("Content-Length: " + std::string(length) + "\r\n")), 400) << length;
  }
  for (const char* coding : {"gzip", "gzip, chunked", "chunked, chunked", "identity", "xchunked", ""}) {
    EXPECT_EQ(status_of(with("Transfer-Encoding: " + std::string(coding) + "\r\n")), 400) << coding;
  }
  EXPECT_EQ(status_of(with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n")), 400);
  EXPECT_EQ(status_of("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
}

TEST(ParseHead, Bodies) {
  EXPECT_EQ(accepted(with("Content-Length: 1000\r\n")).content_length, 1000U);
  EXPECT_EQ(status_of(with("Content-Length: 1001\r\n")), 413);
  EXPECT_EQ(accepted(with("Content-Length: 0\r\n")).framing, BodyFraming::kNone);
  EXPECT_EQ(accepted(with("Transfer-Encoding: Chunked\r\n")).framing, BodyFraming::kChunked);
  EXPECT_EQ(status_of(with("Content-Encoding: gzip\r\n")), 415);
  EXPECT_EQ(status_of(with("Content-Encoding: identity\r\n")), 0);
  EXPECT_TRUE(accepted(with("Expect: 100-Continue\r\n")).expect_continue);
  EXPECT_EQ(status_of(with("Expect: miracles\r\n")), 417);
}

TEST(ParseHead, KeepAlive) {
  EXPECT_FALSE(accepted(with("Connection: Close\r\n")).keep_alive);
  EXPECT_FALSE(accepted(with("Connection: foo, close\r\n")).keep_alive);
  EXPECT_TRUE(accepted(with("Connection: keep-alive\r\n")).keep_alive);
  EXPECT_FALSE(accepted("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keep_alive);
}

// ---- chunked coding

struct Decoded {
  std::string data;
  ChunkDecoder::Status status;
  size_t used;
};

Decoded decode(std::string_view bytes, size_t piece, uint64_t limit = 1000) {
  ChunkDecoder decoder(limit);
  Decoded result{{}, {}, 0};
  while (result.used < bytes.size() && decoder.status() == ChunkDecoder::Status::kMore) {
    result.used += decoder.feed(bytes.substr(result.used, piece), &result.data);
  }
  result.status = decoder.status();
  return result;
}

TEST(ChunkDecoder, SameResultInAnyPieces) {
  const std::string body = "4\r\nWiki\r\n0A;name=\"v\"\r\n0123456789\r\n1 \r\n\n\r\n000\r\nTrailer: x\r\nB: y\r\n\r\n";
  for (size_t piece = 1; piece <= body.size() + 5; ++piece) {
    const Decoded result = decode(body + "GET /", piece);
    EXPECT_EQ(result.status, ChunkDecoder::Status::kDone) << piece;
    EXPECT_EQ(result.data, "Wiki0123456789\n") << piece;
    EXPECT_EQ(result.used, body.size()) << piece;
  }
}

TEST(ChunkDecoder, Malformed) {
  for (const char* body : {"\r\n", "x\r\n", "-1\r\n", "+1\r\na\r\n", "0x1\r\na\r\n", " 1\r\na\r\n", "1\na\r\n",
                           "1\r\nab\r\n", "1\r\na\n", "1\r\na\r\n\r\n", "0\r\nT: x\n\r\n", ";x\r\n", "1\rXa"}) {
    EXPECT_EQ(decode(body, 1).status, ChunkDecoder::Status::kMalformed) << body;
    EXPECT_EQ(decode(body, 100).status, ChunkDecoder::Status::kMalformed) << body;
  }
}

TEST(ChunkDecoder, Limits) {
  EXPECT_EQ(decode("3e8\r\n", 1).status, ChunkDecoder::Status::kMore);
  EXPECT_EQ(decode("3e9\r\n", 1).status, ChunkDecoder::Status::kTooLarge);
  EXPECT_EQ(decode("ffffffffffffffffff\r\n", 1).status, ChunkDecoder::Status::kTooLarge);
  EXPECT_EQ(decode("2\r\nab\r\n2\r\n", 1, 3).status, ChunkDecoder::Status::kTooLarge);
  EXPECT_EQ(decode(std::string(5000, '0'), 100).status, ChunkDecoder::Status::kMalformed);
  EXPECT_EQ(decode("1;" + std::string(5000, 'x'), 100).status, ChunkDecoder::Status::kMalformed);
  EXPECT_EQ(decode("0\r\n" + std::string(20000, 'x'), 100).status, ChunkDecoder::Status::kMalformed);
  // Unfinished bodies are neither done nor wrong.
  EXPECT_EQ(decode("5\r\nab", 1).status, ChunkDecoder::Status::kMore);
}

}  // namespace
}  // namespace glm53::server
