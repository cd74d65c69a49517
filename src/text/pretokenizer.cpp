#include "text/pretokenizer.h"

#include <algorithm>
#include <array>

#include "glm53/core/contains.h"
#include "glm53/core/error.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace glm53::text {
namespace {

// Unicode White_Space and its complement, as the inside of a bracket.
constexpr std::string_view kSpace =
    R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x00-\x08\x0e-\x1f\x21-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e})"
    R"(\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

// General categories: both engines take them from Unicode 14.0.
constexpr auto kCategories = std::to_array<std::string_view>(
    {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N",  "Nd", "Nl", "No", "P", "Pc",
     "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"});

constexpr auto kGroupOpenings = std::to_array<std::string_view>({"(?:", "(?i:", "(?=", "(?!", "(?>", "(?<=", "(?<!"});

constexpr size_t kMaxPatternBytes = 4096;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_hex(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

class PatternTranslator {
 public:
  explicit PatternTranslator(std::string_view pattern) : rest_(pattern) {}

  std::string translate() {
    while (!rest_.empty()) {
      switch (rest_[0]) {
        case '\\':
          escape(false);
          break;
        case '[':
          bracket();
          break;
        case '(':
          group();
          break;
        case '{':
          repetition();
          break;
        case '^':
        case '$':
        case '.':
          refuse(rest_.substr(0, 1));
        default:
          copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] static void refuse(std::string_view construct) {
    throw Error("the pattern uses " + std::string(construct) + ", which is not implemented");
  }

  void copy(size_t length) {
    out_ += rest_.substr(0, length);
    rest_.remove_prefix(length);
  }

  void group() {
    if (rest_.size() > 1 && (rest_[1] == '?' || rest_[1] == '*')) {
      for (const std::string_view opening : kGroupOpenings) {
        if (rest_.starts_with(opening)) return copy(opening.size());
      }
      refuse("the group " + std::string(rest_.substr(0, 4)));
    }
    copy(1);
  }

  // {n}, {n,} and {n,m}. Oniguruma reads {,m}, {n}? and {n}+ as something else than PCRE2 does.
  void repetition() {
    const size_t close = rest_.find('}');
    if (close == std::string_view::npos) refuse("a brace without a repetition");
    const std::string_view inside = rest_.substr(1, close - 1);
    const std::string_view low = inside.substr(0, inside.find(','));
    if (low.empty() || !std::all_of(low.begin(), low.end(), is_digit) ||
        inside.find_first_not_of("0123456789,") != std::string_view::npos ||
        std::count(inside.begin(), inside.end(), ',') > 1) {
      refuse("a brace without a repetition");
    }
    copy(close + 1);
    if (!rest_.empty() && (rest_[0] == '?' || rest_[0] == '+')) refuse("a lazy or possessive brace repetition");
  }

  void bracket() {
    copy(1);
    if (rest_.starts_with('^')) copy(1);
    if (rest_.starts_with(']')) refuse("an empty bracket");
    bool range = false;  // the character before is an unescaped hyphen that may make a range
    for (bool first = true; !rest_.starts_with(']'); first = false) {
      if (rest_.empty()) refuse("a bracket that is not closed");
      if (rest_[0] == '[') refuse("a nested bracket");
      if (rest_.starts_with("&&")) refuse("an intersection of brackets");
      if (rest_[0] == '\\') {
        const bool is_class = escape(true);
        const bool range_follows = rest_.size() > 1 && rest_[0] == '-' && rest_[1] != ']';
        if (is_class && (range || range_follows)) refuse("a range that ends in a class");
        range = false;
      } else {
        range = rest_[0] == '-' && !first;
        copy(1);
      }
    }
    copy(1);
  }

  // Returns whether the escape stands for a class of characters.
  bool escape(bool in_bracket) {
    const char letter = rest_.size() > 1 ? rest_[1] : '\0';
    switch (letter) {
      case 's':
      case 'S': {
        const std::string inside(letter == 's' ? kSpace : kNotSpace);
        out_ += in_bracket ? inside : "[" + inside + "]";
        rest_.remove_prefix(2);
        return true;
      }
      case 'd':
      case 'D':
        copy(2);
        return true;
      case 'p':
      case 'P': {
        const size_t close = rest_.find('}');
        if (rest_.size() < 3 || rest_[2] != '{' || close == std::string_view::npos) refuse("\\p without {name}");
        std::string_view name = rest_.substr(3, close - 3);
        if (name.starts_with('^')) name.remove_prefix(1);
        if (!contains(kCategories, name)) {
          refuse(rest_.substr(0, std::min<size_t>(close + 1, 40)));
        }
        copy(close + 1);
        return true;
      }
      case 'x': {
        const size_t close = rest_.find('}');
        if (rest_.size() > 2 && rest_[2] == '{') {
          if (close == std::string_view::npos || !is_hex(rest_.substr(3, close - 3))) refuse("a malformed \\x");
          copy(close + 1);
        } else {
          if (rest_.size() < 4 || !is_hex(rest_.substr(2, 2))) refuse("a malformed \\x");
          copy(4);
        }
        return false;
      }
      case 'r':
      case 'n':
      case 't':
      case 'f':
        copy(2);
        return false;
      default:
        if (letter < ' ' || letter > '~' || is_digit(letter) || (letter >= 'A' && letter <= 'Z') ||
            (letter >= 'a' && letter <= 'z')) {
          refuse(letter > ' ' && letter <= '~' ? rest_.substr(0, 2) : "a backslash before no letter");
        }
        copy(2);
        return false;
    }
  }

  std::string_view rest_;
  std::string out_;
};

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    throw Error("the pattern is longer than " + std::to_string(kMaxPatternBytes) + " bytes");
  }
  return PatternTranslator(pattern).translate();
}

void PreTokenizer::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

PreTokenizer::PreTokenizer(const std::string& pattern) {
  const std::string translated = pcre2_pattern(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), PCRE2_UTF | PCRE2_UCP,
                            &error, &offset, nullptr));
  if (!code_) throw Error("the pattern does not compile: " + pcre2_message(error));
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code_.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) throw Error("the pattern can match an empty text");
  // Where the system forbids executable memory this fails and pcre2_match interprets: slower, the same matches.
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
}

std::vector<std::string_view> PreTokenizer::split(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, FreeMatchData> match(pcre2_match_data_create(1, nullptr));
  if (!match) throw std::bad_alloc();
  std::vector<std::string_view> pieces;
  size_t offset = 0;
  while (offset < text.size()) {
    // The whole text is the subject, so that a look-ahead sees past the piece.
    const int result = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), offset,
                                   PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) throw std::runtime_error("splitting text into pieces failed: " + pcre2_message(result));
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
    if (bounds[0] > offset) pieces.push_back(text.substr(offset, bounds[0] - offset));
    pieces.push_back(text.substr(bounds[0], bounds[1] - bounds[0]));
    offset = bounds[1];
  }
  if (offset < text.size()) pieces.push_back(text.substr(offset));
  return pieces;
}

}  // namespace glm53::text
