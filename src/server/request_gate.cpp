#include "server/request_gate.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "glm53/core/ascii.h"
#include "glm53/core/printable.h"

namespace glm53::server {
namespace {

constexpr size_t kMaxTarget = 8000;  // the HTTP library refuses 8,192 without our error JSON
constexpr int kMaxChunkLine = 256;   // size line with its extension
constexpr int kMaxTrailerBytes = 8192;

bool is_token_char(char c) {
  const auto u = static_cast<unsigned char>(c);
  if ((u >= '0' && u <= '9') || (u >= 'a' && u <= 'z') || (u >= 'A' && u <= 'Z')) return true;
  return u != 0 && std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char); }

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// Empty lines before a request line are skipped: some clients end a body with one too many (RFC 9112 §2.2).
size_t leading_blank_lines(std::string_view bytes) {
  size_t skipped = 0;
  while (bytes.substr(skipped, 2) == "\r\n" && skipped < 8) skipped += 2;
  return skipped;
}

bool list_has(std::string_view list, std::string_view wanted) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (same_text(trim(list.substr(0, comma)), wanted)) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char l = ascii_lower(c);
  return l >= 'a' && l <= 'f' ? l - 'a' + 10 : -1;
}

/// %XX as the byte it stands for; a % without two digits stays.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '%' && i + 2 < text.size();
    const int high = escape ? hex_digit(text[i + 1]) : -1;
    const int low = escape ? hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      out += text[i];
      continue;
    }
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

std::optional<GateRefusal> read_request_line(std::string_view line, RequestHead& head) {
  const size_t first = line.find(' ');
  const size_t second = first == std::string_view::npos ? first : line.find(' ', first + 1);
  if (second == std::string_view::npos || line.find(' ', second + 1) != std::string_view::npos) {
    return GateRefusal{400, "malformed request line"};
  }
  const std::string_view method = line.substr(0, first);
  std::string_view target = line.substr(first + 1, second - first - 1);
  const std::string_view version = line.substr(second + 1);
  if (!is_token(method) || target.empty()) return GateRefusal{400, "malformed request line"};
  if (target.size() > kMaxTarget) return GateRefusal{414, "the request target is too long"};
  for (char c : target) {
    if (is_control(c) || c == ' ') {
      return GateRefusal{400, "control character in the request target"};
    }
  }
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return version.substr(0, 5) == "HTTP/" ? GateRefusal{505, "only HTTP/1.0 and HTTP/1.1 are supported"}
                                           : GateRefusal{400, "malformed request line"};
  }
  static constexpr std::string_view kMethods[] = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"};
  if (std::find(std::begin(kMethods), std::end(kMethods), method) == std::end(kMethods)) {
    return GateRefusal{501, "method not implemented"};
  }
  // Absolute form, as sent to proxies: servers must accept it.
  if (target.front() != '/' && !(target == "*" && method == "OPTIONS")) {
    const size_t scheme = target.find("://");
    if (scheme == std::string_view::npos || !same_text(target.substr(0, scheme), "http")) {
      return GateRefusal{400, "malformed request target"};
    }
    const size_t path = target.find_first_of("/?#", scheme + 3);
    target = path == std::string_view::npos ? std::string_view() : target.substr(path);
  }
  head.method = method;
  head.target = target;
  if (head.target.empty() || (head.target.front() != '/' && head.target != "*")) head.target.insert(0, 1, '/');
  head.path = percent_decoded(path_of(head.target));
  head.minor_version = version.back() - '0';
  return std::nullopt;
}

std::optional<GateRefusal> read_header_line(std::string_view line, RequestHead& head) {
  const size_t colon = line.find(':');
  // A name with a blank in it covers folded lines and "Name :", which other programs read differently.
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) {
    return GateRefusal{400, "malformed header line"};
  }
  const std::string_view value = trim(line.substr(colon + 1));
  for (char c : value) {
    if (is_control(c) && c != '\t') {
      return GateRefusal{400, "control character in header " + std::string(line.substr(0, colon))};
    }
  }
  head.headers.push_back({std::string(line.substr(0, colon)), std::string(value)});
  return std::nullopt;
}

