// The chat page at `/`: the files of src/server/page, carried in the program. The page talks to the API as any client
// does and loads nothing from elsewhere. Any thread.
#pragma once

#include <span>
#include <string_view>

#include "server/api_context.h"
#include "server/http_types.h"

namespace glm53::server {

struct PageFile {
  std::string_view name;  ///< without folder
  std::string_view etag;  ///< quoted, as the header has it; another one for other bytes
  std::string_view bytes;
};

/// Defined by the source that the build makes of src/server/page (scripts/cmake/embed_files.cmake).
std::span<const PageFile> page_files();

inline constexpr std::string_view kPagePrefix = "/page/";

/// `/` and what it refers to; `path` without trailing slash. Such a path exists only with api.chat_page.
bool is_page_path(std::string_view path);

/// Answers both: index.html for `/`, 304 for bytes that the client has, 404 for a file that is not there.
HttpResponse chat_page(const HttpRequest& request, const ApiContext& api);

}  // namespace glm53::server
