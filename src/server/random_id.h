// Ids of replies, of their parts and of requests.
#pragma once

#include <string>

namespace glm53::server {

/// 32 hexadecimal digits from OS entropy.
std::string random_id();

/// A fresh id of a call: 24 hexadecimal digits after `prefix`.
std::string call_id(const char* prefix);

}  // namespace glm53::server
