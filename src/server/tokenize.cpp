#include "server/tokenize.h"

#include <nlohmann/json.hpp>

#include "server/api_error.h"
#include "server/chat_generation.h"
#include "server/json_get.h"
#include "server/reply_json.h"

namespace glm53::server {
namespace {

using nlohmann::ordered_json;
using text::PromptJson;

/// What a reply may list: its JSON takes some hundred bytes of memory an id.
constexpr size_t kMaxListed = PromptJson::kMaxValues;

void require_tokenizer(const ApiContext& api, const char* field) {
  if (!api.tokenizer.has_vocabulary()) throw bad_field(field, "the model has no tokenizer");
}

std::vector<int32_t> prompt_of(const PromptJson& body, const HttpRequest& http, const ApiContext& api) {
  if (body.find("messages") != nullptr) {
    if (body.find("prompt") != nullptr) throw bad_field("prompt", "prompt and messages exclude each other");
    return chat_prompt_ids(parse_chat_request(http.body, api.rules).prompt, api);
  }
  served_model(body, api.rules);
  const std::string* prompt = opt_string(body, "prompt");
  if (prompt == nullptr) throw bad_field("prompt", "prompt or messages is required");
  require_tokenizer(api, "prompt");
  opt_bool(body, "add_special_tokens");  // there are none to add
  return api.tokenizer.encode(*prompt);
}

}  // namespace

HttpResponse tokenize(const HttpRequest& http, const ApiContext& api) {
  const PromptJson body = parse_body(http.body);
  const bool strings = opt_bool(body, "return_token_strs").value_or(false);
  const std::vector<int32_t> ids = prompt_of(body, http, api);
  if (ids.size() > kMaxListed) {
    throw bad_field(
        body.find("messages") != nullptr ? "messages" : "prompt",
        std::to_string(ids.size()) + " tokens are too many to list; the most are " + std::to_string(kMaxListed));
  }
  ordered_json reply = {{"count", ids.size()}, {"max_model_len", api.generator.context()}, {"tokens", ids}};
  reply["token_strs"] = nullptr;
  if (strings) {
    reply["token_strs"] = ordered_json::array();
    for (const int32_t id : ids) reply["token_strs"].push_back(api.tokenizer.token_piece(id));
  }
  HttpResponse response;
  response.body = dump(reply);
  return response;
}

HttpResponse detokenize(const HttpRequest& http, const ApiContext& api) {
  const PromptJson body = parse_body(http.body);
  served_model(body, api.rules);
  const PromptJson::Array* tokens = opt_array(body, "tokens");
  if (tokens == nullptr) throw bad_field("tokens", "tokens is required");
  require_tokenizer(api, "tokens");
  const std::vector<int32_t> ids = require_ids(*tokens, "tokens", api.rules.defaults.vocab);
  HttpResponse response;
  response.body = dump(ordered_json{{"prompt", api.tokenizer.decode(ids, false)}});
  return response;
}

}  // namespace glm53::server