std::optional<GateRefusal> read_content_length(const std::string& value, bool repeated, RequestHead& head) {
  uint64_t length = 0;
  const char* end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data(), end, length);
  if (value.empty() || parsed.ec != std::errc() || parsed.ptr != end) {
    return GateRefusal{400, "malformed Content-Length"};
  }
  if (repeated && length != head.content_length) return GateRefusal{400, "differing Content-Length headers"};
  head.framing = BodyFraming::kLength;
  head.content_length = length;
  return std::nullopt;
}

/// Framing and connection headers.
std::optional<GateRefusal> read_meaning(RequestHead& head, uint64_t body_limit) {
  int codings = 0;
  int lengths = 0;
  head.keep_alive = head.minor_version >= 1;
  for (const HttpHeader& header : head.headers) {
    if (same_text(header.name, "Transfer-Encoding")) {
      if (++codings > 1 || !same_text(header.value, "chunked") || head.minor_version == 0) {
        return GateRefusal{400, "the only Transfer-Encoding supported is chunked, in HTTP/1.1"};
      }
    } else if (same_text(header.name, "Content-Length")) {
      if (auto refusal = read_content_length(header.value, lengths++ > 0, head)) return refusal;
    } else if (same_text(header.name, "Content-Encoding")) {
      if (!header.value.empty() && !same_text(header.value, "identity")) {
        return GateRefusal{415, "Content-Encoding is not supported: send the body as it is"};
      }
    } else if (same_text(header.name, "Connection")) {
      if (list_has(header.value, "close")) head.keep_alive = false;
    } else if (same_text(header.name, "Expect")) {
      if (!same_text(header.value, "100-continue"))
        return GateRefusal{417, "the only Expect supported is 100-continue"};
      head.expect_continue = head.minor_version >= 1;
    }
  }
  if (codings > 0 && lengths > 0) return GateRefusal{400, "Content-Length together with Transfer-Encoding"};
  if (codings > 0) head.framing = BodyFraming::kChunked;
  if (head.framing == BodyFraming::kLength && head.content_length > body_limit) {
    return body_too_large(body_limit);
  }
  if (head.framing == BodyFraming::kLength && head.content_length == 0) head.framing = BodyFraming::kNone;
  return std::nullopt;
}

}  // namespace

std::string_view path_of(std::string_view target) { return target.substr(0, target.find_first_of("?#")); }

bool same_text(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) { return ascii_lower(x) == ascii_lower(y); });
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (same_text(header.name, name)) return header.value;
  }
  return {};
}

std::variant<size_t, GateRefusal> find_head_end(std::string_view bytes, size_t limit) {
  const size_t start = leading_blank_lines(bytes);
  if (start < bytes.size() && bytes[start] != '\r' && !is_token_char(bytes[start])) {
    return GateRefusal{400, "this is not an HTTP/1.1 request"};
  }
  const size_t end = bytes.find("\r\n\r\n", start);
  const std::string_view block = bytes.substr(start, end == std::string_view::npos ? end : end + 4 - start);
  for (size_t lf = block.find('\n'); lf != std::string_view::npos; lf = block.find('\n', lf + 1)) {
    if (lf == 0 || block[lf - 1] != '\r') return GateRefusal{400, "lines of the header block must end in CR LF"};
  }
  const size_t length = end == std::string_view::npos ? bytes.size() : end + 4;
  if (length > limit) {
    return GateRefusal{431, "the header block is larger than " + std::to_string(limit) + " bytes"};
  }
  return end == std::string_view::npos ? size_t{0} : length;
}

std::variant<RequestHead, GateRefusal> parse_head(std::string_view block, uint64_t body_limit) {
  block.remove_prefix(leading_blank_lines(block));
  RequestHead head;
  bool first = true;
  while (true) {
    const size_t eol = block.find("\r\n");
    if (eol == std::string_view::npos) return GateRefusal{400, "the header block has no end"};
    const std::string_view line = block.substr(0, eol);
    block.remove_prefix(eol + 2);
    if (first) {
      if (auto refusal = read_request_line(line, head)) return *refusal;
      first = false;
      continue;
    }
    if (line.empty()) break;
    if (auto refusal = read_header_line(line, head)) return *refusal;
  }
  if (auto refusal = read_meaning(head, body_limit)) return *refusal;
  return head;
}

