// What constrained text must look like (spec 40 §4.5, §12): compiled from a JSON schema, a regex, a list of choices or
// the tools of a request. A Grammar is immutable; any number of threads may share it. grammar_matcher.h runs it.
//
// Form: a recursive transition network over bytes. Each rule is a nondeterministic automaton whose edges read a range
// of bytes, read one token by its id, read nothing, or call a rule. Text is always valid UTF-8.
//
// Every compile_ function throws Error, one line naming the keyword or the part of the pattern, for what is not
// supported, contradicts itself or is larger than GrammarLimits allows it to be, and GrammarTooLarge, which is an Error
// too (grammar_error.h), when the whole exceeds GrammarLimits or its CompileBudget: a 400 for the client.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar_error.h"
#include "text/offered_tools.h"
#include "text/prompt_json.h"
#include "text/tool_tags.h"

namespace glm53::text {

/// Hostile input meets these, or the CompileBudget, long before memory, time or stack run out.
struct GrammarLimits {
  static constexpr int kNodes = 400'000;         ///< of one grammar
  static constexpr int kEdges = 1'200'000;       ///< of one grammar; about 12 bytes each
  static constexpr int kRules = 20'000;          ///< of one grammar
  static constexpr int kRepeat = 10'000;         ///< largest count in {n,m}, minLength, maxItems, ...
  static constexpr int kRegexBytes = 64 * 1024;  ///< of one pattern
  static constexpr int kSchemaDepth = 64;        ///< nesting of subschemas and of regex groups
  static constexpr int kAlternatives = 256;      ///< that anyOf inside allOf may multiply to
  static constexpr int kHeight = 64;             ///< nested calls without which a rule cannot end
  static constexpr int kDepth = 256;             ///< nested calls in a text; one or two a level of JSON
};

/// Indexed as the builder left them; all members are fixed after GrammarBuilder::finish.
class Grammar {
 public:
  struct ByteEdge {
    uint16_t low = 0;  ///< symbols low..high; 0-255 are bytes, 256 + i is token_ids()[i]
    uint16_t high = 0;
    int32_t to = 0;
  };
  struct CallEdge {
    int32_t rule = 0;
    int32_t to = 0;  ///< where the caller goes on
  };
  struct Node {
    int32_t bytes = 0;     ///< first of its byte edges; they end where those of the next node begin
    int32_t epsilons = 0;  ///< likewise
    int32_t calls = 0;     ///< likewise
    int32_t shape = 0;     ///< a node with the same edges as far as kShapeReach bytes see, itself if there is none
    uint8_t height = 0;    ///< calls that the shortest way to the rule's end nests; kDeadHeight: no way
    bool final = false;    ///< the end of its rule
  };
  struct Rule {
    int32_t start = 0;
    int32_t rank = 0;  ///< a rule ranks before those it calls without reading anything first
    bool nullable = false;
    bool inner = false;  ///< so small a part, as a character, that masks take it together with its caller
  };
  static constexpr uint8_t kDeadHeight = 255;
  /// How far apart a counted repetition's bounds must be for two of its copies to count as the same shape.
  static constexpr int kShapeReach = 256;

  const std::vector<Node>& nodes() const { return nodes_; }  ///< one extra at the end
  const std::vector<ByteEdge>& byte_edges() const { return byte_edges_; }
  const std::vector<int32_t>& epsilons() const { return epsilons_; }
  const std::vector<CallEdge>& calls() const { return calls_; }
  const std::vector<Rule>& rules() const { return rules_; }
  int32_t root() const { return root_; }  ///< rule
  /// Added tokens that the grammar reads by id (tool-call tags).
  const std::vector<int32_t>& token_ids() const { return token_ids_; }
  /// Symbols that no edge tells apart share a class: [256 + token_ids().size()].
  const std::vector<uint16_t>& symbol_class() const { return symbol_class_; }
  int class_count() const { return static_cast<int>(class_symbol_.size()); }
  /// A symbol of each class.
  const std::vector<uint16_t>& class_symbol() const { return class_symbol_; }
  size_t bytes() const;  ///< memory held

