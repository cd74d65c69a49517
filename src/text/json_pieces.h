// JSON texts drawn into a grammar: what json_object, JSON schemas and tool arguments are made of (spec 40 §12.5).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar_builder.h"

namespace glm53::text {

/// A decimal number of any length: value = (negative ? -1 : 1) × whole.fraction.
struct Decimal {
  bool negative = false;
  std::string whole;     ///< no leading zero, "0" for none
  std::string fraction;  ///< no trailing zero
  /// A JSON number.
  static Decimal parse(std::string_view literal);
  bool zero() const { return whole == "0" && fraction.empty(); }
};
/// < 0, 0, > 0.
int compare(const Decimal& a, const Decimal& b);

struct NumberBound {
  Decimal value;
  bool exclusive = false;
};

class JsonPieces {
 public:
  static constexpr int kWholeDigits = 19;
  static constexpr int kFractionDigits = 20;

  JsonPieces(GrammarBuilder& builder, bool any_whitespace) : builder_(builder), any_whitespace_(any_whitespace) {}

  int32_t string();   ///< rule: any string
  int32_t number();   ///< rule
  int32_t integer();  ///< rule
  int32_t boolean();  ///< rule
  int32_t null();     ///< rule
  int32_t value();    ///< rule: any JSON
  int32_t object();   ///< rule: any object
  int32_t array();    ///< rule: any array

  /// A string of `low` to `high` characters (escapes count as what they stand for); -1: no bound.
  void counted_string(int32_t from, int64_t low, int64_t high, int32_t to);
  /// A number without exponent within the bounds.
  void bounded_number(int32_t from, const std::optional<NumberBound>& low, const std::optional<NumberBound>& high,
                      bool integer, int32_t to);
  /// One of these JSON values as it stands, with the whitespace that is allowed. Any number of them: they share states
  /// as far as they begin alike.
  void constants(int32_t from, std::span<const PromptJson* const> values, int32_t to);

  struct Property {
    std::string name;
    int32_t value = 0;  ///< rule
    bool required = false;
  };
  /// `properties` in this order, then other keys with values of rule `other`; -1: none. `low` to `high` members, -1: no
  /// bound.
  void object_of(int32_t from, const std::vector<Property>& properties, int32_t other, int64_t low, int64_t high,
                 int32_t to);
  /// The first items of rules `prefix`, further ones of rule `other` (-1: none); `low` to `high` items, -1: no bound.
  void array_of(int32_t from, const std::vector<int32_t>& prefix, int32_t other, int64_t low, int64_t high, int32_t to);

 private:
  struct Magnitude {
    std::optional<NumberBound> low;
    std::optional<NumberBound> high;
  };
  void gap(int32_t from, int32_t to);
  void comma(int32_t from, int32_t to);
  void colon(int32_t from, int32_t to);
  void symbol(int32_t from, char c, int32_t to);
  /// `c` with gaps around it, or with one space after it where whitespace is fixed.
  void spaced(int32_t from, char c, int32_t to);
  int32_t other_key(const std::vector<Property>& properties);  ///< rule: a key of another name
  void digits(int32_t from, int low, int high, int32_t to);
  void magnitude(int32_t from, const Magnitude& bounds, bool integer, int32_t to);

  GrammarBuilder& builder_;
  bool any_whitespace_;
};

}  // namespace glm53::text
