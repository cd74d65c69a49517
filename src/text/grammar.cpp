#include "text/grammar.h"

#include <map>
#include <set>
#include <utility>

#include "glm53/core/contains.h"
#include "glm53/core/error.h"
#include "glm53/core/utf8.h"
#include "text/char_nfa.h"
#include "text/grammar_builder.h"
#include "text/json_pieces.h"
#include "text/json_schema.h"
#include "text/json_schema_keywords.h"
#include "text/tool_call_parser.h"

namespace glm53::text {

size_t Grammar::bytes() const {
  const auto held = [](const auto& vector) { return vector.capacity() * sizeof(vector[0]); };
  return held(nodes_) + held(byte_edges_) + held(epsilons_) + held(calls_) + held(rules_) + held(token_ids_) +
         held(symbol_class_) + held(class_symbol_);
}

std::shared_ptr<const Grammar> compile_json_schema(const PromptJson& schema, const JsonGrammarOptions& options) {
  if (schema.is_bool() && !schema.as_bool()) throw Error("schema: false admits no value");
  GrammarBuilder builder;
  JsonPieces pieces(builder, options.any_whitespace);
  return builder.finish(SchemaCompiler(builder, pieces, schema, options).compile(schema));
}

std::shared_ptr<const Grammar> compile_json_schema(std::string_view schema, const JsonGrammarOptions& options) {
  PromptJson json;
  try {
    json = PromptJson::parse(schema);
  } catch (const PromptJson::ParseError& e) {
    throw Error(std::string("schema: ") + e.what());
  }
  return compile_json_schema(json, options);
}

std::shared_ptr<const Grammar> compile_json_object(const JsonGrammarOptions& options) {
  GrammarBuilder builder;
  return builder.finish(JsonPieces(builder, options.any_whitespace).object());
}

std::shared_ptr<const Grammar> compile_regex(std::string_view pattern) {
  GrammarBuilder builder;
  const int32_t root = builder.add_rule();
  parse_regex(pattern, false, builder.budget())
      .emit(builder, builder.start(root), CharEncoding::kRaw, builder.end(root));
  return builder.finish(root);
}

namespace {

void draw_choices(GrammarBuilder& builder, int32_t from, std::span<const std::string> choices, int32_t to) {
  for (const std::string& choice : choices) {
    if (choice.empty()) throw Error("choice: a text is empty");
    if (!is_utf8(choice)) throw Error("choice: a text is not valid UTF-8");
  }
  builder.literals(from, {choices.begin(), choices.end()}, to);
}

}  // namespace

std::shared_ptr<const Grammar> compile_choice(std::span<const std::string> choices) {
  if (choices.empty()) throw Error("choice: the list is empty");
  GrammarBuilder builder;
  const int32_t root = builder.add_rule();
  draw_choices(builder, builder.start(root), choices, builder.end(root));
  return builder.finish(root);
}

namespace {

class ToolCalls {
 public:
  ToolCalls(GrammarBuilder& builder, JsonPieces& pieces, const ToolTags& tags, const ToolGrammarOptions& options)
      : builder_(builder),
        pieces_(pieces),
        tags_(tags),
        arguments_once_(options.arguments_once),
        options_(options.json),
        unheeded_(options.unheeded) {}

  /// "<tool_call>" name arguments "</tool_call>".
  void function(int32_t from, const OfferedTool& function, int32_t to) {
    const int32_t name = builder_.add_node();
    const int32_t arguments = builder_.add_node();
    const int32_t close = builder_.add_node();
    builder_.token(from, tags_.call_open, name);
    builder_.literal(name, function.name, arguments);
    builder_.token(close, tags_.call_close, to);
    const int32_t begin = builder_.add_node();
    newline(arguments, begin);
    draw_arguments(begin, function, close);
  }

  /// Tags are tokens of their own, so that text of ordinary tokens never ends a value, nor begins a call. No rule of
  /// its own: it could end after each character, and what may follow would then not be told from the kinds of
  /// characters (char_runs.h).
  void any_text(int32_t from, int32_t to) {
    const int32_t text = builder_.add_node();
    builder_.epsilon(from, text);
    emit_characters(builder_, text, 0, kLastCodePoint, CharEncoding::kRaw, text);
    builder_.epsilon(text, to);
  }

