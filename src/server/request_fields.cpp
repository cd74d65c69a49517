#include "server/request_fields.h"

#include <algorithm>
#include <cfloat>
#include <charconv>
#include <limits>
#include <random>

#include "server/api_error.h"
#include "server/json_get.h"

namespace glm53::server {
namespace {

using text::PromptJson;

constexpr size_t kMaxStops = 64;
constexpr int64_t kMaxCount = int64_t{1} << 40;  // of tokens: more than any context, and sums cannot overflow

constexpr UnsupportedField kUnsupported[] = {
    {"logit_bias", Neutral::kEmpty},
    {"presence_penalty", Neutral::kZero},
    {"frequency_penalty", Neutral::kZero},
    {"repetition_penalty", Neutral::kOne},
    {"bad_words", Neutral::kEmpty},
    {"allowed_token_ids", Neutral::kNothing},
    {"prompt_logprobs", Neutral::kNothing},
    {"structured_outputs", Neutral::kNothing},
    {"guided_json", Neutral::kNothing},
    {"guided_regex", Neutral::kNothing},
    {"guided_choice", Neutral::kNothing},
    {"guided_grammar", Neutral::kNothing},
    {"truncate_prompt_tokens", Neutral::kNothing},
    {"echo", Neutral::kFalse},
    {"best_of", Neutral::kOne},
    {"use_beam_search", Neutral::kFalse},
    {"return_token_ids", Neutral::kFalse},
    {"return_tokens_as_token_ids", Neutral::kFalse},
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

void check_model(const PromptJson& body, const std::string& served) {
  const std::string* model = opt_string(body, "model");
  if (model != nullptr && *model != served) {
    throw ApiError(404, "The model `" + *model + "` does not exist.", "model", "model_not_found");
  }
}

void check_choices(const PromptJson& body) {
  if (opt_int(body, "n", 1, std::numeric_limits<int32_t>::max()).value_or(1) > 1) {
    throw bad_field("n", "n above 1 is not supported by this version: send one request for each choice");
  }
}

void read_sampling(const PromptJson& body, const GenerationDefaults& defaults, SamplingParams& sampling) {
  sampling.temperature = static_cast<float>(opt_number(body, "temperature", 0, FLT_MAX).value_or(defaults.temperature));
  const double top_p = opt_number(body, "top_p", 0, 1).value_or(defaults.top_p);
  if (top_p == 0) throw bad_field("top_p", "top_p must be above 0 and at most 1");
  sampling.top_p = std::max(static_cast<float>(top_p), FLT_MIN);
  sampling.top_k = static_cast<int>(
      std::max<int64_t>(0, opt_int(body, "top_k", -1, std::numeric_limits<int32_t>::max()).value_or(0)));
  sampling.min_p = static_cast<float>(opt_number(body, "min_p", 0, 1).value_or(0));
  const auto seed = opt_int(body, "seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  if (seed) {
    sampling.seed = static_cast<uint64_t>(*seed);
  } else {
    std::random_device entropy;
    sampling.seed = (uint64_t{entropy()} << 32) | entropy();
  }
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
  if (texts.size() > kMaxStops) throw bad_field("stop", "stop must hold at most 64 strings");
  for (const std::string& text : texts) {
    if (text.empty()) throw bad_field("stop", "stop must not hold an empty string");
  }
  return texts;
}

std::vector<int32_t> read_stop_ids(const PromptJson& body, int32_t vocab) {
  std::vector<int32_t> ids;
  if (const PromptJson::Array* items = opt_array(body, "stop_token_ids")) {
    for (size_t i = 0; i < items->size(); ++i) {
      ids.push_back(
          static_cast<int32_t>(require_int((*items)[i], "stop_token_ids[" + std::to_string(i) + "]", 0, vocab - 1)));
    }
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
  if (opt_bool(*options, "continuous_usage_stats", "stream_options.").value_or(false)) {
    throw unsupported("stream_options.continuous_usage_stats", "stream_options.continuous_usage_stats");
  }
}

void check_response_format(const PromptJson& body) {
  const PromptJson* format = opt_object(body, "response_format");
  if (format == nullptr) return;
  const std::string* type = opt_string(*format, "type", "response_format.");
  if (type == nullptr) throw bad_field("response_format.type", "response_format.type is required");
  if (*type != "text") throw unsupported("response_format", "response_format other than text");
}

}  // namespace

void refuse_unsupported(const PromptJson& body, std::span<const UnsupportedField> fields) {
  for (const UnsupportedField& field : fields) {
    const PromptJson* value = body.find(field.name);
    if (value != nullptr && !is_neutral(*value, field.neutral)) throw unsupported(field.name, field.name);
  }
}

CommonFields read_common_fields(const PromptJson& body, const RequestRules& rules) {
  CommonFields fields;
  check_model(body, rules.settings.model.served_name);
  check_choices(body);
  check_response_format(body);
  refuse_unsupported(body, kUnsupported);
  read_sampling(body, rules.defaults, fields.sampling);
  fields.max_tokens = opt_int(body, "max_completion_tokens", 1, kMaxCount);
  const auto max_tokens = opt_int(body, "max_tokens", 1, kMaxCount);
  if (!fields.max_tokens) fields.max_tokens = max_tokens;
  fields.min_tokens = opt_int(body, "min_tokens", 0, kMaxCount).value_or(0);
  fields.stop = read_stop(body);
  fields.stop_token_ids = read_stop_ids(body, rules.defaults.vocab);
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
  return fields;
}

engine::GenerationRequest make_generation(const CommonFields& fields, std::vector<int32_t> prompt, int64_t default_max,
                                          const ApiContext& api) {
  const int64_t context = api.generator.context();
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  const int64_t room = context - prompt_tokens;
  const int64_t max_tokens = fields.max_tokens.value_or(default_max > 0 ? std::min(room, default_max) : room);
  if (room < 1 || max_tokens > room) {
    const int64_t wanted = fields.max_tokens.value_or(1);
    throw ApiError(400,
                   "This model's maximum context length is " + std::to_string(context) +
                       " tokens. However, you requested " + std::to_string(prompt_tokens + wanted) + " tokens (" +
                       std::to_string(prompt_tokens) + " in the messages, " + std::to_string(wanted) +
                       " in the completion). Please reduce the length of the messages or completion.",
                   fields.max_tokens && prompt_tokens < context ? "max_tokens" : "messages", "context_length_exceeded");
  }
  if (fields.min_tokens > max_tokens) {
    throw bad_field("min_tokens", "min_tokens must be at most max_tokens, " + std::to_string(max_tokens));
  }

  engine::GenerationRequest request;
  request.prompt = std::move(prompt);
  request.sampling = fields.sampling;
  request.max_tokens = max_tokens;
  request.min_tokens = fields.min_tokens;
  request.stop_token_ids = fields.stop_token_ids;
  for (const std::string& stop : fields.stop) {
    if (const auto id = api.tokenizer.added_id(stop)) request.stop_token_ids.push_back(*id);
  }
  const ApiSettings& settings = api.rules.settings.api;
  request.reply.stop = fields.stop;
  request.reply.include_stop = fields.include_stop;
  request.reply.skip_special_tokens = fields.skip_special_tokens;
  request.reply.stop_in_reasoning = settings.stop_scope == "all";
  request.reply.flush_partial_utf8 = settings.flush_partial_utf8;
  return request;
}

}  // namespace glm53::server
