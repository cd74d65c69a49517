#include "text/prompt_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

namespace glm53::text {

namespace {

constexpr size_t kMaxIntegerDigits = 4300;

// nlohmann refuses a number that overflows its floating-point type, integers of many digits included. long double
// reaches 1e4932 on the platforms built for (x87 and IEEE quad), so every integer of the permitted length passes.
using Reader = nlohmann::basic_json<std::map, std::vector, std::string, bool, int64_t, uint64_t, long double>;
static_assert(std::numeric_limits<long double>::max_exponent10 > static_cast<int>(kMaxIntegerDigits));

bool is_integer(std::string_view literal) { return literal.find_first_of(".eE") == std::string_view::npos; }

// The double nearest to a JSON number; an infinity where it overflows.
double to_double(std::string_view literal) {
  double value = 0;
  const auto result = std::from_chars(literal.data(), literal.data() + literal.size(), value);
  if (result.ec == std::errc()) {
    return value;
  }
  // from_chars reports underflow and overflow alike; strtod gives the limit of either. A literal whose decimal point
  // strtod would not know in another locale is still on the right side of 1.
  return std::strtod(std::string(literal).c_str(), nullptr);
}

// Python's repr(float): shortest digits that read back, fixed notation while 1e-4 <= |value| < 1e16.
void append_float(double value, std::string& out) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  if (text.front() == '-') {
    out += '-';
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    out += text;  // to_chars writes the exponent as Python does: sign, at least two digits
    return;
  }
  std::string digits(1, text[0]);
  digits += text.substr(std::min<size_t>(2, e), e - std::min<size_t>(2, e));
  if (exponent < 0) {
    out += "0.";
    out.append(static_cast<size_t>(-exponent - 1), '0');
    out += digits;
    return;
  }
  const size_t whole = static_cast<size_t>(exponent) + 1;
  digits.resize(std::max(digits.size(), whole + 1), '0');
  out.append(digits, 0, whole);
  out += '.';
  out.append(digits, whole);
}

void append_quoted(std::string_view text, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out += kHex[c >> 4];
          out += kHex[c & 15];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

// A repeated key keeps its first place and takes its last value. Sorted rather than hashed: the keys are a client's,
// who could make them collide.
void merge_repeated_keys(PromptJson::Object& members) {
  std::vector<size_t> order(members.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return members[a].first < members[b].first; });
  std::vector<bool> repeated(members.size());
  bool any = false;
  for (size_t i = 1, first = 0; i < order.size(); ++i) {
    if (members[order[i]].first != members[order[first]].first) {
      first = i;
      continue;
    }
    members[order[first]].second = std::move(members[order[i]].second);
    repeated[order[i]] = any = true;
  }
  if (!any) {
    return;
  }
  size_t kept = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    if (!repeated[i]) {
      if (kept != i) {
        members[kept] = std::move(members[i]);
      }
      ++kept;
    }
  }
  members.resize(kept);
}

// nlohmann's own message quotes the text, which may be long or not UTF-8.
[[noreturn]] void fail_at(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  throw PromptJson::ParseError("invalid JSON at line " + std::to_string(line) + " column " +
                               std::to_string(before.size() - line_begin + 1));
}

class Builder : public nlohmann::json_sax<Reader> {
 public:
  Builder(std::string_view text, int max_depth) : text_(text), max_depth_(max_depth) {}

