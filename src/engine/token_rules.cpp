#include "engine/token_rules.h"

#include <algorithm>

namespace glm53::engine {

TokenRules::TokenRules(const GenerationRequest& request, std::span<const uint32_t> tokens_mask, int vocab)
    : request_(request), mask_(tokens_mask), vocab_(vocab) {
  if (!request.allowed_ids.empty()) {
    std::vector<bool> allowed(static_cast<std::size_t>(vocab));
    for (const int32_t id : request.allowed_ids) allowed[static_cast<std::size_t>(id)] = true;
    for (int32_t id = 0; id < vocab; ++id) {
      if (!allowed[static_cast<std::size_t>(id)]) always_banned_.push_back(id);
    }
  }
  for (const std::vector<int32_t>& word : request.bad_words) {
    if (word.size() == 1) always_banned_.push_back(word.front());
  }
  std::sort(always_banned_.begin(), always_banned_.end());
  always_banned_.erase(std::unique(always_banned_.begin(), always_banned_.end()), always_banned_.end());

  // Of the prompt's ids only the repetition penalty takes notice.
  if (request.sampling.repetition != 1.0F) {
    for (const int32_t id : request.prompt) {
      if (count_index_.try_emplace(id, counts_.size()).second) counts_.push_back({id, 0});
    }
  }
}

void TokenRules::take(int32_t id) {
  output_.push_back(id);
  if (!request_.sampling.penalizes()) return;
  const auto [entry, fresh] = count_index_.try_emplace(id, counts_.size());
  if (fresh) counts_.push_back({id, 0});
  ++counts_[entry->second].output;
}

/// Once an id, and none outside the vocabulary, which could not be drawn anyway.
void TokenRules::ban(int32_t id) {
  if (id < 0 || id >= vocab_ || std::binary_search(always_banned_.begin(), always_banned_.end(), id)) return;
  const auto own = banned_.begin() + static_cast<std::ptrdiff_t>(always_banned_.size());
  if (std::find(own, banned_.end(), id) == banned_.end()) banned_.push_back(id);
}

SampleRow TokenRules::next_row(int64_t position) {
  banned_.assign(always_banned_.begin(), always_banned_.end());
  if (static_cast<int64_t>(output_.size()) < request_.min_tokens) {
    for (const int32_t id : request_.end_ids) ban(id);
    for (const int32_t id : request_.stop_token_ids) ban(id);
  }
  for (const std::vector<int32_t>& word : request_.bad_words) {
    const std::size_t before = word.size() - 1;
    if (before > 0 && before <= output_.size() &&
        std::equal(word.begin(), word.end() - 1, output_.end() - static_cast<std::ptrdiff_t>(before))) {
      ban(word.back());
    }
  }
  SampleRow row;
  row.position = position;
  row.params = &request_.sampling;
  row.logprobs = request_.logprobs;
  row.mask = mask_;
  row.banned = banned_;
  row.biases = request_.biases;
  row.counts = counts_;
  return row;
}

}  // namespace glm53::engine
