#include "text/json_schema.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <span>
#include <utility>

#include "glm53/core/utf8.h"
#include "text/grammar_error.h"
#include "text/json_pointer.h"
#include "text/json_schema_keywords.h"

namespace glm53::text {
namespace {

std::string message(std::string_view keyword, const std::string& what) {
  return "schema: '" + std::string(keyword) + "' " + what;
}

/// The schema is wrong.
[[noreturn]] void fail(std::string_view keyword, const std::string& what) { throw Error(message(keyword, what)); }

/// It may be right.
[[noreturn]] void refuse(std::string_view keyword, const std::string& what) {
  throw UnsupportedSchema(message(keyword, what));
}

int64_t count(const PromptJson& schema, std::string_view keyword, int64_t otherwise) {
  const PromptJson* value = schema.find(keyword);
  if (value == nullptr) return otherwise;
  if (!value->is_number()) fail(keyword, "must be a number");
  const Decimal number = Decimal::parse(value->number_literal());
  if (number.negative || !number.fraction.empty()) fail(keyword, "must be a non-negative integer");
  if (number.whole.size() > 5 || std::stoi(number.whole) > GrammarLimits::kRepeat) refuse(keyword, "is beyond 10000");
  return std::stoi(number.whole);
}

std::optional<NumberBound> bound(const PromptJson& schema, bool low) {
  const char* plain = low ? "minimum" : "maximum";
  const char* exclusive = low ? "exclusiveMinimum" : "exclusiveMaximum";
  std::optional<NumberBound> bound;
  if (const PromptJson* value = schema.find(plain)) {
    if (!value->is_number()) fail(plain, "must be a number");
    bound = {Decimal::parse(value->number_literal()), false};
  }
  if (const PromptJson* value = schema.find(exclusive)) {
    if (value->is_bool()) {  // draft 4
      if (bound) bound->exclusive = value->as_bool();
      return bound;
    }
    if (!value->is_number()) fail(exclusive, "must be a number");
    const NumberBound other{Decimal::parse(value->number_literal()), true};
    const int order = bound ? compare(other.value, bound->value) : 0;
    if (!bound || (low ? order >= 0 : order <= 0)) bound = other;
  }
  return bound;
}

/// The bound that refuses more.
std::optional<NumberBound> tighter(const std::optional<NumberBound>& a, const std::optional<NumberBound>& b, bool low) {
  if (!a || !b) return a ? a : b;
  const int order = compare(a->value, b->value);
  if (order == 0) return a->exclusive ? a : b;
  return (order > 0) == low ? a : b;
}

int64_t smaller_limit(int64_t a, int64_t b) { return a < 0 ? b : b < 0 ? a : std::min(a, b); }

constexpr size_t kFlatWork = 300;   // of making or copying a Flat without content
constexpr size_t kThingWork = 40;   // of each thing in it: of a property, a name, a schema, a pattern
constexpr size_t kMemberWork = 60;  // of asking a member of a schema what it is

/// Refuses bounds between which there are numbers, but none of so few digits as are written here.
void require_digits(const std::optional<NumberBound>& low, const std::optional<NumberBound>& high, bool integer) {
  constexpr size_t kPlaces = JsonPieces::kFractionDigits;
  const char* const minimum = low && low->exclusive ? "exclusiveMinimum" : "minimum";
  const char* const maximum = high && high->exclusive ? "exclusiveMaximum" : "maximum";
  Decimal end{false, std::string(JsonPieces::kWholeDigits, '9'), integer ? "" : std::string(kPlaces, '9')};
  const int over = low ? compare(low->value, end) : -1;
  if (over > 0 || (over == 0 && low->exclusive)) {
    refuse(minimum, "is beyond what 19 digits before the point can write");
  }
  end.negative = true;
  const int under = high ? compare(high->value, end) : 1;
  if (under < 0 || (under == 0 && high->exclusive)) {
    refuse(maximum, "is beyond what 19 digits before the point can write");
  }
  if (integer || !low || !high || compare(low->value, high->value) >= 0) return;
  const auto written = [](const NumberBound& bound) {
    return !bound.exclusive && bound.value.fraction.size() <= kPlaces;
  };
  const auto places = [](const Decimal& value) {
    std::string digits = value.fraction.substr(0, kPlaces);
    digits.resize(kPlaces, '0');
    return digits;
  };
  const Decimal& a = low->value;
  const Decimal& b = high->value;
  const bool one_side = a.negative == b.negative || a.zero() || b.zero();
  if (one_side && a.whole == b.whole && places(a) == places(b) && !written(*low) && !written(*high)) {
    refuse(minimum,
           std::string("and '") + maximum + "' differ beyond the 20 digits after the point that can be written");
  }
}

bool is_integral(const PromptJson& number) { return Decimal::parse(number.number_literal()).fraction.empty(); }

}  // namespace

const PromptJson& resolve_reference(const PromptJson& document, const std::string& reference, CompileBudget& budget) {
  if (!is_local_reference(reference)) refuse("$ref", "is supported within the schema only (\"#/...\")");
  size_t compared = 0;
  const PromptJson* const schema = find_reference(document, reference, &compared);
  budget.spend(compared + 2 * reference.size());
  if (schema == nullptr) fail("$ref", "points to nothing");
  return *schema;
}

int32_t SchemaCompiler::compile(const PromptJson& schema) {
  const int32_t rule = rule_of({&schema});
  drain();
  return rule;
}

void SchemaCompiler::drain() {
  while (!todo_.empty()) {
    const auto [rule, schemas] = todo_.front();
    todo_.pop_front();
    draw(rule, schemas);
  }
}

int32_t SchemaCompiler::rule_of(const Schemas& schemas) {
  spend(20 * (1 + schemas.size()));
  if (const auto found = rules_.find(schemas); found != rules_.end()) return found->second;
  const int32_t rule = builder_.add_rule();
  rules_.emplace(schemas, rule);
  todo_.emplace_back(rule, schemas);
  return rule;
}

// A reference or an anyOf that stands alone stays a call, which is what makes recursion possible; beside other keywords
// it is merged with them.
void SchemaCompiler::draw(int32_t rule, const Schemas& schemas) {
  if (schemas.size() == 1) {
    const Schemas ends = alternatives(*schemas[0]);
    if (ends != schemas) {
      for (const PromptJson* schema : ends) {
        const bool never = schema->is_bool() && !schema->as_bool();
        if (!never) builder_.call(builder_.start(rule), rule_of({schema}), builder_.end(rule));
      }
      return;
    }
  }
  for (const Flat& flat : flatten(schemas)) draw_flat(rule, flat);
}

/// What `schema` is another name of, or a choice between, each once. A call for each name and choice on the way would
/// count as nesting, of which there is none in the text.
SchemaCompiler::Schemas SchemaCompiler::alternatives(const PromptJson& schema) const {
  struct Step {
    const PromptJson* schema;
    bool leave;
  };
  Schemas ends;
  std::map<const PromptJson*, bool> followed;  // false: no longer
  std::vector<Step> todo = {{&schema, false}};
  while (!todo.empty()) {
    const Step step = todo.back();
    todo.pop_back();
    if (step.leave) {
      followed[step.schema] = false;
      continue;
    }
    const auto [met, first] = followed.try_emplace(step.schema, true);
    if (!first && met->second) throw Error("$ref: refers to itself with nothing in between");
    if (!first) continue;
    todo.push_back({step.schema, true});
    const Schemas branches = branches_of(*step.schema);
    if (branches.empty()) ends.push_back(step.schema);
    for (const PromptJson* branch : branches) todo.push_back({branch, false});
  }
  return ends;
}

/// Of a reference or an anyOf that stands alone; empty for other schemas.
SchemaCompiler::Schemas SchemaCompiler::branches_of(const PromptJson& schema) const {
  if (!schema.is_object()) return {};
  spend(kMemberWork * (1 + schema.members().size()));
  const std::string* only = nullptr;
  for (const auto& [key, value] : schema.members()) {
    if (value.is_null() || !is_assertion(key)) continue;
    if (only != nullptr) return {};
    only = &key;
  }
  if (only == nullptr) return {};
  const PromptJson& value = *schema.find(*only);
  Schemas branches;
  if (*only == "$ref" && value.is_string()) branches.push_back(&resolve(value.as_string()));
  if ((*only == "anyOf" || *only == "oneOf") && value.is_array()) {
    for (const PromptJson& branch : value.items()) branches.push_back(&branch);
  }
  return branches;
}

void SchemaCompiler::draw_flat(int32_t rule, const Flat& flat) {
  pay_for(flat);
  if (flat.values) return draw_values(rule, flat);
  const int32_t from = builder_.start(rule);
  const int32_t to = builder_.end(rule);
  if ((flat.types & kNull) != 0) builder_.call(from, pieces_.null(), to);
  if ((flat.types & kBoolean) != 0) builder_.call(from, pieces_.boolean(), to);
  if ((flat.types & kInteger) != 0) {
    const bool integer = (flat.types & kFraction) == 0;
    if (flat.low || flat.high) {
      require_digits(flat.low, flat.high, integer);
      pieces_.bounded_number(from, flat.low, flat.high, integer, to);
    } else {
      builder_.call(from, integer ? pieces_.integer() : pieces_.number(), to);
    }
  }
  if ((flat.types & kString) != 0) draw_string(from, flat, to);
  if ((flat.types & kObject) != 0) draw_object(from, flat, to);
  if ((flat.types & kArray) != 0) draw_array(from, flat, to);
}

std::optional<CharNfa> SchemaCompiler::language(const Flat& flat) const {
  std::optional<CharNfa> all;
  CompileBudget& budget = builder_.budget();
  const auto add = [&](CharNfa nfa) { all = all ? CharNfa::both(*all, nfa) : std::move(nfa); };
  for (const std::string& pattern : flat.patterns) add(parse_regex(pattern, true, budget));
  for (const std::string_view format : flat.formats) add(parse_regex(format, false, budget));
  if (all && (flat.min_length > 0 || flat.max_length >= 0)) add(CharNfa::any(flat.min_length, flat.max_length, budget));
  return all;
}

void SchemaCompiler::draw_string(int32_t from, const Flat& flat, int32_t to) {
  if (flat.max_length >= 0 && flat.min_length > flat.max_length) fail("minLength", "is greater than maxLength");
  const std::optional<CharNfa> nfa = language(flat);
  if (!nfa && flat.min_length == 0 && flat.max_length < 0) return builder_.call(from, pieces_.string(), to);
  // A rule of its own, so that what can follow within the string is worked out once.
  const int32_t rule = builder_.add_rule();
  builder_.call(from, rule, to);
  if (!nfa) {
    return pieces_.counted_string(builder_.start(rule), flat.min_length, flat.max_length, builder_.end(rule));
  }
  const int32_t open = builder_.add_node();
  const int32_t close = builder_.add_node();
  builder_.literal(builder_.start(rule), "\"", open);
  nfa->emit(builder_, open, CharEncoding::kJson, close);
  builder_.literal(close, "\"", builder_.end(rule));
}

void SchemaCompiler::draw_object(int32_t from, const Flat& flat, int32_t to) {
  if (flat.max_properties >= 0 && flat.min_properties > flat.max_properties) {
    fail("minProperties", "is greater than maxProperties");
  }
  const std::set<std::string_view> required_names(flat.required.begin(), flat.required.end());
  std::set<std::string_view> declared;
  Rest rest = flat.additional;
  // As strict structured output has it elsewhere: beside `properties`, no further keys unless the schema asks for them.
  if (rest == Rest::kUnsaid && !flat.properties.empty()) rest = Rest::kForbidden;
  if (options_.no_additional_properties && (!flat.properties.empty() || rest == Rest::kSchemas)) {
    rest = Rest::kForbidden;
  }
  int32_t other = -1;
  if (rest == Rest::kSchemas) other = rule_of(flat.additional_schemas);
  if (rest == Rest::kUnsaid) other = pieces_.value();
  std::vector<JsonPieces::Property> properties;
  const auto is_false = [](const PromptJson* schema) { return schema->is_bool() && !schema->as_bool(); };
  for (const Property& property : flat.properties) {
    const bool required = required_names.contains(property.name);
    declared.insert(property.name);
    const bool never = std::ranges::any_of(property.schemas, is_false);
    if (never && required) fail("required", "names a property whose schema is false");
    // A forbidden property stays among the names, so that no further key takes its place.
    properties.push_back({property.name, never ? builder_.add_rule() : rule_of(property.schemas), required});
  }
  for (const std::string& name : flat.required) {
    if (!declared.insert(name).second) continue;
    if (flat.additional == Rest::kForbidden) fail("required", "names a property that additionalProperties forbids");
    properties.push_back({name, other >= 0 ? other : pieces_.value(), true});
  }
  pieces_.object_of(from, properties, other, flat.min_properties, flat.max_properties, to);
}

void SchemaCompiler::draw_array(int32_t from, const Flat& flat, int32_t to) {
  if (flat.max_items >= 0 && flat.min_items > flat.max_items) fail("minItems", "is greater than maxItems");
  std::vector<int32_t> prefix;
  for (const Schemas& schemas : flat.prefix) prefix.push_back(rule_of(schemas));
  int32_t other = -1;
  if (flat.items == Rest::kSchemas) other = rule_of(flat.item_schemas);
  if (flat.items == Rest::kUnsaid) other = pieces_.value();
  if (other < 0 && flat.min_items > static_cast<int64_t>(prefix.size())) {
    fail("minItems", "is more than items allows");
  }
  if (flat.max_items >= 0 && static_cast<size_t>(flat.max_items) < prefix.size()) {
    prefix.resize(static_cast<size_t>(flat.max_items));
  }
  pieces_.array_of(from, prefix, other, flat.min_items, flat.max_items, to);
}

/// The values of enum and const that the other keywords admit.
std::vector<const PromptJson*> SchemaCompiler::admitted(const Flat& flat) const {
  const std::optional<CharNfa> nfa = language(flat);
  std::vector<const PromptJson*> values;
  for (const PromptJson* value : *flat.values) {
    if (admits(flat, *value, nfa ? &*nfa : nullptr)) values.push_back(value);
  }
  return values;
}

bool SchemaCompiler::admits(const Flat& flat, const PromptJson& value, const CharNfa* language) const {
  spend(kThingWork);
  using Kind = PromptJson::Kind;
  const auto has = [&](unsigned type) { return (flat.types & type) != 0; };
  switch (value.kind()) {
    case Kind::kNull:
      return has(kNull);
    case Kind::kBool:
      return has(kBoolean);
    case Kind::kNumber: {
      if (!has(is_integral(value) ? kInteger : kFraction)) return false;
      spend(value.number_literal().size());
      const Decimal number = Decimal::parse(value.number_literal());
      const int low = flat.low ? compare(number, flat.low->value) : 1;
      const int high = flat.high ? compare(number, flat.high->value) : -1;
      return (low > 0 || (low == 0 && !flat.low->exclusive)) && (high < 0 || (high == 0 && !flat.high->exclusive));
    }
    case Kind::kString: {
      if (!has(kString)) return false;
      if (language != nullptr) return language->matches(value.as_string());
      spend(value.as_string().size() / 4);
      const int64_t length = count_characters(value.as_string());
      return length >= flat.min_length && (flat.max_length < 0 || length <= flat.max_length);
    }
    case Kind::kArray:
      if (!has(kArray)) return false;
      if (!flat.prefix.empty() || flat.items != Rest::kUnsaid || flat.min_items > 0 || flat.max_items >= 0) {
        refuse("enum", "of arrays beside keywords for arrays is not supported");
      }
      return true;
    case Kind::kObject:
      if (!has(kObject)) return false;
      if (!flat.properties.empty() || !flat.required.empty() || flat.additional != Rest::kUnsaid ||
          flat.min_properties > 0 || flat.max_properties >= 0) {
        refuse("enum", "of objects beside keywords for objects is not supported");
      }
      return true;
  }
  return false;
}

void SchemaCompiler::draw_values(int32_t rule, const Flat& flat) {
  pieces_.constants(builder_.start(rule), admitted(flat), builder_.end(rule));
}

std::vector<SchemaCompiler::Flat> SchemaCompiler::flatten(const Schemas& schemas) const {
  std::vector<Flat> flats = {Flat{}};
  for (const PromptJson* schema : schemas) flats = cross(std::move(flats), flatten(*schema, 0));
  return flats;
}

std::vector<SchemaCompiler::Flat> SchemaCompiler::flatten(const PromptJson& schema, int depth) const {
  if (depth > GrammarLimits::kSchemaDepth) throw Error("schema: '$ref' or 'allOf' nested more than 64 deep");
  if (schema.is_bool()) return schema.as_bool() ? std::vector<Flat>{Flat{}} : std::vector<Flat>{};
  if (!schema.is_object()) throw Error("schema: a subschema must be an object or a boolean");
  if (const Schemas ends = alternatives(schema); ends != Schemas{&schema}) {
    std::vector<Flat> either;
    for (const PromptJson* end : ends) {
      std::ranges::move(flatten(*end, depth + 1), std::back_inserter(either));
      if (either.size() > GrammarLimits::kAlternatives) refuse("anyOf", "has more than 256 alternatives to merge");
    }
    return either;
  }
  std::vector<Flat> flats = {own_keywords(schema)};
  if (const PromptJson* reference = schema.find("$ref")) {
    if (!reference->is_string()) fail("$ref", "must be a string");
    flats = cross(std::move(flats), flatten(resolve(reference->as_string()), depth + 1));
  }
  for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
    const PromptJson* list = schema.find(keyword);
    if (list == nullptr) continue;
    if (!list->is_array() || list->items().empty()) fail(keyword, "must be a list that is not empty");
    std::vector<Flat> either;
    for (const PromptJson& branch : list->items()) {
      std::vector<Flat> part = flatten(branch, depth + 1);
      if (std::string_view(keyword) == "allOf") {
        flats = cross(std::move(flats), part);
      } else {
        std::ranges::move(part, std::back_inserter(either));
        if (either.size() > GrammarLimits::kAlternatives) refuse(keyword, "has more than 256 alternatives to merge");
      }
    }
    if (std::string_view(keyword) != "allOf") flats = cross(std::move(flats), either);
  }
  const PromptJson* nullable = schema.find("nullable");
  if (nullable != nullptr && nullable->truthy()) {
    flats.emplace_back().types = kNull;
  }
  return flats;
}

