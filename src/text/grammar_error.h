// Why a grammar is not made, beside plain Errors: those of what contradicts itself or is no schema.
#pragma once

#include <cstddef>
#include <string>

#include "glm53/core/error.h"

namespace glm53::text {

/// The whole is too much, though no part of it is wrong.
class GrammarTooLarge : public Error {
 public:
  using Error::Error;
};

/// A keyword or a pattern that means something to others, but is not supported, or not to this extent.
class UnsupportedSchema : public Error {
 public:
  using Error::Error;
};

/// A function's parameters are at fault.
class FunctionError : public Error {
 public:
  FunctionError(const std::string& message, size_t function) : Error(message), function_(function) {}
  size_t function() const { return function_; }  ///< index

 private:
  size_t function_;
};

}  // namespace glm53::text
