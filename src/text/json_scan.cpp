#include "text/json_scan.h"

namespace glm53::text {

namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_in_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || c == 'E' || c == '+' || c == '-' || c == '.';
}

}  // namespace

JsonObjectScan::Status JsonObjectScan::push(char c) {
  if (in_string_) {
    if (static_cast<unsigned char>(c) < 0x20) return Status::kNotJson;
    in_string_ = escaped_ || c != '"';
    escaped_ = !escaped_ && c == '\\';
    return Status::kOpen;
  }
  in_word_ = in_word_ && is_in_word(c);
  if (in_word_ || is_space(c)) return Status::kOpen;
  switch (next_) {
    case Next::kValue:
      return begin_value(c);
    case Next::kFirstItem:
      return c == ']' ? close(c) : begin_value(c);
    case Next::kFirstKey:
    case Next::kKey:
      if (c == '}' && next_ == Next::kFirstKey) return close(c);
      in_string_ = c == '"';
      next_ = Next::kColon;
      return in_string_ ? Status::kOpen : Status::kNotJson;
    case Next::kColon:
      next_ = Next::kValue;
      return c == ':' ? Status::kOpen : Status::kNotJson;
    case Next::kCommaOrEnd:
      if (c != ',') return close(c);
      next_ = open_.back() == '}' ? Next::kKey : Next::kValue;
      return Status::kOpen;
  }
  return Status::kNotJson;
}

JsonObjectScan::Status JsonObjectScan::begin_value(char c) {
  next_ = Next::kCommaOrEnd;
  if (c == '{' || c == '[') {
    open_ += c == '{' ? '}' : ']';
    next_ = c == '{' ? Next::kFirstKey : Next::kFirstItem;
    return Status::kOpen;
  }
  in_string_ = c == '"';
  in_word_ = is_digit(c) || c == '-' || c == 't' || c == 'f' || c == 'n';
  return in_string_ || in_word_ ? Status::kOpen : Status::kNotJson;
}

JsonObjectScan::Status JsonObjectScan::close(char c) {
  if (c != open_.back()) return Status::kNotJson;
  open_.pop_back();
  next_ = Next::kCommaOrEnd;
  return open_.empty() ? Status::kComplete : Status::kOpen;
}

}  // namespace glm53::text