SchemaCompiler::Flat SchemaCompiler::own_keywords(const PromptJson& schema) const {
  spend(kFlatWork + kMemberWork * schema.members().size());
  Flat flat;
  unsigned hinted = 0;
  for (const auto& [key, value] : schema.members()) {
    if (value.is_null() && key != "const") continue;
    if (is_unsupported(key)) refuse(key, "is not supported");
    hinted |= key == "const" || key == "enum" || key == "anyOf" || key == "oneOf" || key == "allOf" || key == "$ref"
                  ? kAllTypes
                  : 0U;
  }
  const auto hint = [&](std::initializer_list<const char*> keywords, unsigned types) {
    for (const char* keyword : keywords) hinted |= schema.find(keyword) != nullptr ? types : 0U;
  };
  hint({"properties", "required", "additionalProperties", "minProperties", "maxProperties"}, kObject);
  hint({"items", "prefixItems", "minItems", "maxItems"}, kArray);
  hint({"minLength", "maxLength", "pattern"}, kString);
  hint({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}, kInteger | kFraction);

  if (const PromptJson* type = schema.find("type")) {
    flat.types = 0;
    const auto add = [&](const PromptJson& name) {
      static const std::map<std::string_view, unsigned> kTypes = {
          {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kInteger | kFraction},
          {"string", kString}, {"array", kArray},     {"object", kObject}};
      const auto found = name.is_string() ? kTypes.find(name.as_string()) : kTypes.end();
      if (found == kTypes.end()) fail("type", "must name JSON types");
      flat.types |= found->second;
    };
    if (type->is_array()) {
      for (const PromptJson& name : type->items()) add(name);
    } else {
      add(*type);
    }
  } else if (hinted != 0) {
    flat.types = hinted;
  }

  if (const PromptJson* list = schema.find("enum")) {
    if (!list->is_array() || list->items().empty()) fail("enum", "must be a list that is not empty");
    flat.values.emplace();
    spend(list->items().size());
    for (const PromptJson& value : list->items()) flat.values->push_back(&value);
  }
  if (const PromptJson* value = schema.find_even_null("const")) {
    Flat constant;
    constant.values = {value};
    flat = merge(std::move(flat), constant);
  }

  if (const PromptJson* properties = schema.find("properties")) {
    if (!properties->is_object()) fail("properties", "must be an object");
    for (const auto& [name, value] : properties->members()) flat.properties.push_back({name, {&value}});
  }
  if (const PromptJson* required = schema.find("required")) {
    if (!required->is_array()) fail("required", "must be a list");
    for (const PromptJson& name : required->items()) {
      if (!name.is_string()) fail("required", "must be a list of strings");
      flat.required.push_back(name.as_string());
    }
  }
  const auto rest = [&](const PromptJson* value, Rest& kind, Schemas& schemas) {
    if (value == nullptr) return;
    kind = value->is_bool() && !value->as_bool() ? Rest::kForbidden : Rest::kSchemas;
    if (kind == Rest::kSchemas) schemas.push_back(value);
  };
  rest(schema.find("additionalProperties"), flat.additional, flat.additional_schemas);
  flat.min_properties = count(schema, "minProperties", 0);
  flat.max_properties = count(schema, "maxProperties", -1);

  const PromptJson* items = schema.find("items");
  const PromptJson* prefix = schema.find("prefixItems");
  if (items != nullptr && items->is_array()) {  // the older name of prefixItems
    if (prefix != nullptr) fail("items", "must be a schema beside prefixItems");
    prefix = std::exchange(items, nullptr);
  }
  if (prefix != nullptr) {
    if (!prefix->is_array()) fail("prefixItems", "must be a list");
    for (const PromptJson& item : prefix->items()) flat.prefix.push_back({&item});
  }
  rest(items, flat.items, flat.item_schemas);
  flat.min_items = count(schema, "minItems", 0);
  flat.max_items = count(schema, "maxItems", -1);
  flat.min_length = count(schema, "minLength", 0);
  flat.max_length = count(schema, "maxLength", -1);
  if (const PromptJson* pattern = schema.find("pattern")) {
    if (!pattern->is_string()) fail("pattern", "must be a string");
    flat.patterns.push_back(pattern->as_string());
  }
  if (const PromptJson* format = schema.find("format")) {
    if (!format->is_string()) fail("format", "must be a string");
    if (const std::string_view pattern = format_pattern(format->as_string()); !pattern.empty()) {
      flat.formats.push_back(pattern);
    }
  }
  flat.low = bound(schema, true);
  flat.high = bound(schema, false);
  pay_for(flat);
  return flat;
}

