// What a request's rules say about its next token: which ids are banned now, what the penalties count. One object a
// running reply, told of every token it delivers.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/generation.h"

namespace glm53::engine {

class TokenRules {
 public:
  /// `request` and `tokens_mask` (SampleRow::mask of the ids that have a token) outlive the object. `vocab` bounds ids.
  TokenRules(const GenerationRequest& request, std::span<const uint32_t> tokens_mask, int vocab);

  /// False where the first row's bans and mask cover the vocabulary.
  bool leave_a_token() const;
  /// `id` became part of the output.
  void take(int32_t id);
  /// At this length, whatever the output is.
  bool is_banned(int32_t id) const;
  /// The row that draws the next token; its lists stay valid until the next call of a member. `mask`: of a reply whose
  /// next token is restricted further than by `tokens_mask`.
  SampleRow next_row(int64_t position) { return next_row(position, mask_); }
  SampleRow next_row(int64_t position, std::span<const uint32_t> mask);

 private:
  const std::vector<int32_t>& list() const;
  std::vector<int32_t> in_vocabulary(std::vector<int32_t> ids) const;

  const GenerationRequest& request_;
  const std::span<const uint32_t> mask_;
  const int vocab_;
  // A list may hold most of the vocabulary: it is copied only for the rows where a bad word adds to it.
  std::vector<int32_t> always_banned_;  ///< ascending
  std::vector<int32_t> early_banned_;   ///< ascending: these and the ids that end a reply, for below min_tokens
  std::vector<int32_t> banned_;         ///< of the row last made, where it bans more than its list
  std::vector<TokenCount> counts_;      ///< empty without penalties
  std::unordered_map<int32_t, std::size_t> count_index_;
  std::vector<int32_t> output_;
};

}  // namespace glm53::engine
