#include "server/access_log.h"

#include <string_view>

#include <fmt/format.h>

#include "glm53/core/ascii.h"

namespace glm53::server {
namespace {

constexpr size_t kMaxPath = 256;

std::string visible(std::string_view path) {
  std::string out;
  for (const char c : path.substr(0, kMaxPath)) {
    if (is_visible_ascii(c)) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return path.size() > kMaxPath ? out + "..." : out;
}

std::string_view or_dash(const std::string& text) { return text.empty() ? "-" : std::string_view(text); }

}  // namespace

std::string access_line(const ServedRequest& request) {
  std::string line = fmt::format("client={} id={} method={} path={} status={} bytes={} seconds={:.3f}",
                                 or_dash(request.client), or_dash(request.request_id), or_dash(request.method),
                                 or_dash(visible(request.path)), request.status, request.bytes, request.time.count());
  if (request.tokens) {
    line += fmt::format(" prompt_tokens={} completion_tokens={}", request.tokens->prompt, request.tokens->completion);
  }
  return request.complete ? line : line + " cut=true";
}

}  // namespace glm53::server