// References may repeat what they name any number of times over, so that the size of the schema says nothing.
void SchemaCompiler::pay_for(const Flat& flat) const {
  const auto bytes = [](const std::vector<std::string>& texts) {
    size_t sum = 0;
    for (const std::string& text : texts) sum += text.size();
    return sum;
  };
  size_t things = flat.required.size() + flat.additional_schemas.size() + flat.item_schemas.size() +
                  flat.patterns.size() + flat.formats.size();
  size_t name_bytes = bytes(flat.patterns) + bytes(flat.required);
  for (const Property& property : flat.properties) {
    things += 2 + property.schemas.size();
    name_bytes += property.name.size();
  }
  for (const Schemas& schemas : flat.prefix) things += 1 + schemas.size();
  spend(kFlatWork + kThingWork * things + name_bytes + (flat.values ? flat.values->size() : 0));
}

/// Each of `a` with each of `b`, those left out that admit nothing.
std::vector<SchemaCompiler::Flat> SchemaCompiler::cross(std::vector<Flat> a, const std::vector<Flat>& b) const {
  if (a.size() * b.size() > GrammarLimits::kAlternatives) refuse("allOf", "has more than 256 alternatives to merge");
  std::vector<Flat> all;
  for (Flat& x : a) {
    for (const Flat& y : b) {
      // What is merged step by step out of many parts is copied for alternatives alone.
      const bool copied = &y != &b.back();
      if (copied) pay_for(x);
      Flat both = merge(copied ? x : std::move(x), y);
      if (both.types != 0 && !(both.values && both.values->empty())) all.push_back(std::move(both));
    }
  }
  return all;
}

