#include "server/logprobs_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "glm53/core/utf8.h"

namespace glm53::server {
namespace {

using nlohmann::ordered_json;

ordered_json number(float logprob) { return std::max(logprob, -9999.0F); }

ordered_json chat_entry(int32_t id, float logprob, const TokenNames& names) {
  ordered_json bytes = ordered_json::array();
  for (const char byte : names.tokenizer.token_bytes(id)) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", names(id)}, {"logprob", number(logprob)}, {"bytes", std::move(bytes)}};
}

}  // namespace

std::string TokenNames::operator()(int32_t id) const {
  return as_ids || !tokenizer.has_vocabulary() ? "token_id:" + std::to_string(id) : tokenizer.decode({&id, 1}, false);
}

ordered_json chat_logprobs(std::span<const engine::TokenLogprobs> tokens, const TokenNames& names) {
  ordered_json content = ordered_json::array();
  for (const engine::TokenLogprobs& token : tokens) {
    ordered_json entry = chat_entry(token.id, token.logprob.value_or(0), names);
    entry["top_logprobs"] = ordered_json::array();
    for (const TokenLogprob& top : token.top) {
      entry["top_logprobs"].push_back(chat_entry(top.id, top.logprob, names));
    }
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

ordered_json prompt_logprobs_json(std::span<const engine::TokenLogprobs> tokens, int top, const TokenNames& names) {
  ordered_json list = ordered_json::array();
  for (const engine::TokenLogprobs& token : tokens) {
    if (!token.logprob) {
      list.push_back(nullptr);
      continue;
    }
    ordered_json entry = ordered_json::object();
    const auto add = [&](int32_t id, float logprob, ordered_json rank) {
      entry[std::to_string(id)] = {
          {"logprob", number(logprob)}, {"rank", std::move(rank)}, {"decoded_token", names(id)}};
    };
    add(token.id, *token.logprob, nullptr);
    const size_t shown = std::min(token.top.size(), static_cast<size_t>(top));
    for (size_t i = 0; i < shown; ++i) add(token.top[i].id, token.top[i].logprob, i + 1);
    list.push_back(std::move(entry));
  }
  return list;
}

void CompletionLogprobs::advance(int32_t id) {
  const bool prompt = echoed_ > 0;
  if (prompt || !skip_special_ || !names_.tokenizer.is_special(id)) {
    offset_ += count_characters(decoder_.push(names_.tokenizer.token_bytes(id)));
  }
  // A prompt of ids may end within a character; its echo does not join the reply.
  if (prompt && --echoed_ == 0) offset_ += count_characters(decoder_.finish(true));
}

ordered_json CompletionLogprobs::next(std::span<const engine::TokenLogprobs> tokens) {
  ordered_json offsets = ordered_json::array();
  ordered_json logprobs = ordered_json::array();
  ordered_json texts = ordered_json::array();
  ordered_json tops = ordered_json::array();
  for (const engine::TokenLogprobs& token : tokens) {
    const std::string own = names_(token.id);
    offsets.push_back(offset_);
    advance(token.id);
    texts.push_back(own);
    if (!token.logprob) {
      logprobs.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    logprobs.push_back(number(*token.logprob));
    ordered_json top = ordered_json::object();
    // Different tokens can show the same text; the likelier one keeps it.
    for (const TokenLogprob& entry : token.top) {
      const std::string text = names_(entry.id);
      if (!top.contains(text)) top[text] = number(entry.logprob);
    }
    if (!top.contains(own)) top[own] = number(*token.logprob);
    tops.push_back(std::move(top));
  }
  return {{"text_offset", std::move(offsets)},
          {"token_logprobs", std::move(logprobs)},
          {"tokens", std::move(texts)},
          {"top_logprobs", std::move(tops)}};
}

}  // namespace glm53::server