  PromptJson take() { return std::move(root_); }

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add(PromptJson::boolean(value)); }
  bool number_integer(int64_t value) override { return add(PromptJson::number(std::to_string(value))); }
  bool number_unsigned(uint64_t value) override { return add(PromptJson::number(std::to_string(value))); }
  bool number_float(long double, const std::string& literal) override {
    if (is_integer(literal)) {
      if (literal.size() - (literal.front() == '-' ? 1 : 0) > kMaxIntegerDigits) {
        throw PromptJson::LimitError("an integer of more than 4300 digits");
      }
    } else if (std::isinf(to_double(literal))) {
      throw PromptJson::LimitError("a number beyond the range of a double");
    }
    return add(PromptJson::number(literal));
  }
  bool string(std::string& value) override { return add(PromptJson::string(std::move(value))); }
  bool binary(Reader::binary_t&) override { return false; }  // not a thing of JSON text

  bool start_object(std::size_t) override { return open(PromptJson::Object()); }
  bool key(std::string& value) override {
    std::get<PromptJson::Object>(open_.back()).emplace_back().first = std::move(value);
    return true;
  }
  bool end_object() override {
    auto members = std::move(std::get<PromptJson::Object>(open_.back()));
    open_.pop_back();
    merge_repeated_keys(members);
    return add(PromptJson::object(std::move(members)));
  }
  bool start_array(std::size_t) override { return open(PromptJson::Array()); }
  bool end_array() override {
    auto items = std::move(std::get<PromptJson::Array>(open_.back()));
    open_.pop_back();
    return add(PromptJson::array(std::move(items)));
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail_at(text_, position > 0 ? position - 1 : 0);
  }

 private:
  using Container = std::variant<PromptJson::Array, PromptJson::Object>;

  bool open(Container container) {
    if (open_.size() >= static_cast<size_t>(std::max(max_depth_, 0))) {
      throw PromptJson::LimitError("more than " + std::to_string(max_depth_) + " levels of nesting");
    }
    open_.push_back(std::move(container));
    return true;
  }

  bool add(PromptJson value) {
    if (++values_ > PromptJson::kMaxValues) {
      throw PromptJson::LimitError("more than " + std::to_string(PromptJson::kMaxValues) + " JSON values");
    }
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (auto* items = std::get_if<PromptJson::Array>(&open_.back())) {
      items->push_back(std::move(value));
    } else {
      std::get<PromptJson::Object>(open_.back()).back().second = std::move(value);
    }
    return true;
  }

  std::string_view text_;
  int max_depth_;
  std::vector<Container> open_;  ///< innermost last
  size_t values_ = 0;
  PromptJson root_;
};

}  // namespace

PromptJson::PromptJson(const PromptJson&) = default;
PromptJson::PromptJson(PromptJson&&) noexcept = default;
PromptJson& PromptJson::operator=(const PromptJson&) = default;
PromptJson& PromptJson::operator=(PromptJson&&) noexcept = default;
PromptJson::~PromptJson() = default;

PromptJson PromptJson::boolean(bool value) {
  PromptJson json;
  json.value_ = value;
  return json;
}

PromptJson PromptJson::number(std::string literal) {
  PromptJson json;
  json.value_ = Number{std::move(literal)};
  return json;
}

PromptJson PromptJson::string(std::string value) {
  PromptJson json;
  json.value_ = std::move(value);
  return json;
}

PromptJson PromptJson::array(Array items) {
  PromptJson json;
  json.value_ = std::move(items);
  return json;
}

PromptJson PromptJson::object(Object members) {
  PromptJson json;
  json.value_ = std::move(members);
  return json;
}

PromptJson PromptJson::parse(std::string_view text, int max_depth) {
  // The reader takes a NUL byte for the end of the text, and would let anything follow it.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    fail_at(text, nul);
  }
  Builder builder(text, max_depth);
  Reader::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

const PromptJson* PromptJson::find_even_null(std::string_view key) const {
  if (is_object()) {
    for (const auto& [name, value] : members()) {
      if (name == key) {
        return &value;
      }
    }
  }
  return nullptr;
}

const PromptJson* PromptJson::find(std::string_view key) const {
  const PromptJson* value = find_even_null(key);
  return value != nullptr && value->is_null() ? nullptr : value;
}

bool PromptJson::truthy() const {
  switch (kind()) {
    case Kind::kNull:
      return false;
    case Kind::kBool:
      return as_bool();
    case Kind::kNumber:
      return to_double(number_literal()) != 0;
    case Kind::kString:
      return !as_string().empty();
    case Kind::kArray:
      return !items().empty();
    case Kind::kObject:
      return !members().empty();
  }
  return false;
}

std::string PromptJson::dump() const {
  std::string out;
  dump_to(out);
  return out;
}

void PromptJson::dump_to(std::string& out) const {
  switch (kind()) {
    case Kind::kNull:
      out += "null";
      break;
    case Kind::kBool:
      out += as_bool() ? "true" : "false";
      break;
    case Kind::kNumber:
      if (const std::string& literal = number_literal(); !is_integer(literal)) {
        append_float(to_double(literal), out);
      } else {
        out += literal == "-0" ? "0" : literal;
      }
      break;
    case Kind::kString:
      append_quoted(as_string(), out);
      break;
    case Kind::kArray: {
      out += '[';
      const char* separator = "";
      for (const PromptJson& item : items()) {
        out += separator;
        item.dump_to(out);
        separator = ", ";
      }
      out += ']';
      break;
    }
    case Kind::kObject: {
      out += '{';
      const char* separator = "";
      for (const auto& [name, value] : members()) {
        out += separator;
        append_quoted(name, out);
        out += ": ";
        value.dump_to(out);
        separator = ", ";
      }
      out += '}';
      break;
    }
  }
}

}  // namespace glm53::text