void SchemaCompiler::merge_values(Flat& a, const Flat& b) const {
  if (!b.values) return;
  if (!a.values) {
    a.values = b.values;
    return;
  }
  const auto text = [this](const PromptJson* value) {
    std::string dumped = value->dump();
    spend(kThingWork + 4 * dumped.size());
    return dumped;
  };
  std::set<std::string> in_b;
  for (const PromptJson* value : *b.values) in_b.insert(text(value));
  std::erase_if(*a.values, [&](const PromptJson* value) { return !in_b.contains(text(value)); });
}

SchemaCompiler::Flat SchemaCompiler::merge(Flat a, const Flat& b) const {
  pay_for(b);
  a.types &= b.types;
  merge_values(a, b);
  merge_objects(a, b);
  if (!a.prefix.empty() && !b.prefix.empty()) refuse("allOf", "with several prefixItems is not supported");
  const bool a_says_more = !b.prefix.empty() && a.items != Rest::kUnsaid;
  const bool b_says_more = !a.prefix.empty() && b.items != Rest::kUnsaid;
  if (a_says_more || b_says_more) refuse("allOf", "of prefixItems and items is not supported");
  if (!b.prefix.empty()) a.prefix = b.prefix;
  const bool forbidden = a.items == Rest::kForbidden || b.items == Rest::kForbidden;
  a.items = forbidden ? Rest::kForbidden : std::max(a.items, b.items);
  a.item_schemas.insert(a.item_schemas.end(), b.item_schemas.begin(), b.item_schemas.end());
  a.min_items = std::max(a.min_items, b.min_items);
  a.max_items = smaller_limit(a.max_items, b.max_items);
  a.min_length = std::max(a.min_length, b.min_length);
  a.max_length = smaller_limit(a.max_length, b.max_length);
  a.patterns.insert(a.patterns.end(), b.patterns.begin(), b.patterns.end());
  a.formats.insert(a.formats.end(), b.formats.begin(), b.formats.end());
  a.low = tighter(a.low, b.low, true);
  a.high = tighter(a.high, b.high, false);
  return a;
}

