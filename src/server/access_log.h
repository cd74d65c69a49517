// The access log: one line a request, of names and values that hold no blank, so that a line cannot be forged.
#pragma once

#include <string>

#include "server/http_types.h"

namespace glm53::server {

/// client=127.0.0.1 id=… method=POST path=/v1/completions status=200 bytes=512 seconds=0.140 prompt_tokens=9
/// completion_tokens=16. What is unknown is "-" or left out; a reply that was cut ends in cut=true. Bytes of the path
/// that are no visible ASCII are %XX; it is cut after 256 bytes.
std::string access_line(const ServedRequest& request);

}  // namespace glm53::server
