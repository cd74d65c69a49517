// Errors that a user can mend: bad configuration, bad files, bad requests. Each message is one line and names the
// file, tensor, key or field at fault.
#pragma once

#include <stdexcept>
#include <string>

namespace glm53 {

/// Bad input found while starting: configuration, checkpoint, tokenizer. `main` prints the message and exits with
/// `exit_code()`: 2 for bad input, 3 where the input is sound but does not fit this machine's memory.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, int exit_code = 2) : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

inline constexpr int kExitBadInput = 2;
inline constexpr int kExitDoesNotFit = 3;

}  // namespace glm53
