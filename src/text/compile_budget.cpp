#include "text/compile_budget.h"

namespace glm53::text {

void CompileBudget::look() {
  const bool late = std::chrono::steady_clock::now() >= end_;
  if (late || left_ < 0) {
    left_ = -1;
    next_look_ = 0;
    throw GrammarTooLarge(late ? "grammar: too large (not compiled in time)"
                               : "grammar: too large (more work than a compilation may cost)");
  }
  next_look_ = left_ > kLook ? left_ - kLook : 0;
}

}  // namespace glm53::text
