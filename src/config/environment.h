// The process environment. environment.cpp is the only file of this program that reads it.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace glm53::config {

/// Variables whose name starts with GLM53_, in the order of the environment.
std::vector<std::pair<std::string, std::string>> read_environment();

}  // namespace glm53::config
