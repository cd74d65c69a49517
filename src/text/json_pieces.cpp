#include "text/json_pieces.h"

#include <algorithm>
#include <array>
#include <utility>

#include "glm53/core/error.h"
#include "text/char_nfa.h"

namespace glm53::text {
namespace {

// A text in which bytes that UTF-8 never has stand for what is no fixed text.
constexpr char kGap = '\xFF';
constexpr char kComma = '\xFE';
constexpr char kColon = '\xFD';

// Recursion is as deep as the value: PromptJson::parse bounds it.
void write_constant(const PromptJson& value, std::string& out) {
  const bool is_array = value.is_array();
  const size_t count = is_array ? value.items().size() : value.is_object() ? value.members().size() : 0;
  if (count == 0) {
    out += value.dump();
    return;
  }
  out += is_array ? '[' : '{';
  for (size_t i = 0; i < count; ++i) {
    out += i == 0 ? kGap : kComma;
    if (is_array) {
      write_constant(value.items()[i], out);
    } else {
      out += PromptJson::string(value.members()[i].first).dump() + kColon;
      write_constant(value.members()[i].second, out);
    }
  }
  out += kGap;
  out += is_array ? ']' : '}';
}

}  // namespace

void JsonPieces::symbol(int32_t from, char c, int32_t to) {
  builder_.bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
}

// At most one newline and 32 blanks: enough for any sensible layout, and no reply of whitespace without end.
void JsonPieces::gap(int32_t from, int32_t to) {
  if (!any_whitespace_) return builder_.epsilon(from, to);
  const int32_t rule = builder_.shared_rule("gap", [this](int32_t start, int32_t end) {
    int32_t at = builder_.add_node();
    builder_.epsilon(start, at);
    symbol(start, '\n', at);
    for (int i = 0; i < 32; ++i) {
      builder_.epsilon(at, end);
      const int32_t next = builder_.add_node();
      symbol(at, ' ', next);
      symbol(at, '\t', next);
      at = next;
    }
    builder_.epsilon(at, end);
  });
  builder_.call(from, rule, to);
}

void JsonPieces::comma(int32_t from, int32_t to) { spaced(from, ',', to); }

void JsonPieces::colon(int32_t from, int32_t to) { spaced(from, ':', to); }

void JsonPieces::spaced(int32_t from, char c, int32_t to) {
  if (!any_whitespace_) return builder_.literal(from, std::string{c, ' '}, to);
  const int32_t before = builder_.add_node();
  const int32_t after = builder_.add_node();
  gap(from, before);
  symbol(before, c, after);
  gap(after, to);
}

void JsonPieces::digits(int32_t from, int low, int high, int32_t to) {
  for (int i = 0; i < high; ++i) {
    if (i >= low) builder_.epsilon(from, to);
    const int32_t next = builder_.add_node();
    builder_.bytes(from, '0', '9', next);
    from = next;
  }
  builder_.epsilon(from, to);
}

int32_t JsonPieces::string() {
  return builder_.shared_rule("string", [this](int32_t start, int32_t end) { counted_string(start, 0, -1, end); });
}

int32_t JsonPieces::integer() {
  return builder_.shared_rule("integer", [this](int32_t start, int32_t end) {
    symbol(start, '0', end);
    const int32_t positive = builder_.add_node();
    const int32_t rest = builder_.add_node();
    builder_.epsilon(start, positive);
    symbol(start, '-', positive);
    builder_.bytes(positive, '1', '9', rest);
    digits(rest, 0, kWholeDigits - 1, end);
  });
}

int32_t JsonPieces::number() {
  return builder_.shared_rule("number", [this](int32_t start, int32_t end) {
    const int32_t whole = builder_.add_node();
    const int32_t rest = builder_.add_node();
    const int32_t point = builder_.add_node();
    const int32_t fraction = builder_.add_node();
    const int32_t exponent = builder_.add_node();
    const int32_t sign = builder_.add_node();
    const int32_t power = builder_.add_node();
    builder_.epsilon(start, whole);
    symbol(start, '-', whole);
    symbol(whole, '0', point);
    builder_.bytes(whole, '1', '9', rest);
    digits(rest, 0, kWholeDigits - 1, point);
    builder_.epsilon(point, exponent);
    symbol(point, '.', fraction);
    digits(fraction, 1, kFractionDigits, exponent);
    builder_.epsilon(exponent, end);
    symbol(exponent, 'e', sign);
    symbol(exponent, 'E', sign);
    builder_.epsilon(sign, power);
    symbol(sign, '+', power);
    symbol(sign, '-', power);
    digits(power, 1, 2, end);
  });
}

int32_t JsonPieces::boolean() {
  return builder_.shared_rule("boolean", [this](int32_t start, int32_t end) {
    builder_.literal(start, "true", end);
    builder_.literal(start, "false", end);
  });
}

int32_t JsonPieces::null() {
  return builder_.shared_rule("null", [this](int32_t start, int32_t end) { builder_.literal(start, "null", end); });
}

int32_t JsonPieces::value() {
  return builder_.shared_rule("value", [this](int32_t start, int32_t end) {
    for (const int32_t rule : {string(), number(), boolean(), null(), object(), array()}) {
      builder_.call(start, rule, end);
    }
  });
}

int32_t JsonPieces::object() {
  return builder_.shared_rule("object",
                              [this](int32_t start, int32_t end) { object_of(start, {}, value(), 0, -1, end); });
}

int32_t JsonPieces::array() {
  return builder_.shared_rule("array",
                              [this](int32_t start, int32_t end) { array_of(start, {}, value(), 0, -1, end); });
}

void JsonPieces::counted_string(int32_t from, int64_t low, int64_t high, int32_t to) {
  constexpr int64_t kReach = Grammar::kShapeReach;
  const int64_t copies = high < 0 ? low : high;
  const int32_t first = builder_.add_node();
  for (int64_t i = 1; i <= copies; ++i) builder_.add_node();
  symbol(from, '"', first);
  for (int64_t i = 0; i <= copies; ++i) {
    const int32_t node = first + static_cast<int32_t>(i);
    if (i >= low) symbol(node, '"', to);
    if (i < copies) emit_json_character(builder_, node, node + 1);
    // Far from both bounds one place is as good as another.
    const bool far_from_high = high < 0 ? i < copies : high - i >= kReach;
    if (far_from_high && low - i >= kReach) builder_.set_shape(node, first);
    if (far_from_high && i >= low) builder_.set_shape(node, first + static_cast<int32_t>(low));
  }
  if (high < 0) emit_json_character(builder_, first + static_cast<int32_t>(low), first + static_cast<int32_t>(low));
}

void JsonPieces::bounded_number(int32_t from, const std::optional<NumberBound>& low,
                                const std::optional<NumberBound>& high, bool integer, int32_t to) {
  const auto negated = [](NumberBound bound) {
    bound.value.negative = !bound.value.negative;
    return bound;
  };
  const Decimal zero{false, "0", ""};
  const auto sign = [&](const NumberBound& bound) { return compare(bound.value, zero); };
  if (!high || sign(*high) >= 0) {
    magnitude(from, {low && sign(*low) >= 0 ? low : std::nullopt, high}, integer, to);
  }
  if (low && sign(*low) >= 0) return;
  Magnitude below;
  below.low = high && sign(*high) < 0 ? negated(*high) : NumberBound{zero, true};
  if (low) below.high = negated(*low);
  const int32_t minus = builder_.add_node();
  symbol(from, '-', minus);
  magnitude(minus, below, integer, to);
}

// Digits are compared with those of the bounds from the left. `Side::kEqual`: all so far are the bound's own, for
// numbers with as many digits before the point.
void JsonPieces::magnitude(int32_t from, const Magnitude& bounds, bool integer, int32_t to) {
  enum Side : uint8_t { kEqual, kWithin, kSides };
  const auto digit_at = [](const std::string& digits, size_t i) { return i < digits.size() ? digits[i] : '0'; };
  // The side after `digit`, nullopt beyond the bound.
  const auto next_low = [&](int side, char digit, char bound) -> std::optional<int> {
    if (side == kWithin || digit > bound) return kWithin;
    return digit == bound ? std::optional<int>(kEqual) : std::nullopt;
  };
  const auto next_high = [&](int side, char digit, char bound) -> std::optional<int> {
    if (side == kWithin || digit < bound) return kWithin;
    return digit == bound ? std::optional<int>(kEqual) : std::nullopt;
  };
  // May the number end after `places` of its fraction?
  const auto may_end = [&](int low, int high, size_t places) {
    if (low == kEqual) {
      if (bounds.low->value.fraction.size() > places || bounds.low->exclusive) return false;
    }
    return high == kWithin || bounds.high->value.fraction.size() > places || !bounds.high->exclusive;
  };

  using Nodes = std::array<std::array<int32_t, kSides>, kSides>;
  const auto make_nodes = [&] {
    Nodes nodes{};
    for (auto& row : nodes) {
      for (int32_t& node : row) node = builder_.add_node();
    }
    return nodes;
  };
  // One digit from each of `nodes` to `next`.
  const auto draw = [&](const Nodes& nodes, const Nodes& next, char first, char low_digit, char high_digit) {
    for (int low = 0; low < kSides; ++low) {
      for (int high = 0; high < kSides; ++high) {
        if (low == kEqual && !bounds.low) continue;
        if (high == kEqual && !bounds.high) continue;
        for (char digit = first; digit <= '9'; ++digit) {
          const std::optional<int> to_low = next_low(low, digit, low_digit);
          const std::optional<int> to_high = next_high(high, digit, high_digit);
          if (to_low && to_high) {
            symbol(nodes[static_cast<size_t>(low)][static_cast<size_t>(high)], digit,
                   next[static_cast<size_t>(*to_low)][static_cast<size_t>(*to_high)]);
          }
        }
      }
    }
  };
  const auto draw_ends = [&](const Nodes& nodes, size_t places) {
    for (int low = 0; low < kSides; ++low) {
      for (int high = 0; high < kSides; ++high) {
        if ((low == kEqual && !bounds.low) || (high == kEqual && !bounds.high)) continue;
        if (may_end(low, high, places)) {
          builder_.epsilon(nodes[static_cast<size_t>(low)][static_cast<size_t>(high)], to);
        }
      }
    }
  };

  const Nodes point = make_nodes();
  draw_ends(point, 0);
  if (!integer) {
    Nodes at = make_nodes();
    for (size_t low = 0; low < kSides; ++low) {
      for (size_t high = 0; high < kSides; ++high) symbol(point[low][high], '.', at[low][high]);
    }
    const std::string none;
    for (size_t i = 0; i < kFractionDigits; ++i) {
      const Nodes next = make_nodes();
      draw(at, next, '0', digit_at(bounds.low ? bounds.low->value.fraction : none, i),
           digit_at(bounds.high ? bounds.high->value.fraction : none, i));
      draw_ends(next, i + 1);
      at = next;
    }
  }
  for (size_t length = 1; length <= kWholeDigits; ++length) {
    const size_t low_length = bounds.low ? bounds.low->value.whole.size() : 0;
    const size_t high_length = bounds.high ? bounds.high->value.whole.size() : kWholeDigits + 1;
    if (length < low_length || length > high_length) continue;
    Nodes at = make_nodes();
    builder_.epsilon(from, at[length == low_length ? kEqual : kWithin][length == high_length ? kEqual : kWithin]);
    for (size_t i = 0; i < length; ++i) {
      const Nodes next = i + 1 == length ? point : make_nodes();
      draw(at, next, i == 0 && length > 1 ? '1' : '0', bounds.low ? digit_at(bounds.low->value.whole, i) : '0',
           bounds.high ? digit_at(bounds.high->value.whole, i) : '9');
      at = next;
    }
  }
}

void JsonPieces::constants(int32_t from, std::span<const PromptJson* const> values, int32_t to) {
  std::vector<std::string> texts;
  for (const PromptJson* value : values) {
    write_constant(*value, texts.emplace_back());
    builder_.budget().spend(20 + texts.back().size());
  }
  builder_.literals(from, std::move(texts), to, [this](int32_t at, uint8_t byte, int32_t next) {
    const char c = static_cast<char>(byte);
    if (c == kGap) return gap(at, next);
    if (c == kComma) return comma(at, next);
    if (c == kColon) return colon(at, next);
    symbol(at, c, next);
  });
}

// Before each property a node for each number of members so far, as far as numbers matter: the first one, after which
// come commas, and those up to the bounds. Without an upper bound the last node stands for all further ones.
void JsonPieces::object_of(int32_t from, const std::vector<Property>& properties, int32_t other, int64_t low,
                           int64_t high, int32_t to) {
  const auto declared = static_cast<int64_t>(properties.size());
  if (other < 0 && high >= declared) high = -1;
  if (other < 0 && low > declared) throw Error("schema: 'minProperties' is more than properties allows");
  const auto last = static_cast<size_t>(high >= 0 ? high : std::max(low, int64_t{1}));
  const auto make_nodes = [&] {
    std::vector<int32_t> nodes(last + 1);
    for (int32_t& node : nodes) node = builder_.add_node();
    return nodes;
  };
  const int32_t open = builder_.add_node();
  std::vector<int32_t> at = make_nodes();
  symbol(from, '{', open);
  gap(open, at[0]);
  // A member whose key `draw_key(from, to)` draws, after which `next` counts.
  const auto member = [&](const std::vector<int32_t>& next, int32_t value, const auto& draw_key) {
    for (size_t members = 1; members <= last; ++members) {
      const int32_t key = builder_.add_node();
      const int32_t key_end = builder_.add_node();
      const int32_t before_value = builder_.add_node();
      members == 1 ? builder_.epsilon(at[0], key) : comma(at[members - 1], key);
      if (members == last && high < 0) comma(at[last], key);
      draw_key(key, key_end);
      colon(key_end, before_value);
      builder_.call(before_value, value, next[members]);
    }
  };
  for (const Property& property : properties) {
    const std::vector<int32_t> next = make_nodes();
    const std::string name = PromptJson::string(property.name).dump();
    member(next, property.value, [&](int32_t key, int32_t end) { builder_.literal(key, name, end); });
    for (size_t i = 0; i <= last && !property.required; ++i) builder_.epsilon(at[i], next[i]);
    at = next;
  }
  if (other >= 0) {
    const int32_t key_rule = other_key(properties);
    member(at, other, [&](int32_t key, int32_t end) { builder_.call(key, key_rule, end); });
  }
  const int32_t close = builder_.add_node();
  for (size_t i = static_cast<size_t>(low); i <= last; ++i) i == 0 ? symbol(at[0], '}', to) : gap(at[i], close);
  symbol(close, '}', to);
}

int32_t JsonPieces::other_key(const std::vector<Property>& properties) {
  if (properties.empty()) return string();
  std::vector<std::string_view> names;
  for (const Property& property : properties) names.push_back(property.name);
  const int32_t rule = builder_.add_rule();
  const int32_t open = builder_.add_node();
  const int32_t close = builder_.add_node();
  symbol(builder_.start(rule), '"', open);
  CharNfa::none_of(names, builder_.budget()).emit(builder_, open, CharEncoding::kJson, close);
  symbol(close, '"', builder_.end(rule));
  return rule;
}

void JsonPieces::array_of(int32_t from, const std::vector<int32_t>& prefix, int32_t other, int64_t low, int64_t high,
                          int32_t to) {
  const auto fixed = static_cast<int64_t>(prefix.size());
  if (other < 0 && (high < 0 || high > fixed)) high = fixed;
  if (high >= 0 && low > high) throw Error("minItems: more than the array can hold");
  const int64_t copies = high >= 0 ? high : std::max({low, fixed, int64_t{1}});
  const int32_t open = builder_.add_node();
  const int32_t close = builder_.add_node();
  int32_t at = builder_.add_node();
  symbol(from, '[', open);
  gap(open, at);
  if (low == 0) symbol(at, ']', to);
  for (int64_t i = 0; i < copies; ++i) {
    int32_t item = at;
    if (i > 0) comma(at, item = builder_.add_node());
    at = builder_.add_node();
    builder_.call(item, i < fixed ? prefix[static_cast<size_t>(i)] : other, at);
    if (i + 1 >= low) builder_.epsilon(at, close);
  }
  if (high < 0) {
    const int32_t item = builder_.add_node();
    comma(at, item);
    builder_.call(item, other, at);
  }
  const int32_t bracket = builder_.add_node();
  gap(close, bracket);
  symbol(bracket, ']', to);
}

Decimal Decimal::parse(std::string_view literal) {
  Decimal value;
  std::string digits;
  int64_t point = -1;  // digits before it
  int64_t exponent = 0;
  for (size_t i = 0; i < literal.size(); ++i) {
    const char c = literal[i];
    if (c == '-') value.negative = true;
    if (c >= '0' && c <= '9') digits += c;
    if (c == '.') point = static_cast<int64_t>(digits.size());
    if (c == 'e' || c == 'E') {
      // A double holds it, so that the exponent is small unless all digits are zeros.
      for (const char d : literal.substr(i + 1)) {
        if (d >= '0' && d <= '9') exponent = std::min<int64_t>(exponent * 10 + (d - '0'), 10'000);
      }
      if (literal[i + 1] == '-') exponent = -exponent;
      break;
    }
  }
  if (point < 0) point = static_cast<int64_t>(digits.size());
  point += exponent;
  if (point <= 0) {
    digits.insert(0, static_cast<size_t>(1 - point), '0');
    point = 1;
  }
  if (point > static_cast<int64_t>(digits.size())) digits.append(static_cast<size_t>(point) - digits.size(), '0');
  value.whole = digits.substr(0, static_cast<size_t>(point));
  value.fraction = digits.substr(static_cast<size_t>(point));
  value.whole.erase(0, std::min(value.whole.find_first_not_of('0'), value.whole.size() - 1));
  value.fraction.erase(value.fraction.find_last_not_of('0') + 1);
  return value;
}

int compare(const Decimal& a, const Decimal& b) {
  const bool a_negative = a.negative && !a.zero();
  const bool b_negative = b.negative && !b.zero();
  if (a_negative != b_negative) return a_negative ? -1 : 1;
  int order = 0;
  if (a.whole.size() != b.whole.size()) {
    order = a.whole.size() < b.whole.size() ? -1 : 1;
  } else {
    order = a.whole.compare(b.whole);
    if (order == 0) order = a.fraction.compare(b.fraction);
  }
  return a_negative ? -order : order;
}

}  // namespace glm53::text