 private:
  static constexpr size_t kFreeOrder = 8;  // properties: each set of those given is a state

  /// Some templates write one; the model may have seen them.
  void newline(int32_t from, int32_t to) {
    builder_.epsilon(from, to);
    builder_.bytes(from, '\n', '\n', to);
  }

  void draw_arguments(int32_t from, const OfferedTool& function, int32_t to) {
    Arguments arguments;
    find_arguments(function.parameters, function, /*always=*/true, 0, arguments);
    std::vector<int32_t> units;
    std::vector<bool> optional;
    for (const auto& [name, schemas] : arguments.declared) {
      if (!is_readable_key(name)) continue;
      units.push_back(unit(name, schemas, function));
      optional.push_back(!arguments.required.contains(name));
    }
    if (!function.strict && !arguments_once_) {
      const int32_t any = builder_.add_node();
      builder_.epsilon(from, any);
      for (const int32_t unit : units) builder_.call(any, unit, any);
      return builder_.epsilon(any, to);
    }
    if (units.size() > kFreeOrder) {
      for (size_t i = 0; i < units.size(); ++i) {
        const int32_t next = builder_.add_node();
        builder_.call(from, units[i], next);
        if (optional[i]) builder_.epsilon(from, next);
        from = next;
      }
      return builder_.epsilon(from, to);
    }
    const size_t sets = size_t{1} << units.size();
    std::vector<int32_t> given(sets);
    for (int32_t& node : given) node = builder_.add_node();
    builder_.epsilon(from, given[0]);
    for (size_t set = 0; set < sets; ++set) {
      bool complete = true;
      for (size_t i = 0; i < units.size(); ++i) {
        const size_t bit = size_t{1} << i;
        if ((set & bit) != 0) continue;
        builder_.call(given[set], units[i], given[set | bit]);
        complete &= optional[i];
      }
      if (complete) builder_.epsilon(given[set], to);
    }
  }

  struct Arguments {
    std::vector<std::pair<std::string_view, std::vector<const PromptJson*>>>
        declared;                               ///< in order; one of the schemas
    std::map<std::string_view, size_t> places;  ///< in `declared`
    std::set<std::string_view> required;
    std::set<std::pair<const PromptJson*, bool>> seen;  ///< schemas, and whether they always hold
  };

  /// Adds what `schema` declares, and what the schemas do that it refers to or combines; of those that may not hold,
  /// not `always`, nothing is required.
  void find_arguments(const PromptJson& schema, const OfferedTool& function, bool always, int depth, Arguments& out) {
    if (!schema.is_object() || !out.seen.insert({&schema, always}).second) return;
    if (depth > GrammarLimits::kSchemaDepth) return unheeded(function, "", "schema: nested more than 64 deep");
    builder_.budget().spend(100 + 20 * schema.members().size());
    look_at_top(schema, function);
    if (const PromptJson* properties = keyword(schema, "properties", PromptJson::Kind::kObject, function)) {
      for (const auto& [name, property] : properties->members()) {
        const auto [place, added] = out.places.emplace(name, out.declared.size());
        if (added) out.declared.push_back({name, {}});
        std::vector<const PromptJson*>& schemas = out.declared[place->second].second;
        builder_.budget().spend(20 + schemas.size());
        if (!contains(schemas, &property)) schemas.push_back(&property);
      }
    }
    const PromptJson* names = keyword(schema, "required", PromptJson::Kind::kArray, function);
    if (always && names != nullptr) {
      for (const PromptJson& name : names->items()) {
        if (name.is_string()) out.required.insert(name.as_string());
      }
    }
    if (const PromptJson* reference = keyword(schema, "$ref", PromptJson::Kind::kString, function)) {
      const PromptJson* target = nullptr;
      try {
        target = &resolve_reference(function.parameters, reference->as_string(), builder_.budget());
      } catch (const GrammarTooLarge&) {
        throw;
      } catch (const Error& error) {
        if (function.strict) throw;  // it would be a function without arguments
        unheeded(function, "", error.what());
      }
      if (target != nullptr) find_arguments(*target, function, always, depth + 1, out);
    }
    for (const char* name : {"allOf", "anyOf", "oneOf"}) {
      const PromptJson* list = keyword(schema, name, PromptJson::Kind::kArray, function);
      if (list == nullptr) continue;
      const bool all = std::string_view(name) == "allOf" || list->items().size() == 1;
      for (const PromptJson& part : list->items()) find_arguments(part, function, always && all, depth + 1, out);
    }
  }

