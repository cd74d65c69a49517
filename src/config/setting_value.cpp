#include "config/setting_value.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "glm53/core/contains.h"
#include "glm53/core/error.h"
#include "glm53/core/printable.h"
#include "glm53/core/utf8.h"

namespace glm53::config {

namespace {

using Kind = SettingValue::Kind;

[[noreturn]] void refuse(const SettingKey& key, const std::string& found) {
  throw Error(fmt::format("{}: expected {}, found {}", key.name(), key.expected(), found));
}

std::string show(const SettingKey& key, const SettingValue& value) {
  if (value.kind == Kind::kNull) return "nothing";
  if (value.kind == Kind::kList) return "a list";
  if (key.secret) return "another value";
  return value.kind == Kind::kQuoted ? "the text " + in_quotes(value.text) : in_quotes(value.text);
}

int64_t parse_integer(const SettingKey& key, const SettingValue& value) {
  if (value.kind != Kind::kText && value.kind != Kind::kPlain) refuse(key, show(key, value));
  const std::string_view text = value.text;
  const std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
  if (digits.size() > 1 && digits.front() == '0') {
    refuse(key, show(key, value) + " (a leading zero would read as octal elsewhere)");
  }
  int64_t number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc() || end != text.data() + text.size() || number < key.low || number > key.high) {
    refuse(key, show(key, value));
  }
  return number;
}

bool parse_flag(const SettingKey& key, const SettingValue& value) {
  if (value.kind == Kind::kText || value.kind == Kind::kPlain) {
    if (value.text == "true") return true;
    if (value.text == "false") return false;
  }
  refuse(key, show(key, value));
}

void check_text(const SettingKey& key, const std::string& text) {
  if (!is_utf8(text)) throw Error(fmt::format("{}: the value is not UTF-8", key.name()));
  if (std::any_of(text.begin(), text.end(), is_control))
    throw Error(fmt::format("{}: the value holds a control character", key.name()));
}

std::string parse_text(const SettingKey& key, const SettingValue& value) {
  if (value.kind == Kind::kNull) refuse(key, "nothing (write \"\" for empty text)");
  if (value.kind == Kind::kList) refuse(key, "a list");
  check_text(key, value.text);
  const bool known = contains(key.allowed, value.text);
  if (!key.allowed.empty() && !known) refuse(key, show(key, value));
  if (value.text.empty() && !key.may_be_empty) refuse(key, "empty text");
  return value.text;
}

std::vector<std::string> parse_list(const SettingKey& key, const SettingValue& value) {
  if (value.kind == Kind::kNull) refuse(key, "nothing (write [] for none)");
  const bool empty = value.kind == Kind::kList ? value.items.empty() : value.text.empty();
  if (empty && !key.may_be_empty) refuse(key, value.kind == Kind::kList ? "an empty list" : "empty text");
  if (empty) return {};
  const std::vector<std::string> items = value.kind == Kind::kList ? value.items : std::vector{value.text};
  for (const std::string& item : items) {
    check_text(key, item);
    if (item.empty()) refuse(key, "an empty item");
    if (key.secret && item == kSecretMask) {
      refuse(key, fmt::format("{}, the mask that --print-config writes", kSecretMask));
    }
  }
  return items;
}

struct Assign {
  const SettingKey& key;
  const SettingValue& value;

  void operator()(int* field) const { *field = static_cast<int>(parse_integer(key, value)); }
  void operator()(int64_t* field) const { *field = parse_integer(key, value); }
  void operator()(bool* field) const { *field = parse_flag(key, value); }
  void operator()(std::string* field) const { *field = parse_text(key, value); }
  void operator()(std::vector<std::string>* field) const { *field = parse_list(key, value); }
};

}  // namespace

void assign_setting(const SettingKey& key, const SettingValue& value, Settings& settings) {
  std::visit(Assign{key, value}, key.field(settings));
}

}  // namespace glm53::config
