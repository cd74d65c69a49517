// Schemas that ask for far more work than their size says.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace glm53::test {

/// `text` `times` times, with `between` in between.
std::string repeated(const std::string& text, int times, const std::string& between = "");

/// Name and text of schemas that no compilation within bounds can finish.
std::vector<std::pair<std::string, std::string>> hostile_schemas();

/// The parameters of functions that are too large together, each of them fine.
std::vector<std::string> hostile_parameters();

}  // namespace glm53::test