  /// Null where there is none of this kind: a strict function is at fault if there is another.
  static const PromptJson* keyword(const PromptJson& schema, const char* name, PromptJson::Kind kind,
                                   const OfferedTool& function) {
    const PromptJson* value = schema.find(name);
    if (value == nullptr || value->kind() == kind) return value;
    if (!function.strict) return nullptr;
    const bool object = kind == PromptJson::Kind::kObject;
    throw Error("schema: '" + std::string(name) + "' must be " +
                (object                             ? "an object"
                 : kind == PromptJson::Kind::kArray ? "a list"
                                                    : "a string"));
  }

  void look_at_top(const PromptJson& schema, const OfferedTool& function) {
    for (const auto& [key, value] : schema.members()) {
      const bool heeded = key == "type" || key == "properties" || key == "required" || key == "additionalProperties" ||
                          (key == "$ref" && schema.find("properties") == nullptr);
      if (!heeded && !value.is_null() && is_assertion(key)) {
        unheeded(function, "", "schema: '" + key + "' is not supported at the top of a function's parameters");
      }
    }
  }

  void unheeded(const OfferedTool& function, std::string_view argument, const std::string& why) {
    if (unheeded_) unheeded_(function, argument, why);
  }

  /// "<arg_key>" name "</arg_key>" "<arg_value>" value "</arg_value>".
  int32_t unit(std::string_view name, const std::vector<const PromptJson*>& schemas, const OfferedTool& function) {
    const int32_t rule = builder_.add_rule();
    const int32_t key = builder_.add_node();
    const int32_t key_end = builder_.add_node();
    const int32_t between = builder_.add_node();
    const int32_t before_value = builder_.add_node();
    const int32_t value = builder_.add_node();
    const int32_t value_end = builder_.add_node();
    const int32_t after = builder_.add_node();
    builder_.token(builder_.start(rule), tags_.key_open, key);
    builder_.literal(key, name, key_end);
    builder_.token(key_end, tags_.key_close, between);
    newline(between, before_value);
    builder_.token(before_value, tags_.value_open, value);
    for (const PromptJson* schema : schemas) draw_value(value, name, *schema, function, value_end);
    builder_.token(value_end, tags_.value_close, after);
    newline(after, builder_.end(rule));
    return rule;
  }

  void draw_value(int32_t from, std::string_view name, const PromptJson& schema, const OfferedTool& function,
                  int32_t to) {
    SchemaCompiler::Kinds kinds;
    const auto fall_back = [&](const Error& error) {  // to the form that spec 40 §4.5 wants for such an argument
      unheeded(function, name, error.what());
      kinds = not_strict(schema);
    };
    try {
      kinds = SchemaCompiler(builder_, pieces_, function.parameters, options_).compile_argument(schema);
    } catch (const GrammarTooLarge&) {
      throw;
    } catch (const UnsupportedSchema& error) {
      fall_back(error);
    } catch (const Error& error) {
      if (function.strict) throw;
      fall_back(error);
    }
    if (kinds.text) any_text(from, to);
    builder_.literals(from, std::move(kinds.texts), to);
    if (kinds.json) builder_.call(from, *kinds.json, to);
  }

  SchemaCompiler::Kinds not_strict(const PromptJson& schema) {
    std::vector<const PromptJson*> values;
    if (const PromptJson* list = schema.find("enum"); list != nullptr && list->is_array()) {
      for (const PromptJson& value : list->items()) values.push_back(&value);
    } else if (const PromptJson* value = schema.find_even_null("const")) {
      values = {value};
    }
    return values.empty() ? by_type(schema) : by_value(values);
  }