 private:
  friend class GrammarBuilder;
  std::vector<Node> nodes_;
  std::vector<ByteEdge> byte_edges_;
  std::vector<int32_t> epsilons_;
  std::vector<CallEdge> calls_;
  std::vector<Rule> rules_;
  int32_t root_ = 0;
  std::vector<int32_t> token_ids_;
  std::vector<uint16_t> symbol_class_;
  std::vector<uint16_t> class_symbol_;
};

struct JsonGrammarOptions {
  /// Between JSON tokens: at most one newline, then at most 32 spaces or tabs; none at either end of the text. False:
  /// exactly ", " and ": ".
  bool any_whitespace = true;
  /// Objects accept no key that their `properties` do not name, even where the schema says otherwise.
  bool no_additional_properties = false;
};

/// The subset of spec 40 §12.5. Differences from a validator, all on the strict side: properties come in declared
/// order, further keys after them; a missing additionalProperties means false beside `properties`; oneOf is read as
/// anyOf; strings under pattern, format or enum escape only what must be; numbers have at most 19 digits before and 20
/// after the point (exponents, of two digits, only without bounds). Not checked: that further keys differ from each
/// other, which minProperties and maxProperties therefore count as they come. Formats: date, time, date-time, duration,
/// email, uri, uuid, ipv4, ipv6, hostname; others are ignored, as are title, description, default, examples,
/// deprecated, readOnly, writeOnly, $schema, $id, $comment and x-* keywords. Only references within the document ("#",
/// "#/...") are followed.
std::shared_ptr<const Grammar> compile_json_schema(const PromptJson& schema, const JsonGrammarOptions& options = {});
/// `schema` as text; throws Error when it is not JSON.
std::shared_ptr<const Grammar> compile_json_schema(std::string_view schema, const JsonGrammarOptions& options = {});

/// Any JSON object.
std::shared_ptr<const Grammar> compile_json_object(const JsonGrammarOptions& options = {});

/// The whole text matches. ECMAScript syntax without look-around, back references, \b and \p; classes are ASCII, "."
/// is any character but a line end, lazy quantifiers match as greedy ones. ^ and $ only at the ends of a top-level
/// alternative.
std::shared_ptr<const Grammar> compile_regex(std::string_view pattern);

/// One of the texts, none empty.
std::shared_ptr<const Grammar> compile_choice(std::span<const std::string> choices);

struct ToolGrammarOptions {
  bool parallel = true;  ///< up to kMaxCalls calls; false (a named function, parallel_tool_calls off): one
  /// Functions that are not strict need their required arguments too and take none twice; false: any of their
  /// arguments, any number of times.
  bool arguments_once = true;
  // What may stand in place of calls, for tool_choice auto beside a constraint: text of one of these.
  const PromptJson* content = nullptr;  ///< of a JSON schema
  std::optional<std::string> content_regex;
  std::span<const std::string> content_choices;
  bool free_text = false;  ///< any text before, between and after calls, of which there may be none
  JsonGrammarOptions json;
  /// Told of each part of a function's parameters that calls are not held to: an argument, "" for the top, and why.
  std::function<void(const OfferedTool& function, std::string_view argument, const std::string& why)> unheeded;
};

/// One call or more, of the functions offered (spec 40 §4.5). Their arguments are the properties at the top of their
/// parameters, and of what is referred to or combined there, as far as a reply's parser can read them
/// (is_readable_key). Each required argument once, no argument twice; in any order for functions of at most 8
/// properties, in declared order beyond. An argument whose schema admits a string is free text, or its enum's or
/// const's texts, without quotes; others are JSON of the schema. Where an argument's schema is not supported, the texts
/// of its enum or const count, else its types alone; of other keywords at the top than those of objects only the
/// properties that they bring.
///
/// Throws FunctionError where a strict function's parameters are no schema, contradict themselves or refer to nothing;
/// what other functions say in such a place goes unheeded.
std::shared_ptr<const Grammar> compile_tool_calls(std::span<const OfferedTool> functions, const ToolTags& tags,
                                                  const ToolGrammarOptions& options = {});

}  // namespace glm53::text