GateRefusal body_too_large(uint64_t limit) {
  return {413, "the request body is larger than " + std::to_string(limit) + " bytes", "request_too_large"};
}

RequestHead readable_part(std::string_view bytes) {
  bytes.remove_prefix(leading_blank_lines(bytes));
  RequestHead head;
  bool first = true;
  for (size_t eol = bytes.find("\r\n"); eol != std::string_view::npos && eol > 0; eol = bytes.find("\r\n")) {
    const std::string_view line = bytes.substr(0, eol);
    // What these refuse they leave out.
    static_cast<void>(std::exchange(first, false) ? read_request_line(line, head) : read_header_line(line, head));
    bytes.remove_prefix(eol + 2);
  }
  return head;
}

size_t ChunkDecoder::feed(std::string_view bytes, std::string* out) {
  size_t used = 0;
  while (used < bytes.size() && status_ == Status::kMore) {
    if (place_ != Place::kData) {
      step(bytes[used++]);
      continue;
    }
    const size_t take = static_cast<size_t>(std::min<uint64_t>(chunk_, bytes.size() - used));
    if (out != nullptr) out->append(bytes.substr(used, take));
    used += take;
    chunk_ -= take;
    if (chunk_ == 0) place_ = Place::kDataCr;
  }
  return used;
}

void ChunkDecoder::step(char c) {
  const auto expect = [&](char wanted, Place next) {
    if (c == wanted) {
      place_ = next;
    } else {
      status_ = Status::kMalformed;
    }
  };
  switch (place_) {
    case Place::kSizeStart:
    case Place::kSize: {
      const int digit = hex_digit(c);
      if (digit >= 0) {
        if (place_ == Place::kSizeStart) {
          chunk_ = 0;
          line_bytes_ = 0;
        }
        place_ = Place::kSize;
        // chunk_ stays at or below limit_ between digits, so that the product cannot overflow for limits below 2^59.
        chunk_ = chunk_ * 16 + static_cast<uint64_t>(digit);
        if (chunk_ > limit_ - total_) status_ = Status::kTooLarge;
        if (++line_bytes_ > kMaxChunkLine) status_ = Status::kMalformed;
      } else if (place_ == Place::kSize && c == '\r') {
        place_ = Place::kSizeLf;
      } else if (place_ == Place::kSize && (c == ';' || c == ' ' || c == '\t')) {
        place_ = Place::kExtension;
      } else {
        status_ = Status::kMalformed;
      }
      break;
    }
    case Place::kExtension:
      if (c == '\r') {
        place_ = Place::kSizeLf;
      } else if (c == '\n' || ++line_bytes_ > kMaxChunkLine) {
        status_ = Status::kMalformed;
      }
      break;
    case Place::kSizeLf:
      total_ += chunk_;
      line_bytes_ = 0;
      expect('\n', chunk_ == 0 ? Place::kLineStart : Place::kData);
      break;
    case Place::kDataCr:
      expect('\r', Place::kDataLf);
      break;
    case Place::kDataLf:
      expect('\n', Place::kSizeStart);
      break;
    case Place::kLineStart:
    case Place::kTrailer:
      // Trailers are read and dropped.
      if (c == '\r') {
        place_ = place_ == Place::kLineStart ? Place::kEndLf : Place::kTrailerLf;
      } else if (c == '\n' || ++line_bytes_ > kMaxTrailerBytes) {
        status_ = Status::kMalformed;
      } else {
        place_ = Place::kTrailer;
      }
      break;
    case Place::kTrailerLf:
      expect('\n', Place::kLineStart);
      break;
    case Place::kEndLf:
      status_ = c == '\n' ? Status::kDone : Status::kMalformed;
      break;
    case Place::kData:
      break;  // feed() takes data in blocks
  }
}

}  // namespace glm53::server
