#include "server/chat_page.h"

#include <algorithm>
#include <string>

#include "server/api_error.h"

namespace glm53::server {
namespace {

std::string_view content_type(std::string_view name) {
  const std::string_view extension = name.substr(name.rfind('.') + 1);
  if (extension == "html") return "text/html; charset=utf-8";
  if (extension == "css") return "text/css; charset=utf-8";
  return "text/javascript; charset=utf-8";
}

}  // namespace

bool is_page_path(std::string_view path) { return path == "/" || path.substr(0, kPagePrefix.size()) == kPagePrefix; }

HttpResponse chat_page(const HttpRequest& request, const ApiContext&) {
  const std::string_view path = request.path;
  const bool below = path.substr(0, kPagePrefix.size()) == kPagePrefix;
  const std::string_view name = below ? path.substr(kPagePrefix.size()) : "index.html";
  const auto files = page_files();
  const auto file = std::find_if(files.begin(), files.end(), [&](const PageFile& each) { return each.name == name; });
  if (file == files.end()) throw ApiError(404, "there is no route " + std::string(path));
  HttpResponse response;
  response.content_type = content_type(name);
  // What a reply says is text to the page. Should markup slip through all the same, it may neither run nor load
  // anything.
  response.headers = {{"Content-Security-Policy",
                       "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
                       "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"},
                      {"ETag", std::string(file->etag)}};
  if (request.header("If-None-Match") == file->etag) {
    response.status = 304;
  } else {
    response.body = file->bytes;
  }
  return response;
}

}  // namespace glm53::server
