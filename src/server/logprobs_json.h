// Logprobs in the shapes of both completion routes (spec 40 §6.2, §7). A token shows its own text, so that of part of a
// character is U+FFFD; without a vocabulary, or with return_tokens_as_token_ids, it is "token_id:5". Its bytes are
// given where the shape has a place for them. −∞ is −9999.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/generation.h"
#include "text/tokenizer.h"

namespace glm53::server {

/// Appends what an event brought.
inline void move_logprobs(std::vector<engine::TokenLogprobs>& to, std::vector<engine::TokenLogprobs>& from) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
  from.clear();
}

/// What tokens are called.
struct TokenNames {
  const text::Tokenizer& tokenizer;
  bool as_ids = false;

  std::string operator()(int32_t id) const;
};

/// {"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null}
nlohmann::ordered_json chat_logprobs(std::span<const engine::TokenLogprobs> tokens, const TokenNames& names);

/// Of a prompt, as vLLM gives them: null for its first token, then {id: {"logprob", "rank", "decoded_token"}} of the
/// token itself and the `top` likeliest ones. The rank of a token that is not among those asked for is null.
nlohmann::ordered_json prompt_logprobs_json(std::span<const engine::TokenLogprobs> tokens, int top,
                                            const TokenNames& names);

/// {"text_offset", "token_logprobs", "tokens", "top_logprobs"}: four lists of one length. top_logprobs also holds the
/// token itself. Offsets count characters of the choice's text: a token begins after the characters that the ones
/// before it completed, so that those of one character share its offset, and what the text leaves out counts nothing.
class CompletionLogprobs {
 public:
  /// The first `echoed` tokens are the prompt, shown whole; of the others special ones are dropped with `skip_special`.
  CompletionLogprobs(const TokenNames& names, int64_t echoed, bool skip_special)
      : names_(names), echoed_(echoed), skip_special_(skip_special) {}
  nlohmann::ordered_json next(std::span<const engine::TokenLogprobs> tokens);

 private:
  void advance(int32_t id);

  TokenNames names_;
  int64_t echoed_;  ///< tokens of the prompt that are still to come
  bool skip_special_;
  text::IncrementalDecoder decoder_;
  int64_t offset_ = 0;
};

}  // namespace glm53::server
