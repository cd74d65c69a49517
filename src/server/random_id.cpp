#include "server/random_id.h"

#include <cstdio>
#include <random>

namespace glm53::server {

std::string random_id() {
  std::random_device entropy;
  char text[33];
  for (int i = 0; i < 4; ++i) std::snprintf(text + i * 8, 9, "%08x", static_cast<unsigned>(entropy()));
  return text;
}

std::string call_id(const char* prefix) { return prefix + random_id().substr(0, 24); }

}  // namespace glm53::server
