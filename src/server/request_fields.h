// Fields that /v1/chat/completions and /v1/completions share (spec 40 §6.1): read, checked, and turned into what the
// engine takes. A field that exists in the API but not in this version is refused by name unless it holds the value
// that changes nothing; unknown fields are ignored.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/api_context.h"
#include "server/api_error.h"
#include "server/output_constraint.h"
#include "text/prompt_json.h"

namespace glm53::server {

/// More than any context, and sums cannot overflow.
inline constexpr int64_t kMaxTokens = int64_t{1} << 40;

struct CommonFields {
  std::string model;                            ///< served name that the request asked for, or the default one
  SamplingParams sampling;                      ///< seed set, from OS entropy when the request has none
  bool seeded = false;                          ///< the seed is the request's
  std::optional<int64_t> max_tokens;            ///< >= 1
  std::string max_tokens_field = "max_tokens";  ///< that gave it
  int64_t min_tokens = 0;
  int choices = 1;  ///< n
  std::vector<LogitBias> biases;
  std::vector<int32_t> allowed_token_ids;  ///< empty: all
  std::vector<std::string> bad_words;
  int logprobs = -1;                       ///< −1 off, else this many of the largest too
  int prompt_logprobs = -1;                ///< the same for the prompt's tokens
  bool return_token_ids = false;           ///< the reply shows ids beside the text
  bool tokens_as_ids = false;              ///< logprobs name tokens by id (return_tokens_as_token_ids)
  std::optional<int64_t> truncate_prompt;  ///< keep this many of the prompt's last tokens; −1: what the context holds
  OutputConstraint constraint;             ///< of the reply's text
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool include_stop = false;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
};

/// Which value of an unsupported field changes nothing.
enum class Neutral : uint8_t { kNothing, kFalse, kTrue, kZero, kOne, kEmpty };
struct UnsupportedField {
  const char* name;
  Neutral neutral;  ///< null and absent are always fine
};

/// Throws ApiError 400 for the first field that asks for something this version does not do.
void refuse_unsupported(const text::PromptJson& body, std::span<const UnsupportedField> fields);

/// A seed from OS entropy.
uint64_t fresh_seed();

/// Stop strings: at most 64 with 64 KiB together, none empty. Throws ApiError 400 naming `field`.
void check_stops(const std::vector<std::string>& stops, const std::string& field);

ApiError no_such_model(const std::string& name);
/// The served name that a request asks for, or the default one. Throws ApiError 404 for a model that is not served.
const std::string& served_model(const text::PromptJson& body, const RequestRules& rules);

/// Throws ApiError: 404 for a model that is not served, 400 naming the field for the rest.
CommonFields read_common_fields(const text::PromptJson& body, const RequestRules& rules);

/// What the fields say: all but prompt, max_tokens, `id`, end ids and the kind of reply. Marker texts among the stop
/// strings ("<|user|>") become stop ids too.
engine::GenerationRequest generation_of(const CommonFields& fields, const ApiContext& api);
/// A lower bound of the tokens of any text of so many bytes; 0 without a vocabulary.
int64_t least_tokens(size_t bytes, const ApiContext& api);
/// Throws as set_prompt where a prompt of at least `least` tokens fills the context, unless it is to be cut. One that
/// leaves some room is better told its exact number.
void check_text_fits(const CommonFields& fields, int64_t least, const std::string& prompt_field, const ApiContext& api);
/// Sets prompt and max_tokens. `default_max` applies when the request has no max_tokens; 0 = up to the context. Throws
/// ApiError 400 context_length_exceeded, naming `prompt_field` or what asked for too many tokens, or when min_tokens
/// exceeds the limit.
void set_prompt(engine::GenerationRequest& request, const CommonFields& fields, std::vector<int32_t> prompt,
                const std::string& prompt_field, int64_t default_max, const ApiContext& api);
/// Both.
engine::GenerationRequest make_generation(const CommonFields& fields, std::vector<int32_t> prompt,
                                          const std::string& prompt_field, int64_t default_max, const ApiContext& api);

/// Appends one request a choice, which differ in the key of their noise.
void add_choices(const engine::GenerationRequest& request, int choices, std::vector<engine::GenerationRequest>& out);

/// Logprobs of prompts' tokens that one reply holds at most: each is some 350 bytes of JSON in the making.
inline constexpr int64_t kMaxPromptLogprobs = int64_t{1} << 20;
/// `prompt_tokens` of all prompts together, `choices` of each, `top` as in prompt_logprobs (−1: none are wanted).
/// Throws ApiError 400 when a reply would hold more than kMaxPromptLogprobs.
void check_prompt_logprobs(size_t prompt_tokens, int choices, int top);

/// The error of a top_logprobs, logprobs or prompt_logprobs beyond kMaxTopLogprobs (spec 40 §6.1).
ApiError too_many_logprobs(const char* field, int64_t wanted);

}  // namespace glm53::server
