// What a request must look like before anything else reads it: header block, body framing, chunked coding. Pure
// functions over bytes. A request that two programs could frame differently (request smuggling) is refused here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/http_types.h"

namespace glm53::server {

enum class BodyFraming : uint8_t { kNone, kLength, kChunked };

struct RequestHead {
  std::string method;  ///< GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS
  std::string target;  ///< origin form ("/v1/models?x=1"), or "*"
  std::string path;    ///< of the target, percent-decoded: what is routed
  int minor_version = 1;
  std::vector<HttpHeader> headers;
  BodyFraming framing = BodyFraming::kNone;
  uint64_t content_length = 0;  ///< kLength
  bool keep_alive = true;       ///< never for HTTP/1.0
  bool expect_continue = false;
};

/// The answer to a request that cannot be served; the connection ends with it.
struct GateRefusal {
  int status;
  std::string message;
  std::string code = {};  ///< as ApiError::code
};

GateRefusal body_too_large(uint64_t limit);

/// A target without its query.
std::string_view path_of(std::string_view target);

/// Where the header block ends: bytes up to and including the blank line, or 0 while more are needed. Refuses a block
/// beyond `limit` bytes (431), bytes that cannot begin a request (TLS, for one) and bare line feeds.
std::variant<size_t, GateRefusal> find_head_end(std::string_view bytes, size_t limit);

/// Parses a complete block. Refuses (400) malformed lines, folded headers, control characters, Content-Length together
/// with Transfer-Encoding, differing lengths and codings other than chunked; 413 for a length over `body_limit`,
/// 414, 415 (Content-Encoding), 417 (Expect), 501 (method), 505 (version).
std::variant<RequestHead, GateRefusal> parse_head(std::string_view block, uint64_t body_limit);

/// What a refused block says all the same, for the refusal's headers and the log: the request line and the header lines
/// that are well-formed, up to the blank line or the end of `bytes`. Nothing of it says how the body is framed.
RequestHead readable_part(std::string_view bytes);

/// Chunked transfer coding, fed in any pieces; the result does not depend on them.
class ChunkDecoder {
 public:
  enum class Status : uint8_t { kMore, kDone, kMalformed, kTooLarge };

  /// kTooLarge as soon as chunk sizes announce more than `limit` bytes.
  explicit ChunkDecoder(uint64_t limit) : limit_(limit) {}

  /// Takes bytes up to the end of the body (the rest belongs to the next request) and returns how many. Data is
  /// appended to `*out` unless that is null.
  size_t feed(std::string_view bytes, std::string* out);
  Status status() const { return status_; }

 private:
  enum class Place : uint8_t {
    kSizeStart,
    kSize,
    kExtension,
    kSizeLf,
    kData,
    kDataCr,
    kDataLf,
    kLineStart,
    kTrailer,
    kTrailerLf,
    kEndLf
  };
  void step(char c);

  uint64_t limit_;
  uint64_t total_ = 0;  ///< announced by the chunk sizes so far
  uint64_t chunk_ = 0;  ///< size being read, then bytes left of the chunk
  int line_bytes_ = 0;  ///< of the size line or of all trailers, to bound what no limit on data bounds
  Place place_ = Place::kSizeStart;
  Status status_ = Status::kMore;
};

/// Case-insensitive comparison of ASCII text.
bool same_text(std::string_view a, std::string_view b);

}  // namespace glm53::server