// A property that one side declares and the other does not falls under the other's additionalProperties.
void SchemaCompiler::merge_objects(Flat& a, const Flat& b) const {
  spend(2 * a.properties.size() * b.properties.size() + 5 * (a.properties.size() + b.properties.size()));
  const size_t declared_by_a = a.properties.size();
  const auto find = [](auto properties, const std::string& name) {
    const auto found = std::ranges::find(properties, name, &Property::name);
    return found != properties.end() ? &*found : nullptr;
  };
  const auto add = [this](Property& property, const Schemas& schemas) {
    spend(kThingWork * schemas.size());
    property.schemas.insert(property.schemas.end(), schemas.begin(), schemas.end());
  };
  const auto obey = [&](Property& property, const Flat& other) {
    if (other.additional == Rest::kForbidden) fail("allOf", "forbids a property that one of its parts declares");
    add(property, other.additional_schemas);
  };
  for (const Property& property : b.properties) {
    if (Property* const in_a = find(std::span(a.properties).first(declared_by_a), property.name)) {
      add(*in_a, property.schemas);
    } else {
      a.properties.push_back(property);
      obey(a.properties.back(), a);
    }
  }
  for (size_t i = 0; i < declared_by_a; ++i) {
    if (find(std::span(b.properties), a.properties[i].name) == nullptr) obey(a.properties[i], b);
  }
  a.required.insert(a.required.end(), b.required.begin(), b.required.end());
  if (a.additional == Rest::kForbidden || b.additional == Rest::kForbidden) {
    a.additional = Rest::kForbidden;
  } else {
    a.additional = std::max(a.additional, b.additional);
  }
  a.min_properties = std::max(a.min_properties, b.min_properties);
  a.max_properties = smaller_limit(a.max_properties, b.max_properties);
  a.additional_schemas.insert(a.additional_schemas.end(), b.additional_schemas.begin(), b.additional_schemas.end());
}

SchemaCompiler::Kinds SchemaCompiler::compile_argument(const PromptJson& schema) {
  Kinds kinds;
  for (const Flat& flat : flatten({&schema})) {
    Flat rest = flat;
    if (flat.values) {
      std::vector<const PromptJson*> others;
      for (const PromptJson* value : admitted(flat)) {
        if (!value->is_string()) {
          others.push_back(value);
        } else {
          kinds.texts.push_back(value->as_string());
        }
      }
      rest.values = others;
      if (others.empty()) continue;
    } else {
      kinds.text |= (flat.types & kString) != 0;
      rest.types &= ~unsigned{kString};
      if (rest.types == 0) continue;
    }
    if (!kinds.json) kinds.json = builder_.add_rule();
    draw_flat(*kinds.json, rest);
  }
  drain();
  return kinds;
}

}  // namespace glm53::text