  SchemaCompiler::Kinds by_value(const std::vector<const PromptJson*>& values) {
    SchemaCompiler::Kinds kinds;
    std::vector<const PromptJson*> others;
    for (const PromptJson* value : values) {
      if (value->is_string()) {
        kinds.texts.push_back(value->as_string());
      } else {
        others.push_back(value);
      }
    }
    if (!others.empty()) {
      kinds.json = builder_.add_rule();
      pieces_.constants(builder_.start(*kinds.json), others, builder_.end(*kinds.json));
    }
    return kinds;
  }

  SchemaCompiler::Kinds by_type(const PromptJson& schema) {
    std::vector<std::string> types;
    const PromptJson* type = schema.find("type");
    if (type != nullptr && type->is_string()) types.push_back(type->as_string());
    if (type != nullptr && type->is_array()) {
      for (const PromptJson& name : type->items()) {
        if (name.is_string()) types.push_back(name.as_string());
      }
    }
    SchemaCompiler::Kinds kinds;
    for (const std::string& name : types) {
      const int32_t rule = name == "integer"   ? pieces_.integer()
                           : name == "number"  ? pieces_.number()
                           : name == "boolean" ? pieces_.boolean()
                           : name == "null"    ? pieces_.null()
                           : name == "array"   ? pieces_.array()
                           : name == "object"  ? pieces_.object()
                                               : -1;
      if (rule < 0) {
        kinds.text = true;
        continue;
      }
      if (!kinds.json) kinds.json = builder_.add_rule();
      builder_.call(builder_.start(*kinds.json), rule, builder_.end(*kinds.json));
    }
    kinds.text |= types.empty();
    return kinds;
  }

  GrammarBuilder& builder_;
  JsonPieces& pieces_;
  const ToolTags tags_;
  const bool arguments_once_;
  const JsonGrammarOptions options_;
  const decltype(ToolGrammarOptions::unheeded)& unheeded_;
};

}  // namespace

std::shared_ptr<const Grammar> compile_tool_calls(std::span<const OfferedTool> functions, const ToolTags& tags,
                                                  const ToolGrammarOptions& options) {
  if (functions.empty()) throw Error("tools: no function to call");
  GrammarBuilder builder;
  JsonPieces pieces(builder, options.json.any_whitespace);
  ToolCalls calls(builder, pieces, tags, options);
  const int32_t call = builder.add_rule();
  for (size_t i = 0; i < functions.size(); ++i) {
    const std::string& name = functions[i].name;
    if (!is_callable_name(name) || !is_utf8(name)) throw Error("tools: a function's name cannot be called");
    try {
      calls.function(builder.start(call), functions[i], builder.end(call));
    } catch (const GrammarTooLarge&) {
      throw;  // no function's fault alone
    } catch (const Error& error) {
      throw FunctionError(error.what(), i);
    }
  }
  const int32_t root = builder.add_rule();
  const int32_t start = builder.start(root);
  const int32_t end = builder.end(root);
  // A node from which a call or free text may follow; the reply may end at it.
  const auto after_text = [&](int32_t from) {
    const int32_t next = builder.add_node();
    calls.any_text(from, next);
    builder.epsilon(next, end);
    return next;
  };
  int32_t at = options.free_text ? after_text(start) : start;
  for (int i = 0; i < (options.parallel ? kMaxCalls : 1); ++i) {
    const int32_t next = builder.add_node();
    builder.call(at, call, next);
    builder.epsilon(next, end);
    at = options.free_text ? after_text(next) : next;
  }
  if (options.content != nullptr) {
    SchemaCompiler schema(builder, pieces, *options.content, options.json);
    builder.call(start, schema.compile(*options.content), end);
  }
  if (options.content_regex) {
    parse_regex(*options.content_regex, false, builder.budget()).emit(builder, start, CharEncoding::kRaw, end);
  }
  draw_choices(builder, start, options.content_choices, end);
  return builder.finish(root);
}

}  // namespace glm53::text
