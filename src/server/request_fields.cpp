#include "server/request_fields.h"

#include <algorithm>
#include <cfloat>
#include <charconv>
#include <limits>
#include <random>
#include <set>

#include "glm53/core/printable.h"
#include "server/api_error.h"
#include "server/json_get.h"

namespace glm53::server {
namespace {

using text::PromptJson;

constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 65536;  // of all together
constexpr size_t kMaxBadWords = 256;
constexpr size_t kLongestId = 10;  // in digits, zeros in front included: messages repeat it

constexpr UnsupportedField kUnsupported[] = {
    {"use_beam_search", Neutral::kFalse},
};

bool number_is(const PromptJson& value, double wanted) {
  if (!value.is_number()) return false;
  const std::string& literal = value.number_literal();
  double parsed = 0;
  const auto result = std::from_chars(literal.data(), literal.data() + literal.size(), parsed);
  return result.ec == std::errc() && parsed == wanted;
}

bool is_neutral(const PromptJson& value, Neutral neutral) {
  switch (neutral) {
    case Neutral::kNothing:
      return false;
    case Neutral::kFalse:
      return value.is_bool() && !value.as_bool();
    case Neutral::kTrue:
      return value.is_bool() && value.as_bool();
    case Neutral::kZero:
      return number_is(value, 0);
    case Neutral::kOne:
      return number_is(value, 1);
    case Neutral::kEmpty:
      return (value.is_array() || value.is_object() || value.is_string()) && !value.truthy();
  }
  return false;
}

ApiError unsupported(const std::string& field, const std::string& what) {
  return bad_field(field, what + " is not supported by this version");
}

int read_choices(const PromptJson& body, int most, const SamplingParams& sampling) {
  const int64_t n = opt_int(body, "n", 1, most).value_or(1);
  if (n > 1 && sampling.greedy()) throw bad_field("n", "n must be 1 when using greedy sampling");
  const auto best_of = opt_int(body, "best_of", 1, std::numeric_limits<int32_t>::max());
  if (best_of && *best_of > n) throw bad_field("best_of", "best_of above n is not supported");
  return static_cast<int>(n);
}

/// An object of token ids (its keys) and values, which are clamped to ±100.
std::vector<LogitBias> read_biases(const PromptJson& body, int32_t vocab) {
  std::vector<LogitBias> biases;
  const PromptJson* object = opt_object(body, "logit_bias");
  if (object == nullptr) return biases;
  std::set<int32_t> seen;
  for (const auto& [key, value] : object->members()) {
    int32_t id = -1;
    const auto result = std::from_chars(key.data(), key.data() + key.size(), id);
    if (result.ec != std::errc() || result.ptr != key.data() + key.size() || key.front() == '-' || id >= vocab ||
        key.size() > kLongestId) {
      throw bad_field("logit_bias", "logit_bias must map token ids below " + std::to_string(vocab) + " to numbers");
    }
    if (!seen.insert(id).second) throw bad_field("logit_bias", "logit_bias names token " + key + " twice");
    const std::string path = "logit_bias.";
    const auto bias = opt_number(*object, key, -DBL_MAX, DBL_MAX, path);
    if (bias) biases.push_back({id, static_cast<float>(std::clamp(*bias, -100.0, 100.0))});
  }
  return biases;
}

std::vector<std::string> read_bad_words(const PromptJson& body) {
  std::vector<std::string> words;
  const PromptJson::Array* items = opt_array(body, "bad_words");
  if (items == nullptr) return words;
  if (items->size() > kMaxBadWords) throw bad_field("bad_words", "bad_words must hold at most 256 strings");
  for (size_t i = 0; i < items->size(); ++i) {
    const std::string field = "bad_words[" + std::to_string(i) + "]";
    if (!(*items)[i].is_string() || (*items)[i].as_string().empty()) {
      throw bad_field(field, field + " must be a string that is not empty");
    }
    words.push_back((*items)[i].as_string());
  }
  return words;
}

/// A word as the reply may spell it: as written, and after a space.
void add_bad_word(const std::string& word, const text::Tokenizer& tokenizer, std::vector<std::vector<int32_t>>& out) {
  out.push_back(tokenizer.encode(word));
  out.push_back(tokenizer.encode(' ' + word));
}

void read_sampling(const PromptJson& body, const GenerationDefaults& defaults, CommonFields& fields) {
  SamplingParams& sampling = fields.sampling;
  sampling.temperature = static_cast<float>(opt_number(body, "temperature", 0, FLT_MAX).value_or(defaults.temperature));
  const double top_p = opt_number(body, "top_p", 0, 1).value_or(defaults.top_p);
  if (top_p == 0) throw bad_field("top_p", "top_p must be above 0 and at most 1");
  sampling.top_p = std::max(static_cast<float>(top_p), FLT_MIN);
  sampling.top_k = static_cast<int>(
      std::max<int64_t>(0, opt_int(body, "top_k", -1, std::numeric_limits<int32_t>::max()).value_or(defaults.top_k)));
  sampling.min_p = static_cast<float>(opt_number(body, "min_p", 0, 1).value_or(defaults.min_p));
  sampling.presence = static_cast<float>(opt_number(body, "presence_penalty", -2, 2).value_or(0));
  sampling.frequency = static_cast<float>(opt_number(body, "frequency_penalty", -2, 2).value_or(0));
  const double repetition = opt_number(body, "repetition_penalty", 0, DBL_MAX).value_or(defaults.repetition);
  if (repetition == 0) throw bad_field("repetition_penalty", "repetition_penalty must be above 0");
  // Beyond these bounds every logit is as good as zero or infinite, and infinity is no logit.
  sampling.repetition = static_cast<float>(std::clamp(repetition, 1e-20, 1e20));
  const auto seed = opt_int(body, "seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  fields.seeded = seed.has_value();
  sampling.seed = seed ? static_cast<uint64_t>(*seed) : fresh_seed();
}

std::vector<std::string> read_stop(const PromptJson& body) {
  const PromptJson* stop = body.find("stop");
  if (stop == nullptr) return {};
  std::vector<std::string> texts;
  if (stop->is_string()) {
    texts.push_back(stop->as_string());
  } else if (stop->is_array()) {
    for (const PromptJson& item : stop->items()) {
      if (!item.is_string()) throw bad_field("stop", "stop must be a string or a list of strings");
      texts.push_back(item.as_string());
    }
  } else {
    throw bad_field("stop", "stop must be a string or a list of strings");
  }
  check_stops(texts, "stop");
  return texts;
}

/// Ascending, each once: whatever the list's length, no more than the vocabulary is carried on.
std::vector<int32_t> read_id_set(const PromptJson& body, const std::string& key, int32_t vocab) {
  const PromptJson::Array* items = opt_array(body, key);
  if (items == nullptr) return {};
  std::vector<int32_t> ids = require_ids(*items, key, vocab);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::vector<int32_t> read_allowed_ids(const PromptJson& body, int32_t vocab) {
  std::vector<int32_t> ids = read_id_set(body, "allowed_token_ids", vocab);
  if (ids.empty() && body.find("allowed_token_ids") != nullptr) {
    throw bad_field("allowed_token_ids", "allowed_token_ids must not be empty");
  }
  return ids;
}

void read_stream(const PromptJson& body, CommonFields& fields) {
  fields.stream = opt_bool(body, "stream").value_or(false);
  const PromptJson* options = opt_object(body, "stream_options");
  if (options == nullptr) return;
  if (!fields.stream) {
    throw bad_field("stream_options", "Stream options can only be defined when `stream=True`.");
  }
  fields.include_usage = opt_bool(*options, "include_usage", "stream_options.").value_or(false);
  fields.continuous_usage = opt_bool(*options, "continuous_usage_stats", "stream_options.").value_or(false);
}

/// `at_least`: what the message says before numbers that are lower bounds.
void refuse_overflow(const CommonFields& fields, int64_t prompt_tokens, const std::string& at_least,
                     const std::string& prompt_field, int64_t context) {
  const int64_t wanted = fields.max_tokens.value_or(1);
  if (prompt_tokens + wanted <= context) return;
  throw ApiError(
      400,
      "This model's maximum context length is " + std::to_string(context) + " tokens. However, you requested " +
          at_least + std::to_string(prompt_tokens + wanted) + " tokens (" + at_least + std::to_string(prompt_tokens) +
          " in the messages, " + std::to_string(wanted) +
          " in the completion). Please reduce the length of the messages or completion.",
      fields.max_tokens && prompt_tokens < context ? fields.max_tokens_field : prompt_field, "context_length_exceeded");
}

}  // namespace

uint64_t fresh_seed() {
  std::random_device entropy;
  return (uint64_t{entropy()} << 32) | entropy();
}

void check_stops(const std::vector<std::string>& stops, const std::string& field) {
  if (stops.size() > kMaxStops) throw bad_field(field, field + " must hold at most 64 strings");
  size_t bytes = 0;
  for (const std::string& text : stops) {
    if (text.empty()) throw bad_field(field, field + " must not hold an empty string");
    bytes += text.size();
  }
  if (bytes > kMaxStopBytes) throw bad_field(field, field + " must hold at most 65536 bytes together");
}

void refuse_unsupported(const PromptJson& body, std::span<const UnsupportedField> fields) {
  for (const UnsupportedField& field : fields) {
    const PromptJson* value = body.find(field.name);
    if (value != nullptr && !is_neutral(*value, field.neutral)) throw unsupported(field.name, field.name);
  }
}

ApiError no_such_model(const std::string& name) {
  return {404, "The model `" + printable(name) + "` does not exist.", "model", "model_not_found"};
}

const std::string& served_model(const PromptJson& body, const RequestRules& rules) {
  const std::vector<std::string>& served = rules.settings.model.served_name;
  const std::string* model = opt_string(body, "model");
  if (model == nullptr) return served.front();
  const auto found = std::find(served.begin(), served.end(), *model);
  if (found == served.end()) throw no_such_model(*model);
  return *found;
}

CommonFields read_common_fields(const PromptJson& body, const RequestRules& rules) {
  CommonFields fields;
  fields.model = served_model(body, rules);
  refuse_unsupported(body, kUnsupported);
  read_sampling(body, rules.defaults, fields);
  fields.choices = read_choices(body, rules.settings.api.max_n, fields.sampling);
  fields.biases = read_biases(body, rules.defaults.vocab);
  fields.allowed_token_ids = read_allowed_ids(body, rules.defaults.vocab);
  fields.bad_words = read_bad_words(body);
  if (const auto top = opt_int(body, "prompt_logprobs", 0, std::numeric_limits<int32_t>::max())) {
    if (*top > kMaxTopLogprobs) throw too_many_logprobs("prompt_logprobs", *top);
    fields.prompt_logprobs = static_cast<int>(*top);
  }
  fields.return_token_ids = opt_bool(body, "return_token_ids").value_or(false);
  fields.tokens_as_ids = opt_bool(body, "return_tokens_as_token_ids").value_or(false);
  fields.constraint = read_output_constraint(body);
  fields.truncate_prompt = opt_int(body, "truncate_prompt_tokens", -1, kMaxTokens);
  if (fields.truncate_prompt == 0) {
    throw bad_field("truncate_prompt_tokens", "truncate_prompt_tokens must be -1 or at least 1");
  }
  fields.max_tokens = opt_int(body, "max_completion_tokens", 1, kMaxTokens);
  const auto max_tokens = opt_int(body, "max_tokens", 1, kMaxTokens);
  if (fields.max_tokens) {
    fields.max_tokens_field = "max_completion_tokens";
  } else {
    fields.max_tokens = max_tokens;
  }
  fields.min_tokens = opt_int(body, "min_tokens", 0, kMaxTokens).value_or(0);
  fields.stop = read_stop(body);
  fields.stop_token_ids = read_id_set(body, "stop_token_ids", rules.defaults.vocab);
  fields.include_stop = opt_bool(body, "include_stop_str_in_output").value_or(false);
  fields.ignore_eos = opt_bool(body, "ignore_eos").value_or(false);
  fields.skip_special_tokens = opt_bool(body, "skip_special_tokens").value_or(true);
  opt_bool(body, "spaces_between_special_tokens");  // no effect in this family
  opt_bool(body, "add_special_tokens");             // there are none to add
  if (const std::string* salt = opt_string(body, "cache_salt");
      salt != nullptr && (salt->empty() || salt->size() > 1024)) {
    throw bad_field("cache_salt", "cache_salt must have 1 to 1024 characters");
  }
  read_stream(body, fields);
  if (fields.stream && fields.prompt_logprobs >= 0) {
    throw bad_field("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.");
  }
  return fields;
}

int64_t least_tokens(size_t bytes, const ApiContext& api) {
  return api.longest_token == 0 ? 0 : static_cast<int64_t>((bytes + api.longest_token - 1) / api.longest_token);
}

void check_text_fits(const CommonFields& fields, int64_t least, const std::string& prompt_field,
                     const ApiContext& api) {
  const int64_t context = api.generator.context();
  if (least >= context && !fields.truncate_prompt) refuse_overflow(fields, least, "at least ", prompt_field, context);
}

void set_prompt(engine::GenerationRequest& request, const CommonFields& fields, std::vector<int32_t> prompt,
                const std::string& prompt_field, int64_t default_max, const ApiContext& api) {
  const int64_t context = api.generator.context();
  if (fields.truncate_prompt) {
    const int64_t fits = std::max<int64_t>(1, context - fields.max_tokens.value_or(1));
    const int64_t kept = *fields.truncate_prompt < 0 ? fits : *fields.truncate_prompt;
    if (kept < static_cast<int64_t>(prompt.size())) prompt.erase(prompt.begin(), prompt.end() - kept);
  }
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  refuse_overflow(fields, prompt_tokens, "", prompt_field, context);
  const int64_t room = context - prompt_tokens;
  const int64_t max_tokens = fields.max_tokens.value_or(default_max > 0 ? std::min(room, default_max) : room);
  if (fields.min_tokens > max_tokens) {
    throw bad_field("min_tokens", "min_tokens must be at most max_tokens, " + std::to_string(max_tokens));
  }
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
}

engine::GenerationRequest generation_of(const CommonFields& fields, const ApiContext& api) {
  engine::GenerationRequest request;
  request.sampling = fields.sampling;
  request.biases = fields.biases;
  request.allowed_ids = fields.allowed_token_ids;
  std::vector<std::vector<int32_t>> bad_words;
  for (const std::string& word : fields.bad_words) add_bad_word(word, api.tokenizer, bad_words);
  request.bad_words = std::move(bad_words);
  request.logprobs = fields.logprobs;
  request.min_tokens = fields.min_tokens;
  std::vector<int32_t> stop_ids = fields.stop_token_ids;
  for (const std::string& stop : fields.stop) {
    if (const auto id = api.tokenizer.added_id(stop)) stop_ids.push_back(*id);
  }
  request.stop_token_ids = std::move(stop_ids);
  const ApiSettings& settings = api.rules.settings.api;
  request.reply.stop = fields.stop;
  request.reply.include_stop = fields.include_stop;
  request.reply.skip_special_tokens = fields.skip_special_tokens;
  request.reply.stop_in_reasoning = settings.stop_scope == "all";
  request.reply.flush_partial_utf8 = settings.flush_partial_utf8;
  return request;
}

engine::GenerationRequest make_generation(const CommonFields& fields, std::vector<int32_t> prompt,
                                          const std::string& prompt_field, int64_t default_max, const ApiContext& api) {
  engine::GenerationRequest request = generation_of(fields, api);
  set_prompt(request, fields, std::move(prompt), prompt_field, default_max, api);
  return request;
}

void add_choices(const engine::GenerationRequest& request, int choices, std::vector<engine::GenerationRequest>& out) {
  for (int j = 0; j < choices; ++j) {
    out.push_back(request);
    out.back().sampling.choice = static_cast<uint32_t>(j);
  }
}

void check_prompt_logprobs(size_t prompt_tokens, int choices, int top) {
  if (top < 0) return;
  const auto entries = static_cast<int64_t>(prompt_tokens) * choices * (top + 1);
  if (entries > kMaxPromptLogprobs) {
    throw bad_field("prompt_logprobs", "prompts of " + std::to_string(prompt_tokens) + " tokens, " +
                                           std::to_string(choices) + " choices and the " + std::to_string(top) +
                                           " likeliest of each make " + std::to_string(entries) +
                                           " logprobs, and a reply holds at most " +
                                           std::to_string(kMaxPromptLogprobs));
  }
}

ApiError too_many_logprobs(const char* field, int64_t wanted) {
  const std::string kind = std::string_view(field) == "prompt_logprobs" ? "prompt" : "sample";
  return bad_field(field, "Requested " + kind + " logprobs of " + std::to_string(wanted) +
                              ", which is greater than max allowed: " + std::to_string(kMaxTopLogprobs));
}

}  // namespace glm53::server
