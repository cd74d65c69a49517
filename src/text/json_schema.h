// JSON schemas drawn into a grammar (spec 40 §12.5).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/char_nfa.h"
#include "text/json_pieces.h"
#include "text/prompt_json.h"

namespace glm53::text {

/// What a "$ref" within `document` names. Throws UnsupportedSchema for one that leaves it, Error where nothing is.
const PromptJson& resolve_reference(const PromptJson& document, const std::string& reference, CompileBudget& budget);

class SchemaCompiler {
 public:
  /// `document` is what references point into; it outlives the compiler.
  SchemaCompiler(GrammarBuilder& builder, JsonPieces& pieces, const PromptJson& document,
                 const JsonGrammarOptions& options)
      : builder_(builder), pieces_(pieces), document_(document), options_(options) {}

  /// The rule of the values that `schema`, a part of the document, admits. Throws Error naming the keyword,
  /// UnsupportedSchema where it may be right.
  int32_t compile(const PromptJson& schema);

  /// What a tool argument may be, as far as it matters for how it is written.
  struct Kinds {
    bool text = false;               ///< a string without enum
    std::vector<std::string> texts;  ///< strings of an enum or const
    std::optional<int32_t> json;     ///< rule of the values of other types
  };
  Kinds compile_argument(const PromptJson& schema);

 private:
  enum Type : unsigned {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kFraction = 8,  ///< numbers that are written as no integer; "number" is both
    kString = 16,
    kArray = 32,
    kObject = 64,
    kAllTypes = 127,
  };
  using Schemas = std::vector<const PromptJson*>;  ///< all of which hold

  struct Property {
    std::string name;
    Schemas schemas;
  };
  enum class Rest : uint8_t { kUnsaid, kForbidden, kSchemas };
  /// Keywords without alternatives and references.
  struct Flat {
    unsigned types = kAllTypes;
    std::optional<std::vector<const PromptJson*>> values;  ///< enum, const
    std::vector<Property> properties;
    std::vector<std::string> required;
    Rest additional = Rest::kUnsaid;
    Schemas additional_schemas;
    int64_t min_properties = 0;
    int64_t max_properties = -1;
    std::vector<Schemas> prefix;
    Rest items = Rest::kUnsaid;
    Schemas item_schemas;
    int64_t min_items = 0;
    int64_t max_items = -1;
    int64_t min_length = 0;
    int64_t max_length = -1;
    std::vector<std::string> patterns;
    std::vector<std::string_view> formats;  ///< as patterns that match whole texts
    std::optional<NumberBound> low;
    std::optional<NumberBound> high;
  };

  int32_t rule_of(const Schemas& schemas);
  void drain();
  void draw(int32_t rule, const Schemas& schemas);
  Schemas alternatives(const PromptJson& schema) const;
  Schemas branches_of(const PromptJson& schema) const;
  void draw_flat(int32_t rule, const Flat& flat);
  void draw_values(int32_t rule, const Flat& flat);
  void draw_string(int32_t from, const Flat& flat, int32_t to);
  void draw_object(int32_t from, const Flat& flat, int32_t to);
  void draw_array(int32_t from, const Flat& flat, int32_t to);
  std::vector<const PromptJson*> admitted(const Flat& flat) const;
  bool admits(const Flat& flat, const PromptJson& value, const CharNfa* language) const;
  std::optional<CharNfa> language(const Flat& flat) const;

  std::vector<Flat> flatten(const Schemas& schemas) const;
  std::vector<Flat> flatten(const PromptJson& schema, int depth) const;
  Flat own_keywords(const PromptJson& schema) const;
  Flat merge(Flat a, const Flat& b) const;
  void merge_values(Flat& a, const Flat& b) const;
  void merge_objects(Flat& a, const Flat& b) const;
  std::vector<Flat> cross(std::vector<Flat> a, const std::vector<Flat>& b) const;
  void pay_for(const Flat& flat) const;
  void spend(size_t work) const { builder_.budget().spend(work); }
  const PromptJson& resolve(const std::string& reference) const {
    return resolve_reference(document_, reference, builder_.budget());
  }

  GrammarBuilder& builder_;
  JsonPieces& pieces_;
  const PromptJson& document_;
  const JsonGrammarOptions options_;
  std::map<Schemas, int32_t> rules_;
  std::deque<std::pair<int32_t, Schemas>> todo_;  ///< rules without a body yet: nothing here recurses into subschemas
};

}  // namespace glm53::text
