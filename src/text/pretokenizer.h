// Cuts text into the pieces that BPE sees (spec 40 §1.3, spec 80 §5): the split pattern of tokenizer.json, behaviour
// Isolated, run by PCRE2.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;

namespace glm53::text {

/// The PCRE2 pattern that matches what `pattern` matches in the engine tokenizer files are written for (Oniguruma):
/// `\s` and `\S` are spelled out, since PCRE2's `\s` takes in U+180E. Constructs on which the two engines differ or may
/// differ (`\w`, script properties, anchors, nested brackets, ...) are refused with an Error that names them.
std::string pcre2_pattern(std::string_view pattern);

/// Immutable; any number of threads may split at once.
class PreTokenizer {
 public:
  /// `pattern` as tokenizer.json has it. Throws Error naming what is refused or what PCRE2 says; a pattern that can
  /// match no text at all is refused too.
  explicit PreTokenizer(const std::string& pattern);

  /// The matches and the text between them, in order; together they are `text`, which must be valid UTF-8 and outlive
  /// the pieces. Throws std::runtime_error when PCRE2 gives up (match limit, JIT stack).
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
};

}  // namespace glm53::text
